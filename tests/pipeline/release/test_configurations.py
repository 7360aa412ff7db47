"""The best-known hyperparameters, by the date that they were found on."""

import json

import pytest

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
