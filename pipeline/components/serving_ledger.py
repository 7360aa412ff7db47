"""The last step: writes the release into the ledger, and what came of the run into the lineage."""

import functools
import json

from tfx.types import standard_artifacts
from tfx.utils import path_utils
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from models.serving import weights_digest
from pipeline import files, storage
from pipeline.artifacts import LabelSnapshot, RunManifest, ServingRelease
from pipeline.components import facts
from pipeline.components.release_pusher import reason_to_hold
from pipeline.lineage import digests
from pipeline.release import configurations, ledger, profiles
from pipeline.validation import evaluation as evaluations


@component
def ServingLedger(
    manifest: InputArtifact[RunManifest],
    snapshot: InputArtifact[LabelSnapshot],
    hyperparameters: InputArtifact[standard_artifacts.HyperParameters],
    model: InputArtifact[standard_artifacts.Model],
    model_run: InputArtifact[standard_artifacts.ModelRun],
    evaluation: InputArtifact[standard_artifacts.ModelEvaluation],
    blessing: InputArtifact[standard_artifacts.ModelBlessing],
    pushed_model: InputArtifact[standard_artifacts.PushedModel],
    ledger_path: Parameter[str],
    endpoint: Parameter[str],
    configuration_folder: Parameter[str],
    profile_pointer: Parameter[str],
    tuned: Parameter[int],
    min_slice_examples: Parameter[int],
    release: OutputArtifact[ServingRelease],
):
    """Records a pushed model as what serves, or why there was nothing to release.

    Args:
        manifest: Knows the run's id.
        snapshot: The labels.
        hyperparameters: What the Tuner or the best-known configuration said.
        model: The candidate.
        model_run: Where training wrote `training.json`.
        evaluation: Its figures.
        blessing: Its verdict.
        pushed_model: Whether and where it was pushed.
        ledger_path: File of the serving ledger.
        endpoint: Endpoint in the ledger.
        configuration_folder: Folder of the best-known configurations.
        profile_pointer: File that points to the newest record of a training, which the next window is planned with.
        tuned: 1 when this run tuned; a tuned and released run's hyperparameters become the best known.
        min_slice_examples: Fewest eval examples of a class that may be called the weakest.
        release: The artifact: `release.json`, and its facts as custom properties.
    """
    run_id = facts.text(manifest, "run_id")
    training_uri = storage.join(model_run.uri, "training.json")
    training = json.loads(storage.read(training_uri))
    with storage.on_disk(evaluation.uri) as folder:
        figures = evaluations.read(folder)
    with storage.on_disk(path_utils.serving_model_dir(model.uri)) as folder:
        weights = weights_digest(folder)
    weakest = figures.weakest(min_slice_examples)
    hyperparameter_file = storage.join(hyperparameters.uri, storage.names(hyperparameters.uri)[0])
    known = {
        "run_id": run_id,
        "snapshot": facts.text(snapshot, "table"),
        "snapshot_date": facts.text(snapshot, "date"),
        "endpoint": endpoint,
        "weights_sha256": weights,
        "export_sha256": digests.of_folder(path_utils.serving_model_path(model.uri)),
        "training": json.dumps(training, sort_keys=True),
        "hyperparameters": storage.read(hyperparameter_file).decode(),
        "accuracy": figures.accuracy,
        "log_loss": figures.log_loss,
        "eval_examples": figures.examples,
        "by_class": json.dumps(figures.by_class, sort_keys=True),
        "weakest_class": weakest or "",
        "weakest_accuracy": figures.by_class[weakest][0] if weakest else -1.0,
        "blessed": facts.number(blessing, "blessed") == 1,
        "evaluation_failures": json.dumps(figures.failures),
        "released": False,
        "reason": facts.text(pushed_model, "reason"),
    }
    if figures.baseline_accuracy is not None:
        known["baseline_accuracy"] = figures.baseline_accuracy
    entry = None
    if facts.number(pushed_model, "pushed"):
        try:
            entry = ledger.append(
                ledger_path,
                endpoint=endpoint,
                to_version=facts.text(pushed_model, "pushed_version"),
                model=facts.text(pushed_model, "pushed_destination"),
                run_id=run_id,
                snapshot=known["snapshot"],
                snapshot_date=known["snapshot_date"],
                weights_sha256=weights,
                unless=functools.partial(reason_to_hold, True, known["snapshot_date"], weights),
            )
        except ledger.Held as held:
            known["reason"] = str(held)
    if entry:
        known |= {
            "released": True,
            "released_at": entry.at,
            "from_version": entry.from_version,
            "to_version": entry.to_version,
            "path": entry.path,
            "share": entry.share,
            "ledger_number": entry.number,
            "ledger_line_sha256": entry.line_sha256,
        }
        if tuned:
            configurations.record(
                configuration_folder,
                configurations.Configuration(known["snapshot_date"], run_id, json.loads(known["hyperparameters"])),
            )
    profiles.record(profile_pointer, profiles.Newest(run_id, known["snapshot_date"], training_uri))
    storage.write(storage.join(release.uri, "release.json"), files.to_json(known).encode())
    facts.record(release, known)
