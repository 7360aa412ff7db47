"""The closing words of a run: what went in, what came out, what to try next."""

import datetime
import os
import pathlib
import shlex

from pipeline.lineage import audit
from pipeline.lineage.base import Run
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.places import DEFAULT_STORE, Places


def of_run(places: Places, run_id: str) -> str:
    """Tells a finished run in a dozen lines.

    Args:
        places: Where its things lie.
        run_id: Its id.

    Returns:
        Text for a terminal.
    """
    run = MLMDLineage(places.metadata).run(run_id)
    facts = audit.run_facts(run)
    evaluation, release = facts["evaluation"], facts["release"]
    lines = [
        "",
        f"run        {run_id}",
        f"snapshot   {facts['snapshot']}, checksum {facts['checksum'][:16]}, {facts['rows']} labels",
        f"images     {facts['shards']['images']} in shards, {facts['shards']['quarantined']} in quarantine",
        f"gate       {facts['gate']['verdict']}" + (" (bootstrap: no baseline for drift)" if facts["gate"]["bootstrap"] else ""),
        f"           report: {places.reports(run_id)}/gate.html",
        *_decided(facts["tuned_by"] or {}),
        *_tuned(places, run),
        f"eval       {_accuracy(evaluation)}",
        f"           report: {places.reports(run_id)}/release.html",
        f"blessed    {'yes' if evaluation['blessed'] else 'no: ' + '; '.join(evaluation['failures'])}",
        f"weights    {release['weights_sha256'][:16]}",
    ]
    if release["released"]:
        lines.append(f"serves     version {release['version']} at endpoint {release['endpoint']}, {release['path']}")
    else:
        lines.append(f"serves     unchanged: {release['reason']}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    store = "" if places.store == DEFAULT_STORE else f" --store {_word(places.store)}"
    lines += [
        "",
        "Try next:",
        f"  .venv/bin/python -m pipeline predict{store} {_word(places.images)}/*.jpg",
        f"  .venv/bin/python -m pipeline audit serving --on {today}{store}",
    ]
    return "\n".join(lines)


def _accuracy(evaluation: dict) -> str:
    if evaluation["accuracy"] is None:
        return "none: the smoke test refused the export"
    weakest = (
        f"; weakest class {evaluation['weakest_class']} {evaluation['weakest_accuracy']:.3f}"
        if evaluation["weakest_class"]
        else "; no class has enough eval examples to be judged alone"
    )
    against = (
        f", the serving model has {evaluation['baseline_accuracy']:.3f}"
        if evaluation["baseline_accuracy"] is not None
        else ", nothing served before"
    )
    return f"accuracy {evaluation['accuracy']:.3f} on {evaluation['examples']} photographs{against}{weakest}"


def _decided(tuned_by: dict) -> list[str]:
    """Whether the run searched, and why or why not; nothing of runs that did not record it."""
    if "reason" not in tuned_by:
        return []
    warning = tuned_by.get("warning")
    return [
        f"tuning     {'yes' if tuned_by.get('tune') else 'no'}: {tuned_by['reason']}",
        *([f"           warning: {warning}"] if warning else []),
    ]


def _tuned(places: Places, run: Run) -> list[str]:
    """What a search came to, of a run that searched."""
    trials, best = run.output("TunerResults"), run.output("HyperParameters", "best_hyperparameters")
    if not (trials and best and trials.facts.get("tune") and best.facts.get("tune")):
        return []
    return [
        f"tuned      {trials.facts['trials']} trials, best {best.facts['objective']} {best.facts['metric']:.3f} "
        f"(trial {best.facts['trial']})",
        f"           report: {places.reports(run.run_id)}/tuning.html",
    ]


def _word(path: str) -> str:
    """A path as a shell takes it, short where it lies below the current folder."""
    return shlex.quote(os.path.relpath(path) if pathlib.Path(path).is_relative_to(os.getcwd()) else path)
