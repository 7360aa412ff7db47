"""How a run ended that did not end well, written into the lineage."""

import pytest

from pipeline.errors import PipelineError, SnapshotRejected
from pipeline.lineage import facts, mlmd_writer
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.lineage.mlmd_writer import Failure


@pytest.fixture
def lineage(written):
    return MLMDLineage(written.places.metadata)


def end(written, run_id, failure=None) -> int:
    return mlmd_writer.end(written.places.metadata, run_id, failure)


def test_the_running_steps_of_one_run_are_marked(written, lineage):
    for run_id in ("run-1", "run-2"):
        context = written.run(run_id)
        written.step(context, "SnapshotGen")
        written.step(context, "Other", "FAILED")
        written.step(context, "Trainer", "RUNNING", parameters={"epochs": 3})
    assert end(written, "run-1") == 1
    states = {run_id: [execution.state for execution in lineage.run(run_id).executions] for run_id in ("run-1", "run-2")}
    assert states == {"run-1": ["COMPLETE", "FAILED", "CANCELED"], "run-2": ["COMPLETE", "FAILED", "RUNNING"]}
    assert lineage.run("run-1").step("Trainer").parameters == {"epochs": 3}
    assert end(written, "run-1") == 0


@pytest.mark.parametrize("run_id", ["run-1", "unknown"])
def test_a_run_that_recorded_nothing_stays_so(written, lineage, run_id):
    written.run("run-1")
    assert end(written, run_id, Failure("x", "y")) == 0 and lineage.run("run-1").executions == ()


@pytest.mark.parametrize("state", ["FAILED", "RUNNING"])
def test_the_reason_stands_with_the_step_that_it_stopped(written, lineage, state):
    context = written.run("run-1")
    written.step(context, "SnapshotGen")
    written.step(context, "SnapshotGate", state)
    end(written, "run-1", Failure("SnapshotRejected", "two rules\n  failed", {"verdict": "no"}))
    gen, gate = lineage.run("run-1").executions
    assert gen.parameters == {}
    assert gate.parameters == {
        facts.FAILURE: "two rules\n  failed", facts.FAILURE_KIND: "SnapshotRejected", facts.FAILURE_FACTS: '{"verdict": "no"}',
    }  # fmt: skip
    # What is told later is not what happened.
    end(written, "run-1", mlmd_writer.KILLED)
    assert lineage.run("run-1").step("SnapshotGate").parameters[facts.FAILURE].startswith("two rules")


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (KeyboardInterrupt(), "interrupted", "interrupted by Ctrl-C or SIGTERM"),
        (PipelineError("mend it"), "PipelineError", "mend it"),
        (SnapshotRejected("rejected", {"verdict": "no"}), "SnapshotRejected", "rejected"),
        (ZeroDivisionError("by nought"), "ZeroDivisionError", "ZeroDivisionError: by nought"),
    ],
)
def test_what_an_error_means(error, kind, reason):
    try:
        raise RuntimeError("the launcher's own words") from error
    except RuntimeError as wrapped:
        found = Failure.of(error if kind in ("interrupted", "ZeroDivisionError") else wrapped)
    assert (found.kind, found.reason) == (kind, reason)
    assert found.facts == ({"verdict": "no"} if kind == "SnapshotRejected" else {})


def test_a_reason_without_end_is_shortened(written, lineage):
    written.step(written.run("run-1"), "Trainer", "FAILED")
    end(written, "run-1", Failure("E", "x" * 100_000))
    assert len(lineage.run("run-1").step("Trainer").parameters[facts.FAILURE]) < 21_000


def test_a_file_that_is_no_store_is_named(places):
    with open(places.metadata, "w") as stream:
        stream.write("no database\n" * 100)
    with pytest.raises(PipelineError, match="metadata.sqlite is no lineage store"):
        mlmd_writer.end(places.metadata, "run-1", None)
