"""The lineage store, read back from what a launcher wrote."""

import contextlib
import pathlib
import shutil
import sqlite3

import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from pipeline.errors import PipelineError
from pipeline.lineage import mlmd, mlmd_writer
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.lineage.mlmd_sql import INPUTS, LIVE, OUTPUTS, STATES
from tests.pipeline.lineage.conformance import LineageConformance
from tests.pipeline.lineage.conftest import HandWritten


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


class TestMLMDInSQLite(LineageConformance):
    @pytest.fixture
    def written(self, places):
        return HandWritten(places)

    @pytest.fixture
    def lineage(self, written):
        return MLMDLineage(written.places.metadata)


def question_of_runs(written, lineage) -> list[str]:
    return [use.run_id for use in lineage.uses("pipeline.LabelSnapshot", "table", ["labels_20260302"])]


@pytest.mark.parametrize("times", ["1", "id", "-id", "1000 + id * 7919 % 13"], ids=["one", "growing", "backwards", "any"])
def test_a_run_is_found_whatever_the_clocks_said(three_releases, times):
    path = three_releases.places.metadata
    with contextlib.closing(sqlite3.connect(path)) as writer, writer:
        writer.execute(f"UPDATE Context SET create_time_since_epoch = 100000 + {times}")
        writer.execute("UPDATE Execution SET create_time_since_epoch = 100002")
    assert question_of_runs(three_releases, MLMDLineage(path)) == ["run-1", "run-2", "run-3"]


@pytest.mark.parametrize("question", ["uses", "facts", "run", "values", "releases"])
def test_no_question_scans_a_table_that_grows_with_other_runs(three_releases, monkeypatch, question):
    """SQLite's own plan: it looks up what it needs by an index, wherever a table holds more than the answer."""
    path, plans = three_releases.places.metadata, []
    real = mlmd._SQLite.rows

    def rows(session, text, **values):
        if text.startswith("SELECT") and "MLMDEnv" not in text:
            plans.extend(row[3] for row in real(session, f"EXPLAIN QUERY PLAN {text}", **values))
        return real(session, text, **values)

    monkeypatch.setattr(mlmd._SQLite, "rows", rows)
    lineage = MLMDLineage(path)
    {
        "uses": lambda: lineage.uses("pipeline.LabelSnapshot", "table", ["labels_20260302"]),
        "facts": lambda: lineage.facts("pipeline.ImageShards", ["number"], ["run-1"]),
        "run": lambda: lineage.run("run-1"),
        "values": lambda: lineage.values("pipeline.LabelSnapshot", "table"),
        "releases": lineage.releases,
    }[question]()
    assert plans and not [plan for plan in plans if plan.startswith("SCAN") and plan.split()[1] not in ("t", "k", "CONSTANT")], plans
    assert not [plan for plan in plans if "AUTOMATIC" in plan], plans


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
