"""Lineage and ledger, read together: who served when, with which share."""

import dataclasses

import pytest

from pipeline.lineage import timeline
from pipeline.lineage.base import Release
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.conftest import at


def released(number, day, version=None, share=1.0, endpoint="default", clock="12:00") -> Release:
    version = version or str(number)
    return Release(number, at(f"{day} {clock}"), endpoint, f"run-{version}", version, share, f"/versions/{version}", None)


def told(releases, entries=None, unreadable=False):
    built = timeline.build(releases, None if unreadable else releases if entries is None else entries)
    return [
        (item.version, round(item.share, 3), item.since.strftime("%d"), item.until.strftime("%d") if item.until else "")
        for item in built.intervals
    ], built.problems


WEEKS = [released(1, "2026-03-02"), released(2, "2026-03-09"), released(3, "2026-03-16")]


def test_each_release_ends_the_one_before_it():
    assert told(WEEKS) == ([("1", 1, "02", "09"), ("2", 1, "09", "16"), ("3", 1, "16", "")], ())


def test_endpoints_end_only_their_own():
    releases = [
        released(1, "2026-03-02"), released(2, "2026-03-09", endpoint="trial"),
        released(3, "2026-03-16"), released(4, "2026-03-23", endpoint="trial"),
    ]  # fmt: skip
    assert told(releases)[0] == [("1", 1, "02", "16"), ("2", 1, "09", "23"), ("3", 1, "16", ""), ("4", 1, "23", "")]


def test_a_canary_leaves_the_rest_to_what_served_until_it_is_promoted_or_rolled_back():
    canary = [released(1, "2026-03-02"), released(2, "2026-03-09", share=0.1)]
    both = [("1", 1, "02", "09"), ("1", 0.9, "09", "16"), ("2", 0.1, "09", "16")]
    assert told([*canary, released(3, "2026-03-16", "2")])[0] == [*both, ("2", 1, "16", "")]
    assert told([*canary, released(3, "2026-03-16", "1")])[0] == [*both, ("1", 1, "16", "")]
    wider = told([*canary, released(3, "2026-03-16", "2", share=0.5)])[0]
    assert wider == [*both, ("1", 0.5, "16", ""), ("2", 0.5, "16", "")]
    three = told([*canary, released(3, "2026-03-16", share=0.5)])[0]
    assert three == [*both, ("1", 0.45, "16", ""), ("2", 0.05, "16", ""), ("3", 0.5, "16", "")]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_only_one_of_the_two_knows_counts_and_is_told(lost):
    rest = [release for release in WEEKS if release.number != lost + 1]
    whole = told(WEEKS)[0]
    intervals, (problem,) = told(rest, WEEKS)
    assert intervals == whole and f"release {lost + 1} (run run-{lost + 1}) is in the ledger and not in the lineage" in problem
    intervals, (problem,) = told(WEEKS, rest)
    assert intervals == whole and f"release {lost + 1} (run run-{lost + 1}) is in the lineage and not in the ledger" in problem
    assert told(WEEKS, unreadable=True) == (whole, ())


@pytest.mark.parametrize("field", ["at", "endpoint", "run_id", "version", "share", "path"])
def test_a_release_that_the_two_tell_differently_is_named(field):
    other = {"at": at("2026-03-10 12:00"), "share": 0.5}.get(field, "other")
    changed = [WEEKS[0], dataclasses.replace(WEEKS[1], **{field: other}), WEEKS[2]]
    _, problems = told(WEEKS, changed)
    assert f"release 2 is not the same in lineage and ledger: {field} " in problems[0] and repr(other) in problems[0]


def test_a_line_of_another_digest_is_named_even_where_nothing_else_differs():
    lineage, line = (dataclasses.replace(WEEKS[0], line_sha256=digest) for digest in ("a", "b"))
    assert told([lineage], [lineage])[1] == told([WEEKS[0]], [line])[1] == ()
    (problem,) = told([lineage], [line])[1]
    assert "release 1 is not the same" in problem and "digest of its line" in problem


def test_a_clock_that_went_backwards_changes_no_order_and_is_told():
    intervals, (problem,) = told([released(1, "2026-03-09"), released(2, "2026-03-02"), released(3, "2026-03-16")])
    assert intervals == [("2", 1, "09", "16"), ("3", 1, "16", "")]
    assert "release 2 at default" in problem and "a clock went backwards" in problem


def test_a_broken_ledger_is_a_problem_and_the_lineage_tells(three_releases):
    places = three_releases.places
    lineage = MLMDLineage(places.metadata)
    missing = timeline.read(lineage, places.ledger)
    assert len(missing.intervals) == 3 and len(missing.problems) == 3
    three_releases.write_ledger()
    whole = timeline.read(lineage, places.ledger)
    assert whole.problems == () and {item.recorded for item in whole.intervals} == {"lineage and ledger"}
    with open(places.ledger, "a") as stream:
        stream.write("{")
    broken = timeline.read(lineage, places.ledger)
    assert [dataclasses.replace(item, recorded="") for item in broken.intervals] == [
        dataclasses.replace(item, recorded="") for item in whole.intervals
    ]
    assert len(broken.problems) == 1 and "ends in the middle of a line" in broken.problems[0]


def test_a_store_without_a_release(written):
    assert timeline.read(MLMDLineage(written.places.metadata), written.places.ledger) == timeline.Timeline((), ())
