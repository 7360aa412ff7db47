"""Days and times as people name them."""

import datetime

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage.moment import span


@pytest.mark.parametrize(
    ("words", "start", "seconds"),
    [
        (("2026-03-03",), "2026-03-03T00:00", 86400),
        (("2026-03-03", "14:00"), "2026-03-03T14:00", 60),
        (("2026-03-03", "14:00:30"), "2026-03-03T14:00:30", 1),
        (("2026-03-03", "14:00Z"), "2026-03-03T14:00", 60),
        (("2026-03-03", "14:00+01:00"), "2026-03-03T13:00", 60),
        (("2026-03-03", "23:30-05:00"), "2026-03-04T04:30", 60),
        (("2026-03-03", "14:00+01:00", "Asia/Tokyo"), "2026-03-03T13:00", 60),
        (("2026-03-03", None, "Europe/Berlin"), "2026-03-02T23:00", 86400),
        (("2026-03-29", None, "Europe/Berlin"), "2026-03-28T23:00", 23 * 3600),  # clocks are put forward
        (("2026-10-25", None, "Europe/Berlin"), "2026-10-24T22:00", 25 * 3600),  # and back
        (("2026-10-25", "01:59", "Europe/Berlin"), "2026-10-24T23:59", 60),
        (("2026-10-25", "03:00", "Europe/Berlin"), "2026-10-25T02:00", 60),
        (("2026-10-25", "02:30+02:00", "Europe/Berlin"), "2026-10-25T00:30", 60),
        (("2026-10-25", "02:30+01:00", "Europe/Berlin"), "2026-10-25T01:30", 60),
    ],
)
def test_a_day_a_minute_a_second(words, start, seconds):
    found = span(*words)
    assert found.start == datetime.datetime.fromisoformat(start + "+00:00") and found.start.utcoffset() == datetime.timedelta()
    assert (found.end - found.start).total_seconds() == seconds


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("2026-02-30",), "no snapshot date|no such day|2026-02-30"),
        (("2026-03-03", "25:00"), "no time '25:00': write it as 14:00"),
        (("2026-03-03", "14"), "no time '14'"),
        (("2026-03-03", "14:00+99:00"), "no time"),
        (("2026-03-03", "١٤:٠٠:٠٠x"), "no time"),
        (("2026-03-03", None, "Europe/Berln"), "no time zone 'Europe/Berln'.*the closest: .*Europe/Berlin"),
        (("2026-03-03", None, "../../etc/passwd"), "no time zone"),
        (("2026-03-29", "02:30", "Europe/Berlin"), "2026-03-29 02:30:00 does not occur in Europe/Berlin"),
        (("2026-10-25", "02:30", "Europe/Berlin"), r"occurs twice .* say 02:30\+02:00 or 02:30\+01:00"),
    ],
)
def test_what_is_no_day_or_time_is_named(words, told):
    with pytest.raises(PipelineError, match=told):
        span(*words)
