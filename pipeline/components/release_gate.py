"""The gate before the release: judges the candidate by every threshold, alone and against the model that serves."""

import json
import logging

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import files, storage, typed
from pipeline.artifacts import LabelSnapshot, RunManifest
from pipeline.components import facts
from pipeline.evaluation import judge, predictions, report
from pipeline.evaluation.thresholds import Thresholds
from pipeline.validation import evaluation as evaluations
from pipeline.validation.facts import read_classes
from pipeline.warehouse import Location, open_warehouse, queries

log = logging.getLogger(__name__)


@component
def ReleaseGate(
    manifest: InputArtifact[RunManifest],
    snapshot: InputArtifact[LabelSnapshot],
    baseline: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: InputArtifact[standard_artifacts.Schema],
    eval_examples: InputArtifact[standard_artifacts.Examples],
    serving_model: InputArtifact[standard_artifacts.Model],
    smoke_test: InputArtifact[standard_artifacts.InfraBlessing],
    evaluation: InputArtifact[standard_artifacts.ModelEvaluation],
    tfma_blessing: InputArtifact[standard_artifacts.ModelBlessing],
    thresholds: Parameter[str],
    bootstrap: Parameter[int],
    reports: Parameter[str],
    warehouse: Parameter[str],
    verdict: OutputArtifact[standard_artifacts.ModelBlessing],
):
    """Writes one report, wherever the verdict falls. A candidate that is refused ends no run: it is not released.

    Args:
        manifest: Knows the run's id and settings.
        snapshot: This week's labels.
        baseline: The last accepted snapshot's statistics: images that it did not have are new.
        schema: Names the classes.
        eval_examples: The eval split; says how many photographs it has.
        serving_model: The model that serves (`ServingModel`).
        smoke_test: Verdict of `SmokeTest`.
        evaluation: What the Evaluator found, with every prediction.
        tfma_blessing: TFMA's own verdict.
        thresholds: JSON of `thresholds.Thresholds`.
        bootstrap: 1 when a model may be released although nothing serves.
        reports: Folder of the reports.
        warehouse: JSON of the warehouse's `Location`.
        verdict: `blessed`, 1 or 0, as Pusher reads it, and the figures; `evaluation.json`, which has everything.
    """
    run_id = facts.text(manifest, "run_id")
    limits = typed.from_dict(Thresholds, json.loads(thresholds), "release thresholds")
    refused = json.loads(facts.text(smoke_test, "reasons") or '["nothing is known of it"]')
    first = bool(facts.number(serving_model, "bootstrap"))
    serves = "" if first else f"version {facts.text(serving_model, 'version')} of run {facts.text(serving_model, 'run_id')}"
    heading = report.Heading(
        run_id=run_id,
        snapshot=facts.text(snapshot, "table"),
        serving=serves,
        bootstrap=first,
        smoke=json.loads(storage.read(storage.join(smoke_test.uri, "smoke.json"))),
        shards=json.loads(facts.text(manifest, "settings") or "{}").get("shards"),
    )
    if not facts.number(smoke_test, "blessed"):
        judgement, worst, classes = None, [], ()
        failures = [f"the smoke test refused the export: {reason}" for reason in refused]
    else:
        classes = read_classes(f"{schema.uri}/schema.pbtxt")
        with storage.on_disk(evaluation.uri) as folder:
            found, predicted, worst = evaluations.read(folder), predictions.read(folder), predictions.read_worst(folder)
        around = judge.Circumstances(
            classes=classes,
            serving=serves,
            serving_classes=json.loads(facts.text(evaluation, "serving_classes") or "[]"),
            bootstrap=bool(bootstrap),
            expected=facts.number(eval_examples, "eval_images"),
            new_images=None if facts.number(baseline, "bootstrap") else _new_images(warehouse, snapshot, baseline),
            tfma={"accuracy": found.accuracy, "log_loss": found.log_loss},
        )
        judgement = judge.judge(predicted, around, limits)
        failures = judgement.failures
        if not facts.number(tfma_blessing, "blessed"):
            # Its only threshold is one of ours, so this adds nothing unless the two disagree.
            failures = failures or [f"TFMA: {reason}" for reason in found.failures] or ["TFMA did not bless it"]
    content = report.content(heading, judgement, failures, limits, classes)
    report.write(storage.join(reports, run_id), heading, judgement, failures, content, classes, worst)
    storage.write(storage.join(verdict.uri, "evaluation.json"), files.to_json(content).encode())
    storage.write(storage.join(verdict.uri, "NOT_BLESSED" if failures else "BLESSED"), b"")
    figures = judgement.figures if judgement else {}
    facts.record(
        verdict,
        {"blessed": not failures, "bootstrap": first, "failures": json.dumps(failures, ensure_ascii=False), **figures},
    )
    log.info(report.sentence(failures, judgement))


def _new_images(warehouse: str, snapshot, baseline) -> set[str]:
    with open_warehouse(Location(**json.loads(warehouse))) as place:
        addresses = [place.address(facts.text(each, "table")) for each in (snapshot, baseline)]
        return {row["image_id"] for row in place.rows(queries.new_images(*addresses))}
