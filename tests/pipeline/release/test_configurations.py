"""The best-known hyperparameters, by the date that they were found on."""

import json

import pytest

from pipeline.errors import PipelineError
from pipeline.release import configurations
from pipeline.release.configurations import Configuration


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "configurations")


def found(date, run_id="run", **values):
    return Configuration(date, run_id, {"space": [], "values": values})


def test_nothing_is_known_before_the_first_tuning(folder):
    assert configurations.newest_before(folder, "2026-03-02") is None


def test_the_newest_of_an_earlier_date_is_known(folder):
    for date in ("2026-03-16", "2026-03-02", "2025-12-29"):
        configurations.record(folder, found(date))
    dates = ["2025-12-29", "2026-03-02", "2026-03-03", "2026-03-16", "2026-03-23"]
    newest = [configurations.newest_before(folder, date) for date in dates]
    assert [known and known.snapshot_date for known in newest] == [None, "2025-12-29", "2026-03-02", "2026-03-02", "2026-03-16"]


def test_a_configuration_comes_back_as_it_was_found(folder):
    configurations.record(folder, found("2026-03-02", "run-7", learning_rate=0.001, batch_size=16))
    assert configurations.newest_before(folder, "2026-03-09") == found("2026-03-02", "run-7", learning_rate=0.001, batch_size=16)


def test_a_date_that_is_tuned_again_replaces_its_own_and_no_other(folder, tmp_path):
    configurations.record(folder, found("2026-03-02", "first"))
    configurations.record(folder, found("2026-03-09", "other"))
    configurations.record(folder, found("2026-03-02", "second"))
    assert configurations.newest_before(folder, "2026-03-09").run_id == "second"
    assert configurations.newest_before(folder, "2026-03-16").run_id == "other"
    names = sorted(path.name for path in (tmp_path / "configurations").iterdir())
    assert names == ["2026-03-02.json", "2026-03-09.json"]


def test_people_can_read_the_file(folder, tmp_path):
    configurations.record(folder, found("2026-03-02", dropout=0.5))
    content = json.loads((tmp_path / "configurations" / "2026-03-02.json").read_text())
    assert content["hyperparameters"]["values"] == {"dropout": 0.5}


def test_a_file_of_older_code_is_read(folder, tmp_path):
    (tmp_path / "configurations").mkdir()
    old = {"snapshot_date": "2026-03-02", "run_id": "run-1", "hyperparameters": {"space": [], "values": {"dropout": 0.5}}}
    (tmp_path / "configurations" / "2026-03-02.json").write_text(json.dumps(old))
    known = configurations.newest_before(folder, "2026-03-09")
    assert known == Configuration(**old) and known.value is None and known.study == ""
    assert known.facts() == {
        "snapshot_date": "2026-03-02", "run_id": "run-1", "metric": "val_accuracy", "values": '{"dropout": 0.5}',
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "null", '{"run_id": "x"}', '{"snapshot_date": "2026-03-02", "run_id": "x", "hyperparameters": {}, "more": 1}',
        '{"snapshot_date": "2026-03-02", "run_id": "x", "hyperparameters": {"values": 3}}',
        '{"snapshot_date": "2026-03-09", "run_id": "x", "hyperparameters": {"values": {}}}',
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_the_remedy(folder, tmp_path, text):
    (tmp_path / "configurations").mkdir()
    path = tmp_path / "configurations" / "2026-03-02.json"
    path.write_text(text)
    with pytest.raises(PipelineError, match="is no best-known configuration.*restore it from a backup, or delete it") as raised:
        configurations.newest_before(folder, "2026-03-09")
    assert str(path) in str(raised.value)


def test_other_files_in_the_folder_are_left_alone(folder, tmp_path):
    configurations.record(folder, found("2026-03-02"))
    for name in ("2026-03-02-old.json", "00-notes.json", ".2026-03-01.json-x"):
        (tmp_path / "configurations" / name).write_text("notes")
    assert configurations.newest_before(folder, "2026-03-09").snapshot_date == "2026-03-02"
