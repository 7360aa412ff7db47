"""Takes the dated label snapshot, or finds the one that was taken."""

import dataclasses
import json

from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import files, storage
from pipeline.artifacts import LabelSnapshot, RunManifest
from pipeline.components import facts
from pipeline.warehouse import Location, open_warehouse
from pipeline.warehouse.base import parse_date


@component
def SnapshotGen(
    manifest: InputArtifact[RunManifest],
    warehouse: Parameter[str],
    snapshot: OutputArtifact[LabelSnapshot],
):
    """Makes `labels_YYYYMMDD`, once.

    Args:
        manifest: What the run was started with. Its date is a parameter: a run never means "whatever is newest".
        warehouse: JSON of the warehouse's `Location`.
        snapshot: The artifact: `snapshot.json`, and its facts as custom properties.
    """
    with open_warehouse(Location(**json.loads(warehouse))) as place:
        taken = place.snapshot(parse_date(facts.text(manifest, "snapshot_date")))
    # `uri` names the artifact's folder in the lineage; the table has a name of its own there.
    known = dataclasses.asdict(taken)
    known["table_uri"] = known.pop("uri")
    storage.write(storage.join(snapshot.uri, "snapshot.json"), files.to_json(known).encode())
    facts.record(snapshot, known)
