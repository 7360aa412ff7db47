"""What a run is started with, and what follows from it: the date of its labels and the end of its window. No TensorFlow."""

import argparse
import dataclasses
import datetime
from typing import Any

from pipeline.errors import PipelineError
from pipeline.warehouse.base import parse_date

SCHEDULED = "scheduled"
"""In place of a snapshot's date: the day, UTC, on which the schedule started the run."""


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run is started with. On Vertex these are parameters, and placeholders that the first step finds filled in.

    Attributes:
        run_id: Id of the run.
        snapshot_date: Date of its label snapshot, YYYY-MM-DD, or `SCHEDULED`.
        override: JSON of `validation.verdict.Override`; '' for none.
        window_end: The instant by which it must be done, ISO 8601 with its offset from UTC; '' for `window_hours` after the
            run began.
        window_hours: Hours from the run's beginning to the end of its window; 0 for a run without a window.
        created_at: The instant at which it was started.
        scheduled_at: The instant at which a schedule meant to start it. Only what `SCHEDULED` asks for is read.
    """

    run_id: str
    snapshot_date: Any
    override: Any = ""
    window_end: Any = ""
    window_hours: float = 0.0
    created_at: str = ""
    scheduled_at: str = ""


def date_and_window(start: Start) -> tuple[str, float | None]:
    """The date of a run's labels, and when it must be done.

    A scheduled run began when its schedule says, however late it was started: the window does not move.

    >>> start = Start("r", "2026-03-02", window_hours=12, created_at="2026-03-02T18:00:00Z")
    >>> date_and_window(start)
    ('2026-03-02', 1772517600.0)
    >>> date_and_window(Start("r", SCHEDULED, scheduled_at="2026-03-02T23:30:00+01:00"))
    ('2026-03-02', None)

    Returns:
        The date as YYYY-MM-DD; Unix time, or None without a window.

    Raises:
        PipelineError: A date or an instant cannot be used.
    """
    if start.snapshot_date == SCHEDULED:
        began_text, date = start.scheduled_at, None
    else:
        began_text, date = start.created_at, str(parse_date(start.snapshot_date))
    if date is None:
        date = str(_instant("the time of the schedule", began_text).date())
    if start.window_end:
        return date, _instant("the end of the window", start.window_end).timestamp()
    if start.window_hours <= 0:
        return date, None
    return date, _instant("the time of the start", began_text).timestamp() + 3600 * start.window_hours


def instant_to_come(text: str) -> datetime.datetime:
    """Reads the end of a window from a command line; the `type` of an argument.

    Args:
        text: ISO 8601 with its offset from UTC.

    Raises:
        argparse.ArgumentTypeError: It is no instant, lacks its offset, or is over.
    """
    try:
        instant = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no instant: write it as 2026-03-03T06:00+01:00") from error
    if instant.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} lacks its offset from UTC: write it as {text}+00:00")
    if instant <= datetime.datetime.now(datetime.timezone.utc):
        raise argparse.ArgumentTypeError(f"{text!r} is over: name an instant to come")
    return instant


def _instant(what: str, text: str) -> datetime.datetime:
    try:
        instant = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise PipelineError(f"{what}, {text!r}, is no instant: write it as 2026-03-02T22:00:00Z") from error
    if instant.tzinfo is None:
        raise PipelineError(f"{what}, {text!r}, lacks its offset from UTC: write it as {text}+00:00")
    return instant.astimezone(datetime.timezone.utc)


def add_override(parser: argparse.ArgumentParser) -> None:
    """Declares how a person lets a week pass that breaks rules of the gate."""
    parser.add_argument(
        "--override",
        metavar="RULE[,RULE...]",
        help="accept the snapshot although these rules of the gate fail; any other that fails still rejects it. Recorded "
        "with --override-by and --override-reason",
    )
    parser.add_argument("--override-by", metavar="NAME", help="who decided so")
    parser.add_argument("--override-reason", metavar="TEXT", help="why")


def require_whole_override(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends with a usage error when a part of an override is missing."""
    given = [value is not None for value in (options.override, options.override_by, options.override_reason)]
    if any(given) and not all(given):
        parser.error(
            "--override, --override-by and --override-reason go together: which rules may fail, who decided so, and why"
        )


def override_of(options: argparse.Namespace) -> str:
    """The override as `Start` has it.

    Raises:
        PipelineError: A rule is not known, or a person or reason is empty.
    """
    if options.override is None:
        return ""
    from pipeline.validation.verdict import Override

    rules = tuple(rule.strip() for rule in options.override.split(",") if rule.strip())
    return Override(rules, options.override_by, options.override_reason).to_json()
