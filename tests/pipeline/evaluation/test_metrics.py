"""The metrics against figures worked out by hand, and that chance is measured, paired and repeatable."""

import math

import numpy as np
import pytest

from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import Grouping
from tests.pipeline.evaluation.conftest import CLASSES, answers, split

LABELS = [0, 0, 0, 1, 1, 2, 3, 3]
PREDICTED = [0, 0, 1, 1, 0, 2, 3, 1]


def sampled(predictions, replicates=200, seed=0, groupings=None):
    return metrics.sample(predictions, groupings or {}, len(CLASSES), replicates, seed)


def test_each_metric_is_what_its_formula_says():
    found = {name: values[0] for name, values in sampled(split(LABELS, PREDICTED)).candidate.items()}
    assert found["accuracy"] == pytest.approx(5 / 8)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 1 + 1 / 2) / 4)
    # The wrong answers' own classes share 0.3 with two others, so the order of the classes decides who is fourth.
    assert found["top_3_accuracy"] == pytest.approx(7 / 8)
    assert found["log_loss"] == pytest.approx(-(5 * math.log(0.7) + 3 * math.log(0.1)) / 8)
    assert found["calibration_error"] == pytest.approx(0.7 - 5 / 8)


def test_the_calibration_error_adds_up_the_bins():
    probabilities = [[0.95, 0.05], [0.95, 0.05], [0.55, 0.45], [0.45, 0.55]]
    labels = np.array([0, 1, 0, 0])
    predictions = split(labels, [0, 0, 0, 0])
    predictions = type(predictions)(**{**vars(predictions), "candidate": answers(probabilities, labels)})
    (error, *_) = metrics.sample(predictions, {}, 2, 100, 0).candidate["calibration_error"]
    assert error == pytest.approx(abs(1 - 1.9) / 4 + abs(1 - 1.1) / 4)
    bins = metrics.reliability(predictions.candidate, labels)
    assert [count for count, _, _ in bins] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 2]
    assert bins[9][1:] == pytest.approx((0.95, 0.5))


def test_a_replicate_is_the_split_with_other_weights():
    predictions = split(LABELS, PREDICTED, PREDICTED[::-1])
    labels = np.array(LABELS)
    found = sampled(predictions, replicates=100, seed=7)
    weights = np.random.default_rng(7).poisson(1.0, (8, 100))
    for replicate in (0, 41, 99):
        repeated = np.repeat(np.arange(8), weights[:, replicate])
        again = split(labels[repeated], np.array(PREDICTED)[repeated], np.array(PREDICTED[::-1])[repeated])
        plain = sampled(again, replicates=100)
        for name in metrics.HIGHER_IS_BETTER:
            assert found.candidate[name][1 + replicate] == pytest.approx(plain.candidate[name][0])
            assert found.serving[name][1 + replicate] == pytest.approx(plain.serving[name][0])


def test_the_interval_of_an_accuracy_is_the_binomial_one():
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 2000)
    predicted = np.where(random.random(2000) < 0.8, labels, (labels + 1) % 4)
    low, high = metrics.interval(sampled(split(labels, predicted), replicates=1000).candidate["accuracy"], 0.95)
    share = (labels == predicted).mean()
    expected = 1.96 * math.sqrt(share * (1 - share) / 2000)
    assert (share - low, high - share) == pytest.approx((expected, expected), rel=0.15)


def test_what_both_models_find_hard_cancels_out_of_their_difference():
    random = np.random.default_rng(1)
    labels = random.integers(0, 4, 1000)
    hard = random.random(1000) < 0.4
    candidate = np.where(hard, (labels + 1) % 4, labels)
    serving = np.where(random.random(1000) < 0.01, (candidate + 1) % 4, candidate)
    found = sampled(split(labels, candidate, serving), replicates=500)
    difference = found.candidate["accuracy"] - found.serving["accuracy"]
    widths = [np.subtract(*metrics.interval(each, 0.95)[::-1]) for each in (difference, found.candidate["accuracy"])]
    assert widths[0] < widths[1] / 3


def test_the_same_seed_gives_the_same_interval_and_equal_models_do_not_differ():
    predictions = split(LABELS, PREDICTED, PREDICTED)
    one, other, third = (sampled(predictions, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.candidate["log_loss"], other.candidate["log_loss"])
    assert not np.array_equal(one.candidate["log_loss"], third.candidate["log_loss"])
    assert metrics.interval(one.candidate["accuracy"] - one.serving["accuracy"], 0.95) == (0.0, 0.0)


def test_more_photographs_than_are_weighted_at_once():
    labels = np.arange(3 * metrics._CHUNK + 5) % 4
    found = sampled(split(labels, labels), replicates=100, groupings={"half": Grouping(("even",), np.where(labels % 2, -1, 0))})
    assert np.all(found.candidate["accuracy"] == 1.0)
    count, right, _ = found.slices["half"][0]
    assert count[0] == right[0] == (labels % 2 == 0).sum() and 0.9 < count[1:].mean() / count[0] < 1.1


def test_an_interval_of_nothing_is_none():
    assert all(map(math.isnan, metrics.interval(np.array([0.5] + [math.nan] * 100), 0.95)))
    assert metrics.interval(np.array([0.5] + [0.25] * 60 + [math.nan] * 40), 0.95) == (0.25, 0.25)


def test_pairs_that_are_confused_are_counted_by_label():
    counts = metrics.confusion(split(LABELS, PREDICTED).candidate, np.array(LABELS), 4)
    assert counts.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1]]
    pairs = metrics.confused_pairs(counts, CLASSES, min_examples=2)
    assert [pair[:3] for pair in pairs] == [("hat", "cup", 1), ("toy", "hat", 1), ("cup", "hat", 1)]
    assert metrics.confused_pairs(counts, CLASSES, min_examples=3)[0][:2] == ("cup", "hat")
