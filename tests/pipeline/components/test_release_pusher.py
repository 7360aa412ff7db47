"""Why a candidate is pushed, or not."""

import pytest

from pipeline.components.release_pusher import reason_to_hold
from pipeline.release.ledger import Entry

SERVING = Entry(
    number=3,
    at="2026-03-09T05:30:00.000+00:00",
    endpoint="default",
    from_version="6",
    to_version="7",
    path="/versions/7",
    share=1.0,
    run_id="20260309-20260309T053000Z",
    snapshot="labels_20260309",
    snapshot_date="2026-03-09",
    weights_sha256="a" * 64,
    previous="0" * 64,
)


@pytest.mark.parametrize(
    ("serving", "date"),
    [
        (None, "2026-03-02"),  # nothing served before
        (SERVING, "2026-03-16"),
        (SERVING, "2026-03-09"),  # the same week with other weights, say after a change of the settings
        (SERVING, "2027-01-04"),
    ],
)
def test_a_blessed_model_that_is_new_is_pushed(serving, date):
    assert reason_to_hold(True, date, "b" * 64, serving) == ""


@pytest.mark.parametrize("serving", [None, SERVING])
def test_a_model_that_was_not_blessed_is_held(serving):
    assert reason_to_hold(False, "2026-03-16", "b" * 64, serving) == "the evaluation did not bless it"


@pytest.mark.parametrize("date", ["2026-03-02", "2026-03-09", "2026-03-16"])
def test_the_same_weights_are_not_released_twice(date):
    reason = reason_to_hold(True, date, "a" * 64, SERVING)
    assert reason == "these very weights serve already, as version 7 of run 20260309-20260309T053000Z"


@pytest.mark.parametrize("date", ["2026-03-02", "2026-03-08", "2025-12-29"])
def test_an_older_week_never_replaces_a_newer_one(date):
    reason = reason_to_hold(True, date, "b" * 64, SERVING)
    assert reason == f"it is of {date}, and a model of 2026-03-09 serves (run 20260309-20260309T053000Z)"
