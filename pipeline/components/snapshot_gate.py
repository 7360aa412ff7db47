"""The gate: judges the snapshot by every rule and fails the run when one is broken."""

import json
import logging
import shutil

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import typed
from pipeline.artifacts import GateReport, ImageShards, LabelSnapshot
from pipeline.components import facts
from pipeline.errors import SnapshotRejected
from pipeline.validation import acceptance, report, rules
from pipeline.validation.facts import gather, read_anomalies, read_classes
from pipeline.warehouse import Location, open_warehouse

log = logging.getLogger(__name__)


@component
def SnapshotGate(
    snapshot: InputArtifact[LabelSnapshot],
    shards: InputArtifact[ImageShards],
    examples: InputArtifact[standard_artifacts.Examples],
    schema: InputArtifact[standard_artifacts.Schema],
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    baseline: InputArtifact[standard_artifacts.ExampleStatistics],
    schema_anomalies: InputArtifact[standard_artifacts.ExampleAnomalies],
    drift_anomalies: InputArtifact[standard_artifacts.ExampleAnomalies],
    run_id: Parameter[str],
    limits: Parameter[str],
    bootstrap: Parameter[int],
    accepted: Parameter[str],
    reports: Parameter[str],
    warehouse: Parameter[str],
    verdict: OutputArtifact[GateReport],
):
    """Writes one report, wherever the verdict falls; raises `SnapshotRejected` on any broken rule.

    TFX's validators only write verdicts. This step is what stops a bad week: nothing downstream starts,
    and the model that serves goes on serving.

    Args:
        snapshot: The snapshot.
        shards: The image shards that its labels must refer to.
        examples: The rows that would train.
        schema: What they must look like; its label domain names the classes.
        statistics: Their statistics.
        baseline: The last accepted snapshot's statistics.
        schema_anomalies: Verdict of ExampleValidator.
        drift_anomalies: Verdict of DistributionValidator.
        run_id: Id of the run.
        limits: JSON of `rules.Limits`.
        bootstrap: 1 when a snapshot may pass although none was accepted before it.
        accepted: Folder of the accepted snapshots' pointers.
        reports: Folder of this run's reports; it outlives a failed execution, whose outputs TFX removes.
        warehouse: JSON of the warehouse's `Location`.
        verdict: The report of an accepted snapshot.
    """
    first = bool(facts.number(baseline, "bootstrap"))
    table = facts.text(snapshot, "table")
    if first and not bootstrap:
        raise SnapshotRejected(
            f"{table} is rejected: no snapshot was accepted before it, so drift cannot be judged. For the first run "
            "of a pipeline set gate.bootstrap: true in the settings; the run records it"
        )
    with open_warehouse(Location(**json.loads(warehouse))) as place:
        known = gather(
            place,
            snapshot=table,
            index=facts.text(shards, "index_table"),
            examples_query=facts.text(examples, "query"),
            baseline=None if first else facts.text(baseline, "table"),
            classes=read_classes(f"{schema.uri}/schema.pbtxt"),
            schema_anomalies=read_anomalies(schema_anomalies.uri),
            drift_anomalies=read_anomalies(drift_anomalies.uri, judged=not first),
        )
    findings = rules.judge(known, typed.from_dict(rules.Limits, json.loads(limits), "gate limits"))
    identity = {
        **{name: facts.text(snapshot, name) for name in ("table", "date", "as_of", "checksum", "table_uri")},
        "rows": facts.number(snapshot, "rows"),
    }
    report.write(reports, run_id, identity, known, findings)
    if any(not finding.passed for finding in findings):
        raise SnapshotRejected(f"{report.as_text(table, findings)}\n  the whole report: {reports}/gate.html")
    shutil.copytree(reports, verdict.uri, dirs_exist_ok=True)
    facts.record(
        verdict,
        {
            "accepted": True,
            "bootstrap": first,
            "table": table,
            "rules": len(findings),
            "verdict": report.verdict_line(table, findings),
            "findings": json.dumps({finding.rule: f"{finding.value} (allowed: {finding.limit})" for finding in findings}),
        },
    )
    acceptance.record(accepted, table, identity["date"], identity["checksum"], run_id, statistics.uri)
    log.info(report.verdict_line(table, findings))
