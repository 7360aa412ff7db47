"""How well runs trained, as later weeks find it."""

import json

import pytest

from pipeline.errors import PipelineError
from pipeline.release import quality
from pipeline.release.quality import Quality


def trained(date, run="a", value=0.9, released=True, tuned=False):
    return Quality(f"{date.replace('-', '')}-{run}", date, value, released, tuned)


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "quality")


def test_earlier_dates_alone_count_oldest_first(folder):
    weeks = [trained(date) for date in ("2026-03-16", "2026-03-02", "2026-03-09")]
    for each in weeks:
        quality.record(folder, each)
    assert quality.before(folder, "2026-03-16") == [weeks[1], weeks[2]]
    assert quality.before(folder, "2026-03-02") == []


def test_nothing_is_known_before_the_first_run(folder):
    assert quality.before(folder, "2026-03-02") == []


@pytest.mark.parametrize(
    "runs, counts",
    [
        ([("a", True), ("b", True)], "a"),  # a rerun changes nothing
        ([("a", False), ("b", True), ("c", True)], "b"),
        ([("a", False), ("b", False)], "a"),
    ],
)
def test_of_several_runs_of_a_date_the_first_released_counts_else_the_first(folder, runs, counts):
    for run, released in reversed(runs):
        quality.record(folder, trained("2026-03-02", run, released=released))
    assert [each.run_id for each in quality.before(folder, "2026-03-09")] == [f"20260302-{counts}"]


@pytest.mark.parametrize(
    "changes", [{"metric": "loss"}, {"value": "good"}, {"value": float("nan")}, {"snapshot_date": "March"}, {"more": 1}]
)
def test_a_broken_record_is_named_with_the_remedy(folder, tmp_path, changes):
    quality.record(folder, trained("2026-03-02"))
    (path,) = (tmp_path / "quality").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(PipelineError, match="is no record of how well a run trained.*restore it") as raised:
        quality.before(folder, "2026-03-09")
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "7"])
def test_what_is_no_record_at_all(folder, tmp_path, text):
    (tmp_path / "quality").mkdir()
    (tmp_path / "quality" / "20260302-a.json").write_text(text)
    with pytest.raises(PipelineError, match="is no record"):
        quality.before(folder, "2026-03-09")
