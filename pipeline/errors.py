"""Errors that a person can act on: what was wrong, with the value, and what to do next.

Everything that a user can cause is raised as a `PipelineError`; the command lines print its text
alone, without a traceback, and leave with its exit status. Any other exception is a bug of ours.
"""

import errno
import sqlite3
from collections.abc import Mapping

from models.errors import TrainingError


class PipelineError(Exception):
    """A mistake or a state that a user can mend.

    Attributes:
        exit_status: Exit status of the command that meets it; never 0.
    """

    exit_status = 1


class SettingsError(PipelineError):
    """A settings or limits file that cannot be used as it is."""

    exit_status = 2


class SnapshotRejected(PipelineError):
    """The gate stopped the run: the snapshot breaks at least one rule.

    Args:
        text: Which, and what to do.
        facts: The verdict as the lineage keeps it, the way it keeps that of an accepted snapshot.
    """

    exit_status = 3

    def __init__(self, text: str, facts: Mapping[str, str | int | float] | None = None):
        super().__init__(text)
        self.facts = dict(facts or {})


class StoreBusy(PipelineError):
    """Another run holds the store."""

    exit_status = 4


def causes(error: BaseException):
    """Yields `error` and everything that led to it, outermost first."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def user_error(error: BaseException) -> PipelineError | None:
    """Finds what a user can act on inside `error`.

    Frameworks wrap exceptions in their own (Beam, TFX, TensorFlow), so the whole chain is searched,
    for an error of ours and for a full disk, whichever library met it first.

    Args:
        error: An exception as a runner caught it.

    Returns:
        The `PipelineError` in its chain, one that describes a full disk, or None for a bug.
    """
    for cause in causes(error):
        if isinstance(cause, PipelineError):
            return cause
        if isinstance(cause, TrainingError):
            return PipelineError(str(cause))
    for cause in causes(error):
        if _means_full_disk(cause):
            return PipelineError(
                f"the disk is full ({_first_line(cause)}). Nothing half-written counts: free some space, or "
                "choose another place with --store, and run the same command again"
            )
    return None


def _means_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if isinstance(error, sqlite3.OperationalError) and "disk is full" in str(error):
        return True
    text = str(error).lower()
    return "no space left on device" in text or "database or disk is full" in text


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
