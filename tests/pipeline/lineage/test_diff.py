"""What differs between two runs, and nothing else."""

import contextlib
import dataclasses
import json

import duckdb
import pytest

from pipeline.lineage import diff, text
from pipeline.lineage import facts as audit_facts
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.warehouse import queries
from tests.pipeline.lineage.conftest import HOSTILE


@pytest.fixture
def compare(weeks):
    written, runs = weeks
    lineage = MLMDLineage(written.places.metadata)

    def compare(before, after, ids=False):
        old, new = (lineage.run(runs[name]) for name in (before, after))
        facts = [audit_facts.of_run(run) for run in (old, new)]
        return diff.of_facts(*facts), diff.of_labels(old, new, *facts, written.places, ids)

    return compare


def test_a_run_does_not_differ_from_itself(compare):
    differences, changes = compare("first", "first", ids=True)
    assert differences == [] and changes.counts == {"added": 0, "removed": 0, "changed": 0} and changes.images == ()
    assert text.of_diff("a", "b", differences, changes) == "a -> b\n  nothing differs"


def test_labels_are_counted_by_what_happened_to_them(compare):
    _, changes = compare("first", "second", ids=True)
    assert changes.unknown == "" and changes.counts == {"added": 2, "removed": 1, "changed": 1} and changes.photographs is None
    assert changes.pairs == {
        "added": (diff.Pair("", "cup", 1, "q'--", "q'--"), diff.Pair("", "hat", 1, "p40-a", "p40-a")),
        "changed": (diff.Pair("cup", "hat", 1, "p1-a", "p1-a"),),
        "removed": (diff.Pair("hat", "", 1, "p2-a", "p2-a"),),
    }
    assert [tuple(row.values()) for row in changes.images] == [
        ("added", "p40-a", "", "hat"), ("added", "q'--", "", "cup"), ("changed", "p1-a", "cup", "hat"), ("removed", "p2-a", "hat", ""),
    ]  # fmt: skip
    _, back = compare("second", "first")
    assert back.counts == {"added": 1, "removed": 2, "changed": 1} and back.images == ()


def test_facts_that_differ_are_named_and_times_and_places_are_none(compare):
    differences, changes = compare("first", "second")
    found = {difference.name: (difference.before, difference.after) for difference in differences}
    assert found.pop("commit") == ("c0ffee", "decade") and found.pop("snapshot") == ("labels_20260302", "labels_20260309")
    assert set(found) == {
        "snapshot_date", "as_of", "rows", "checksum", "labels_sha256", "release.weights_sha256", "release.export_sha256",
    }  # fmt: skip
    shown = text.of_diff("a", "b", differences, changes)
    assert "  labels      2 added, 1 removed, 1 changed" in shown and "changed 1: 'cup' -> 'hat' (such as p1-a)" in shown
    assert "  code        commit: c0ffee -> decade" in shown
    json.dumps([dataclasses.asdict(difference) for difference in differences])


def test_a_run_that_trained_nothing_differs_by_what_it_lacks(compare):
    differences, changes = compare("second", "bad")
    found = {difference.name: difference.after for difference in differences}
    assert found["gate.accepted"] is False and found["evaluation.accuracy"] is None and found["state"] == "FAILED at SnapshotGate"
    assert changes.counts == {"added": 0, "removed": 0, "changed": 0}


def test_pairs_are_bounded_and_their_totals_are_not(tmp_path):
    with contextlib.closing(duckdb.connect(str(tmp_path / "w.duckdb"))) as connection:
        connection.execute("CREATE TABLE a AS SELECT 'i' || i AS image_id, 'l' || i AS label FROM range(100) t(i)")
        connection.execute("CREATE TABLE b AS SELECT 'i' || i AS image_id, 'm' AS label FROM range(50, 150) t(i)")
        import sqlglot

        (statement,) = sqlglot.transpile(queries.label_changes("`a`", "`b`", 3), read="bigquery", write="duckdb")
        rows = connection.execute(statement).fetchall()
    assert [(kind, n, total) for kind, _, _, n, _, _, total in rows] == [
        ("added", 50, 50), *[("changed", 1, 50)] * 3, *[("removed", 1, 50)] * 3,
    ]  # fmt: skip


def test_photographs_are_compared_by_their_bytes(tmp_path):
    with contextlib.closing(duckdb.connect(str(tmp_path / "w.duckdb"))) as connection:
        connection.execute("CREATE TABLE a AS SELECT 'i' || i AS image_id, 's' AS sha256 FROM range(5) t(i)")
        connection.execute("CREATE TABLE b AS SELECT 'i' || i AS image_id, if(i = 3, 't', 's') AS sha256 FROM range(2, 9) t(i)")
        import sqlglot

        (statement,) = sqlglot.transpile(queries.index_changes("`a`", "`b`"), read="bigquery", write="duckdb")
        assert connection.execute(statement).fetchall() == [(4, 2, 1)]


def test_labels_that_cannot_be_compared_say_why_and_facts_are_told(weeks, compare, tmp_path):
    written, runs = weeks
    lineage = MLMDLineage(written.places.metadata)
    old, new = (lineage.run(runs[name]) for name in ("first", "second"))
    facts = [audit_facts.of_run(run) for run in (old, new)]
    elsewhere = dataclasses.replace(written.places, store=str(tmp_path))
    changes = diff.of_labels(old, new, *facts, elsewhere)
    assert changes.unknown == f"there is no warehouse {elsewhere.warehouse}" and changes.counts == {}
    assert "labels      cannot be compared: there is no warehouse" in text.of_diff("a", "b", diff.of_facts(*facts), changes)
    assert "commit: c0ffee -> decade" in text.of_diff("a", "b", diff.of_facts(*facts), changes)
    nothing = dataclasses.replace(facts[0], snapshot=None)
    assert "took no snapshot" in diff.of_labels(old, new, nothing, facts[1], written.places).unknown


def test_a_hostile_label_forges_no_line():
    pair = diff.Pair("a\n  code        commit: x -> y", HOSTILE, 1, "\x1b[2J", "i")
    changes = diff.LabelChanges({"added": 0, "removed": 0, "changed": 1}, {"changed": (pair,)}, (), None, "")
    shown = text.of_diff("a", "b", [], changes)
    assert len(shown.splitlines()) == 3 and "\x1b" not in shown
