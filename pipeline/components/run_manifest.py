"""Records what the run was started with: the first step, and the root of every lineage."""

import json

from tfx.v1.dsl.components import OutputArtifact, Parameter, component

from pipeline import files, storage
from pipeline.artifacts import RunManifest as RunManifestArtifact
from pipeline.components import facts


@component
def RunManifest(
    run_id: Parameter[str],
    snapshot_date: Parameter[str],
    origin: Parameter[str],
    settings: Parameter[str],
    manifest: OutputArtifact[RunManifestArtifact],
):
    """Writes `manifest.json`.

    Args:
        run_id: Id of the run.
        snapshot_date: Date of the label snapshot, YYYY-MM-DD.
        origin: JSON of `pipeline.origin.Origin`: code, image, locked packages, platform, person.
        settings: JSON of all settings.
        manifest: The artifact.
    """
    where_from = json.loads(origin)
    known = {"run_id": run_id, "snapshot_date": snapshot_date, **where_from}
    content = {**known, "settings": json.loads(settings)}
    storage.write(storage.join(manifest.uri, "manifest.json"), files.to_json(content).encode())
    facts.record(manifest, {**known, "settings": settings})
