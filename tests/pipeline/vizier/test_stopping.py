"""The median rule: its examples, and what holds for every set of curves."""

import random
import statistics

import pytest

from pipeline.vizier import stopping
from pipeline.vizier.stopping import MIN_COMPLETED_TRIALS, should_stop

CONSTANT = [[(step, value) for step in (1, 2, 3)] for value in (0.1, 0.2, 0.3, 0.4, 0.5)]


@pytest.mark.parametrize(
    "curve, stops",
    [
        ([(1, 0.29)], True),
        ([(1, 0.3)], False),  # equal to the median is not worse
        ([(1, 0.29), (2, 0.29)], True),
        ([(1, 0.31), (2, 0.0)], False),  # the best counts, not the last
        ([], False),
    ],
)
def test_strictly_worse_than_the_median(curve, stops):
    assert should_stop(curve, CONSTANT) is stops


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle():
    completed = [*CONSTANT, [(1, 0.4)]]
    assert should_stop([(1, 0.349)], completed) and not should_stop([(1, 0.35)], completed)


def test_others_count_by_the_average_of_what_they_had_reported_by_the_same_step():
    late = [[(1, 0.0), (2, 0.4), (9, 1.0)]] * 5
    assert not should_stop([(1, 0.0)], late)
    assert should_stop([(2, 0.19)], late) and not should_stop([(2, 0.2)], late)
    assert not should_stop([(8, 0.2)], late) and should_stop([(9, 0.46)], late)


def test_those_that_had_reported_nothing_by_then_do_not_count():
    assert not should_stop([(1, 0.0)], [[(2, 0.9)]] * 10)
    assert not should_stop([(1, 0.0)], [*[[(2, 0.9)]] * 10, *CONSTANT[:4]])
    assert should_stop([(2, 0.0)], [[(2, 0.9)]] * 10)


def test_nothing_stops_before_enough_have_completed():
    assert not should_stop([(1, 0.0)], CONSTANT[: MIN_COMPLETED_TRIALS - 1])
    assert should_stop([(1, 0.0)], CONSTANT[:MIN_COMPLETED_TRIALS])
    assert not should_stop([(1, 0.0)], [], min_completed=0)


def some_curve(rng, steps=6):
    at = sorted(rng.sample(range(1, steps + 1), rng.randint(1, steps)))
    return [(step, rng.choice([rng.random(), rng.randint(0, 3) / 3])) for step in at]


@pytest.mark.parametrize("seed", range(200))
def test_what_holds_for_all_curves(seed):
    rng = random.Random(seed)
    completed = [some_curve(rng) for _ in range(rng.randint(0, 12))]
    curve = some_curve(rng)
    verdict = should_stop(curve, completed)

    assert verdict == should_stop(curve, rng.sample(completed, len(completed))), "the order of trials does not matter"
    turned = [[(step, -value) for step, value in each] for each in completed]
    assert verdict == should_stop([(s, -v) for s, v in curve], turned, maximize=False), "a minimum is a maximum upside down"
    # Powers of two, so that no rounding comes in.
    grown = [[(step, 4 * value) for step, value in each] for each in completed]
    assert verdict == should_stop([(s, 4 * v) for s, v in curve], grown), "the unit does not matter"
    better = [*curve[:-1], (curve[-1][0], 2.0)]
    assert not should_stop(better, completed), "better than all others is never stopped"
    if not verdict:
        raised = [(step, value + 0.5) for step, value in curve]
        assert not should_stop(raised, completed), "to be better is never a reason"
    future = [[*each, (99, rng.random())] for each in completed]
    assert verdict == should_stop(curve, future), "what others reported later does not matter"

    # The rule once more, word by word.
    last = max(step for step, _ in curve)
    seen = [[value for step, value in each if step <= last] for each in completed]
    averages = [sum(values) / len(values) for values in seen if values]
    expected = len(averages) >= MIN_COMPLETED_TRIALS and max(v for _, v in curve) < statistics.median(averages)
    if not averages or abs(max(v for _, v in curve) - statistics.median(averages)) > 1e-9:
        assert verdict == expected


@pytest.mark.parametrize("seed", range(20))
def test_at_most_about_half_of_the_trials_of_one_kind_are_stopped(seed):
    rng = random.Random(seed)
    completed = [[(1, rng.random())] for _ in range(51)]
    stopped = sum(should_stop(curve, completed) for curve in completed)
    assert stopped == 25


def test_running_average():
    assert stopping.running_average([(2, 1.0), (4, 3.0)], 1) is None
    assert stopping.running_average([(2, 1.0), (4, 3.0)], 4) == 2.0
