"""Asks the export, in a process with TensorFlow alone, what the trainer answered: the step before anything judges it."""

import json
import logging

from tfx.types import standard_artifacts
from tfx.utils import path_utils
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import files, storage, typed
from pipeline.artifacts import RunManifest
from pipeline.components import facts
from pipeline.evaluation.thresholds import SmokeThresholds
from pipeline.release import smoke

log = logging.getLogger(__name__)


@component
def SmokeTest(
    manifest: InputArtifact[RunManifest],
    model: InputArtifact[standard_artifacts.Model],
    thresholds: Parameter[str],
    reports: Parameter[str],
    blessing: OutputArtifact[standard_artifacts.InfraBlessing],
):
    """Writes one report, whatever the export does; what is refused is neither evaluated nor released.

    TFX's InfraValidator starts TensorFlow Serving in Docker, which it cannot on Vertex; and it asks whether a model
    answers, not whether it answers rightly.

    Args:
        manifest: Knows the run's id.
        model: The candidate.
        thresholds: JSON of `thresholds.SmokeThresholds`.
        reports: Folder of the reports.
        blessing: `blessed`, 1 or 0, as Pusher reads it; `reasons`, JSON, and the figures.
    """
    limits = typed.from_dict(SmokeThresholds, json.loads(thresholds), "smoke thresholds")
    with storage.on_disk(path_utils.serving_model_dir(model.uri)) as folder:
        test = smoke.run(folder, limits)
    content = {"passed": test.passed, "checks": [vars(finding) for finding in test.findings], "facts": dict(test.facts)}
    for folder in (storage.join(reports, facts.text(manifest, "run_id")), blessing.uri):
        storage.write(storage.join(folder, "smoke.json"), files.to_json(content).encode())
    # Files of these names are what others than Pusher look for.
    storage.write(storage.join(blessing.uri, "INFRA_BLESSED" if test.passed else "INFRA_NOT_BLESSED"), b"")
    facts.record(blessing, {"blessed": test.passed, "reasons": json.dumps(test.reasons, ensure_ascii=False), **test.facts})
    if not test.passed:
        log.warning("the smoke test refuses the export: %s", "; ".join(test.reasons))
