"""The last step: writes the release into the ledger, and what came of the run into the lineage."""

import dataclasses
import datetime
import json

from tfx.types import standard_artifacts
from tfx.utils import path_utils
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from models.serving import weights_digest
from pipeline import files, storage
from pipeline.artifacts import BestKnownConfiguration, LabelSnapshot, RunManifest, ServingRelease
from pipeline.components import facts
from pipeline.lineage import digests
from pipeline.provenance import beside
from pipeline.release import configurations, ledger, profiles, quality


@component
def ServingLedger(
    manifest: InputArtifact[RunManifest],
    snapshot: InputArtifact[LabelSnapshot],
    decision: InputArtifact[standard_artifacts.HyperParameters],
    hyperparameters: InputArtifact[standard_artifacts.HyperParameters],
    model: InputArtifact[standard_artifacts.Model],
    model_run: InputArtifact[standard_artifacts.ModelRun],
    serving_model: InputArtifact[standard_artifacts.Model],
    verdict: InputArtifact[standard_artifacts.ModelBlessing],
    pushed_model: InputArtifact[standard_artifacts.PushedModel],
    ledger_path: Parameter[str],
    endpoint: Parameter[str],
    configuration_folder: Parameter[str],
    quality_folder: Parameter[str],
    profile_pointer: Parameter[str],
    release: OutputArtifact[ServingRelease],
    configuration: OutputArtifact[BestKnownConfiguration],
):
    """Records a pushed model as what serves, or why there was nothing to release; and how well the run trained.

    Args:
        manifest: Knows the run's id.
        snapshot: The labels.
        decision: Which run found the best-known configuration, as its custom property `configuration`.
        hyperparameters: What the training used. When this run searched for them (`tune`), they become the best known if its
            model was released, or found fit to serve and overtaken by another release. Of a search, its custom properties
            `study`, `trial` and `metric` (the winner's, on the tuning sample) are kept with them, as far as they are there.
        model: The candidate.
        model_run: Where training wrote `training.json`.
        serving_model: What it was judged against.
        verdict: `ReleaseGate`'s, and the figures.
        pushed_model: Whether and where it was pushed, and which entries of the ledger that made already.
        ledger_path: File of the serving ledger.
        endpoint: Endpoint in the ledger.
        configuration_folder: Folder of the best-known configurations.
        quality_folder: Folder of the records how well runs trained.
        profile_pointer: File that points to the newest record of a training, which the next window is planned with.
        release: The artifact: `release.json`, and its facts as custom properties.
        configuration: The best-known configuration from now on: this run's, or that of an earlier date; `known` says
            whether there is one, `found_here` whether this run found it.
    """
    run_id = facts.text(manifest, "run_id")
    training_uri = storage.join(model_run.uri, "training.json")
    training = json.loads(storage.read(training_uri))
    judged = json.loads(storage.read(storage.join(verdict.uri, "evaluation.json")))
    hyperparameter_file = storage.join(hyperparameters.uri, storage.names(hyperparameters.uri)[0])
    export = path_utils.serving_model_dir(model.uri)
    with storage.on_disk(export) as folder:
        weights = weights_digest(folder)
    tuned = bool(facts.number(hyperparameters, "tune"))
    known = {
        "run_id": run_id,
        "snapshot": facts.text(snapshot, "table"),
        "snapshot_date": facts.text(snapshot, "date"),
        "endpoint": endpoint,
        "weights_sha256": weights,
        "export_sha256": digests.of_folder(export),
        "training": json.dumps(training, sort_keys=True),
        "hyperparameters": storage.read(hyperparameter_file).decode(),
        **_figures(judged),
        "blessed": judged["blessed"],
        "evaluation_failures": json.dumps(judged["failures"], ensure_ascii=False),
        "released": False,
        "reason": facts.text(pushed_model, "reason"),
    }
    entry = None
    # A release to Vertex AI is in the ledger from the moment in which traffic moved.
    numbers = json.loads(facts.text(pushed_model, "ledger_numbers") or "[]")
    if numbers:
        made = [each for each in ledger.read_with_digests(ledger_path) if each[0].number in numbers]
        known["ledger_entries"] = json.dumps([{**dataclasses.asdict(each), "line_sha256": digest} for each, digest in made])
        if facts.number(pushed_model, "pushed"):
            entry = next(each for each, _ in reversed(made) if each.run_id == run_id and each.share == 1)
    elif facts.number(pushed_model, "pushed"):
        path = facts.text(pushed_model, "pushed_destination")
        try:
            entry = ledger.append(
                ledger_path,
                endpoint=endpoint,
                from_version=facts.text(serving_model, "version"),
                to_version=facts.text(pushed_model, "pushed_version"),
                model=path,
                run_id=run_id,
                snapshot=known["snapshot"],
                snapshot_date=known["snapshot_date"],
                weights_sha256=weights,
            )
        except ledger.Held as held:
            # Somebody released between the push and this step: what was pushed serves nowhere.
            known["reason"] = str(held)
            storage.remove_folder(path)
            beside.remove(path)
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
    best = configurations.newest_before(configuration_folder, known["snapshot_date"])
    if tuned and (known["released"] or _overtaken(known, ledger.of_endpoint(ledger_path, endpoint))):
        best = _found(known, training[quality.METRIC], hyperparameters)
        configurations.record(configuration_folder, best)
    trained = quality.Quality(
        run_id, known["snapshot_date"], training[quality.METRIC], known["released"], tuned, known["reason"],
        facts.text(decision, "configuration"),
    )  # fmt: skip
    quality.record(quality_folder, trained)
    about = {"known": best is not None, "found_here": best is not None and best.run_id == run_id}
    profiles.record(profile_pointer, profiles.Newest(run_id, known["snapshot_date"], training_uri))
    facts.record(configuration, about | (best.facts() if best else {}))
    content = dataclasses.asdict(best) if best else {}
    storage.write(storage.join(configuration.uri, "configuration.json"), files.to_json(content).encode())
    storage.write(storage.join(release.uri, "release.json"), files.to_json(known).encode())
    facts.record(release, known)


def _overtaken(known, entries: list[ledger.Entry]) -> bool:
    """Whether a model that was not released was found fit to serve, and only came too late.

    Not one that a person withdrew, nor one that serves already: the search that found it is recorded.
    """
    weights = known["weights_sha256"]
    serves = ledger.now(entries)
    late = serves is not None and serves.weights_sha256 != weights
    return bool(known["blessed"]) and late and ledger.withdrawal(entries, weights) is None


def _found(known, value: float, hyperparameters) -> configurations.Configuration:
    """What this run found, with what its search says of itself."""
    trial = facts.number(hyperparameters, "trial")
    searched = hyperparameters.has_custom_property("metric")
    return configurations.Configuration(
        known["snapshot_date"],
        known["run_id"],
        json.loads(known["hyperparameters"]),
        snapshot=known["snapshot"],
        metric=quality.METRIC,
        value=value,
        study=facts.text(hyperparameters, "study"),
        trial=trial or None,
        trial_value=facts.real(hyperparameters, "metric") if searched else None,
        accepted_at=known.get("released_at") or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        overtaken=known["reason"],
    )


def _figures(judged: dict) -> dict:
    """What the lineage keeps of an evaluation; without one, no more than that there is none."""
    if not judged["evaluated"]:
        return {"evaluated": False}
    classes = [each for each in judged["slices"] if each["kind"] == "label"]
    weakest = min((each for each in classes if each["judged"]), key=lambda each: (each["accuracy"], each["name"]), default=None)
    known = {
        "evaluated": True,
        **judged["metrics"],
        "eval_examples": judged["examples"],
        "by_class": json.dumps({each["name"]: [each["accuracy"], each["examples"]] for each in classes}, sort_keys=True),
        "weakest_class": weakest["name"] if weakest else "",
        "weakest_accuracy": weakest["accuracy"] if weakest else -1.0,
    }
    if judged["serving_metrics"]:
        known["baseline_accuracy"] = judged["serving_metrics"]["accuracy"]
    return known
