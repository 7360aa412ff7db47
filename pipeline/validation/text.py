"""Figures and people's words as a report prints them."""

import html

# Longest label, id or sentence that is printed whole, in characters.
_LABEL, _SENTENCE = 80, 600


def shortened(text: str, longest: int = _LABEL) -> str:
    """`text`, or its beginning and its length.

    >>> shortened("x" * 10_000, longest=3)
    'xxx… (10,000 characters)'
    """
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def printable(text: str) -> str:
    """`text` on one line, shortened when it is longer than a sentence.

    Labels and ids are people's input: a line end, a terminal's control code or a mark that turns the direction of
    writing must not forge a line. They are written as Python escapes.
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shortened(text, _SENTENCE))


def escaped(text: str) -> str:
    """People's words as a page shows them: one line, not too long, no markup."""
    return html.escape(printable(text))


def percent(value: float, limit: float | None = None, sign: str = "") -> str:
    """`value` in percent, with as many digits as tell it from `limit`, at least one.

    >>> percent(0.0804, limit=0.08), percent(0.08, limit=0.08), percent(0.0625)
    ('8.04%', '8.0%', '6.2%')

    Args:
        value: A share; 1 is 100 %.
        limit: What it is compared with; by its absolute value when `sign` is given.
        sign: `+` to write the sign of a positive value too.
    """
    return f"{_digits(100 * value, None if limit is None else 100 * limit, 1, sign)}%"


def figure(value: float, limit: float | None = None) -> str:
    """`value` with as many digits as tell it from `limit`, at least four.

    >>> figure(0.02004, limit=0.02), figure(0.0847, limit=0.02)
    ('0.02004', '0.0847')
    """
    return _digits(value, limit, 4)


def limit_percent(limit: float) -> str:
    """A limit in percent with all its digits, at least one.

    >>> limit_percent(0.08), limit_percent(0.0625)
    ('8.0%', '6.25%')
    """
    text = f"{100 * limit:.10g}"
    return f"{text if '.' in text or 'e' in text else text + '.0'}%"


def _digits(value: float, limit: float | None, least: int, sign: str = "") -> str:
    digits = least
    # Rounded, the value must lie on the side of the limit on which it lies: 8.04% above 8.0%, 6.241% above 6.24%. Within
    # 1e-9 it counts as on the limit (rules.judge), and no digit is to tell them apart.
    if limit is not None and abs(abs(value) - limit) > 1e-7:
        printed = float(f"{limit:.10g}")
        while digits < 9 and not (float(f"{abs(value):.{digits}f}") - printed) * (abs(value) - limit) > 0:
            digits += 1
    return f"{value:{sign}.{digits}f}"
