"""The gate as a week meets it: a snapshot, TFDV's statistics, the last accepted baseline, the verdict and its traces."""

import csv
import datetime
import json
import os
import pathlib

import duckdb
import pandas as pd
import pytest
import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import anomalies_pb2
from tfx.types import artifact_utils, standard_artifacts

from pipeline import files, settings, storage, typed
from pipeline.artifacts import GateReport, ImageShards, LabelSnapshot, RunManifest
from pipeline.components import facts, last_accepted, snapshot_gate
from pipeline.components.distribution_validator import Executor, config_of
from pipeline.errors import PipelineError, SnapshotRejected
from pipeline.evaluation.thresholds import Thresholds
from pipeline.lineage import facts as audit_facts
from pipeline.lineage import text as audit_text
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.origin import Origin
from pipeline.pipeline import create_pipeline
from pipeline.places import Places
from pipeline.start import Start
from pipeline.validation import rules
from pipeline.validation.verdict import Override
from pipeline.warehouse import LABEL_COLUMNS, open_warehouse, queries
from pipeline.warehouse import Location as Where
from tests.pipeline.conftest import ROOT
from tests.pipeline.lineage.conftest import MANIFEST, SHARDS, SNAPSHOT, HandWritten, release_facts

SCHEMA = 'feature { name: "label" type: BYTES string_domain { name: "label" value: "cup" value: "hat" } }'

LIMITS = rules.Limits(
    min_rows=20,
    max_rows=1000,
    max_row_change=0.25,
    min_edits=1,
    max_null_images=0,
    max_null_labels=0,
    max_duplicates=0,
    max_orphans=0,
    max_unknown_labels=0,
    min_class_rows=10,
    min_class_share=0.1,
    min_class_eval_rows=1,
    min_split_rows=rules.SplitRows(train=1, val=1, eval=1),
    max_straddling_groups=0,
    max_class_share_change=0.1,
    max_class_divergence=0.05,
    max_relabelled_share=0.1,
    drift={"label": 0.1, "width": 0.2, "height": 0.2, "bytes": 0.2},
)

# 100 labels by the first Monday, five more in each of the weeks after it.
EDITS = [(f"i{n:03d}", f"p{n // 2:03d}", "cup" if n % 4 < 2 else "hat", "ana", "2026-02-25T08:00:00Z") for n in range(100)]
EDITS += [
    (f"i{100 + n:03d}", f"p{100 + n:03d}", "cup" if n % 2 else "hat", "ana", f"2026-03-{2 + 7 * (n // 5):02d}T08:00:00Z")
    for n in range(20)
]


class Weeks:
    """Runs the steps around the gate, in one folder, week after week; what the gate reads and writes is below `store`."""

    def __init__(self, folder: pathlib.Path, store: str | None = None):
        self.folder, self.runs, self.store = folder, 0, store or str(folder)
        self.where = Where(kind="duckdb", labels=str(folder / "labels.csv"), database=str(folder / "w.duckdb"))
        (folder / "schema").mkdir()
        (folder / "schema" / "schema.pbtxt").write_text(SCHEMA)
        self.label(EDITS)
        index = pd.DataFrame(
            [
                {
                    "image_id": f"i{n:03d}",
                    "shard": "s",
                    "ordinal": n,
                    "bytes": 9000 + 37 * (n % 50),
                    "width": 300 + n % 40,
                    "height": 400,
                }
                for n in range(120)
            ]
        )
        index.to_parquet(folder / "index.parquet")
        with open_warehouse(self.where) as warehouse:
            warehouse.load_parquet([str(folder / "index.parquet")], "image_index_1")

    def label(self, edits) -> None:
        with (self.folder / "labels.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(LABEL_COLUMNS)
            writer.writerows(edits)

    def run(self, date: str, override: Override | None = None, bootstrap=1, limits=LIMITS) -> dict:
        """Judges a week; returns the verdict's facts and the baseline's, or raises what the gate raises."""
        self.runs += 1
        self.run_id, folder = f"run-{self.runs}", self.folder / f"run-{self.runs}"
        self.reports = storage.join(self.store, "reports", self.run_id)

        def new(kind, **properties):
            artifact = kind()
            artifact.uri = str(folder / f"{kind.__name__}-{len(list(folder.glob('*')))}")
            pathlib.Path(artifact.uri).mkdir(parents=True)
            facts.record(artifact, properties)
            return artifact

        with open_warehouse(self.where) as warehouse:
            taken = warehouse.snapshot(datetime.date.fromisoformat(date))
            query = queries.examples(
                warehouse.address(taken.table), warehouse.address("image_index_1"), "product_id", "", train=0.6, val=0.2
            )
            rows = pd.DataFrame(list(warehouse.rows(query)))
        snapshot = new(LabelSnapshot, **{
            "table": taken.table, "date": taken.date, "as_of": taken.as_of, "checksum": taken.checksum,
            "table_uri": taken.uri, "rows": taken.rows,
        })  # fmt: skip
        statistics = new(standard_artifacts.ExampleStatistics)
        statistics.split_names = artifact_utils.encode_split_names(["train"])
        train = rows[rows["split"] == "train"][["label", "width", "height", "bytes"]]
        path = pathlib.Path(statistics.uri, "Split-train", "FeatureStats.pb")
        path.parent.mkdir()
        path.write_bytes(tfdv.generate_statistics_from_dataframe(train, n_jobs=1).SerializeToString())
        baseline = new(standard_artifacts.ExampleStatistics)
        last_accepted.LastAccepted.test_call(snapshot=snapshot, accepted=storage.join(self.store, "accepted"), statistics=baseline)
        schema_anomalies = new(standard_artifacts.ExampleAnomalies)
        (pathlib.Path(schema_anomalies.uri) / "Split-train").mkdir()
        (pathlib.Path(schema_anomalies.uri) / "Split-train" / "SchemaDiff.pb").write_bytes(
            anomalies_pb2.Anomalies().SerializeToString()
        )
        drift = new(standard_artifacts.ExampleAnomalies)
        Executor().Do(
            {"statistics": [statistics], "baseline_statistics": [baseline]},
            {"anomalies": [drift]},
            {"distribution_validator_config": config_of(limits.drift), "include_split_pairs": '[["train", "train"]]'},
        )
        verdict, schema = new(GateReport), self._schema()
        self._bring(verdict, schema, statistics, baseline, schema_anomalies, drift)
        snapshot_gate.SnapshotGate.test_call(
            manifest=new(RunManifest, run_id=self.run_id),
            snapshot=snapshot,
            shards=new(ImageShards, index_table="image_index_1"),
            examples=new(standard_artifacts.Examples, query=query),
            schema=schema,
            statistics=statistics,
            baseline=baseline,
            schema_anomalies=schema_anomalies,
            drift_anomalies=drift,
            limits=json.dumps(typed.to_dict(limits)),
            bootstrap=bootstrap,
            override=override.to_json() if override else "",
            accepted=storage.join(self.store, "accepted"),
            reports=storage.join(self.store, "reports"),
            warehouse=json.dumps(typed.to_dict(self.where)),
            verdict=verdict,
        )
        self.verdict = verdict
        return {
            **{name: facts.text(verdict, name) for name in ("verdict", "findings", "override", "table")},
            "bootstrap": facts.number(verdict, "bootstrap"),
            "baseline": facts.text(baseline, "table"),
        }

    def _bring(self, *artifacts) -> None:
        if self.store == str(self.folder):
            return
        for artifact in artifacts:
            uri = storage.join(self.store, self.run_id, storage.name_of(artifact.uri))
            if os.listdir(artifact.uri):
                storage.copy_folder(artifact.uri, uri)
            artifact.uri = uri

    def _schema(self):
        schema = standard_artifacts.Schema()
        schema.uri = str(self.folder / "schema")
        return schema

    def report(self) -> dict:
        return json.loads(storage.read(storage.join(self.reports, "gate.json")))

    def accepted(self) -> dict[str, dict]:
        found = (self.folder / "accepted").glob("*/accepted.json")
        return {path.parent.name: json.loads(path.read_text()) for path in found}


@pytest.fixture
def weeks(tmp_path):
    return Weeks(tmp_path)


def test_the_first_week_is_a_recorded_bootstrap_and_needs_leave(weeks):
    with pytest.raises(SnapshotRejected, match="gate.bootstrap: true"):
        weeks.run("2026-03-02", bootstrap=0)
    assert weeks.accepted() == {}
    first = weeks.run("2026-03-02")
    assert first["bootstrap"] == 1 and first["baseline"] == ""
    assert first["verdict"] == "labels_20260302 is accepted: all 19 rules passed"
    second = weeks.run("2026-03-09", bootstrap=0)
    assert second["bootstrap"] == 0 and second["baseline"] == "labels_20260302"
    assert json.loads(second["findings"])["distribution_validator"].startswith("bytes 0.0")


def test_after_a_missing_week_the_baseline_is_two_weeks_old(weeks):
    weeks.run("2026-03-02")
    assert weeks.run("2026-03-16")["baseline"] == "labels_20260302"
    (edits,) = [rule["value"] for rule in weeks.report()["rules"] if rule["rule"] == "min_edits"]
    assert edits == "10 since 2026-03-02 00:00 UTC"


def test_an_old_week_that_is_run_again_is_judged_as_it_was(weeks):
    weeks.run("2026-03-02")
    first = weeks.run("2026-03-09")
    findings = weeks.report()["rules"]
    for date in ("2026-03-16", "2026-03-23"):
        weeks.run(date)
    again = weeks.run("2026-03-09")
    assert again == first and weeks.report()["rules"] == findings
    assert weeks.accepted()["labels_20260309"]["run_id"] == "run-2"
    assert weeks.run("2026-03-30", limits=LIMITS)["baseline"] == "labels_20260323"


def test_two_runs_for_one_date_have_one_baseline_and_one_record(weeks):
    weeks.run("2026-03-02")
    assert weeks.run("2026-03-09")["baseline"] == weeks.run("2026-03-09")["baseline"] == "labels_20260302"
    assert {name: record["run_id"] for name, record in weeks.accepted().items()} == {
        "labels_20260302": "run-1", "labels_20260309": "run-2",
    }  # fmt: skip


def test_a_rejected_week_is_no_baseline(weeks):
    weeks.run("2026-03-02")
    weeks.label([*EDITS, ("nowhere", "p", "cup", "ana", "2026-03-05T08:00:00Z")])
    with pytest.raises(SnapshotRejected, match="max_orphans"):
        weeks.run("2026-03-09")
    assert list(weeks.accepted()) == ["labels_20260302"]
    assert not weeks.report()["accepted"] and storage.exists(f"{weeks.reports}/gate.html")
    weeks.label([*EDITS, ("nowhere", "p", "", "ana", "2026-03-10T08:00:00Z")])
    assert weeks.run("2026-03-16")["baseline"] == "labels_20260302"


@pytest.mark.parametrize(
    "statement, words",
    [
        ("UPDATE labels_20260302 SET label = 'hat'", ["was altered since it was made", "never changed or overwritten"]),
        ("DELETE FROM snapshots", ["is gone from the warehouse", "accepted/labels_20260302"]),
        ("UPDATE snapshots SET checksum = 'other'", ["was altered since it was made"]),
    ],
)
def test_a_baseline_that_is_not_what_was_accepted_judges_nothing(weeks, statement, words):
    weeks.run("2026-03-02")
    with duckdb.connect(weeks.where.database) as connection:
        connection.execute(statement)
    with pytest.raises(PipelineError) as raised:
        weeks.run("2026-03-09")
    assert "labels_20260302" in str(raised.value) and all(word in str(raised.value) for word in words)
    assert list(weeks.accepted()) == ["labels_20260302"]


def test_a_baseline_that_was_made_anew_is_not_the_one_that_was_accepted(weeks):
    weeks.run("2026-03-02")
    with duckdb.connect(weeks.where.database) as connection:
        connection.execute("DROP TABLE labels_20260302; DELETE FROM snapshots")
    weeks.label(EDITS[1:])
    with open_warehouse(weeks.where) as warehouse:
        warehouse.snapshot(datetime.date(2026, 3, 2))
    with pytest.raises(PipelineError, match="baseline labels_20260302 was accepted with checksum"):
        weeks.run("2026-03-09")


def test_a_label_table_that_nobody_edited_is_told(weeks):
    weeks.run("2026-03-02")
    weeks.label(EDITS[:100])
    with pytest.raises(
        SnapshotRejected, match=r"1 of 19 rules failed \(min_edits\)(?s:.*)newest edit is of 2026-02-25 08:00 UTC"
    ):
        weeks.run("2026-03-09")


@pytest.fixture
def bad(weeks):
    """A second week with two broken rules."""
    weeks.run("2026-03-02")
    weeks.label(
        [
            *EDITS,
            ("nowhere", "p", "cup", "ana", "2026-03-05T08:00:00Z"),
            ("i000", "p000", "cup", "ana", "2026-03-05T08:00:00Z"),
            ("i000", "p000", "cup", "ben", "2026-03-05T08:00:00Z"),
        ]
    )
    return weeks


PERSON = Override(("max_orphans", "max_duplicates"), "Ana <ana@example.com>", "the photographs come on Tuesday")


def test_an_override_of_every_broken_rule_accepts_the_week_and_leaves_its_trace_everywhere(bad):
    found = bad.run("2026-03-09", PERSON)
    assert found["verdict"] == (
        "labels_20260309 is accepted by an override: 2 of 19 rules failed (max_duplicates, max_orphans), and "
        "Ana <ana@example.com> let them pass: the photographs come on Tuesday"
    )
    record = {"rules": ["max_duplicates", "max_orphans"], "unused": [], "by": PERSON.by, "reason": PERSON.reason}
    assert json.loads(found["override"]) == record
    assert bad.accepted()["labels_20260309"]["override"] == bad.report()["override"] == record
    assert bad.accepted()["labels_20260302"]["override"] is None
    page = storage.read(f"{bad.reports}/gate.html").decode()
    assert "Ana &lt;ana@example.com&gt; let them pass" in page
    assert (
        bad.run("2026-03-16", Override(("max_orphans", "max_duplicates"), "Ana", "again"))["baseline"] == "labels_20260309"
    )


def test_an_override_of_some_broken_rules_rejects_the_week(bad):
    with pytest.raises(SnapshotRejected, match="the override by Ana does not name max_duplicates") as raised:
        bad.run("2026-03-09", Override(("max_orphans",), "Ana", "x"))
    assert list(bad.accepted()) == ["labels_20260302"] and not bad.report()["accepted"]
    # What the lineage keeps of a rejected snapshot is what it keeps of an accepted one.
    kept = raised.value.facts
    assert not kept["accepted"] and json.loads(kept["failed"]) == ["max_duplicates", "max_orphans"]
    assert json.loads(kept["override"])["by"] == "Ana" and "max_orphans" in json.loads(kept["findings"])
    assert kept["report_sha256"] == files.sha256(storage.read(storage.join(bad.reports, "gate.json")))


def test_an_override_that_was_not_needed_is_reported(weeks):
    found = weeks.run("2026-03-02", Override(("max_orphans",), "Ana", "x"))
    assert found["verdict"].endswith("all 19 rules passed; not needed: the override of max_orphans by Ana")
    assert json.loads(found["override"])["unused"] == ["max_orphans"]


def test_an_override_of_no_rule_is_refused_before_anything_is_judged(weeks, monkeypatch):
    monkeypatch.setattr(Override, "to_json", lambda self: '{"rules": ["max_orphan"], "by": "Ana", "reason": "x"}')
    with pytest.raises(PipelineError, match="'max_orphan', which is no rule"):
        weeks.run("2026-03-02", Override(("max_orphans",), "Ana", "x"))
    assert storage.names(weeks.reports) == []


@pytest.mark.parametrize("person", [PERSON, None])
def test_the_audit_tells_the_override_of_a_run(bad, tmp_path, person):
    bad.run("2026-03-09" if person else "2026-03-02", person)
    places = Places(store=str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    written = HandWritten(places)
    context = written.run("run-1")
    gate = {
        **{name: facts.text(bad.verdict, name) for name in ("verdict", "findings", "override")},
        "bootstrap": facts.number(bad.verdict, "bootstrap"),
    }
    for kind, content in [
        ("RunManifest", MANIFEST), ("LabelSnapshot", SNAPSHOT), ("ImageShards", SHARDS), ("GateReport", gate),
        ("ServingRelease", release_facts("run-1", 1, "2026-03-09 12:00")),
    ]:  # fmt: skip
        written.step(context, kind, outputs={"out": [written.artifact(f"pipeline.{kind}", content)]})
    found = audit_facts.of_run(MLMDLineage(places.metadata).run("run-1"))
    lines = audit_text.of_facts(found)
    if person is None:
        assert found.gate.override is None and "override" not in "\n".join(lines)
        return
    assert found.gate.override["rules"] == ["max_duplicates", "max_orphans"]
    assert "  override    by Ana <ana@example.com>: the photographs come on Tuesday" in lines
    assert "              max_orphans: 1 (allowed: 0)" in lines


@pytest.mark.parametrize("person", [PERSON, None])
def test_the_pipeline_hands_the_override_to_the_gate(person):
    places = Places(store="/store", images="/data/images", labels="/data/labels.csv", schema="/data/schema")
    origin = Origin("c0ffee", "clean", "tfx.txt", "0" * 64, "", "3.11", "Linux", "ana")
    config = settings.load(settings.CONFIGS / "local.yaml")
    thresholds = typed.load(Thresholds, ROOT / "schema" / "release.yaml")
    start = Start("run-1", "2026-03-02", override=person.to_json() if person else "")
    week = create_pipeline(config, LIMITS, thresholds, places, origin, start, False)
    (gate,) = [component for component in week.components if component.id == "SnapshotGate"]
    assert Override.from_json(gate.exec_properties["override"]) == person


def test_limits_of_the_project_hold_all_rules():
    root = pathlib.Path(__file__).parents[3]
    limits = typed.to_dict(typed.load(rules.Limits, root / "schema" / "gate.yaml"))
    assert limits.keys() == {*rules.RULES[:-2], "drift"} and set(limits["drift"]) == {"label", "width", "height", "bytes"}
