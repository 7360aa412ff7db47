"""The span of time that a question names: a day, a minute or a second, in a time zone."""

import dataclasses
import datetime
import re
import zoneinfo

from pipeline.errors import PipelineError
from pipeline.lineage.base import closest
from pipeline.warehouse.base import parse_date

_TIME = re.compile(r"(\d{2}):(\d{2})(?::(\d{2}))?(Z|[+-]\d{2}:\d{2})?")


@dataclasses.dataclass(frozen=True)
class Span:
    """From `start` up to, but not including, `end`.

    Attributes:
        start: UTC.
        end: UTC.
        name: As a person asked for it.
    """

    start: datetime.datetime
    end: datetime.datetime
    name: str


def span(day: str, time: str | None = None, zone: str = "UTC") -> Span:
    """The span that a person names.

    Args:
        day: YYYY-MM-DD, a day of `zone`; it has 23 or 25 hours where the clocks change.
        time: HH:MM, the whole minute, or HH:MM:SS, the whole second; with an offset from UTC such as +01:00 or Z that of
            the offset, else that of `zone`. None for the whole day.
        zone: Name of a time zone, such as Europe/Berlin.

    Returns:
        The span.

    Raises:
        PipelineError: There is no such day, time or zone, or the time occurs twice or never on that day.
    """
    date, place = parse_date(day), _zone(zone)
    if time is None:
        start = datetime.datetime.combine(date, datetime.time(), tzinfo=place)
        end = datetime.datetime.combine(date + datetime.timedelta(days=1), datetime.time(), tzinfo=place)
        return Span(_utc(start), _utc(end), f"{date} ({zone})")
    found = _TIME.fullmatch(time)
    try:
        hour, minute, second, offset = found.groups() if found else (None,) * 4
        clock = datetime.time(int(hour), int(minute), int(second or 0)) if found else None
        if offset:
            place = datetime.datetime.fromisoformat(f"{date}T{clock}{offset}").tzinfo
    except ValueError:
        clock = None
    if clock is None:
        raise PipelineError(f"there is no time {time!r}: write it as 14:00, 14:00:30 or 14:00+01:00")
    start = _utc(_only(datetime.datetime.combine(date, clock, tzinfo=place), zone))
    length = datetime.timedelta(seconds=1 if second else 60)
    return Span(start, start + length, f"{date} {time}" + ("" if offset else f" ({zone})"))


def _zone(name: str) -> datetime.tzinfo:
    if name == "UTC":
        return datetime.timezone.utc
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = closest(name, sorted(zoneinfo.available_timezones()))
        hint = f", the closest: {', '.join(near)}" if near else ""
        raise PipelineError(f"there is no time zone {name!r}: name one such as Europe/Berlin{hint}") from error


def _only(local: datetime.datetime, zone: str) -> datetime.datetime:
    """`local`, if a clock of that zone shows it exactly once."""
    first, second = local.replace(fold=0), local.replace(fold=1)
    if first.utcoffset() == second.utcoffset():
        return local
    # In a gap the two readings, back from UTC, show another time.
    if _utc(first).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise PipelineError(
            f"{local:%Y-%m-%d %H:%M:%S} does not occur in {zone}: the clocks are put forward then. Name a time before or "
            "after, or one with its offset from UTC"
        )
    offsets = " or ".join(f"{local:%H:%M}{_offset(reading)}" for reading in (first, second))
    raise PipelineError(f"{local:%Y-%m-%d %H:%M:%S} occurs twice in {zone}, where the clocks are put back then: say {offsets}")


def _offset(local: datetime.datetime) -> str:
    return local.isoformat()[-6:]


def _utc(local: datetime.datetime) -> datetime.datetime:
    return local.astimezone(datetime.timezone.utc)
