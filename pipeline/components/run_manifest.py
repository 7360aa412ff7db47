"""Records what the run was started with: the first step, and the root of every lineage."""

import datetime
import json

from tfx.v1.dsl.components import OutputArtifact, Parameter, component

from pipeline import files, storage
from pipeline.artifacts import RunManifest as RunManifestArtifact
from pipeline.components import facts
from pipeline.origin import in_container
from pipeline.start import Start, date_and_window


@component
def RunManifest(
    run_id: Parameter[str],
    snapshot_date: Parameter[str],
    window_end: Parameter[str],
    window_hours: Parameter[float],
    created_at: Parameter[str],
    scheduled_at: Parameter[str],
    origin: Parameter[str],
    settings: Parameter[str],
    manifest: OutputArtifact[RunManifestArtifact],
):
    """Writes `manifest.json`. What a step needs to know of its run it reads here: an orchestrator fills in some of it.

    Args:
        run_id, snapshot_date, window_end, window_hours, created_at, scheduled_at: As in `pipeline.start.Start`.
        origin: JSON of `pipeline.origin.Origin`: code, image, locked packages, platform, person.
        settings: JSON of all settings.
        manifest: The artifact.
    """
    start = Start(
        run_id, snapshot_date,
        window_end=window_end, window_hours=window_hours, created_at=created_at, scheduled_at=scheduled_at,
    )  # fmt: skip
    date, end = date_and_window(start)
    made_of = json.loads(origin)
    if made_of.get("image"):
        made_of = in_container(made_of)
    began = created_at or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    known = {"run_id": run_id, "snapshot_date": date, "started_at": began, **made_of}
    if end is not None:
        known["window_end"] = end
        if not window_end:
            # It is so many hours after the start, which a search moves (see the Trainer); an end that somebody named is not.
            known["window_hours"] = float(window_hours)
    content = {**known, "settings": json.loads(settings)}
    storage.write(storage.join(manifest.uri, "manifest.json"), files.to_json(content).encode())
    facts.record(manifest, {**known, "settings": settings})
