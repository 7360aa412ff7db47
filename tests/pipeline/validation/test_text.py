"""Figures and people's words as a report prints them."""

import doctest

import pytest

from pipeline.validation import rules, text


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(text).failed == doctest.testmod(rules).failed == 0


@pytest.mark.parametrize(
    ("value", "limit", "printed"),
    [
        (0.0804, 0.08, "8.04%"),
        (0.0796, 0.08, "7.96%"),
        (0.08, 0.08, "8.0%"),
        (0.2, 0.08, "20.0%"),
        (0.080004, 0.08, "8.0004%"),
        (0.05 + 1e-17, 0.05, "5.0%"),
        (0.0625001, 0.0625, "6.3%"),
        (0.06241, 0.0624, "6.241%"),
        (0.06239, 0.0624, "6.2%"),
        (0.2 - 0.15, 0.05, "5.0%"),
        (0.05, None, "5.0%"),
    ],
)
def test_a_figure_has_as_many_digits_as_tell_it_from_its_limit(value, limit, printed):
    assert text.percent(value, limit) == printed


def test_a_negative_change_is_told_from_its_limit_too():
    assert text.percent(-0.0501, 0.05, "+") == "-5.01%" and text.percent(0.0501, 0.05, "+") == "+5.01%"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("it's", "it's"),
        ("a\nb\r\x1b[2K\x00", r"a\nb\r\x1b[2K\x00"),
        ("\u202eevil\u2028", r"\u202eevil\u2028"),
        ("🦄 é ☃", "🦄 é ☃"),
        ("", ""),
    ],
)
def test_what_could_forge_a_line_is_escaped_and_all_else_stays(given, printed):
    assert text.printable(given) == printed


def test_what_is_long_is_cut_and_its_length_said():
    assert text.shortened("x" * 80) == "x" * 80
    assert text.shortened("x" * 81) == "x" * 80 + "… (81 characters)"
    assert text.printable("🦄" * 10_000) == "🦄" * 600 + "… (10,000 characters)"
