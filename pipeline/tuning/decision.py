"""Whether a week searches for hyperparameters before it trains, and why.

Only what earlier snapshot dates left behind counts, so that a week that is run again decides what it decided the first time.
Light: no TensorFlow.
"""

import dataclasses
import datetime
from collections.abc import Sequence

from pipeline.release import configurations, quality
from pipeline.release.configurations import Configuration
from pipeline.release.quality import METRIC, Quality
from pipeline.settings import RetuneSettings


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a week does.

    Attributes:
        tune: Whether it searches for hyperparameters.
        reason: Why, or why not.
        known: The best-known configuration, or None.
        warning: What a person should know although the run goes on, or "".
    """

    tune: bool
    reason: str
    known: Configuration | None
    warning: str = ""


def for_week(date: str, asked: bool, settings: RetuneSettings, configuration_folder: str, quality_folder: str) -> Decision:
    """Decides for a week, by what is in the store.

    Args:
        date: Date of its snapshot, YYYY-MM-DD.
        asked: Whether a person asked for a search.
        settings: When a week tunes without being asked.
        configuration_folder: Folder of the best-known configurations.
        quality_folder: Folder of the records how well runs trained.

    Raises:
        PipelineError: A file of theirs cannot be read.
    """
    known = configurations.newest_before(configuration_folder, date)
    return decide(date, asked, settings, known, quality.before(quality_folder, date))


def decide(
    date: str, asked: bool, settings: RetuneSettings, known: Configuration | None, trained: Sequence[Quality]
) -> Decision:
    """Decides for a week. Pure.

    A search that was asked for comes first, then one that is due, then one because the model got worse. What is due counts
    from the last search, whether its model was released or not: otherwise a search that changes nothing would be repeated
    every week.

    Args:
        date: Date of its snapshot, YYYY-MM-DD.
        asked: Whether a person asked for a search.
        settings: When a week tunes without being asked.
        known: The newest configuration of an earlier date, or None.
        trained: How well earlier weeks trained, oldest first.

    Returns:
        The decision. Without a known configuration the values of the settings hold, and nothing is due: the first search is
        a person's.
    """
    if asked:
        return Decision(True, "asked for by --tune", known)
    if known is None:
        reason = f"nothing was tuned and released before {date}: the values of the settings hold until --tune finds better"
        return Decision(False, reason, None)
    refused = _refused_since(known, trained)
    due = _due(date, settings, known, refused)
    if due:
        return Decision(True, due, known)
    worse = _worse(settings, known, trained)
    if worse and not refused:
        return Decision(True, worse, known)
    warnings = [_too_old(date, settings, known)]
    if worse:
        warnings.append(
            f"{worse}; the search of {refused.snapshot_date} was to mend that, and its model was not released "
            f"({refused.reason or 'no reason is recorded'}): look into both, then ask for another search by --tune"
        )
    reason = f"{_named(known)} holds{_how_well(known, trained)}"
    return Decision(False, reason, known, "; ".join(filter(None, warnings)))


def _refused_since(known: Configuration, trained: Sequence[Quality]) -> Quality | None:
    """The newest search after the known configuration; had its model been released, it would be the known one."""
    found = [each for each in trained if each.tuned and each.snapshot_date > known.snapshot_date]
    return found[-1] if found else None


def _due(date, settings, known, refused) -> str:
    if not settings.every_weeks:
        return ""
    last = refused.snapshot_date if refused else known.snapshot_date
    days = _days(last, date)
    if days < 7 * settings.every_weeks:
        return ""
    return f"due: the last search was {_ago(days)}, of {last}, and retune.every_weeks is {settings.every_weeks}"


def _worse(settings, known, trained) -> str:
    """How far the newest week that used the known configuration lies below the band, or ""."""
    best, newest = _best(known, trained), _newest_use(known, trained)
    if best is None or newest is None or best - newest.value <= settings.max_drop:
        return ""
    return (
        f"{METRIC} {newest.value:.3f} of {newest.snapshot_date} is {best - newest.value:.3f} below the {best:.3f} of the "
        f"best-known configuration, of {known.snapshot_date}; retune.max_drop is {settings.max_drop:g}"
    )


def _best(known: Configuration, trained: Sequence[Quality]) -> float | None:
    """What the known configuration reached; a file of older code leaves that to the run's own record, if there is one."""
    if known.value is not None:
        return known.value
    return next((each.value for each in trained if each.run_id == known.run_id), None)


def _newest_use(known: Configuration, trained: Sequence[Quality]) -> Quality | None:
    # Weeks that ran while its search was still under way used the one before.
    used = [
        each for each in trained
        if each.snapshot_date > known.snapshot_date and not each.tuned and each.configuration in (None, known.run_id)
    ]  # fmt: skip
    return used[-1] if used else None


def _too_old(date, settings, known) -> str:
    days = _days(known.snapshot_date, date)
    if days <= 7 * settings.warn_after_weeks:
        return ""
    return (
        f"{_named(known)} was found {_ago(days)}, more than retune.warn_after_weeks {settings.warn_after_weeks}: "
        "search again by --tune"
    )


def _named(known: Configuration) -> str:
    return f"the best-known configuration, of {known.snapshot_date} (run {known.run_id}),"


def _how_well(known, trained) -> str:
    best, newest = _best(known, trained), _newest_use(known, trained)
    if best is None:
        return f": what {METRIC} it reached was not recorded"
    return f": {METRIC} {best:.3f} then" + (f", {newest.value:.3f} on {newest.snapshot_date}" if newest else "")


def _days(earlier: str, later: str) -> int:
    return (datetime.date.fromisoformat(later) - datetime.date.fromisoformat(earlier)).days


def _ago(days: int) -> str:
    weeks, rest = divmod(days, 7)
    if rest:
        return f"{days} days ago"
    return f"{weeks} week{'' if weeks == 1 else 's'} ago"
