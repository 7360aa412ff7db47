"""When a cron expression with a time zone is due, as Vertex's schedules take it."""

import datetime
import re
import zoneinfo

from tests.cloud.vertex.refusals import invalid

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_NAMES = {
    "month": "jan feb mar apr may jun jul aug sep oct nov dec".split(),
    "day of week": "sun mon tue wed thu fri sat".split(),
}
_MOST_DAYS = 366 * 8
"""How far ahead a moment is looked for: 29 February comes within eight years."""


class Cron:
    """A parsed expression, such as `TZ=Europe/Berlin 0 20 * * 1`.

    Args:
        text: It: five fields (numbers, names, lists, ranges, steps), and the time zone before them, UTC without one.

    Raises:
        Refused: It is none.
    """

    def __init__(self, text: str):
        zone, expression = re.fullmatch(r"(?:(?:CRON_)?TZ=(\S+)\s+)?(.*)", text.strip(), re.DOTALL).groups()
        try:
            self._zone = zoneinfo.ZoneInfo(zone or "UTC")
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise invalid(f"cron {text!r}: {zone} is no time zone of the IANA data base") from error
        fields = expression.split()
        if len(fields) != len(_FIELDS):
            raise invalid(f"cron {text!r} must have five fields and has {len(fields)}")
        values = [_values(field, *about, text) for field, about in zip(fields, _FIELDS, strict=True)]
        self._minutes, self._hours, self._days, self._months, self._weekdays = values
        self._weekdays = {day % 7 for day in self._weekdays}
        # Either of the two is enough, as in cron, when both say something.
        self._any_day, self._any_weekday = fields[2].startswith("*"), fields[4].startswith("*")

    def after(self, moment: datetime.datetime) -> datetime.datetime:
        """The first time after a moment, in UTC.

        An hour that the change to summer time leaves out is not missed: it comes right after. One that comes twice counts
        once.

        Raises:
            Refused: There is none, as on 30 February.
        """
        start = moment.astimezone(self._zone).date()
        for days in range(_MOST_DAYS):
            day = start + datetime.timedelta(days)
            if self._is_due(day):
                for hour in sorted(self._hours):
                    for minute in sorted(self._minutes):
                        local = datetime.datetime.combine(day, datetime.time(hour, minute), self._zone)
                        due = local.astimezone(datetime.timezone.utc)
                        if due > moment:
                            return due
        raise invalid("cron: there is no such day")

    def _is_due(self, day: datetime.date) -> bool:
        in_month, in_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        either = not (self._any_day or self._any_weekday)
        return day.month in self._months and (in_month or in_week if either else in_month and in_week)


def _values(field: str, name: str, low: int, high: int, text: str) -> set[int]:
    values: set[int] = set()
    for part in field.lower().split(","):
        found = re.fullmatch(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", part)
        if not found:
            raise invalid(f"cron {text!r}: {part!r} cannot be the {name}")
        whole, first, end, step = found.groups()
        start = low if whole == "*" else _number(first, name, low, high, text)
        stop = high if whole == "*" or (step and not end) else _number(end or first, name, low, high, text)
        if step == "0" or stop < start:
            raise invalid(f"cron {text!r}: {part!r} cannot be the {name}")
        values.update(range(start, stop + 1, int(step or 1)))
    return values


def _number(word: str, name: str, low: int, high: int, text: str) -> int:
    names = _NAMES.get(name, [])
    number = names.index(word) + low if word in names else int(word) if word.isdigit() else -1
    if not low <= number <= high:
        raise invalid(f"cron {text!r}: the {name} {word!r} is not in {low} to {high}")
    return number
