"""Which hyperparameters mattered in a study."""

import dataclasses
import statistics
from collections.abc import Sequence

from models.study import Trial

MIN_TRIALS = 10
"""Trials with a value, below which nothing is said: six parameters explain any five trials."""

_TREES, _REPEATS = 200, 20


@dataclasses.dataclass(frozen=True)
class Importance:
    """What a parameter did to the objective.

    Attributes:
        parameter: Its name.
        share: How much worse a random forest predicts when this parameter's values are shuffled, as a share of the sum over
            all parameters, 0 to 1 (Breiman, "Random Forests", 2001, section 10).
        correlation: Spearman's rank correlation with the objective, -1 to 1: its direction; near 0 also where the best
            values are in the middle.
    """

    parameter: str
    share: float
    correlation: float


def importances(trials: Sequence[Trial]) -> tuple[list[Importance], float] | None:
    """Fits a forest to a study and asks it.

    Args:
        trials: The study's; those with a value count.

    Returns:
        The parameters, most important first, and the forest's R² on what each tree had not seen: 1 where it foretells every
        trial, 0 or less where it foretells nothing and the shares mean nothing. None where there are too few trials, or all
        came to the same.
    """
    valued = [trial for trial in trials if trial.value is not None and trial.state == "SUCCEEDED"]
    values = [trial.value for trial in valued]
    if len(valued) < MIN_TRIALS or len(set(values)) == 1:
        return None
    # Late: it takes a second, which most who read a study do not need.
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    names = list(valued[0].values)
    columns = [[trial.values[name] for name in names] for trial in valued]
    forest = RandomForestRegressor(_TREES, min_samples_leaf=2, oob_score=True, random_state=0).fit(columns, values)
    raised = permutation_importance(forest, columns, values, n_repeats=_REPEATS, random_state=0).importances_mean
    # A value that is shuffled may predict a little better by chance.
    kept = [max(0.0, float(each)) for each in raised]
    total = sum(kept) or 1.0
    found = [
        Importance(name, share / total, rank_correlation([row[position] for row in columns], values))
        for position, (name, share) in enumerate(zip(names, kept, strict=True))
    ]
    return sorted(found, key=lambda each: (-each.share, each.parameter)), float(forest.oob_score_)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: Pearson's of the ranks; equal values share their mean rank.

    >>> rank_correlation([1, 2, 3, 4], [10, 100, 1000, 10000]), rank_correlation([1, 1, 1], [1, 2, 3])
    (1.0, 0.0)

    Args:
        one: Values.
        other: As many.

    Returns:
        -1 to 1; 0.0 where either has one value only.
    """
    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    return statistics.correlation(_ranks(one), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: position for position, value in reversed(list(enumerate(ordered)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]
