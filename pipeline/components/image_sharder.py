"""Packs new photographs into image shards and makes their index known to the warehouse."""

import dataclasses
import json

import apache_beam as beam
from tfx.v1.dsl.components import BeamComponentParameter, OutputArtifact, Parameter, component

from pipeline import files, storage, typed
from pipeline.artifacts import ImageShards
from pipeline.components import facts
from pipeline.settings import ShardSettings
from pipeline.shards import sharder
from pipeline.shards.generations import Generation
from pipeline.warehouse import Location, open_warehouse


@component(use_beam=True)
def ImageSharder(
    images: Parameter[str],
    root: Parameter[str],
    settings: Parameter[str],
    warehouse: Parameter[str],
    shards: OutputArtifact[ImageShards],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
):
    """Brings the image shards up to date; a run without new photographs costs a listing.

    Args:
        images: Folder of JPEG files.
        root: Folder of the shards, which outlives the run.
        settings: JSON of `ShardSettings`.
        warehouse: JSON of the warehouse's `Location`.
        shards: The artifact: `generation.json`, and its facts as custom properties.
        beam_pipeline: TFX's; its options say where Beam runs.
    """
    shard_settings = typed.from_dict(ShardSettings, json.loads(settings), "shards")
    generation = sharder.pack_folder(images, root, shard_settings, beam_pipeline.options)
    with open_warehouse(Location(**json.loads(warehouse))) as place:
        place.load_parquet(generation.index_files(), generation.table)
    known = {**dataclasses.asdict(generation), "index_table": generation.table}
    storage.write(storage.join(shards.uri, "generation.json"), files.to_json(known).encode())
    facts.record(shards, known)


def generation_of(artifact) -> Generation:
    """The generation that an `ImageShards` artifact describes."""
    fields = {field.name: field.type for field in dataclasses.fields(Generation)}
    return Generation(
        **{
            name: facts.number(artifact, name) if kind in (int, "int") else facts.text(artifact, name)
            for name, kind in fields.items()
        }
    )
