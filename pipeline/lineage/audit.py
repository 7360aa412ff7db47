"""What served, and what produced it: the questions, answered from lineage and serving ledger."""

import contextlib
import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from pipeline.errors import PipelineError
from pipeline.lineage import facts as facts_module
from pipeline.lineage.base import LineageStore, Run, UnknownRun, closest
from pipeline.lineage.facts import RunFacts
from pipeline.lineage.moment import Span
from pipeline.lineage.timeline import Interval, Timeline


@dataclasses.dataclass(frozen=True)
class Served:
    """A model that served.

    Attributes:
        interval: When and where, with which share.
        facts: What produced it; None when the lineage does not know its run.
    """

    interval: Interval
    facts: RunFacts | None


def serving(store: LineageStore, timeline: Timeline, span: Span, endpoint: str | None = None) -> list[Served]:
    """What served at any time of a span.

    Args:
        store: The lineage.
        timeline: All intervals.
        span: The span.
        endpoint: Only what served there; None for every endpoint.

    Returns:
        The intervals that touch the span, in the order in which they began.

    Raises:
        PipelineError: Nothing served then; the text says what did before and after.
    """
    if span.start > datetime.datetime.now(datetime.timezone.utc):
        raise PipelineError(f"{span.name} lies in the future: nothing has served then")
    intervals = [interval for interval in timeline.intervals if endpoint in (None, interval.endpoint)]
    if endpoint is not None and not intervals and timeline.intervals:
        known = sorted({interval.endpoint for interval in timeline.intervals})
        near = closest(endpoint, known) or known[:3]
        raise PipelineError(f"nothing has ever served at endpoint {endpoint!r}; there are releases at {', '.join(near)}")
    found = [item for item in intervals if item.since < span.end and (item.until is None or item.until > span.start)]
    if not found:
        raise PipelineError(f"nothing served on {span.name}: {_around(intervals, span)}")
    facts = {}
    for run_id in dict.fromkeys(interval.run_id for interval in found):
        with contextlib.suppress(UnknownRun):
            facts[run_id] = facts_module.of_run(store.run(run_id))
    return [Served(interval, facts.get(interval.run_id)) for interval in found]


def _around(intervals: list[Interval], span: Span) -> str:
    before = [interval for interval in intervals if interval.until and interval.until <= span.start]
    after = [interval for interval in intervals if interval.since >= span.end]
    told = []
    if before:
        last = max(before, key=lambda interval: interval.until)
        told.append(f"version {last.version} ceased at {last.until:%Y-%m-%d %H:%M} UTC")
    if after:
        told.append(f"the {'next' if before else 'first'} release was at {after[0].since:%Y-%m-%d %H:%M} UTC")
    return ", and ".join(told) or "nothing was released yet"


def run_facts(run: Run) -> dict:
    """Everything that went into a run and what came of it, as plain data: `facts.RunFacts` as `--json` gives it."""
    return facts_module.to_dict(facts_module.of_run(run))


def steps_as_json(run: Run) -> list[dict[str, Any]]:
    """Every step of a run as plain data, with its inputs and outputs."""
    return [
        {
            "id": step.id,
            "step": step.step,
            "state": step.state,
            "started": facts_module.instant(step.started),
            "ended": facts_module.instant(step.updated),
            "reason": step.parameters.get(facts_module.FAILURE),
            "parameters": dict(step.parameters),
            **{name: _puts(puts) for name, puts in (("inputs", step.inputs), ("outputs", step.outputs))},
        }
        for step in run.executions
    ]


def _puts(puts: Mapping) -> dict:
    return {
        key: [{"id": item.id, "type": item.type, "uri": item.uri, "facts": dict(item.facts)} for item in artifacts]
        for key, artifacts in puts.items()
    }


def interval_as_json(interval: Interval) -> dict:
    """An interval as plain data."""
    return {
        **dataclasses.asdict(interval),
        "since": facts_module.instant(interval.since),
        "until": facts_module.instant(interval.until),
    }
