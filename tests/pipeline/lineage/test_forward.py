"""Which runs, models and serving intervals used a snapshot or a photograph."""

import contextlib
import dataclasses
import json

import duckdb
import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import forward, text, timeline
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.conftest import HOSTILE


@pytest.fixture
def asked(weeks):
    written, runs = weeks
    lineage = MLMDLineage(written.places.metadata)
    return lineage, timeline.read(lineage, written.places.ledger), written.places, runs


def test_a_snapshot_leads_to_its_runs_and_to_when_their_models_served(asked):
    lineage, known, _, runs = asked
    used = forward.of_snapshot(lineage, known, "labels_20260302")
    (run,) = used.runs
    assert (run.run_id, run.state, run.trained) == (runs["first"], "COMPLETE", True)
    assert [(item.version, item.since.day, item.until.day) for item in run.served] == [("1", 2, 9)]
    (bad,) = forward.of_snapshot(lineage, known, "labels_20260316").runs
    assert (bad.run_id, bad.state, bad.trained, bad.served) == (runs["bad"], "FAILED at SnapshotGate", False, ())
    shown = text.of_snapshot(used, ())
    assert f"{runs['first']}: COMPLETE, trained a model" in shown and "served 100% of endpoint default as version 1" in shown


def test_a_run_that_only_compared_with_a_snapshot_is_told_apart(written):
    snapshot = written.artifact("pipeline.LabelSnapshot", {"table": "labels_1"})
    baseline = written.artifact("ExampleStatistics", {"table": "labels_1"})
    written.step(written.run("run-1"), "SnapshotGen", outputs={"snapshot": [snapshot]})
    written.step(written.run("run-2"), "LastAccepted", outputs={"statistics": [baseline]})
    used = forward.of_snapshot(MLMDLineage(written.places.metadata), timeline.Timeline((), ()), "labels_1")
    assert [run.run_id for run in used.runs] == ["run-1"] and used.baselines == ("run-2",)
    assert "baseline    for drift in run-2" in text.of_snapshot(used, ())


def test_a_photograph_has_its_label_split_and_shard_in_each_run(asked, weeks):
    lineage, known, places, runs = asked
    used = forward.of_image(lineage, known, places, "p1-a")
    assert [(found.table, found.label, found.source) for found in used.snapshots] == [
        ("labels_20260302", "cup", "ana"), ("labels_20260309", "hat", "ben"), ("labels_20260316", "hat", "ben"),
    ]  # fmt: skip
    assert [[item.run.run_id for item in found.runs] for found in used.snapshots] == [[runs[name]] for name in ("first", "second", "bad")]
    assert used.lost == () and all(item.shard.startswith("shard-") for found in used.snapshots for item in found.runs)
    json.dumps(dataclasses.asdict(used), default=str)
    gone = forward.of_image(lineage, known, places, "p2-a")
    assert [found.table for found in gone.snapshots] == ["labels_20260302"]


def test_the_split_is_the_one_that_the_run_asked_the_warehouse_for(asked, weeks):
    lineage, known, places, runs = asked
    query = lineage.run(runs["first"]).output("Examples", "examples").facts["query"]
    with weeks[0]._warehouse() as place:
        rows = list(place.rows(query))
    assert {row["split"] for row in rows} == {"train", "val", "eval"}
    for row in rows:
        (item,) = forward.of_image(lineage, known, places, row["image_id"]).snapshots[0].runs
        assert (item.split, item.shard, item.ordinal) == (row["split"], row["shard"], row["ordinal"])


def test_an_id_that_is_hostile_is_only_an_id(asked):
    lineage, known, places, _ = asked
    used = forward.of_image(lineage, known, places, "q'--")
    assert [found.label for found in used.snapshots] == ["cup", "cup"]
    found = forward.of_image(lineage, known, places, "p3-a")
    assert found.snapshots[0].label == HOSTILE
    with pytest.raises(PipelineError, match="no snapshot holds a label of the image"):
        forward.of_image(lineage, known, places, "' OR '1'='1")


def test_a_photograph_that_no_shard_holds_was_seen_by_no_model(asked, weeks):
    lineage, known, places, _ = asked
    written, _ = weeks
    used = forward.of_image(lineage, known, places, "q'--")
    assert [item.shard for found in used.snapshots for item in found.runs] == [None, None]
    assert "in no shard, so that no model saw it" in text.of_image(used, ())


@pytest.mark.parametrize(("image", "told"), [
    ("p1", "; the closest in labels_20260316: p1-a, p10-a, p11-a"), ("p1-b", "; the closest in .*: p1-a"), ("zzz", "$"),
])  # fmt: skip
def test_an_unknown_photograph_is_told_with_the_closest(asked, image, told):
    lineage, known, places, _ = asked
    with pytest.raises(PipelineError, match=f"no snapshot holds a label of the image '{image}'{told}"):
        forward.of_image(lineage, known, places, image)


def test_an_unknown_snapshot_is_told_with_the_closest(asked):
    lineage, known, _, _ = asked
    with pytest.raises(PipelineError, match="no run took a snapshot 'labels_2026030'; the closest: labels_20260302, labels_20260309"):
        forward.of_snapshot(lineage, known, "labels_2026030")


def test_a_snapshot_that_the_warehouse_lost_is_named_and_the_rest_answers(asked, tmp_path):
    lineage, known, places, _ = asked
    smaller = dataclasses.replace(places, store=str(tmp_path))
    (tmp_path / "warehouse.duckdb").write_bytes(open(places.warehouse, "rb").read())
    with contextlib.closing(duckdb.connect(smaller.warehouse)) as connection:
        connection.execute("DROP TABLE labels_20260302")
    used = forward.of_image(lineage, known, smaller, "p1-a")
    assert [found.table for found in used.snapshots] == ["labels_20260309", "labels_20260316"] and used.lost == ("labels_20260302",)
    assert "does not have them any more: labels_20260302" in text.of_image(used, ())


def test_a_warehouse_in_use_or_gone_is_told(asked, tmp_path):
    lineage, known, places, _ = asked
    with pytest.raises(PipelineError, match="there is no warehouse .*restore it from a backup"):
        forward.of_image(lineage, known, dataclasses.replace(places, store=str(tmp_path)), "p1-a")


def test_no_run_yet(written):
    written.run("run-1")
    with pytest.raises(PipelineError, match="no run has taken a snapshot yet"):
        forward.of_image(MLMDLineage(written.places.metadata), timeline.Timeline((), ()), written.places, "p1-a")
