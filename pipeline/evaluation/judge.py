"""Judges a candidate: every threshold with its value, limit and margin. Pure functions; what was not evaluated has failed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set

import numpy as np

from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import Grouping
from pipeline.evaluation.predictions import Predictions
from pipeline.evaluation.thresholds import SliceThresholds, Thresholds, kinds
from pipeline.validation.text import figure, printable, shortened

# Figures that differ by less are equal: rounding must not decide.
_EQUAL = 1e-9

# How far TFMA's figures may lie from ours: it adds up in 32 bits.
_AGREES = 1e-4


@dataclasses.dataclass(frozen=True)
class Check:
    """One threshold, judged.

    Attributes:
        name: Such as `accuracy`, `accuracy against the serving model` or `accuracy of label flower`.
        passed: Whether it is met.
        value: The figure that decides; None where it is no number or was not evaluated.
        limit: What it must reach or not exceed; None where it is no number.
        margin: How much is left, negative when it is missed; None without a value.
        told: The figure in words, with its interval where there is one.
        wanted: The limit in words.
    """

    name: str
    passed: bool
    value: float | None
    limit: float | None
    margin: float | None
    told: str
    wanted: str

    @property
    def sentence(self) -> str:
        """What is missing, in words."""
        return f"{self.name}: {self.told}, wanted: {self.wanted}"


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice of the eval split.

    Attributes:
        kind: `label`, `source`, `size` or `new`.
        name: Such as a class.
        examples: Photographs.
        accuracy: The candidate's; None without examples.
        compared: Photographs that the comparison is made on.
        serving: The serving model's accuracy on these; None without one.
        change: The candidate's accuracy on these less the serving model's; None without one.
        interval: Of the change; None without one.
        judged: Whether it has enough examples.
    """

    kind: str
    name: str
    examples: int
    accuracy: float | None
    compared: int = 0
    serving: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    judged: bool = True


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What came of a candidate.

    Attributes:
        checks: Every threshold, judged.
        figures: Metric -> the candidate's on the whole eval split; NaN never.
        serving: Metric -> the serving model's, on `compared` photographs; empty without one.
        slices: Every slice, judged or not.
        examples: Photographs.
        compared: Photographs that both models were asked about and whose class both know.
        confusion: int [classes, classes], by label and prediction.
        pairs: (label, taken for, photographs, share) of the classes that are confused, the largest share first.
        reliability: Model -> bins of the calibration error, as `metrics.reliability` gives them.
        notes: Sentences that a reader must know, such as that classes were added.
    """

    checks: tuple[Check, ...]
    figures: Mapping[str, float]
    serving: Mapping[str, float]
    slices: tuple[Slice, ...]
    examples: int
    compared: int
    confusion: np.ndarray
    pairs: Sequence[tuple[str, str, int, float]]
    reliability: Mapping[str, Sequence[tuple[int, float, float]]]
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """Each missed threshold as a sentence."""
        return [check.sentence for check in self.checks if not check.passed]


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """What else the verdict depends on.

    Attributes:
        classes: Names, in the order of the logits.
        serving: What serves, in words; empty when nothing does.
        serving_classes: The classes that it knows.
        bootstrap: Whether a model may be released although nothing serves.
        expected: Photographs that the eval split has.
        new_images: Images that the last accepted snapshot did not have; None when there is no such snapshot.
        tfma: `accuracy` and `log_loss` as TFMA has them, overall.
    """

    classes: Sequence[str]
    serving: str
    serving_classes: Sequence[str]
    bootstrap: bool
    expected: int
    new_images: Set[str] | None
    tfma: Mapping[str, float]


def judge(predictions: Predictions, around: Circumstances, thresholds: Thresholds) -> Judgement:
    """Judges a candidate on the eval split, alone and against the model that serves."""
    classes, comparison = around.classes, thresholds.comparison
    groupings = _groupings(predictions, around, thresholds)
    replicates = comparison.replicates
    sampled = metrics.sample(predictions, groupings, len(classes), replicates, comparison.seed)
    figures = {name: float(values[0]) for name, values in sampled.candidate.items()}
    counts = metrics.confusion(predictions.candidate, predictions.labels, len(classes))
    pairs = metrics.confused_pairs(counts, classes, thresholds.slices.label.min_examples)

    notes, common, both = [], predictions, sampled
    added = [name for name in classes if name not in around.serving_classes]
    gone = [name for name in around.serving_classes if name not in classes]
    if around.serving and (added or gone):
        known = np.isin(predictions.labels, [place for place, name in enumerate(classes) if name not in added])
        notes.append(_class_note(added, gone, int(known.sum())))
        common = predictions.at(known)
        groupings_of_common = {
            kind: Grouping(grouping.names, grouping.index[known]) for kind, grouping in groupings.items()
        }
        both = metrics.sample(common, groupings_of_common, len(classes), replicates, comparison.seed)

    slices = _slices(groupings, sampled, both if around.serving else None, thresholds)
    checks = [*_requirements(predictions, around, figures), *_absolute(figures, pairs, sampled, thresholds)]
    if around.serving:
        checks += _comparison(both, thresholds)
    checks += _slice_checks(slices, around, thresholds)
    return Judgement(
        checks=tuple(checks),
        figures=figures,
        serving={name: float(values[0]) for name, values in both.serving.items()} if around.serving else {},
        slices=tuple(slices),
        examples=len(predictions),
        compared=len(common) if around.serving else 0,
        confusion=counts,
        pairs=pairs,
        reliability={
            name: metrics.reliability(answers, common.labels if name == "serving" else predictions.labels)
            for name, answers in (("candidate", predictions.candidate), ("serving", common.serving))
            if answers is not None
        },
        notes=tuple(notes),
    )


def _class_note(added, gone, compared) -> str:
    def named(names):
        return ", ".join(printable(shortened(name)) for name in names[:10]) + (" and more" if len(names) > 10 else "")

    told = [f"{named(names)} {what}" for names, what in ((added, "added"), (gone, "gone")) if names]
    return (
        f"The model that serves knows other classes ({'; '.join(told)}): the two are compared on the {compared} photographs of "
        "the classes that both know"
    )


def _groupings(predictions: Predictions, around: Circumstances, thresholds: Thresholds) -> dict[str, Grouping]:
    sources, by_source = np.unique(predictions.sources.astype(str), return_inverse=True)
    edges = thresholds.slices.size_edges
    bounds = [0, *edges]
    bands = [f"{low} to {high - 1} px" if low else f"below {high} px" for low, high in zip(bounds, edges)]
    found = {
        "label": Grouping(tuple(around.classes), predictions.labels),
        "source": Grouping(tuple(sources.tolist()), by_source),
        "size": Grouping((*bands, f"{edges[-1]} px or more"), np.searchsorted(edges, predictions.longer_sides, side="right")),
    }
    if around.new_images is not None:
        new = np.array([image_id in around.new_images for image_id in predictions.image_ids], bool)
        found["new"] = Grouping(("images",), np.where(new, 0, -1))
    return found


def _slices(groupings, sampled, both, thresholds: Thresholds) -> list[Slice]:
    limits, found = kinds(thresholds.slices), []
    for kind, grouping in groupings.items():
        for position, name in enumerate(grouping.names):
            examples, right, _ = sampled.slices[kind][position, :, 0]
            least = limits[kind].min_examples
            made = Slice(
                kind, name, int(examples), float(right / examples) if examples else None, judged=bool(examples >= least)
            )
            if both is not None:
                made = _compared(made, both.slices[kind][position], thresholds.comparison.confidence)
            found.append(made)
    return found


def _compared(made: Slice, sums: np.ndarray, confidence: float) -> Slice:
    count = int(sums[0, 0])
    if not count:
        return made
    with np.errstate(invalid="ignore", divide="ignore"):
        change = (sums[1] - sums[2]) / sums[0]
    return dataclasses.replace(
        made, compared=count, serving=float(sums[2, 0] / count), change=float(change[0]),
        interval=metrics.interval(change, confidence),
    )  # fmt: skip


def _check(name: str, value: float, limit: float, at_least: bool, told: str = "") -> Check:
    """A figure against its limit; one that is no number was not evaluated."""
    wanted = f"{'at least' if at_least else 'at most'} {limit:g}"
    if not math.isfinite(value):
        return Check(name, False, None, limit, None, "not evaluated", wanted)
    value = float(value)
    margin = value - limit if at_least else limit - value
    return Check(name, margin >= -_EQUAL, value, limit, margin, told or figure(value, limit), wanted)


def _required(name: str, passed: bool, told: str, wanted: str) -> Check:
    return Check(name, passed, None, None, None, told, wanted)


def _requirements(predictions: Predictions, around: Circumstances, figures: Mapping[str, float]) -> list[Check]:
    found = [
        _required(
            "photographs evaluated", len(predictions) == around.expected and len(set(predictions.image_ids)) == around.expected,
            f"{len(predictions)}", f"{around.expected}, each once",
        )
    ]  # fmt: skip
    for name, given in sorted(around.tfma.items()):
        agrees = math.isfinite(given) and abs(given - figures[name]) <= _AGREES * max(1.0, abs(given))
        found.append(_required(f"{name} as TFMA has it", agrees, figure(figures[name]), figure(given)))
    absent = [name for place, name in enumerate(around.classes) if not (predictions.labels == place).any()]
    told = f"none of {', '.join(printable(shortened(name)) for name in absent[:10])}" if absent else "all of them"
    found.append(_required("classes in eval", not absent, told, f"all {len(around.classes)} of the schema"))
    if not around.serving:
        told = "nothing serves" + (": a bootstrap, judged by the absolute thresholds alone" if around.bootstrap else "")
        wanted = "one to compare with, or release.bootstrap in the settings"
        found.append(_required("serving model", around.bootstrap, told, wanted))
    else:
        known = predictions.serving is not None
        told = printable(around.serving) if known else f"{printable(around.serving)}: not evaluated"
        found.append(_required("serving model", known, told, "one to compare with"))
    return found


def _absolute(figures, pairs, sampled, thresholds: Thresholds) -> list[Check]:
    limits, confidence = thresholds.absolute, thresholds.comparison.confidence
    found = []
    for name, higher in metrics.HIGHER_IS_BETTER.items():
        limit = getattr(limits, f"{'min' if higher else 'max'}_{name}")
        low, high = metrics.interval(sampled.candidate[name], confidence)
        told = f"{figure(figures[name], limit)} ({low:.3f} to {high:.3f})"
        found.append(_check(name, figures[name], limit, higher, told))
    share, told = 0.0, "0"
    if pairs:
        label, taken_for, count, share = pairs[0]
        told = f"{share:.3f}: {count} of {printable(shortened(label))} taken for {printable(shortened(taken_for))}"
    found.append(_check("confusion", share, limits.max_confusion, False, told))
    return found


def _comparison(both: metrics.Sampled, thresholds: Thresholds) -> list[Check]:
    """The worse end of each difference's interval decides."""
    limits, found = thresholds.comparison, []
    for name, higher in metrics.HIGHER_IS_BETTER.items():
        limit = getattr(limits, f"max_{name}_{'drop' if higher else 'rise'}")
        change = both.candidate[name] - both.serving.get(name, np.nan)
        _, high = metrics.interval(-change if higher else change, limits.confidence)
        end = f"{-high:.3f} better" if high < 0 else f"up to {high:.3f} worse"
        told = f"{change[0]:+.3f}, with {limits.confidence:.0%} confidence {end}"
        check = _check(f"{name} against the serving model", high, limit, False, told)
        found.append(dataclasses.replace(check, wanted=f"at most {limit:g} worse"))
    return found


def _slice_checks(slices: Sequence[Slice], around: Circumstances, thresholds: Thresholds) -> list[Check]:
    found = []
    for kind, limits in kinds(thresholds.slices).items():
        if kind == "new" and around.new_images is None:
            continue  # the first accepted snapshot: every image is new
        judged = [each for each in slices if each.kind == kind and each.judged]
        few = sum(each.kind == kind and not each.judged for each in slices)
        if limits.required or judged:
            told = f"{len(judged)}" + (f"; {few} with fewer than {limits.min_examples} examples" if few else "")
            found.append(_required(f"slices by {kind} that are judged", bool(judged), told, "at least 1"))
        found += [check for each in judged for check in _of_slice(each, limits, bool(around.serving), thresholds)]
    return found


def _of_slice(each: Slice, limits: SliceThresholds, compared: bool, thresholds: Thresholds) -> list[Check]:
    of = f"accuracy of {each.kind} {printable(shortened(each.name))}"
    found = [_check(of, each.accuracy, limits.min_accuracy, True, f"{each.accuracy:.3f} on {each.examples}")]
    # A class that the serving model does not know has nothing to be compared with, which a note says.
    if compared and each.compared >= limits.min_examples:
        _, better = each.interval
        confidence = f"with {thresholds.comparison.confidence:.0%} confidence"
        told = f"{each.change:+.3f} on {each.compared}, {confidence} at best {better:+.3f}"
        check = _check(f"{of} against the serving model", -better, limits.max_certain_drop, False, told)
        found.append(dataclasses.replace(check, wanted=f"not certainly more than {limits.max_certain_drop:g} worse"))
    return found
