"""`python -m pipeline release --settings FILE`: what an endpoint of Vertex AI serves, and a person's decision about it."""

import argparse
import dataclasses
import json
import sys

from pipeline.errors import PipelineError
from pipeline.places import Places
from pipeline.release import commands, ledger
from pipeline.release.vertex import Target
from pipeline.settings import Settings
from pipeline.validation.text import printable
from pipeline.vertex import endpoint_lineage


def release(options: argparse.Namespace, settings: Settings) -> int:
    """Answers one command; returns the exit status.

    Args:
        options: The command line.
        settings: The settings, with `vertex.release`.

    Raises:
        PipelineError: Vertex refuses or does not answer, or there is nothing to do; the text says what to do next.
    """
    name = settings.release.endpoint
    target = Target(settings.vertex, name, settings.name, Places(store=settings.vertex.store))
    if options.action == "tidy":
        gone = target.tidy()
        print(f"undeployed: version {', '.join(gone)}" if gone else "nothing to undeploy")
        return 0
    status = _status(target, name, options.json) if options.action == "status" else _decide(target, name, options)
    _complete_lineage(target, settings)
    return status


def _decide(target: Target, name: str, options) -> int:
    by, entries = commands.decider(options), target.entries()
    if options.action == "rollback":
        chosen = commands.returning(entries, options.to, name)
    else:
        chosen = next((entry for entry in reversed(entries) if entry.run_id == options.run_id), None)
        if chosen is None:
            return _first_time(target, name, options, by)
    _require_change(target, entries, chosen)
    entry, cold = target.move(chosen, options.action, by, options.reason, options.accept_endpoint)
    how = "was not deployed any more, so this took a deployment" if cold else "was deployed still"
    before = f", before it {entry.from_version}" if entry.from_version not in ("", entry.to_version) else ""
    print(f"version {entry.to_version} of run {entry.run_id} ({entry.snapshot}) serves at endpoint {name}{before}; it {how}")
    return 0


def _first_time(target: Target, name: str, options, by: str) -> int:
    """Releases a model that never had traffic: as a run does it, canary and watch included."""
    candidate = target.candidate(options.run_id)
    print(f"the model of run {candidate.run_id} never had traffic: it is a canary first, and watched")
    outcome = target.release(candidate, actor=by, reason=options.reason, accept=options.accept_endpoint)
    if not outcome.released:
        raise PipelineError(f"the model of run {candidate.run_id} does not serve: {outcome.reason}")
    which = f"version {outcome.version} of run {candidate.run_id} ({candidate.snapshot})"
    print(f"{which} serves at endpoint {name}: {outcome.reason}")
    return 0


def _require_change(target: Target, entries, chosen: ledger.Entry) -> None:
    serves = ledger.now(entries)
    if ledger.canary(entries) or serves.to_version != chosen.to_version:
        return
    if not target.disagreement(entries, target.endpoint.state()):
        raise PipelineError(
            f"version {chosen.to_version} of run {chosen.run_id} serves already, since {serves.at}: nothing was changed"
        )


def _status(target: Target, name: str, for_machines: bool) -> int:
    entries, state = target.entries(), target.endpoint.state()
    problem = target.disagreement(entries, state)
    if for_machines:
        content = {
            "endpoint": target.endpoint.name,
            "exists": state.exists,
            "disagreement": problem,
            "deployed": [{**dataclasses.asdict(each), "at": each.at.isoformat()} for each in state.deployed],
            "entries": [dataclasses.asdict(entry) for entry in entries],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return 0
    serves, beside = ledger.now(entries), ledger.canary(entries)
    if serves:
        print(f"endpoint {name} serves version {serves.to_version} of run {serves.run_id} ({serves.snapshot}) since {serves.at}")
        print(f"  {serves.path}")
    else:
        print(f"nothing was ever released at endpoint {name}")
    if beside:
        print(f"  canary: version {beside.to_version} of run {beside.run_id} at {100 * beside.share:g} % since {beside.at}")
    print(f"\n{target.endpoint.name}" + ("" if state.exists else " does not exist"))
    for each in state.deployed:
        print(f"  version {each.version} is deployed since {each.at:%Y-%m-%d %H:%M} UTC: {each.percent} % of the traffic")
    if problem:
        print(f"\nBEWARE: {printable(problem)}. A release refuses to go on until a person decides (--accept-endpoint)")
    if entries:
        print("\nnewest first:")
        commands.tell_entries(entries)
    return 0


def _complete_lineage(target: Target, settings: Settings) -> None:
    """Copies people's entries that the lineage lacks into it; says so when it cannot, and the next command tries again."""
    decided = endpoint_lineage.decisions(target.entries())
    if not decided:
        return
    try:
        endpoint_lineage.record(settings.vertex, settings.name, decided)
    except PipelineError as error:
        print(f"the ledger has it; the lineage does not yet: {error}. `release status` tries again", file=sys.stderr)
