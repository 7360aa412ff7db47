"""Which trial is not worth going on with: the median rule, as Vertex documents it.

A trial is stopped when its best value so far is strictly worse than the median of what the completed trials had reached
by then, each taken as the running average of its values up to the same step. (Vertex's documentation of
`StudySpec.MedianAutomatedStoppingSpec`; Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017,
section 3.2.) Pure functions.
"""

import statistics
from collections.abc import Iterable, Sequence

MIN_COMPLETED_TRIALS = 5
"""Completed trials with a value by the step in question, below which nothing is stopped.

The median of two or three says little, and the first trials of a study, which explore, are what later ones are measured
by. Vertex does not document a number for this rule; 5 is its default for the one that it does (`min_measurement_count` of
`ConvexAutomatedStoppingSpec`).
"""

Curve = Sequence[tuple[int, float]]
"""What a trial reported: (step, value), in the order of steps."""


def running_average(curve: Curve, step: int) -> float | None:
    """The mean of the values reported up to a step.

    >>> running_average([(1, 0.5), (2, 0.7), (3, 0.9)], step=2)
    0.6

    Args:
        curve: What a trial reported.
        step: The last step that counts.

    Returns:
        The mean, or None if nothing was reported by then.
    """
    values = [value for at, value in curve if at <= step]
    return statistics.fmean(values) if values else None


def median_performance(completed: Iterable[Curve], step: int, min_completed: int) -> float | None:
    """The median of the running averages of completed trials, at a step.

    Args:
        completed: What each of them reported.
        step: The last step that counts.
        min_completed: How many must have reported something by then, at least 1.

    Returns:
        The median, or None if fewer have.
    """
    averages = [average for average in (running_average(curve, step) for curve in completed) if average is not None]
    return statistics.median(averages) if len(averages) >= max(min_completed, 1) else None


def should_stop(
    curve: Curve, completed: Iterable[Curve], maximize: bool = True, min_completed: int = MIN_COMPLETED_TRIALS
) -> bool:
    """Whether a trial under way falls behind.

    >>> others = [[(1, 0.5), (2, 0.7)]] * 5  # running average at step 2: 0.6
    >>> should_stop([(1, 0.4), (2, 0.59)], others), should_stop([(1, 0.6), (2, 0.1)], others)
    (True, False)

    Args:
        curve: What the trial reported so far.
        completed: What each completed trial reported; infeasible ones are left out by the caller.
        maximize: Whether more is better.
        min_completed: How many must have reported something by the trial's last step.

    Returns:
        True if its best value is strictly worse than the median of the running averages at its last step. False as long
        as it reported nothing, or too few others did by then.
    """
    if not curve:
        return False
    median = median_performance(completed, curve[-1][0], min_completed)
    if median is None:
        return False
    values = [value for _, value in curve]
    return max(values) < median if maximize else min(values) > median
