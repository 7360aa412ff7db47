"""The verdict: what refuses a candidate, what chance must not decide, and that nothing is passed over in silence."""

import dataclasses
import math

import numpy as np
import pytest

from pipeline.evaluation import judge
from tests.pipeline.evaluation.conftest import CLASSES, split

SERVING = "version 7 of run r"


def around(predictions, serving=SERVING, **changes):
    """Circumstances in which nothing but the figures decides."""
    right = predictions.candidate.predicted == predictions.labels
    known = judge.Circumstances(
        classes=CLASSES,
        serving=serving,
        serving_classes=CLASSES if serving else (),
        bootstrap=not serving,
        expected=len(predictions),
        new_images=set(),
        tfma={"accuracy": float(right.mean()), "log_loss": float(-np.log(predictions.candidate.p_true).mean())},
    )
    return dataclasses.replace(known, **changes)


def noisy(labels, wrong, seed):
    """Predictions of which a share is wrong."""
    random = np.random.default_rng(seed)
    labels = np.asarray(labels)
    return np.where(random.random(len(labels)) < wrong, (labels + 1) % len(CLASSES), labels)


LABELS = np.arange(80) % 4


def failed(judgement):
    return [check.name for check in judgement.checks if not check.passed]


def test_a_good_candidate_passes_every_threshold(thresholds):
    found = split(LABELS, noisy(LABELS, 0.1, 0), noisy(LABELS, 0.1, 1))
    judgement = judge.judge(found, around(found), thresholds())
    assert judgement.failures == [] and judgement.examples == judgement.compared == 80
    assert {check.name for check in judgement.checks} >= {
        "accuracy", "balanced_accuracy", "top_3_accuracy", "log_loss", "calibration_error", "confusion",
        "log_loss against the serving model", "accuracy of label cup against the serving model",
        "photographs evaluated", "accuracy as TFMA has it", "classes in eval", "serving model",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "top_3_accuracy"])
def test_an_absolute_floor_refuses(thresholds, name):
    found = split(LABELS, noisy(LABELS, 0.3, 0))
    limits = {f"absolute__min_{name}": 1.0, "absolute__min_top_3_accuracy": 1.0}
    judgement = judge.judge(found, around(found, serving=""), thresholds(**limits))
    (check,) = [check for check in judgement.checks if check.name == name]
    assert not check.passed and check.margin == pytest.approx(check.value - 1.0) and check.wanted == "at least 1"


@pytest.mark.parametrize("name", ["log_loss", "calibration_error", "confusion"])
def test_an_absolute_ceiling_refuses(thresholds, name):
    found = split(LABELS, noisy(LABELS, 0.3, 0))
    judgement = judge.judge(found, around(found, serving=""), thresholds(**{f"absolute__max_{name}": 0.01}))
    assert failed(judgement) == [name]


def test_a_limit_that_is_just_met_is_met(thresholds):
    found = split([0, 1, 2, 3] * 5, [0, 1, 2, 0] * 5)
    limits = thresholds(absolute__min_accuracy=0.75, absolute__min_top_3_accuracy=0.75)
    judgement = judge.judge(found, around(found, serving=""), limits)
    assert judgement.failures == []


def test_a_candidate_that_is_worse_than_the_serving_model_is_refused(thresholds):
    labels = np.arange(2000) % 4
    found = split(labels, noisy(labels, 0.3, 0), noisy(labels, 0.1, 1))
    judgement = judge.judge(found, around(found), thresholds(comparison__max_accuracy_drop=0.1))
    assert failed(judgement) == ["accuracy against the serving model"]
    assert "with 95% confidence up to 0.2" in judgement.failures[0] and "at most 0.1 worse" in judgement.failures[0]


def test_noise_does_not_decide(thresholds):
    """A model that is no worse, on few photographs: its point may lie above or below, the interval's end is what counts."""
    limits = thresholds(comparison__max_accuracy_drop=0.02, comparison__replicates=500)
    few, many = np.arange(40) % 4, np.arange(20_000) % 4
    for labels, passes in ((few, False), (many, True)):
        found = split(labels, noisy(labels, 0.2, 0), noisy(labels, 0.2, 1))
        judgement = judge.judge(found, around(found), limits)
        assert ("accuracy against the serving model" not in failed(judgement)) == passes
    # A candidate that differs nowhere is certainly no worse, however few the photographs.
    found = split(few, noisy(few, 0.2, 0), noisy(few, 0.2, 0))
    assert failed(judge.judge(found, around(found), limits)) == []


def test_a_slice_is_refused_only_when_it_certainly_lost(thresholds):
    labels = np.arange(400) % 4
    serving = noisy(labels, 0.1, 1)
    limits = thresholds(slices__label__max_certain_drop=0.3)
    candidate = np.where((labels == 2) & (np.arange(400) % 3 != 0), 0, serving)
    found = split(labels, candidate, serving)
    assert failed(judge.judge(found, around(found), limits)) == ["accuracy of label pen against the serving model"]
    # Six photographs of a rare class, two of them lost: chance may be all there is.
    rare = np.concatenate([labels[labels != 2], [2] * 6])
    candidate = rare.copy()
    candidate[-2:] = 0
    found = split(rare, candidate, rare)
    assert failed(judge.judge(found, around(found), limits)) == []


def test_every_kind_of_slice_is_judged(thresholds):
    labels = np.arange(60) % 4
    wrong = (labels + 1) % 4
    sources = ["ana" if number < 10 else "import" for number in range(60)]
    sides = [112 if number < 20 else 130 if number < 40 else 200 for number in range(60)]
    candidate = np.where(np.arange(60) < 10, wrong, labels)
    found = split(labels, candidate, labels, sources=sources, sides=sides)
    low = {"absolute__min_accuracy": 0.6, "absolute__min_top_3_accuracy": 0.6}
    limits = {f"slices__{kind}__min_accuracy": 0.6 for kind in ("source", "size", "new")}
    new = {f"p{number:03d}" for number in range(6)}
    judgement = judge.judge(found, around(found, new_images=new), thresholds(**low, **limits))
    assert failed(judgement) == ["accuracy of source ana", "accuracy of size below 113 px", "accuracy of new images"]
    bands = {each.name: each.examples for each in judgement.slices if each.kind == "size"}
    assert bands == {"below 113 px": 20, "113 to 149 px": 20, "150 px or more": 20}


def test_a_slice_with_too_few_examples_is_shown_and_not_judged(thresholds):
    labels = np.array([0, 1, 2] * 10 + [3] * 4)
    found = split(labels, np.where(labels == 3, 0, labels))
    judgement = judge.judge(found, around(found, serving=""), thresholds(absolute__max_confusion=0.5))
    (toy,) = [each for each in judgement.slices if each.name == "toy"]
    assert not toy.judged and toy.examples == 4 and toy.accuracy == 0.0
    assert judgement.failures == [] and "accuracy of label toy" not in {check.name for check in judgement.checks}


def test_a_kind_without_any_slice_that_can_be_judged_is_a_failure(thresholds):
    found = split(LABELS[:8], LABELS[:8])
    assert failed(judge.judge(found, around(found, serving=""), thresholds(slices__label__min_examples=3))) == [
        "slices by label that are judged"
    ]
    assert "slices by new" not in str(judge.judge(found, around(found, serving=""), thresholds()).checks)


def test_an_eval_split_without_a_class_is_a_failure(thresholds):
    labels = np.array([0, 1, 2] * 10)
    found = split(labels, labels, labels)
    judgement = judge.judge(found, around(found), thresholds())
    assert failed(judgement) == ["classes in eval"] and "none of toy" in judgement.failures[0]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"expected": 81}, "photographs evaluated"),
        ({"tfma": {"accuracy": 0.5}}, "accuracy as TFMA has it"),
        ({"tfma": {"log_loss": math.nan}}, "log_loss as TFMA has it"),
    ],
)
def test_what_was_not_evaluated_is_a_failure(thresholds, changes, name):
    found = split(LABELS, LABELS, LABELS)
    assert failed(judge.judge(found, around(found, **changes), thresholds())) == [name]


def test_photographs_that_count_twice_are_a_failure(thresholds):
    found = split(LABELS, LABELS, LABELS)
    found.image_ids[0] = found.image_ids[1]
    assert failed(judge.judge(found, around(found), thresholds())) == ["photographs evaluated"]


def test_a_serving_model_that_was_not_asked_is_a_failure_of_every_comparison(thresholds):
    found = split(LABELS, LABELS)
    judgement = judge.judge(found, around(found), thresholds())
    missed = failed(judgement)
    assert "serving model" in missed and "log_loss against the serving model" in missed and len(missed) >= 6
    assert all("not evaluated" in failure for failure in judgement.failures if "against the serving model" in failure)


def test_the_first_release_is_an_explicit_bootstrap(thresholds):
    found = split(LABELS, LABELS)
    judgement = judge.judge(found, around(found, serving=""), thresholds())
    assert judgement.failures == [] and judgement.serving == {} and judgement.compared == 0
    (refused,) = judge.judge(found, around(found, serving="", bootstrap=False), thresholds()).failures
    assert "nothing serves" in refused and "release.bootstrap" in refused


def test_classes_that_were_added_are_left_out_of_the_comparison_and_said_so(thresholds):
    labels = np.arange(80) % 4
    serving = np.where(labels == 3, 0, labels)  # it cannot know what a toy is
    candidate = np.where(np.arange(80) < 8, (labels + 1) % 4, labels)
    found = split(labels, candidate, serving)
    judgement = judge.judge(found, around(found, serving_classes=CLASSES[:3]), thresholds(comparison__max_accuracy_drop=0.05))
    assert judgement.compared == 60 and judgement.serving["accuracy"] == 1.0
    assert judgement.notes[0].startswith("The model that serves knows other classes (toy added)")
    # Over all four classes the candidate would seem the better one.
    assert failed(judgement) == ["accuracy against the serving model"]
    (toy,) = [each for each in judgement.slices if each.name == "toy"]
    assert toy.change is None and toy.judged and toy.accuracy is not None


def test_a_class_that_is_gone_is_said_so_and_all_photographs_are_compared(thresholds):
    known = ("old<b>", *CLASSES)
    found = split(LABELS, noisy(LABELS, 0.1, 0), noisy(LABELS, 0.1, 1))
    judgement = judge.judge(found, around(found, serving_classes=known), thresholds())
    assert judgement.compared == 80 and judgement.failures == []
    assert judgement.notes == (
        "The model that serves knows other classes (old<b> gone): the two are compared on the 80 photographs of the classes that "
        "both know",
    )


def test_with_no_class_in_common_nothing_was_compared_and_that_is_a_failure(thresholds):
    found = split(LABELS, LABELS, LABELS)
    judgement = judge.judge(found, around(found, serving_classes=("fork", "spoon")), thresholds())
    assert judgement.compared == 0
    assert [name for name in failed(judgement) if "against the serving model" in name] == [
        f"{name} against the serving model"
        for name in ("accuracy", "balanced_accuracy", "top_3_accuracy", "log_loss", "calibration_error")
    ]


def test_hostile_names_stay_on_one_line(thresholds):
    found = split(LABELS, LABELS, (LABELS + 1) % 4, sources=["a\x1b[2J\nb<script>"] * 80)
    judgement = judge.judge(found, around(found), thresholds())
    assert all("\n" not in check.sentence and "\x1b" not in check.sentence for check in judgement.checks)
