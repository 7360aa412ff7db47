"""Why the gate stopped a run, read from the report that it left, where the lineage itself cannot hold the reason."""

import json
from collections.abc import Mapping

from pipeline import files, storage
from pipeline.errors import SnapshotRejected
from pipeline.lineage.base import Execution
from pipeline.lineage.facts import FAILURE, FAILURE_FACTS, FAILURE_KIND
from pipeline.validation.text import printable

GATE = "SnapshotGate"


def of_gate_report(step: Execution, run_id: str) -> Mapping[str, str]:
    """The reason of a gate that failed, in the properties that a run on one machine has.

    Args:
        step: The step that failed.
        run_id: Its run.

    Returns:
        FAILURE, FAILURE_KIND and FAILURE_FACTS; empty when the step is no gate, or left no report of a rejection.
    """
    folder = str(step.parameters.get("reports") or "")
    if step.step != GATE or not folder:
        return {}
    try:
        content = storage.read(storage.join(folder, run_id, "gate.json"))
        found = json.loads(content)
        rules = found["rules"]
        if found["accepted"]:
            return {}
        failed = [rule for rule in rules if not rule["passed"]]
        facts = {
            "accepted": 0,
            "bootstrap": int(found["baseline"] is None),
            "verdict": f"{found['snapshot']['table']} is rejected: {len(failed)} of {len(rules)} rules failed "
            f"({', '.join(rule['rule'] for rule in failed)})",
            "findings": json.dumps({rule["rule"]: f"{rule['value']} (allowed: {rule['limit']})" for rule in rules}),
            "failed": json.dumps([rule["rule"] for rule in failed]),
            "override": json.dumps(found["override"], ensure_ascii=False) if found["override"] else "",
            "report_sha256": files.sha256(content),
        }
    except (OSError, ValueError, KeyError, TypeError):  # it stopped before it judged, or the report is gone
        return {}
    lines = [facts["verdict"]]
    for rule in failed:
        lines.append(f"  {rule['rule']}: {printable(str(rule['value']))}, allowed: {printable(str(rule['limit']))}")
        lines += [f"    - {printable(str(detail))}" for detail in rule["details"]]
    return {FAILURE: "\n".join(lines), FAILURE_KIND: SnapshotRejected.__name__, FAILURE_FACTS: json.dumps(facts)}
