"""How well the tuning sample ranks: do trials that won there also win when they are trained on the full snapshot?

Pure functions over what was measured elsewhere. No TensorFlow.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import PipelineError

MIN_TRIALS = 3
"""Two trials are ranked the same or the opposite way, whatever ranks them: their correlation says nothing."""


@dataclasses.dataclass(frozen=True)
class Ranking:
    """How two metrics of the same trials agree.

    Attributes:
        trials: How many were compared.
        spearman: Spearman's rank correlation, -1 to 1; of equal values each has the mean of their ranks. None where all
            trials have one and the same value in one of the metrics, so that nothing was ranked.
        kendall: Kendall's tau-b, -1 to 1, which corrects for ties; None as `spearman`.
        tied_trial: Pairs of trials with the same trial metric.
        tied_full: Pairs of trials with the same full metric.
        winner_rank: Rank, from 1, that the best trial has by the full metric; of equals the best rank.
        regret: The best full metric less that of the best trial: what full training of the others would have gained.
    """

    trials: int
    spearman: float | None
    kendall: float | None
    tied_trial: int
    tied_full: int
    winner_rank: int
    regret: float

    def sentence(self) -> str:
        """The verdict for a person, in one line.

        >>> compare([0.9, 0.8, 0.7], [0.93, 0.94, 0.91]).sentence().split("; ")[0]
        'of 3 trials the best one is number 2 on the full snapshot, 0.010 behind'
        """
        place = "also the best" if self.winner_rank == 1 else f"number {self.winner_rank}"
        behind = "" if self.winner_rank == 1 else f", {self.regret:.3f} behind"
        if self.spearman is None:
            told = "no rank correlation, because one of the metrics is the same for all"
        else:
            told = f"rank correlation {self.spearman:.2f} (Spearman), {self.kendall:.2f} (Kendall)"
        return f"of {self.trials} trials the best one is {place} on the full snapshot{behind}; {told}"


def require_possible(count: int, trials: int) -> None:
    """Checks, before a search, that so many of its trials can be ranked.

    Args:
        count: How many are to be.
        trials: How many it may have.

    Raises:
        PipelineError: They are fewer than `MIN_TRIALS`, or more than there will be.
    """
    _check_count(count, "a ranking")
    if count > trials:
        raise PipelineError(f"a ranking of {count} asks for more trials than the search has, {trials} (tuning.trials)")


def top(trials: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """The best trials, best first; of equals the earlier one first.

    Args:
        trials: Each with `parameters` and `metric`, more of which is better; None for a trial that has none (infeasible, or
            still under way), which is left out.
        count: How many are wanted.

    Raises:
        PipelineError: `count` is below `MIN_TRIALS`, or fewer trials than that have a metric.
    """
    _check_count(count, "a ranking")
    measured = [trial for trial in trials if trial["metric"] is not None and math.isfinite(trial["metric"])]
    if len(measured) < count:
        enough = "" if len(measured) >= MIN_TRIALS else f", and for that tune {MIN_TRIALS} or more"
        raise PipelineError(
            f"a ranking of {count} asks for more trials than have a result: {len(measured)} of {len(trials)} have one; "
            f"ask for {len(measured)} at most{enough}"
        )
    return sorted(measured, key=lambda trial: -trial["metric"])[:count]


def verify(trials: Sequence[Mapping[str, Any]], full: Sequence[float]) -> Ranking:
    """Compares the metrics of trials with those that the same parameters reached on the full snapshot.

    Args:
        trials: Each with `parameters` and `metric`, as `top` gives them.
        full: The metric of each on the full snapshot, in the same order.

    Raises:
        PipelineError: There are fewer than `MIN_TRIALS`, or a metric is missing or not finite.
    """
    return compare([trial["metric"] for trial in trials], full)


def compare(trial: Sequence[float], full: Sequence[float]) -> Ranking:
    """Compares two metrics of the same trials; of both, more is better.

    >>> compare([0.9, 0.8, 0.7, 0.6], [0.4, 0.3, 0.2, 0.1]).spearman
    1.0

    Args:
        trial: Metric of each trial on the tuning sample.
        full: Its metric on the full snapshot.

    Raises:
        PipelineError: There are fewer than `MIN_TRIALS`, not as many of one as of the other, or one is not finite.
    """
    if len(trial) != len(full):
        raise PipelineError(f"{len(trial)} trials have {len(full)} full metrics: each needs one")
    _check_count(len(trial), "a ranking")
    for name, values in (("trial", trial), ("full", full)):
        for number, value in enumerate(values, start=1):
            if value is None or not math.isfinite(value):
                raise PipelineError(f"the {name} metric of trial {number} of {len(trial)} is {value}: it cannot be ranked")
    winner = max(range(len(trial)), key=lambda index: (trial[index], -index))
    one, other = _signs(trial), _signs(full)
    return Ranking(
        trials=len(trial),
        spearman=_pearson(_ranks(trial), _ranks(full)),
        # Tau-b is the uncentred correlation of the signs of all pairs.
        kendall=_cosine(one, other),
        tied_trial=one.count(0),
        tied_full=other.count(0),
        winner_rank=1 + sum(value > full[winner] for value in full),
        regret=max(full) - full[winner],
    )


def _check_count(count: int, what: str) -> None:
    if count < MIN_TRIALS:
        raise PipelineError(
            f"{what} of {count} trials says nothing: two of them agree or disagree by chance; take {MIN_TRIALS} or more"
        )


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, least first; equal values share the mean of theirs."""
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def _signs(values: Sequence[float]) -> list[int]:
    """Of each pair, whether the second is more (1), less (-1) or the same (0)."""
    return [(b > a) - (b < a) for index, a in enumerate(values) for b in values[index + 1 :]]


def _pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    return _cosine(*([value - math.fsum(side) / len(side) for value in side] for side in (one, other)))


def _cosine(one: Sequence[float], other: Sequence[float]) -> float | None:
    lengths = math.fsum(a * a for a in one) * math.fsum(b * b for b in other)
    return math.fsum(a * b for a, b in zip(one, other)) / math.sqrt(lengths) if lengths else None
