"""The gate: judges the snapshot by every rule and fails the run when one is broken."""

import json
import logging

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import files, storage, typed
from pipeline.artifacts import GateReport, ImageShards, LabelSnapshot, RunManifest
from pipeline.components import facts
from pipeline.errors import PipelineError, SnapshotRejected
from pipeline.validation import acceptance, histograms, report, rules
from pipeline.validation.facts import gather, read_anomalies, read_classes, read_drift
from pipeline.validation.verdict import Override, Verdict
from pipeline.warehouse import Location, open_warehouse
from pipeline.warehouse.base import as_of, parse_date

log = logging.getLogger(__name__)


@component
def SnapshotGate(
    manifest: InputArtifact[RunManifest],
    snapshot: InputArtifact[LabelSnapshot],
    shards: InputArtifact[ImageShards],
    examples: InputArtifact[standard_artifacts.Examples],
    schema: InputArtifact[standard_artifacts.Schema],
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    baseline: InputArtifact[standard_artifacts.ExampleStatistics],
    schema_anomalies: InputArtifact[standard_artifacts.ExampleAnomalies],
    drift_anomalies: InputArtifact[standard_artifacts.ExampleAnomalies],
    limits: Parameter[str],
    bootstrap: Parameter[int],
    override: Parameter[str],
    accepted: Parameter[str],
    reports: Parameter[str],
    warehouse: Parameter[str],
    verdict: OutputArtifact[GateReport],
):
    """Writes one report, wherever the verdict falls; raises `SnapshotRejected` on a broken rule that nobody answers for.

    TFX's validators only write verdicts. This step is what stops a bad week: nothing downstream starts,
    and the model that serves goes on serving.

    Args:
        manifest: Knows the run's id.
        snapshot: The snapshot.
        shards: The image shards that its labels must refer to.
        examples: The rows that would train.
        schema: What they must look like; its label domain names the classes.
        statistics: Their statistics.
        baseline: The last accepted snapshot's statistics.
        schema_anomalies: Verdict of ExampleValidator.
        drift_anomalies: Verdict of DistributionValidator.
        limits: JSON of `rules.Limits`.
        bootstrap: 1 when a snapshot may pass although none was accepted before it.
        override: JSON of `verdict.Override`: rules that may fail, who decided and why; '' for none.
        accepted: Folder of the accepted snapshots' pointers.
        reports: Folder of all runs' reports, one in it for each; it outlives a failed execution, whose outputs TFX removes.
        warehouse: JSON of the warehouse's `Location`.
        verdict: The report of an accepted snapshot.
    """
    person, run_id = Override.from_json(override), facts.text(manifest, "run_id")
    reports = storage.join(reports, run_id)
    first = bool(facts.number(baseline, "bootstrap"))
    table = facts.text(snapshot, "table")
    if first and not bootstrap:
        raise SnapshotRejected(
            f"{table} is rejected: no snapshot was accepted before it, so drift cannot be judged. For the first run "
            "of a pipeline set gate.bootstrap: true in the settings; the run records it"
        )
    with open_warehouse(Location(**json.loads(warehouse))) as place:
        if not first:
            _require_baseline(place, facts.text(baseline, "table"), facts.text(baseline, "checksum"), accepted)
        known = gather(
            place,
            snapshot=table,
            index=facts.text(shards, "index_table"),
            examples_query=facts.text(examples, "query"),
            baseline=None if first else facts.text(baseline, "table"),
            baseline_as_of=None if first else as_of(parse_date(facts.text(baseline, "date"))),
            classes=read_classes(f"{schema.uri}/schema.pbtxt"),
            schema_anomalies=read_anomalies(schema_anomalies.uri),
            drift_anomalies=read_anomalies(drift_anomalies.uri, judged=not first),
            drift=read_drift(drift_anomalies.uri),
        )
    findings = rules.judge(known, typed.from_dict(rules.Limits, json.loads(limits), "gate limits"))
    decision = Verdict(findings, person)
    identity = {
        **{name: facts.text(snapshot, name) for name in ("table", "date", "as_of", "checksum", "table_uri")},
        "rows": facts.number(snapshot, "rows"),
    }
    report.write(reports, run_id, identity, known, decision, histograms.read(statistics.uri), histograms.read(baseline.uri))
    known_verdict = {
        "accepted": decision.accepted,
        "bootstrap": first,
        "table": table,
        "rules": len(findings),
        "verdict": report.verdict_line(table, decision),
        "findings": json.dumps({finding.rule: f"{finding.value} (allowed: {finding.limit})" for finding in findings}),
        "failed": json.dumps(list(decision.failed)),
        "override": json.dumps(decision.record(), ensure_ascii=False) if person else "",
        "report_sha256": files.sha256(storage.read(storage.join(reports, "gate.json"))),
    }
    if not decision.accepted:
        raise SnapshotRejected(f"{report.as_text(table, decision)}\n  the whole report: {reports}/gate.html", known_verdict)
    storage.copy_folder(reports, verdict.uri)
    facts.record(verdict, known_verdict)
    acceptance.record(
        accepted, table, identity["date"], identity["checksum"], run_id, statistics.uri, override=decision.record()
    )
    log.info(report.verdict_line(table, decision))


def _require_baseline(warehouse, table: str, checksum: str, accepted: str) -> None:
    """Checks that the baseline is what was accepted. Raises PipelineError."""
    remedy = f"Bring it back, or remove {accepted}/{table} so that the one accepted before it is compared"
    found = warehouse.find(table)
    if found is None:
        raise PipelineError(f"the baseline {table}, the last accepted snapshot, is gone from the warehouse. {remedy}")
    if found.checksum != checksum:
        raise PipelineError(
            f"the baseline {table} was accepted with checksum {checksum[:12]} and has {found.checksum[:12]} now. {remedy}"
        )
