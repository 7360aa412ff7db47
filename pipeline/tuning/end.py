"""When a search must end so that its run can still train within its window. No TensorFlow."""

import json
import logging
import math

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.release import profiles

_log = logging.getLogger(__name__)

MARGIN = 1.25
"""The training gets that many times what the last one took: weeks grow, and machines are not equally busy."""


def search_until(window_end: float, reserve_minutes: float, training_seconds: float | None, now: float) -> float:
    """When no trial may go on.

    >>> search_until(window_end=100_000, reserve_minutes=0, training_seconds=40_000, now=0)
    50000.0
    >>> search_until(window_end=100_000, reserve_minutes=50, training_seconds=None, now=7_000)
    52000.0

    Args:
        window_end: Unix time by which the run must be done.
        reserve_minutes: What comes after the training needs so many minutes.
        training_seconds: How long the training before took; None if nobody knows, and half of the time is the search's.
        now: Unix time.

    Returns:
        Unix time; `now` or before it when there is no time for a search.
    """
    trained = window_end - 60 * reserve_minutes
    if training_seconds is None:
        return now + (trained - now) / 2
    return trained - MARGIN * training_seconds


def last_training(pointer: str) -> float | None:
    """Seconds that the newest recorded training took, or None if there is no such record.

    Args:
        pointer: The file that points to it.
    """
    try:
        newest = profiles.find(pointer)
        if newest is None:
            return None
        seconds = json.loads(storage.read(newest.training))["seconds"]
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"seconds is {seconds!r}")
        return float(seconds)
    except (OSError, ValueError, TypeError, KeyError, PipelineError) as error:
        # Only an estimate is lost; the training itself keeps to the window.
        _log.warning("how long the last training took cannot be read (%s): the search takes half of the window", error)
        return None
