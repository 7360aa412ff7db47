"""A study as those see it who run its trials: what models/ asks of Vizier, and what trials tell together. No TensorFlow.

Whoever keeps studies fulfils `Study`: `pipeline.vizier.study.Study` does, over Vertex's Vizier or the service of one machine.
"""

import dataclasses
import datetime
import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol

from models.charts import duration

_log = logging.getLogger(__name__)

OBJECTIVE = "val_accuracy"
"""What trials report after each epoch and are compared by; more is better."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A trial as it was when it was asked for.

    Attributes:
        name: Its full name.
        number: Which one of the study, from 1.
        state: ACTIVE, STOPPING, SUCCEEDED, INFEASIBLE or REQUESTED.
        client_id: Who has it.
        values: Value of each parameter.
        curve: What it reported: (step, value of the objective).
        value: Its final value, or None.
        step: The step of its final value, or None.
        reason: Why it is infeasible, or "".
        begun: Unix time of its begin, or None.
        seconds: From its begin to its end, or None.
    """

    name: str
    number: int
    state: str
    client_id: str
    values: Mapping[str, float]
    curve: tuple[tuple[int, float], ...]
    value: float | None
    step: int | None
    reason: str
    begun: float | None
    seconds: float | None

    @property
    def under_way(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state in ("ACTIVE", "STOPPING")


class Study(Protocol):
    """Where trials come from and where they report to. It alone knows how a search stands."""

    def trials(self) -> list[Trial]:
        """The trials that count, in the order of their numbers."""

    def suggest(self, client_id: str) -> Trial | None:
        """Begins a trial, or gives a client that starts again the one that it had; None when there are no more."""

    def measure(self, trial: Trial, step: int, value: float) -> None:
        """Reports the objective after a step; does nothing for a step that the trial had reported before."""

    def should_stop(self, trial: Trial) -> bool:
        """Whether the trial is not worth going on with."""

    def complete(self, trial: Trial, step: int, value: float) -> Trial:
        """Ends a trial with its final value."""

    def infeasible(self, trial: Trial, reason: str) -> Trial:
        """Ends a trial that cannot be run; it counts, and the study goes on."""

    def discard(self, trial: Trial) -> None:
        """Takes a trial back that nothing is known of; it does not count."""


def best(trials: Sequence[Trial], maximize: bool = True) -> Trial | None:
    """The trial with the best final value, of equals the first; None if none has one."""
    valued = [trial for trial in trials if trial.state == "SUCCEEDED" and trial.value is not None]
    sign = -1 if maximize else 1
    return min(valued, key=lambda trial: (sign * trial.value, trial.number), default=None)


def fits(trials: Sequence[Trial], until: float, now: float) -> bool:
    """Whether another trial would probably end in time, by the median of those that succeeded; before the first has, any may.

    Args:
        trials: Those of the study so far.
        until: Unix time at which no trial may go on.
        now: Unix time.
    """
    took = [trial.seconds for trial in trials if trial.state == "SUCCEEDED" and trial.seconds is not None]
    return now + (statistics.median(took) if took else 0.0) < until


def leave(study: Study, trial: Trial) -> Trial | None:
    """Ends a trial that has no more time: as it stands if it has reported anything, else as if it had not begun.

    Args:
        study: Its study.
        trial: A trial that is under way, as the study knows it.

    Returns:
        The trial as it ended, or None if it is no more: the study can have another in its place.
    """
    if trial.curve:
        _log.info("trial %d ends where it was left, after %d epochs: there is no more time", trial.number, len(trial.curve))
        return study.complete(trial, *trial.curve[-1])
    _log.info("trial %d is taken back: there was no time for it", trial.number)
    study.discard(trial)
    return None


def ended_early(trial: Trial, epochs: int) -> bool:
    """Whether a trial succeeded before its last epoch: it fell behind the others, learnt no more, or its window ended.

    Args:
        trial: A trial that reported after each epoch.
        epochs: Epochs of a whole trial.
    """
    return trial.state == "SUCCEEDED" and len(trial.curve) < epochs


def seconds_left(trials: Sequence[Trial], total: int, parallel: int, now: float) -> float | None:
    """How long a study still takes, if its trials go on to take as long as the median of those that ended.

    Args:
        trials: Its trials so far.
        total: Trials in all.
        parallel: Trials at once.
        now: Unix time.

    Returns:
        Seconds; 0.0 once all have ended; None before the first has.
    """
    ended = [trial.seconds for trial in trials if not trial.under_way and trial.seconds is not None]
    under_way = [trial for trial in trials if trial.under_way]
    to_come = max(0, total - len(trials))
    if not under_way and not to_come:
        return 0.0
    if not ended:
        return None
    each = statistics.median(ended)
    started = sum(max(0.0, each - (now - (trial.begun if trial.begun is not None else now))) for trial in under_way)
    return (started + each * to_come) / max(1, min(parallel, len(under_way) + to_come))


def progress(trials: Sequence[Trial], total: int, parallel: int, epochs: int, now: float) -> str:
    """How a study stands, in one line for a terminal.

    Args:
        trials: Its trials so far.
        total: Trials in all.
        parallel: Trials at once.
        epochs: Epochs of a whole trial.
        now: Unix time.
    """
    ended = [trial for trial in trials if not trial.under_way]
    leader = best(trials)
    parts = [
        f"{len(ended)} of {total} trials",
        f"best {leader.value:.3f} (trial {leader.number})" if leader else "none has a value yet",
        f"{sum(ended_early(trial, epochs) for trial in ended)} stopped early",
        f"{sum(trial.state == 'INFEASIBLE' for trial in ended)} infeasible",
        f"{total - len(ended)} remaining",
    ]
    left = seconds_left(trials, total, parallel, now)
    if left:
        end = datetime.datetime.fromtimestamp(now + left)
        parts.append(f"ends in about {duration(left)}, at {end:%H:%M}")
    return ", ".join(parts)
