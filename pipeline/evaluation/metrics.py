"""Metrics of predictions, and how far chance moves them: pure functions of arrays.

Every metric here is a function of sums over photographs, so a replicate of the bootstrap is the same sums with other weights:
each photograph counts as often as a Poisson variable of mean 1 says (Chamandy et al., https://research.google/pubs/pub43157).
Both models are weighted alike, so what both find hard cancels out of their difference.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.evaluation.predictions import Answers, Predictions

BINS = 10
"""Bins of the calibration error, equally wide (Guo et al., https://arxiv.org/abs/1706.04599)."""

_TOP = 3

# Photographs whose weights are drawn at once: with 1,000 replicates, 32 MB.
_CHUNK = 4096

# As Keras clips, so that TFMA's log loss is ours.
_LEAST = 1e-7

HIGHER_IS_BETTER = {
    "accuracy": True, "balanced_accuracy": True, "top_3_accuracy": True, "log_loss": False, "calibration_error": False,
}  # fmt: skip
"""The metrics, and which way is better."""


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
    """Divides photographs into slices.

    Attributes:
        names: Names of the slices, each once.
        index: int [n]; the slice of each photograph, -1 for none.
    """

    names: tuple[str, ...]
    index: np.ndarray


def contributions(answers: Answers, labels: np.ndarray) -> np.ndarray:
    """float [3, n]: what each photograph adds to the sums of right answers, of those among the first three, and of losses."""
    loss = -np.log(np.clip(answers.p_true.astype(np.float64), _LEAST, 1 - _LEAST))
    return np.stack([answers.predicted == labels, answers.rank < _TOP, loss]).astype(np.float64)


def bins(answers: Answers) -> np.ndarray:
    """int [n]: the bin of the calibration error that each photograph falls into."""
    return np.minimum((answers.p_predicted * BINS).astype(int), BINS - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """Metrics on a split and on its replicates.

    Attributes:
        candidate: Name of the metric -> float [1 + replicates]; the first on the split itself.
        serving: The same of the model that serves; empty without one.
        slices: Kind -> float [slices, 3, 1 + replicates]: photographs, and right answers of candidate and serving model (0
            without one), weighted.
    """

    candidate: Mapping[str, np.ndarray]
    serving: Mapping[str, np.ndarray]
    slices: Mapping[str, np.ndarray]


def sample(
    predictions: Predictions, groupings: Mapping[str, Grouping], classes: int, replicates: int, seed: int
) -> Sampled:
    """Computes all metrics on a split and on bootstrap replicates of it.

    Args:
        predictions: The split.
        groupings: Kind -> its slices; kinds named `_...` are taken by this function.
        classes: Number of classes; balanced accuracy is the mean over those that a replicate has.
        replicates: How many.
        seed: Of the weights.

    Returns:
        The metrics; NaN where a replicate has no photograph.
    """
    models = {"candidate": predictions.candidate} | ({"serving": predictions.serving} if predictions.serving else {})
    values = {name: contributions(answers, predictions.labels) for name, answers in models.items()}
    ones = np.ones((1, len(predictions)))
    none = np.zeros((1, len(predictions)))
    right = np.concatenate([ones, values["candidate"][:1], values["serving"][:1] if "serving" in values else none])
    everything = {"_classes": (Grouping(tuple(map(str, range(classes))), predictions.labels), right)}
    everything |= {kind: (grouping, right) for kind, grouping in groupings.items()}
    whole = Grouping(("all",), np.zeros(len(predictions), int))
    for name, answers in models.items():
        everything[f"_{name}"] = whole, np.concatenate([ones, values[name]])
        gap = (answers.predicted == predictions.labels) - answers.p_predicted.astype(np.float64)
        everything[f"_{name}_bins"] = Grouping(tuple(map(str, range(BINS))), bins(answers)), gap[None]
    sums = _sums(everything, len(predictions), replicates, seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        figures = {
            name: _figures(sums[f"_{name}"][0], sums["_classes"], row, sums[f"_{name}_bins"][:, 0])
            for row, name in enumerate(models, start=1)
        }
    return Sampled(figures["candidate"], figures.get("serving", {}), {kind: sums[kind] for kind in groupings})


def _figures(totals, by_class, row, gaps) -> dict[str, np.ndarray]:
    count, right, among, loss = totals
    present = by_class[:, 0] > 0
    recalls = np.where(present, by_class[:, row] / by_class[:, 0], 0.0).sum(axis=0) / present.sum(axis=0)
    return {
        "accuracy": right / count,
        "balanced_accuracy": recalls,
        "top_3_accuracy": among / count,
        "log_loss": loss / count,
        "calibration_error": np.abs(gaps).sum(axis=0) / count,
    }


def _sums(groupings, count, replicates, seed) -> dict[str, np.ndarray]:
    """Kind -> float [slices, values, 1 + replicates]: weighted sums of the kind's values over each slice."""
    random = np.random.default_rng(seed)
    found = {
        kind: np.zeros((len(grouping.names) * len(values), 1 + replicates)) for kind, (grouping, values) in groupings.items()
    }
    for begin in range(0, count, _CHUNK):
        here = slice(begin, min(begin + _CHUNK, count))
        weights = np.ones((here.stop - begin, 1 + replicates))
        weights[:, 1:] = random.poisson(1.0, (here.stop - begin, replicates))
        for kind, (grouping, values) in groupings.items():
            inside = np.arange(len(grouping.names))[:, None] == grouping.index[here]
            found[kind] += (inside[:, None] * values[None, :, here]).reshape(-1, here.stop - begin) @ weights
    return {
        kind: found[kind].reshape(len(grouping.names), len(values), -1) for kind, (grouping, values) in groupings.items()
    }


def interval(samples: np.ndarray, confidence: float) -> tuple[float, float]:
    """The middle share of the replicates.

    Args:
        samples: float [1 + replicates], as in `Sampled`; NaN where a replicate has nothing to say.
        confidence: The share, such as 0.95.

    Returns:
        Lower and upper end; NaN when fewer than half of the replicates have something to say.
    """
    known = samples[1:][np.isfinite(samples[1:])]
    if 2 * len(known) < len(samples) - 1 or not len(known):
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def confusion(answers: Answers, labels: np.ndarray, classes: int) -> np.ndarray:
    """int [classes, classes]: photographs by label (row) and most probable class (column)."""
    counts = np.zeros((classes, classes), int)
    np.add.at(counts, (labels, answers.predicted), 1)
    return counts


def confused_pairs(counts: np.ndarray, names: Sequence[str], min_examples: int) -> list[tuple[str, str, int, float]]:
    """Pairs of classes that are confused, the largest share first.

    Args:
        counts: As `confusion` gives them.
        names: Names of the classes.
        min_examples: Fewest examples of the first of a pair.

    Returns:
        (label, taken for, photographs, share of the label's photographs).
    """
    totals = counts.sum(axis=1)
    pairs = [
        (names[row], names[column], int(counts[row, column]), float(counts[row, column] / totals[row]))
        for row, column in zip(*np.nonzero(counts), strict=True)
        if row != column and totals[row] >= min_examples
    ]
    return sorted(pairs, key=lambda pair: (-pair[3], pair[0], pair[1]))


def reliability(answers: Answers, labels: np.ndarray) -> list[tuple[int, float, float]]:
    """For each bin of the calibration error: photographs, mean probability and share that is right (NaN in an empty bin)."""
    index, right = bins(answers), answers.predicted == labels
    counts = np.bincount(index, minlength=BINS)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.bincount(index, answers.p_predicted, BINS) / counts
        shares = np.bincount(index, right, BINS) / counts
    return [(int(count), float(mean), float(share)) for count, mean, share in zip(counts, means, shares, strict=True)]
