"""Date and window of a run, from what it is started with."""

import doctest

import pytest

from pipeline import start
from pipeline.errors import PipelineError
from pipeline.start import SCHEDULED, Start, date_and_window

BEGAN = {"created_at": "2026-03-02T22:07:00Z", "scheduled_at": "2026-03-02T22:00:00Z"}


def test_the_examples_hold():
    assert doctest.testmod(start).failed == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("2026-03-02", None)),
        (BEGAN, ("2026-03-02", None)),
        (BEGAN | {"window_hours": 12.0}, ("2026-03-02", 1772532420.0)),  # counts from the start by hand
        (BEGAN | {"window_hours": 12.0, "snapshot_date": SCHEDULED}, ("2026-03-02", 1772532000.0)),
        (BEGAN | {"window_hours": 12.0, "window_end": "2026-03-03T06:00+01:00"}, ("2026-03-02", 1772514000.0)),
        ({"window_end": "2026-03-03T06:00+01:00"}, ("2026-03-02", 1772514000.0)),
        # UTC, whatever the schedule's own time zone: the labels of a date are complete at its midnight, UTC.
        ({"snapshot_date": SCHEDULED, "scheduled_at": "2026-03-02T00:30:00+01:00"}, ("2026-03-01", None)),
        ({"snapshot_date": SCHEDULED, "scheduled_at": "2026-03-02T22:00:00.123456789Z"}, ("2026-03-02", None)),
    ],
)
def test_date_and_window(changes, expected):
    assert date_and_window(Start(**{"run_id": "run-1", "snapshot_date": "2026-03-02"} | changes)) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"snapshot_date": "2026-13-01"}, "2026-13-01"),
        ({"snapshot_date": SCHEDULED}, "the time of the schedule, '', is no instant"),
        ({"snapshot_date": SCHEDULED, "scheduled_at": "{{$.pipeline_job_schedule_time_utc}}"}, "schedule_time_utc}}', is no instant"),
        ({"window_hours": 12.0}, "the time of the start, '', is no instant"),
        ({"window_end": "tomorrow"}, "the end of the window, 'tomorrow', is no instant"),
        ({"window_end": "2026-03-03T06:00"}, "lacks its offset from UTC: write it as 2026-03-03T06:00[+]00:00"),
    ],
)
def test_what_cannot_be_used_is_named(changes, words):
    with pytest.raises(PipelineError, match=words):
        date_and_window(Start(**{"run_id": "run-1", "snapshot_date": "2026-03-02"} | changes))
