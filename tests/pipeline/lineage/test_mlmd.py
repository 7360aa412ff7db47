"""The lineage store, read back from what a launcher wrote."""

import datetime

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.conftest import release_facts


@pytest.fixture
def lineage(written):
    return MLMDLineage(written.places.metadata)


def test_a_missing_store_is_named_with_the_flag(tmp_path):
    with pytest.raises(PipelineError, match="no lineage store .*none.sqlite: run the pipeline first, or .*--store"):
        MLMDLineage(str(tmp_path / "none.sqlite"))
    assert not (tmp_path / "none.sqlite").exists()


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "metadata.sqlite"
    path.write_text("no database\n" * 100)
    with pytest.raises(PipelineError, match="metadata.sqlite is no lineage store .*restore the file from its backup"):
        MLMDLineage(str(path))
    assert path.read_text() == "no database\n" * 100


def test_a_run_has_its_steps_in_order_with_inputs_outputs_and_parameters(written, lineage):
    context = written.run("run-1")
    rows = written.artifact("pipeline.LabelSnapshot", {"table": "labels_20260302", "rows": 152}, uri="/artifacts/1")
    models = [written.artifact("Model", {"share": 0.5}), written.artifact("Model", {})]
    written.step(context, "SnapshotGen", outputs={"snapshot": [rows]}, parameters={"snapshot_date": "2026-03-02"})
    written.step(context, "Trainer", "FAILED", inputs={"examples": [rows], "base": models})
    run = lineage.run("run-1")
    assert run.run_id == "run-1"
    assert [(step.step, step.state) for step in run.executions] == [("SnapshotGen", "COMPLETE"), ("Trainer", "FAILED")]
    gen, trainer = run.executions
    assert gen.parameters == {"snapshot_date": "2026-03-02"} and gen.inputs == {}
    (snapshot,) = gen.outputs["snapshot"]
    assert (snapshot.id, snapshot.type, snapshot.uri) == (rows, "pipeline.LabelSnapshot", "/artifacts/1")
    assert snapshot.facts == {"table": "labels_20260302", "rows": 152}
    assert trainer.inputs["examples"] == (snapshot,) and [model.id for model in trainer.inputs["base"]] == models
    assert trainer.inputs["base"][0].facts == {"share": 0.5}
    now = datetime.datetime.now(datetime.timezone.utc)
    assert now - datetime.timedelta(minutes=5) < gen.started < trainer.started <= trainer.updated <= now


def test_runs_do_not_mix(written, lineage):
    shared = written.artifact("pipeline.ImageShards", {"number": 1})
    for number in (1, 2):
        written.step(written.run(f"run-{number}"), "ImageSharder", outputs={f"shards{number}": [shared]})
    assert list(lineage.run("run-2").executions[0].outputs) == ["shards2"]


def test_a_run_without_a_step(written, lineage):
    written.run("run-1")
    assert lineage.run("run-1").executions == ()


@pytest.mark.parametrize(("runs", "hint"), [([], "the store is empty"), (["run-1", "run-2"], "the newest is run-2")])
def test_an_unknown_run_is_named_with_a_hint(written, lineage, runs, hint):
    for run_id in runs:
        written.run(run_id)
    with pytest.raises(PipelineError, match=f"no run 'run-9' in the lineage store; {hint}"):
        lineage.run("run-9")


def test_run_ids_come_oldest_first(written, lineage):
    for run_id in ("run-9", "run-10", "run-1"):
        written.run(run_id)
    assert lineage.run_ids() == ["run-9", "run-10", "run-1"]


def test_only_what_ended_well_is_an_output(written, lineage):
    context = written.run("run-1")
    lost = written.artifact("pipeline.GateReport", {"verdict": "lost"})
    first = written.artifact("pipeline.GateReport", {"verdict": "first"})
    second = written.artifact("pipeline.GateReport", {"verdict": "second"})
    written.step(context, "SnapshotGate", "FAILED", outputs={"verdict": [lost]})
    written.step(context, "Again", "CACHED", outputs={"verdict": [first]})
    written.step(context, "Other", inputs={"verdict": [lost]}, outputs={"other": [second]})
    run = lineage.run("run-1")
    assert run.output("pipeline.GateReport").facts["verdict"] == "first"
    assert run.output("pipeline.GateReport", key="other").facts["verdict"] == "second"
    assert run.output("pipeline.GateReport", key="none") is None and run.output("Model") is None


def test_a_step_is_found_by_name(written, lineage):
    written.step(written.run("run-1"), "Trainer", "RUNNING")
    assert lineage.run("run-1").step("Trainer").state == "RUNNING"
    assert lineage.run("run-1").step("Evaluator") is None


def test_a_store_without_a_release(written, lineage):
    written.run("run-1")
    assert lineage.releases() == []


def test_releases_come_in_the_order_of_the_ledger(written, lineage):
    for number in (2, 10, 1):
        written.artifact("pipeline.ServingRelease", release_facts(f"run-{number}", number, "2026-03-02 12:00"))
    assert [release.facts["run_id"] for release in lineage.releases()] == ["run-1", "run-2", "run-10"]


def test_what_moved_no_traffic_is_no_release(written, lineage):
    held = {"run_id": "run-1", "released": 0, "reason": "the evaluation did not bless it"}
    written.artifact("pipeline.ServingRelease", held)
    abandoned = release_facts("run-2", 1, "2026-03-02 12:00")
    written.artifact("pipeline.ServingRelease", abandoned, state="ABANDONED")
    written.artifact("pipeline.ServingRelease", release_facts("run-3", 2, "2026-03-09 12:00"))
    assert [release.facts["run_id"] for release in lineage.releases()] == ["run-3"]


def test_cancel_marks_the_running_steps_of_one_run(written, lineage):
    for run_id in ("run-1", "run-2"):
        context = written.run(run_id)
        written.step(context, "SnapshotGen")
        written.step(context, "Other", "FAILED")
        written.step(context, "Trainer", "RUNNING", parameters={"epochs": 3})
    assert lineage.cancel("run-1") == 1
    states = {run_id: [execution.state for execution in lineage.run(run_id).executions] for run_id in ("run-1", "run-2")}
    assert states == {"run-1": ["COMPLETE", "FAILED", "CANCELED"], "run-2": ["COMPLETE", "FAILED", "RUNNING"]}
    assert lineage.run("run-1").step("Trainer").parameters == {"epochs": 3}
    assert lineage.cancel("run-1") == 0


@pytest.mark.parametrize("run_id", ["run-1", "unknown"])
def test_cancel_of_a_run_that_recorded_nothing(written, lineage, run_id):
    written.run("run-1")
    assert lineage.cancel(run_id) == 0
