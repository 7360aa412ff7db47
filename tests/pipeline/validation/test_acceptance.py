"""The accepted snapshots, among which the next week finds its baseline."""

import json

import pytest

from pipeline.errors import PipelineError
from pipeline.validation import acceptance


@pytest.fixture
def statistics(tmp_path):
    folder = tmp_path / "statistics"
    (folder / "Split-train").mkdir(parents=True)
    (folder / "Split-train" / "FeatureStats.pb").write_bytes(b"figures")
    return folder


@pytest.fixture
def accept(tmp_path, statistics):
    def record(date, checksum="c" * 64, run_id="run1"):
        table = f"labels_{date.replace('-', '')}"
        acceptance.record(str(tmp_path / "accepted"), table, date, checksum, run_id, str(statistics))

    return record


def newest(tmp_path, date):
    found = acceptance.newest_before(str(tmp_path / "accepted"), date)
    return found.date if found else None


def test_nothing_is_accepted_before_the_first(tmp_path):
    assert newest(tmp_path, "2026-03-02") is None


def test_the_baseline_is_the_newest_of_an_earlier_date(tmp_path, accept):
    for date in ("2026-03-09", "2026-03-02", "2025-12-29"):
        accept(date)
    dates = ["2025-12-29", "2025-12-30", "2026-03-02", "2026-03-09", "2026-03-10", "2027-01-01"]
    assert [newest(tmp_path, date) for date in dates] == [
        None, "2025-12-29", "2025-12-29", "2026-03-02", "2026-03-09", "2026-03-09",
    ]  # fmt: skip


def test_after_a_missing_week_the_baseline_is_two_weeks_old(tmp_path, accept):
    accept("2026-03-02")
    assert newest(tmp_path, "2026-03-16") == "2026-03-02"


def test_an_old_date_that_is_run_again_meets_the_baseline_before_its_own_date(tmp_path, accept):
    for date in ("2026-03-02", "2026-03-09", "2026-03-16", "2026-03-23"):
        accept(date)
    assert newest(tmp_path, "2026-03-16") == "2026-03-09"
    accept("2026-03-16", run_id="again")
    assert newest(tmp_path, "2026-03-16") == "2026-03-09" and newest(tmp_path, "2026-03-30") == "2026-03-23"


def test_two_runs_for_one_date_have_one_baseline(tmp_path, accept):
    accept("2026-03-02")
    accept("2026-03-09", run_id="first")
    assert newest(tmp_path, "2026-03-09") == "2026-03-02"
    accept("2026-03-09", run_id="second")
    assert newest(tmp_path, "2026-03-09") == "2026-03-02"


def test_the_override_of_an_accepted_snapshot_is_kept_with_it(tmp_path, statistics):
    folder, override = str(tmp_path / "accepted"), {"rules": ["max_orphans"], "unused": [], "by": "ana", "reason": "é"}
    acceptance.record(folder, "labels_20260302", "2026-03-02", "c", "run1", str(statistics), override)
    assert acceptance.newest_before(folder, "2026-03-09").override == override
    acceptance.record(folder, "labels_20260309", "2026-03-09", "c", "run2", str(statistics))
    assert acceptance.newest_before(folder, "2026-03-16").override is None


def test_a_record_of_before_there_were_overrides_is_read(tmp_path, accept):
    accept("2026-03-02")
    path = tmp_path / "accepted" / "labels_20260302" / "accepted.json"
    content = json.loads(path.read_text())
    del content["override"]
    path.write_text(json.dumps(content))
    assert acceptance.newest_before(str(tmp_path / "accepted"), "2026-03-09").override is None


def test_what_is_accepted_keeps_its_facts_and_a_copy_of_its_statistics(tmp_path, accept, statistics):
    accept("2026-03-02")
    (statistics / "Split-train" / "FeatureStats.pb").write_bytes(b"of another run")
    found = acceptance.newest_before(str(tmp_path / "accepted"), "2026-03-09")
    assert (found.table, found.checksum, found.run_id) == ("labels_20260302", "c" * 64, "run1")
    with open(f"{found.statistics}/Split-train/FeatureStats.pb", "rb") as stream:
        assert stream.read() == b"figures"


def test_a_snapshot_that_is_accepted_again_keeps_its_first_run(tmp_path, accept):
    accept("2026-03-02", run_id="first")
    accept("2026-03-02", run_id="second")
    assert acceptance.newest_before(str(tmp_path / "accepted"), "2026-03-03").run_id == "first"


def test_an_altered_snapshot_is_refused_with_both_checksums(tmp_path, accept):
    accept("2026-03-02", checksum="a" * 64, run_id="first")
    with pytest.raises(PipelineError) as raised:
        accept("2026-03-02", checksum="b" * 64)
    for words in ["labels_20260302", "a" * 12, "b" * 12, "run first", "restore it"]:
        assert words in str(raised.value)
    assert acceptance.newest_before(str(tmp_path / "accepted"), "2026-03-03").checksum == "a" * 64


def test_statistics_that_cannot_be_copied_accept_nothing(tmp_path, accept, statistics):
    (statistics / "Split-train").rename(tmp_path / "elsewhere")
    statistics.rmdir()
    with pytest.raises(OSError):
        accept("2026-03-02")
    assert newest(tmp_path, "2026-03-09") is None
    assert list((tmp_path / "accepted").iterdir()) == []


def test_split_names_are_encoded_as_json():
    assert json.loads(acceptance.encode_splits(["eval", "train"])) == ["eval", "train"]
