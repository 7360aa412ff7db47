"""Ticks, times and words of pages with charts."""

import doctest

from models import charts


def test_examples_in_docstrings():
    found = doctest.testmod(charts)
    assert found.attempted and not found.failed


def test_nobody_s_words_are_markup_or_turn_the_writing():
    assert charts.escaped("<b>\u202e&'\n") == "&lt;b&gt;\\u202e&amp;&#x27;\\n"


def test_a_tick_has_the_digits_that_it_needs():
    assert [charts.tick(value, 0.05) for value in (0.45, 0.5)] == ["0.45", "0.50"] and charts.tick(2.5e6, 1.0) == "2.5e+06"
