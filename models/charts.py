"""What pages with charts are made of: ticks of an axis, times and other people's words. No TensorFlow."""

import html
import math


def ticks(low: float, high: float, limits: tuple[float, float]) -> list[float]:
    """Round numbers, three to seven, equally far from each other, around all from low to high.

    >>> ticks(0.0, 187.3, (-math.inf, math.inf))
    [0.0, 50.0, 100.0, 150.0, 200.0]
    >>> ticks(0.5, 0.5, (0.0, 1.0))
    [0.45, 0.5, 0.55]
    """
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        room = abs(low) / 10 or 1.0
        low, high = max(limits[0], low - room), min(limits[1], high + room)
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if (high - low) / (factor * power) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def tick(value: float, step: float) -> str:
    """A tick's number, with the digits that its distance to the next one needs."""
    if abs(value) >= 1e5:
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(9.41), duration(125), duration(36125)
    ('9.4 s', '2 min 5 s', '10 h 2 min')
    """
    if round(seconds) < 60:
        return f"{seconds:.1f} s" if round(seconds, 1) < 10 and seconds else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def escaped(text: str) -> str:
    """Anybody's words as a page shows them: no markup, and no mark that turns the direction of writing."""
    return html.escape("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text)))
