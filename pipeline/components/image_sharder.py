"""Packs new photographs into image shards and makes their index known to the warehouse."""

import dataclasses
import json

from tfx.v1.dsl.components import OutputArtifact, Parameter, component

from pipeline import files, typed
from pipeline.artifacts import ImageShards
from pipeline.components import facts
from pipeline.settings import ShardSettings
from pipeline.shards import sharder
from pipeline.warehouse import Location, open_warehouse


@component
def ImageSharder(
    images: Parameter[str],
    root: Parameter[str],
    settings: Parameter[str],
    warehouse: Parameter[str],
    shards: OutputArtifact[ImageShards],
):
    """Brings the image shards up to date; a run without new photographs costs a listing.

    Args:
        images: Folder of JPEG files.
        root: Folder of the shards, which outlives the run.
        settings: JSON of `ShardSettings`.
        warehouse: JSON of the warehouse's `Location`.
        shards: The artifact: `generation.json`, and its facts as custom properties.
    """
    generation = sharder.pack_folder(images, root, typed.from_dict(ShardSettings, json.loads(settings), "shards"))
    with open_warehouse(Location(**json.loads(warehouse))) as place:
        place.load_parquet(generation.index, generation.table)
    known = {**dataclasses.asdict(generation), "index_table": generation.table}
    files.write_atomically(f"{shards.uri}/generation.json", files.to_json(known))
    facts.record(shards, known)


def generation_of(artifact) -> sharder.Generation:
    """The generation that an `ImageShards` artifact describes."""
    fields = {field.name: field.type for field in dataclasses.fields(sharder.Generation)}
    return sharder.Generation(
        **{
            name: facts.number(artifact, name) if kind in (int, "int") else facts.text(artifact, name)
            for name, kind in fields.items()
        }
    )
