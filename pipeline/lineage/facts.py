"""What went into a run and what came of it, gathered from the lineage: typed, and None where nothing was recorded."""

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import PipelineError
from pipeline.lineage.base import DONE, Execution, Run

FAILURE, FAILURE_KIND, FAILURE_FACTS = "failure", "failure_kind", "failure_facts"
"""Properties of a step that did not end well: what a person was told, the error's class, what it brought with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """The image shards that a run used.

    Attributes:
        number: Number of the generation.
        digest: SHA-256 over what it holds.
        images: Photographs in it.
        quarantined: Files that no shard took.
        folder: Where its index and manifest are.
    """

    number: int
    digest: str
    images: int
    quarantined: int
    folder: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """The gate's verdict.

    Attributes:
        accepted: Whether the snapshot passed.
        verdict: The verdict in one sentence.
        bootstrap: Whether there was no baseline for drift.
        rules: Rule -> value and limit.
        failed: Rules that failed; None when it was not recorded.
        override: Who let which rules pass, and why; None when nobody did.
        report_sha256: Digest of `gate.json`; None when it was not recorded.
    """

    accepted: bool
    verdict: str
    bootstrap: bool
    rules: Mapping[str, str]
    failed: Sequence[str] | None
    override: Mapping[str, Any] | None
    report_sha256: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How the candidate did on this week's eval split. The figures are None where its export was refused and not evaluated.

    Attributes:
        blessed: Verdict of ReleaseGate, or of the Evaluator in runs of older code; False when the export was refused before.
        accuracy: Share of examples that are classified rightly, 0 to 1.
        baseline_accuracy: The same of the model that served; None when nothing did.
        log_loss: Mean cross-entropy, in nats.
        examples: Examples of the split.
        weakest_class: The class with the lowest accuracy; empty when no class has enough examples.
        weakest_accuracy: Its accuracy.
        by_class: Class -> accuracy and examples.
        failures: Thresholds that were missed.
    """

    blessed: bool
    accuracy: float | None
    baseline_accuracy: float | None
    log_loss: float | None
    examples: int | None
    weakest_class: str | None
    weakest_accuracy: float | None
    by_class: Mapping[str, Sequence[float]] | None
    failures: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """What became of the model.

    Attributes:
        released: Whether it took traffic.
        reason: Why not.
        released_at: When it did, ISO 8601, UTC.
        endpoint: Where.
        version: As which version.
        share: With which share of the traffic, 0 to 1.
        path: Folder of its SavedModel.
        weights_sha256: Digest of its weights.
        export_sha256: Digest of its SavedModel's files (`digests.of_folder`); None when it was not recorded.
        ledger_number: Number of the serving ledger's entry.
        ledger_line_sha256: Digest of its line; None when it was not recorded.
    """

    released: bool
    reason: str
    released_at: str | None
    endpoint: str
    version: str | None
    share: float | None
    path: str | None
    weights_sha256: str
    export_sha256: str | None
    ledger_number: int | None
    ledger_line_sha256: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything that is known of a run, finished or not. What it did not reach or record is None.

    Attributes:
        run_id: Its id.
        state: `COMPLETE`, `RUNNING`, or such as `FAILED at SnapshotGate`.
        reason: Why it ended early.
        reason_kind: Class of the error, `interrupted` or `killed`.
        started, ended: ISO 8601, UTC.
        snapshot_date: Date of the label snapshot.
        snapshot, snapshot_uri, checksum, as_of, rows: Its table, where that is, content checksum, instant before which an
            edit counts, number of labels.
        source, method: The label table that it was taken from, and how.
        labels_sha256: Digest of the label records that trained (`digests.of_folder`).
        shards: The image shards.
        commit, tree, changes_sha256: Git commit, state of the tree, digest of its uncommitted changes.
        image: Container image by digest; empty outside a container.
        lock, lock_sha256: The locked requirements and their digest.
        python, platform, launched_by: Version of Python, machine, account.
        settings: All settings.
        hyperparameters: Values that took the place of the settings' own.
        tuned_by: Where they come from: what TuningDecision or the Tuner recorded of run, study and trial.
        training: The record of the training, `training.json`.
        gate: The gate's verdict.
        evaluation: The evaluation.
        release: What became of the model.
    """

    run_id: str
    state: str
    reason: str | None
    reason_kind: str | None
    started: str | None
    ended: str | None
    snapshot_date: str | None
    snapshot: str | None
    snapshot_uri: str | None
    checksum: str | None
    as_of: str | None
    rows: int | None
    source: str | None
    method: str | None
    labels_sha256: str | None
    shards: Shards | None
    commit: str | None
    tree: str | None
    changes_sha256: str | None
    image: str | None
    lock: str | None
    lock_sha256: str | None
    python: str | None
    platform: str | None
    launched_by: str | None
    settings: Mapping[str, Any] | None
    hyperparameters: Mapping[str, Any] | None
    tuned_by: Mapping[str, Any] | None
    training: Mapping[str, Any] | None
    gate: Gate | None
    evaluation: Evaluation | None
    release: ReleaseFacts | None


def of_run(run: Run) -> RunFacts:
    """Gathers the facts of a run.

    Args:
        run: A run, finished or not.

    Raises:
        PipelineError: A fact is not what the pipeline writes: the store was written by something else.
    """
    try:
        return _of_run(run)
    except (KeyError, ValueError, TypeError) as error:
        raise PipelineError(
            f"run {run.run_id} holds facts that this code cannot read ({type(error).__name__}: {error}): it was recorded by "
            "another version of the pipeline, or changed by hand. Ask with the code of its commit, or restore the store"
        ) from error


def _of_run(run: Run) -> RunFacts:
    manifest = _output(run, "pipeline.RunManifest")
    snapshot = _output(run, "pipeline.LabelSnapshot")
    release = _output(run, "pipeline.ServingRelease")
    tuned = _hyperparameters(run)
    cut_off = run.cut_off()
    return RunFacts(
        run_id=run.run_id,
        state=f"{cut_off.state} at {cut_off.step}" if cut_off else "COMPLETE" if release else "RUNNING",
        reason=cut_off.parameters.get(FAILURE) if cut_off else None,
        reason_kind=cut_off.parameters.get(FAILURE_KIND) if cut_off else None,
        started=instant(min((step.started for step in run.executions), default=None)),
        ended=instant(max((step.updated for step in run.executions), default=None)),
        snapshot_date=manifest.get("snapshot_date"),
        snapshot=snapshot.get("table"),
        snapshot_uri=snapshot.get("table_uri"),
        **{name: snapshot.get(name) for name in ("checksum", "as_of", "rows", "source", "method")},
        labels_sha256=_label_records(run).get("sha256"),
        shards=_shards(_output(run, "pipeline.ImageShards")),
        **{
            name: manifest.get(name)
            for name in (
                "commit", "tree", "changes_sha256", "image", "lock", "lock_sha256", "python", "platform", "launched_by"
            )
        },
        settings=_json(manifest.get("settings")),
        hyperparameters=tuned.pop("values", None),
        tuned_by=tuned or None,
        training=_json(release.get("training")),
        gate=_gate(run, cut_off),
        evaluation=_evaluation(release),
        release=_release(release),
    )  # fmt: skip


def to_dict(facts: RunFacts) -> dict:
    """The facts as plain data, as `--json` gives them."""
    return dataclasses.asdict(facts)


def instant(when: datetime.datetime | None) -> str | None:
    """An instant as facts have it: ISO 8601, to the second."""
    return when.isoformat(timespec="seconds") if when else None


def _output(run: Run, type_name: str) -> dict:
    artifact = run.output(type_name)
    return dict(artifact.facts) if artifact else {}


def _label_records(run: Run) -> dict:
    step = run.step("LabelJoin")
    artifacts = step.outputs.get("labels", ()) if step and step.state in DONE else ()
    return dict(artifacts[0].facts) if artifacts else {}


def _hyperparameters(run: Run) -> dict:
    """Values, and all that was recorded of where they come from, without what TFX adds."""
    # What trained: TuningDecision only says what was known before.
    best = run.output("HyperParameters", "best_hyperparameters")
    found = dict(best.facts) if best else _output(run, "HyperParameters")
    values = _json(found.pop("values", None))
    if values is None:
        # The Tuner's own artifact has no facts; the release tells the values.
        values = (_json(_output(run, "pipeline.ServingRelease").get("hyperparameters")) or {}).get("values")
    origin = {name: value for name, value in found.items() if name not in ("is_external", "tfx_version", "name", "state")}
    return origin | ({"values": values} if values is not None else {})


def _shards(found: dict) -> Shards | None:
    if not found:
        return None
    return Shards(
        number=int(found["number"]),
        digest=found["digest"],
        images=int(found["images"]),
        quarantined=int(found["quarantined"]),
        folder=found.get("folder"),
    )


def _gate(run: Run, cut_off: Execution | None) -> Gate | None:
    found = _output(run, "pipeline.GateReport")
    if not found and cut_off:
        found = _json(cut_off.parameters.get(FAILURE_FACTS)) or {}
    if "verdict" not in found:
        return None
    return Gate(
        # Runs of older code recorded a verdict only of what was accepted.
        accepted=bool(found.get("accepted", True)),
        verdict=found["verdict"],
        bootstrap=bool(found["bootstrap"]),
        rules=_json(found["findings"]),
        failed=_json(found.get("failed")),
        override=_json(found.get("override")),
        report_sha256=found.get("report_sha256"),
    )


def _evaluation(release: dict) -> Evaluation | None:
    if not release:
        return None
    verdict = {"blessed": bool(release["blessed"]), "failures": _json(release["evaluation_failures"])}
    # Runs of older code evaluated every candidate, and did not say so.
    if not release.get("evaluated", True):
        return Evaluation(
            **verdict, accuracy=None, baseline_accuracy=None, log_loss=None, examples=None, weakest_class=None,
            weakest_accuracy=None, by_class=None,
        )  # fmt: skip
    return Evaluation(
        **verdict,
        accuracy=release["accuracy"],
        baseline_accuracy=release.get("baseline_accuracy"),
        log_loss=release["log_loss"],
        examples=int(release["eval_examples"]),
        weakest_class=release["weakest_class"],
        weakest_accuracy=release["weakest_accuracy"],
        by_class=_json(release["by_class"]),
    )


def _release(release: dict) -> ReleaseFacts | None:
    if not release:
        return None
    return ReleaseFacts(
        released=bool(release["released"]),
        reason=release["reason"],
        released_at=release.get("released_at"),
        endpoint=release["endpoint"],
        version=release.get("to_version"),
        share=release.get("share"),
        path=release.get("path"),
        weights_sha256=release["weights_sha256"],
        export_sha256=release.get("export_sha256"),
        ledger_number=release.get("ledger_number"),
        ledger_line_sha256=release.get("ledger_line_sha256"),
    )


def _json(text):
    return json.loads(text) if text else None
