"""The lineage store, read back from what a launcher wrote."""

import contextlib
import datetime
import pathlib
import shutil
import sqlite3

import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from pipeline.errors import PipelineError
from pipeline.lineage import mlmd, mlmd_writer
from pipeline.lineage.base import Release, Use
from pipeline.lineage.mlmd import INPUTS, LIVE, OUTPUTS, STATES, MLMDLineage
from tests.pipeline.lineage.conftest import at, release_facts


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


@pytest.mark.parametrize(("runs", "hint"), [
    ([], "the store is empty"), (["one", "two"], "the newest is two"), (["run-1", "one", "run-2"], "the closest: run-2, run-1"),
])  # fmt: skip
def test_an_unknown_run_is_named_with_a_hint(written, lineage, runs, hint):
    for run_id in runs:
        written.run(run_id)
    with pytest.raises(PipelineError, match=f"no run 'run-9' in the lineage store .*metadata.sqlite; {hint}"):
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
    found = lineage.releases()
    assert [release.run_id for release in found] == ["run-1", "run-2", "run-10"]
    assert found[0] == Release(1, at("2026-03-02 12:00"), "default", "run-1", "1", 1.0, "/versions/1", None)


def test_what_moved_no_traffic_is_no_release(written, lineage):
    held = {"run_id": "run-1", "released": 0, "reason": "the evaluation did not bless it"}
    written.artifact("pipeline.ServingRelease", held)
    abandoned = release_facts("run-2", 1, "2026-03-02 12:00")
    written.artifact("pipeline.ServingRelease", abandoned, state="ABANDONED")
    written.artifact("pipeline.ServingRelease", release_facts("run-3", 2, "2026-03-09 12:00"))
    assert [release.run_id for release in lineage.releases()] == ["run-3"]


def test_values_uses_and_facts_of_a_type(written, lineage):
    snapshot = {name: written.artifact("pipeline.LabelSnapshot", {"table": f"labels_{name}"}) for name in ("1", "2")}
    other = written.artifact("ExampleStatistics", {"table": "labels_1"})
    trained, rejected, going = (written.run(f"run-{number}") for number in (1, 2, 3))
    written.step(trained, "SnapshotGen", outputs={"snapshot": [snapshot["1"]]})
    written.step(trained, "Trainer", inputs={"examples": [snapshot["1"]]})
    written.step(trained, "ServingLedger")
    written.step(rejected, "SnapshotGen", outputs={"snapshot": [snapshot["2"]]})
    written.step(rejected, "SnapshotGate", "FAILED", inputs={"snapshot": [snapshot["2"]]})
    written.step(going, "LastAccepted", outputs={"statistics": [other]}, inputs={"snapshot": [snapshot["1"]]})
    assert lineage.values("pipeline.LabelSnapshot", "table") == ["labels_1", "labels_2"]
    assert lineage.values("pipeline.LabelSnapshot", "none") == lineage.values("pipeline.None", "table") == []
    assert lineage.uses("pipeline.LabelSnapshot", "table", ["labels_1", "labels_2", "labels_3"]) == [
        Use("run-1", "labels_1", "COMPLETE", True),
        Use("run-2", "labels_2", "FAILED at SnapshotGate", False),
        Use("run-3", "labels_1", "RUNNING", False),
    ]
    assert lineage.uses("ExampleStatistics", "table", ["labels_1"]) == [Use("run-3", "labels_1", "RUNNING", False)]
    assert lineage.uses("pipeline.LabelSnapshot", "table", []) == []
    wanted = ["run-1", "run-2", "run-3", "run-4"]
    assert lineage.facts("pipeline.LabelSnapshot", ["table"], wanted) == {"run-1": {"table": "labels_1"}, "run-2": {"table": "labels_2"}}


def test_the_numbers_are_those_of_ml_metadata():
    assert {number: pb.Execution.State.Name(number) for number in STATES} == STATES
    assert pb.Artifact.LIVE == LIVE
    assert {pb.Event.INPUT, pb.Event.DECLARED_INPUT, pb.Event.INTERNAL_INPUT} == INPUTS
    assert {pb.Event.OUTPUT, pb.Event.DECLARED_OUTPUT, pb.Event.INTERNAL_OUTPUT} == OUTPUTS


def test_reading_changes_no_byte_and_needs_no_right_to_write(three_releases):
    path = pathlib.Path(three_releases.places.metadata)
    before = path.read_bytes()
    lineage = MLMDLineage(str(path))
    lineage.run("run-1"), lineage.releases(), lineage.run_ids(), lineage.uses("pipeline.LabelSnapshot", "table", ["x"])
    assert path.read_bytes() == before and [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_store_that_a_run_holds_is_told_to_be_in_use(three_releases, monkeypatch):
    monkeypatch.setattr(mlmd, "_WAIT_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(three_releases.places.metadata)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PipelineError, match="lineage store .*metadata.sqlite is in use: a run has been writing"):
            MLMDLineage(three_releases.places.metadata)
    assert MLMDLineage(three_releases.places.metadata).run_ids() == ["run-1", "run-2", "run-3"]


def test_a_store_of_another_schema_version_is_named_with_both(three_releases):
    with contextlib.closing(sqlite3.connect(three_releases.places.metadata)) as writer, writer:
        writer.execute("UPDATE MLMDEnv SET schema_version = 9")
    with pytest.raises(PipelineError, match="has schema version 9 of ML Metadata, and this code reads 10"):
        MLMDLineage(three_releases.places.metadata)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99, 0.99999])
def test_a_store_that_was_cut_short_is_told_and_never_half_answered(three_releases, share):
    path = pathlib.Path(three_releases.places.metadata)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(PipelineError, match="is no lineage store .*restore the file from its backup"):
        lineage = MLMDLineage(str(path))
        lineage.releases(), [lineage.run(run_id) for run_id in lineage.run_ids()]


def test_a_store_that_a_killed_process_left_within_a_write_is_told(three_releases, tmp_path):
    """The journal and the half-written pages, copied while a transaction is on its way, are what a kill leaves."""
    path, copy = pathlib.Path(three_releases.places.metadata), tmp_path / "copy.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE ArtifactProperty SET string_value = string_value || hex(randomblob(9000))")
        for suffix in ("", "-journal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        writer.execute("ROLLBACK")
    with pytest.raises(PipelineError, match="left in the middle of a write .*next run on this store mends it"):
        MLMDLineage(str(copy))
    # As that run does, which may write.
    mlmd_writer.end(str(copy), "run-1", None)
    assert MLMDLineage(str(copy)).run("run-1") == MLMDLineage(str(path)).run("run-1")
