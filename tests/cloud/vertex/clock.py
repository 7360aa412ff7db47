"""The fake's own time, which moves only when a test moves it."""

import datetime
import heapq
import itertools
import threading
from collections.abc import Callable

START = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.timezone.utc)
"""When every fake begins: the Sunday before the first Monday of the sample data."""


class Clock:
    """Time, and what is to be done when."""

    def __init__(self):
        self._lock = threading.RLock()
        self._base = START
        self._alarms: list[tuple[datetime.datetime, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime.datetime:
        """The present; a microsecond later than the last time anybody asked."""
        with self._lock:
            self._base += datetime.timedelta(microseconds=1)
            return self._base

    def at(self, moment: datetime.datetime, action: Callable[[], None]) -> None:
        """Does something when that moment has come, in the thread of the test that moves the clock."""
        with self._lock:
            heapq.heappush(self._alarms, (moment, next(self._order), action))

    def advance(self, moment: datetime.datetime, between: Callable[[], None]) -> None:
        """Moves on to a moment, and does on the way what is due.

        Args:
            moment: An aware datetime, not in the past.
            between: Done after each alarm, before time moves on.

        Raises:
            ValueError: The moment has no time zone, or is past.
        """
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone")
        if moment < self._base:
            raise ValueError(f"it is {self._base} already, after {moment}")
        while action := self._next(moment):
            action()
            between()
        with self._lock:
            self._base = max(self._base, moment)

    def _next(self, moment: datetime.datetime) -> Callable[[], None] | None:
        with self._lock:
            if not self._alarms or self._alarms[0][0] > moment:
                return None
            due, _, action = heapq.heappop(self._alarms)
            self._base = max(self._base, due)
            return action
