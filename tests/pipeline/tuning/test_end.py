"""How long a search may take of a window that somebody named."""

import doctest
import json

import pytest

from pipeline.release import profiles
from pipeline.tuning import end


def test_examples_in_docstrings():
    found = doctest.testmod(end)
    assert found.attempted and not found.failed


def test_the_training_has_its_time_and_a_quarter_more():
    until = end.search_until(window_end=43_200, reserve_minutes=45, training_seconds=20_000, now=0)
    assert until == 43_200 - 45 * 60 - 25_000
    assert end.search_until(window_end=20_000, reserve_minutes=45, training_seconds=20_000, now=0) < 0, "no time for a search"


def test_a_window_that_is_over_has_no_time_for_a_search():
    assert end.search_until(window_end=900, reserve_minutes=10, training_seconds=None, now=1_000) < 1_000


@pytest.fixture
def newest(tmp_path):
    """Points to a record with that text, and gives what is read of it."""

    def read(text):
        pointer, record = str(tmp_path / "newest.json"), tmp_path / "training.json"
        record.write_text(text)
        profiles.record(pointer, profiles.Newest("run-1", "2026-03-02", str(record)))
        return end.last_training(pointer)

    return read


def test_the_newest_training_says_how_long_it_took(newest):
    assert newest(json.dumps({"seconds": 1234.5})) == 1234.5


def test_before_the_first_training_nobody_knows(tmp_path, caplog):
    assert end.last_training(str(tmp_path / "none.json")) is None and caplog.text == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": "long"}', '{"seconds": -1}', '{"seconds": NaN}', '{"seconds": true}'])
def test_a_record_that_says_nothing_is_told_and_stops_nobody(newest, text, caplog):
    assert newest(text) is None
    assert "the search takes half of the window" in caplog.text
