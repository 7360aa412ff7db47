"""How well trials rank what full training ranks."""

import itertools
import random

import pytest
from scipy import stats

from pipeline.errors import PipelineError
from pipeline.tuning import ranking


def trials(*metrics):
    return [{"parameters": {"dropout": number / 10}, "metric": metric} for number, metric in enumerate(metrics)]


@pytest.mark.parametrize("order, correlation", [([0.1, 0.2, 0.3], 1.0), ([0.3, 0.2, 0.1], -1.0)])
def test_the_same_order_and_the_opposite(order, correlation):
    found = ranking.compare([0.5, 0.6, 0.7], order)
    assert found.spearman == pytest.approx(correlation) and found.kendall == pytest.approx(correlation) and found.trials == 3


@pytest.mark.parametrize("seed", range(40))
def test_as_scipy_computes_it_with_and_without_ties(seed):
    rng = random.Random(seed)
    count, grain = rng.randint(3, 25), rng.choice([3, 5, 10**6])
    one, other = ([rng.randint(0, grain) / grain for _ in range(count)] for _ in range(2))
    found = ranking.compare(one, other)
    if found.spearman is None:
        assert found.kendall is None and 1 in (len(set(one)), len(set(other)))
        return
    assert found.spearman == pytest.approx(stats.spearmanr(one, other).statistic)
    assert found.kendall == pytest.approx(stats.kendalltau(one, other).statistic)
    ties = [sum(a == b for a, b in itertools.combinations(values, 2)) for values in (one, other)]
    assert [found.tied_trial, found.tied_full] == ties


def test_where_all_are_equal_nothing_was_ranked():
    found = ranking.compare([0.5, 0.5, 0.5], [0.1, 0.2, 0.3])
    assert (found.spearman, found.kendall, found.tied_trial, found.tied_full) == (None, None, 3, 0)
    assert "no rank correlation" in found.sentence()


def test_what_the_winner_of_the_trials_is_worth():
    found = ranking.verify(trials(0.9, 0.8, 0.7), [0.93, 0.95, 0.94])
    assert found.winner_rank == 3 and found.regret == pytest.approx(0.02)
    assert "number 3 on the full snapshot, 0.020 behind" in found.sentence()
    assert "also the best on the full snapshot;" in ranking.verify(trials(0.9, 0.8, 0.7), [0.95, 0.95, 0.94]).sentence()


def test_the_best_trials_are_taken_best_first_and_those_without_a_result_left_out():
    found = ranking.top(trials(0.5, None, 0.9, float("nan"), 0.7, 0.9, 0.1), 4)
    best = [(trial["parameters"]["dropout"], trial["metric"]) for trial in found]
    assert best == [(0.2, 0.9), (0.5, 0.9), (0.4, 0.7), (0.0, 0.5)]


@pytest.mark.parametrize("count", [-1, 0, 1, 2])
def test_fewer_than_three_are_refused(count):
    with pytest.raises(PipelineError, match=f"a ranking of {count} trials says nothing.*take 3 or more"):
        ranking.top(trials(0.5, 0.6, 0.7), count)
    with pytest.raises(PipelineError, match="says nothing"):
        ranking.compare([0.5] * max(count, 0), [0.5] * max(count, 0))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ranking.top(trials(0.5, 0.6, 0.7, None), 4), "more trials than have a result: 3 of 4 have one; ask for 3 at"),
        (lambda: ranking.top(trials(0.5, None), 3), "for that tune 3 or more"),
        (lambda: ranking.verify(trials(0.5, 0.6, 0.7), [0.1, 0.2]), "3 trials have 2 full metrics"),
        (lambda: ranking.verify(trials(0.5, 0.6, 0.7), [0.1, float("nan"), 0.2]), "the full metric of trial 2 of 3 is nan"),
        (lambda: ranking.verify(trials(0.5, None, 0.7), [0.1, 0.1, 0.2]), "the trial metric of trial 2 of 3 is None"),
    ],
)
def test_what_cannot_be_ranked_is_named(call, words):
    with pytest.raises(PipelineError, match=words):
        call()
