"""The timeline of serving as a picture: a band for each endpoint, in it a bar for each model, as high as its share."""

import datetime
import html
from collections.abc import Sequence

from pipeline.lineage.timeline import Interval, Timeline
from pipeline.validation.text import printable, shortened

_SHOWN = 16
"""How many intervals of an endpoint the picture shows."""

_WIDTH, _NAME, _BAND, _ROW, _AXIS = 940, 110, 34, 50, 26
"""Width of the picture, of an endpoint's name, height of a full share, of an endpoint, of the axis; in pixels."""

_TICKS, _LETTER = 5, 7


def chosen(timeline: Timeline, run_id: str) -> list[Interval]:
    """The intervals that the picture shows: of each endpoint those around the run's own, or else the newest."""
    found = []
    for endpoint in sorted({interval.endpoint for interval in timeline.intervals}):
        intervals = [interval for interval in timeline.intervals if interval.endpoint == endpoint]
        own = [number for number, interval in enumerate(intervals) if interval.run_id == run_id]
        middle = own[len(own) // 2] if own else len(intervals)
        first = max(0, min(middle - _SHOWN // 2, len(intervals) - _SHOWN))
        found += intervals[first : first + _SHOWN]
    return found


def svg(intervals: Sequence[Interval], run_id: str, now: datetime.datetime) -> str:
    """Draws intervals; each bar links to `#interval-POSITION` of the same page, those of `run_id` stand out."""
    if not intervals:
        return ""
    endpoints = list(dict.fromkeys(interval.endpoint for interval in intervals))
    begin = min(interval.since for interval in intervals)
    end = max([max(now, begin) if interval.until is None else interval.until for interval in intervals])
    span = max((end - begin).total_seconds(), 1)

    def x(when: datetime.datetime) -> float:
        return _NAME + (_WIDTH - _NAME - 10) * (when - begin).total_seconds() / span

    height = len(endpoints) * _ROW + _AXIS
    bars = "".join(
        _bar(interval, position, x(interval.since), x(interval.until or end), endpoints.index(interval.endpoint) * _ROW,
             _below(interval, intervals, end), interval.run_id == run_id)
        for position, interval in enumerate(intervals)
    )  # fmt: skip
    names = "".join(
        f'<text x="0" y="{row * _ROW + _BAND / 2 + 12:.0f}">{html.escape(shortened(printable(endpoint), 15))}</text>'
        for row, endpoint in enumerate(endpoints)
    )
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="What served when">{names}{bars}{_axis(begin, span, x, height)}</svg>'
    )


def _below(interval: Interval, intervals: Sequence[Interval], end: datetime.datetime) -> float:
    """Shares of older releases that served at the same time: the bar stands on theirs."""
    middle = interval.since + ((interval.until or end) - interval.since) / 2
    return sum(
        other.share
        for other in intervals
        if other.endpoint == interval.endpoint and other.number < interval.number
        and other.since <= middle and (other.until is None or middle < other.until)
    )  # fmt: skip


def _bar(interval: Interval, position: int, left: float, right: float, top: float, below: float, own: bool) -> str:
    width, tall = max(right - left - 1, 2), interval.share * _BAND
    y = top + 8 + _BAND * (1 - below) - tall
    version = printable(interval.version)
    told = f"version {version} of run {interval.run_id}, {interval.share:.0%}, {_when(interval)}"
    name = version if len(version) * _LETTER < width and tall > 12 else ""
    return (
        f'<a href="#interval-{position}"><rect class="{"own" if own else "other"}" x="{left:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{tall:.1f}"><title>{html.escape(printable(told))}</title></rect>'
        f'<text class="on" x="{left + 4:.1f}" y="{y + tall / 2 + 4:.1f}">{html.escape(name)}</text></a>'
    )


def _when(interval: Interval) -> str:
    until = f"until {interval.until:%Y-%m-%d %H:%M} UTC" if interval.until else "and still serves"
    return f"from {interval.since:%Y-%m-%d %H:%M} UTC {until}"


def _axis(begin: datetime.datetime, span: float, x, height: int) -> str:
    pattern = "%Y-%m-%d" if span > 5 * 86400 else "%m-%d %H:%M" if span > 600 else "%H:%M:%S"
    drawn = ""
    for number in range(_TICKS):
        when = begin + datetime.timedelta(seconds=span * number / (_TICKS - 1))
        anchor = "start" if number == 0 else "end" if number == _TICKS - 1 else "middle"
        drawn += (
            f'<line class="axis" x1="{x(when):.1f}" x2="{x(when):.1f}" y1="4" y2="{height - 18}"/>'
            f'<text x="{x(when):.1f}" y="{height - 4}" text-anchor="{anchor}">{when:{pattern}}</text>'
        )
    return drawn
