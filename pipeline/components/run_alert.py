"""The last word of a run on Vertex: when it failed or took its canary back, one message that says where, why, and what serves."""

import json
import logging
import re

from tfx.v1.dsl.components import Parameter
from tfx.v1.orchestration.experimental import exit_handler

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.release import ledger
from pipeline.validation import report
from pipeline.validation.text import printable, shortened

log = logging.getLogger(__name__)

_TIMEOUT = 60.0

# Vertex's text: "The DAG failed because some tasks failed. The failed tasks are: [SnapshotGate, ...]."
_FAILED = re.compile(r"failed tasks are: \[([^\]]*)\]")


@exit_handler
def RunAlert(
    final_status: Parameter[str],
    run_id: Parameter[str],
    pipeline: Parameter[str],
    topic: Parameter[str],
    reports: Parameter[str],
    ledger_path: Parameter[str],
    endpoint: Parameter[str],
):
    """Publishes one message to Pub/Sub when the run did not succeed, or rolled its canary back; nothing otherwise.

    Args:
        final_status: JSON of KFP's PipelineTaskFinalStatus, which Vertex fills in.
        run_id: Id of the run.
        pipeline: Name of the pipeline.
        topic: `projects/PROJECT/topics/NAME`.
        reports: Folder of all runs' reports.
        ledger_path: File of the serving ledger.
        endpoint: Endpoint in the ledger.
    """
    alert = alert_of(json.loads(final_status), run_id, reports, ledger_path, endpoint)
    if alert is None:
        return
    # Here, because only a run that failed needs it.
    from google.cloud import pubsub_v1

    attributes = {"pipeline": pipeline, "run_id": run_id, "state": alert["state"]}
    published = pubsub_v1.PublisherClient().publish(topic, json.dumps(alert, ensure_ascii=False).encode(), **attributes)
    log.info("published %s to %s as %s", alert["text"], topic, published.result(_TIMEOUT))


def alert_of(status: dict, run_id: str, reports: str, ledger_path: str, endpoint: str) -> dict | None:
    """What a run's end is worth telling.

    Args:
        status: PipelineTaskFinalStatus.
        run_id: Id of the run.
        reports: Folder of all runs' reports; a rejected week left its verdict there.
        ledger_path: File of the serving ledger.
        endpoint: Endpoint in it.

    Returns:
        text (one line for people), run_id, state, steps that failed, rules of the gate that failed, reason as Vertex has it,
        report, and what goes on serving; None for a run that succeeded. One whose canary did badly and was rolled back has
        succeeded for Vertex: its state is ROLLED_BACK here.
    """
    state = str(status.get("state", "UNKNOWN"))
    if state == "SUCCEEDED":
        return _rolled_back(run_id, ledger_path, endpoint)
    reason = printable(str((status.get("error") or {}).get("message", "")))[:2000]
    named = _FAILED.search(reason)
    steps = [step.strip() for step in named[1].split(",") if step.strip()] if named else []
    folder = storage.join(reports, run_id)
    rules = report.broken_rules(folder)
    where = f"rules {', '.join(rules)}" if rules else f"steps {', '.join(steps)}" if steps else "an unknown step"
    serving = _serving(ledger_path, endpoint)
    return {
        "text": f"run {run_id} {state.lower()} at {where}; {serving}",
        "run_id": run_id,
        "state": state,
        "steps": steps,
        "rules": rules,
        "reason": reason,
        "report": storage.join(folder, "gate.html") if rules else "",
        "serving": serving,
    }


def _rolled_back(run_id: str, ledger_path: str, endpoint: str) -> dict | None:
    """The alert of a run that rolled its own canary back: customers met that model, and nobody was watching."""
    entries = ledger.of_endpoint(ledger_path, endpoint)
    mine = [entry for entry in entries if entry.action == "rollback" and entry.actor == ledger.actor_of(run_id)]
    if not mine:
        return None
    reason, serving = printable(mine[-1].reason)[:2000], _serving(ledger_path, endpoint)
    return {
        "text": f"run {run_id} rolled its canary back: {shortened(reason)}; {serving}",
        "run_id": run_id,
        "state": "ROLLED_BACK",
        "steps": ["ReleasePusher"],
        "rules": [],
        "reason": reason,
        "report": "",
        "serving": serving,
    }


def _serving(ledger_path: str, endpoint: str) -> str:
    try:
        entry = ledger.serving(ledger_path, endpoint)
    except (OSError, PipelineError) as error:
        return f"what serves is not known: {shortened(printable(str(error)))}"
    if entry is None:
        return "nothing serves yet"
    return f"version {entry.to_version} of run {entry.run_id} ({entry.snapshot}) goes on serving"
