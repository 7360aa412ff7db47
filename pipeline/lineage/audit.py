"""What produced the model that served on a given day: the question, answered from the lineage alone."""

import dataclasses
import datetime
import json

from pipeline.errors import PipelineError
from pipeline.lineage.base import LineageStore, Run
from pipeline.validation.text import printable


@dataclasses.dataclass(frozen=True)
class Serving:
    """One interval in which one model took one share of an endpoint's traffic.

    Attributes:
        run_id: The run that produced and released it.
        endpoint: Where it served.
        version: Version of the model.
        since: When it began to serve, UTC.
        until: When it ceased, UTC; None while it serves.
        share: Share of the traffic, 0 to 1.
    """

    run_id: str
    endpoint: str
    version: str
    since: datetime.datetime
    until: datetime.datetime | None
    share: float


def timeline(store: LineageStore) -> list[Serving]:
    """All serving intervals, in the order in which they began."""
    intervals: list[Serving] = []
    for release in store.releases():
        since = datetime.datetime.fromisoformat(release.facts["released_at"])
        for position in range(len(intervals) - 1, -1, -1):
            if intervals[position].endpoint == release.facts["endpoint"]:
                intervals[position] = dataclasses.replace(intervals[position], until=since)
                break
        intervals.append(
            Serving(
                run_id=release.facts["run_id"],
                endpoint=release.facts["endpoint"],
                version=release.facts["to_version"],
                since=since,
                until=None,
                share=release.facts["share"],
            )
        )
    return intervals


def serving_on(store: LineageStore, day: datetime.date) -> list[tuple[Serving, dict]]:
    """What served at any time of a day (UTC), each interval with the facts of the run that produced it.

    Args:
        store: The lineage.
        day: The day.

    Returns:
        The intervals that touch the day, and for each the facts of `run_facts`.

    Raises:
        PipelineError: Nothing served on that day.
    """
    start = datetime.datetime.combine(day, datetime.time(), tzinfo=datetime.timezone.utc)
    end = start + datetime.timedelta(days=1)
    intervals = timeline(store)
    found = [item for item in intervals if item.since < end and (item.until is None or item.until > start)]
    if start > datetime.datetime.now(datetime.timezone.utc):
        raise PipelineError(f"{day} lies in the future: nothing has served then")
    if not found:
        first = f"the first release was at {intervals[0].since:%Y-%m-%d %H:%M} UTC" if intervals else "nothing was released yet"
        raise PipelineError(f"nothing served on {day}: {first}")
    return [(item, run_facts(store.run(item.run_id))) for item in found]


def run_facts(run: Run) -> dict:
    """Everything that went into a run and what came of it, as plain data.

    Args:
        run: A run, finished or not.

    Returns:
        Keys: run_id, state, started, ended, snapshot, checksum, snapshot_date, as_of, rows, shards, commit, tree,
        image, lock, lock_sha256, python, platform, launched_by, settings, hyperparameters, training, gate,
        evaluation, release. What the run did not reach is None.
    """
    manifest = _facts(run, "pipeline.RunManifest")
    snapshot = _facts(run, "pipeline.LabelSnapshot")
    shards = _facts(run, "pipeline.ImageShards")
    gate = _facts(run, "pipeline.GateReport")
    release = _facts(run, "pipeline.ServingRelease")
    failed = next((step for step in run.executions if step.state in ("FAILED", "CANCELED")), None)
    return {
        "run_id": run.run_id,
        "state": f"{failed.state} at {failed.step}" if failed else "COMPLETE" if release else "RUNNING",
        "started": _text(min((step.started for step in run.executions), default=None)),
        "ended": _text(max((step.updated for step in run.executions), default=None)),
        "snapshot": snapshot.get("table"),
        "snapshot_uri": snapshot.get("table_uri"),
        "checksum": snapshot.get("checksum"),
        "snapshot_date": manifest.get("snapshot_date"),
        "as_of": snapshot.get("as_of"),
        "rows": snapshot.get("rows"),
        "shards": {name: shards.get(name) for name in ("number", "digest", "images", "quarantined")} if shards else None,
        **{
            name: manifest.get(name)
            for name in ("commit", "tree", "image", "lock", "lock_sha256", "python", "platform", "launched_by")
        },
        "settings": _json(manifest.get("settings")),
        "hyperparameters": (_json(release.get("hyperparameters")) or {}).get("values") if release else None,
        "training": _json(release.get("training")),
        "gate": {
            "verdict": gate["verdict"],
            "bootstrap": bool(gate["bootstrap"]),
            "rules": _json(gate["findings"]),
            # Only where there is one: a person's decision, beside what the rules found.
            **({"override": _json(gate["override"])} if gate.get("override") else {}),
        }
        if gate
        else None,
        "evaluation": {
            "blessed": bool(release["blessed"]),
            "accuracy": release["accuracy"],
            "baseline_accuracy": release.get("baseline_accuracy"),
            "log_loss": release["log_loss"],
            "examples": release["eval_examples"],
            "weakest_class": release["weakest_class"],
            "weakest_accuracy": release["weakest_accuracy"],
            "by_class": _json(release["by_class"]),
            "failures": _json(release["evaluation_failures"]),
        }
        if release
        else None,
        "release": {
            "released": bool(release["released"]),
            "reason": release["reason"],
            "released_at": release.get("released_at"),
            "endpoint": release["endpoint"],
            "version": release.get("to_version"),
            "path": release.get("path"),
            "weights_sha256": release["weights_sha256"],
        }
        if release
        else None,
    }


def _facts(run: Run, type_name: str) -> dict:
    artifact = run.output(type_name)
    return dict(artifact.facts) if artifact else {}


def _json(text):
    return json.loads(text) if text else None


def _text(instant: datetime.datetime | None) -> str | None:
    return instant.isoformat(timespec="seconds") if instant else None


def as_json(serving: Serving, facts: dict) -> dict:
    """One answer as plain data: the interval beside the run's facts."""
    return {
        **facts,
        "serving": {
            "endpoint": serving.endpoint,
            "version": serving.version,
            "share": serving.share,
            "since": _text(serving.since),
            "until": _text(serving.until),
        },
    }


def as_text(day: datetime.date, answers: list[tuple[Serving, dict]]) -> str:
    """The answers for a terminal."""
    blocks = [f"On {day} (UTC) served {len(answers)} model(s):"]
    for serving, facts in answers:
        evaluation, training = facts["evaluation"], facts["training"] or {}
        until = f"until {serving.until:%Y-%m-%d %H:%M:%S}" if serving.until else "and still serves"
        lines = [
            f"run {facts['run_id']}",
            f"  served      {serving.share:.0%} of endpoint {serving.endpoint} as version {serving.version}, "
            f"from {serving.since:%Y-%m-%d %H:%M:%S} UTC {until}",
            f"  labels      {facts['snapshot']}: {facts['rows']} rows as of {facts['as_of']}",
            f"              checksum {facts['checksum']}",
            f"              {facts['snapshot_uri']}",
            f"  images      generation {facts['shards']['number']}, {facts['shards']['images']} photographs, "
            f"digest {facts['shards']['digest']}",
            f"  code        commit {facts['commit'] or 'unknown'}, tree {facts['tree']}",
            f"  packages    {facts['lock'] or 'unknown'} sha256 {facts['lock_sha256'] or 'unknown'}",
            f"  image       {facts['image'] or 'none: ran outside a container'}",
            f"  machine     {facts['platform']}, Python {facts['python']}, launched by {facts['launched_by'] or 'unknown'}",
            f"  training    {json.dumps(training.get('training'), sort_keys=True)}",
            f"              backbone sha256 {training.get('backbone_sha256') or 'none'}, {json.dumps(training.get('tensorflow'), sort_keys=True)}",
            f"  tuned       {json.dumps(facts['hyperparameters']) if facts['hyperparameters'] else 'no: the values of the settings'}",
            f"  weights     sha256 {facts['release']['weights_sha256']}",
            f"  gate        {facts['gate']['verdict']}",
            *_override(facts["gate"]),
            f"  evaluation  accuracy {evaluation['accuracy']:.3f} on {evaluation['examples']} examples, "
            + (
                f"against {evaluation['baseline_accuracy']:.3f} of the model that served before"
                if evaluation["baseline_accuracy"] is not None
                else "nothing served before"
            ),
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _override(gate: dict) -> list[str]:
    """Which rules a person overrode, each with what was found and allowed."""
    override = gate.get("override")
    if not override:
        return []
    return [
        f"  override    by {printable(override['by'])}: {printable(override['reason'])}",
        *(f"              {rule}: {printable(gate['rules'][rule])}" for rule in override["rules"]),
        *(f"              {rule}: did not fail" for rule in override["unused"]),
    ]
