"""A store of whole weeks on a disk: the lineage with every edge that the pipeline makes, and the files that it tells of.

No TFX and no training: shards, records and models are bytes whose digests are right.
"""

import datetime
import hashlib
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import files
from pipeline.lineage import digests
from pipeline.lineage.base import Artifact
from pipeline.provenance import beside, statement
from pipeline.release import ledger
from pipeline.shards import generations
from pipeline.warehouse import Location, open_warehouse, queries
from tests.pipeline.lineage.conftest import HOSTILE, MANIFEST, HandWritten, release_facts
from tests.pipeline.lineage.conftest import at as at_instant

STEPS = {
    "ImageSharder": ({}, {"shards": "pipeline.ImageShards"}),
    "ImportSchemaGen": ({}, {"schema": "Schema"}),
    "RunManifest": ({}, {"manifest": "pipeline.RunManifest"}),
    "SnapshotGen": ({"manifest": "RunManifest.manifest"}, {"snapshot": "pipeline.LabelSnapshot"}),
    "LastAccepted": ({"snapshot": "SnapshotGen.snapshot"}, {"statistics": "ExampleStatistics"}),
    "SnapshotExampleGen": ({"snapshot": "SnapshotGen.snapshot", "shards": "ImageSharder.shards"}, {"examples": "Examples"}),
    "StatisticsGen": ({"examples": "SnapshotExampleGen.examples"}, {"statistics": "ExampleStatistics"}),
    "DistributionValidator": (
        {"baseline_statistics": "LastAccepted.statistics", "statistics": "StatisticsGen.statistics"},
        {"anomalies": "ExampleAnomalies"},
    ),
    "ExampleValidator": (
        {"schema": "ImportSchemaGen.schema", "statistics": "StatisticsGen.statistics"}, {"anomalies": "ExampleAnomalies"},
    ),
    "SnapshotGate": (
        {
            "baseline": "LastAccepted.statistics", "schema": "ImportSchemaGen.schema",
            "schema_anomalies": "ExampleValidator.anomalies", "statistics": "StatisticsGen.statistics",
            "drift_anomalies": "DistributionValidator.anomalies", "examples": "SnapshotExampleGen.examples",
            "snapshot": "SnapshotGen.snapshot", "shards": "ImageSharder.shards", "manifest": "RunManifest.manifest",
        },
        {"verdict": "pipeline.GateReport"},
    ),
    "LabelJoin": (
        {
            "examples": "SnapshotExampleGen.examples", "schema": "ImportSchemaGen.schema", "shards": "ImageSharder.shards",
            "verdict": "SnapshotGate.verdict",
        },
        {"labels": "Examples", "eval_examples": "Examples", "tuning_examples": "Examples"},
    ),
    "ServingModel": ({"verdict": "SnapshotGate.verdict"}, {"model": "Model"}),
    "TuningDecision": (
        {"verdict": "SnapshotGate.verdict", "manifest": "RunManifest.manifest"}, {"hyperparameters": "HyperParameters"},
    ),
    "Tuner": (
        {
            "examples": "LabelJoin.tuning_examples", "hyperparameters": "TuningDecision.hyperparameters",
            "schema": "ImportSchemaGen.schema", "manifest": "RunManifest.manifest",
        },
        {"best_hyperparameters": "HyperParameters", "tuner_results": "TunerResults"},
    ),
    "Trainer": (
        {
            "examples": "LabelJoin.labels", "hyperparameters": "Tuner.best_hyperparameters", "schema": "ImportSchemaGen.schema",
            "manifest": "RunManifest.manifest",
        },
        {"model": "Model", "model_run": "ModelRun"},
    ),
    "SmokeTest": ({"model": "Trainer.model", "manifest": "RunManifest.manifest"}, {"blessing": "InfraBlessing"}),
    "Evaluator": (
        {
            "model": "Trainer.model", "baseline_model": "ServingModel.model", "examples": "LabelJoin.eval_examples",
            "smoke_test": "SmokeTest.blessing",
        },
        {"blessing": "ModelBlessing", "evaluation": "ModelEvaluation"},
    ),
    "ReleaseGate": (
        {
            "baseline": "LastAccepted.statistics", "eval_examples": "LabelJoin.eval_examples", "evaluation": "Evaluator.evaluation",
            "manifest": "RunManifest.manifest", "schema": "ImportSchemaGen.schema", "serving_model": "ServingModel.model",
            "smoke_test": "SmokeTest.blessing", "snapshot": "SnapshotGen.snapshot", "tfma_blessing": "Evaluator.blessing",
        },
        {"verdict": "ModelBlessing"},
    ),
    "ReleasePusher": (
        {
            "model": "Trainer.model", "model_blessing": "ReleaseGate.verdict", "infra_blessing": "SmokeTest.blessing",
            "serving_model": "ServingModel.model", "snapshot": "SnapshotGen.snapshot", "manifest": "RunManifest.manifest",
            "shards": "ImageSharder.shards", "gate": "SnapshotGate.verdict", "labels": "LabelJoin.labels",
            "hyperparameters": "Tuner.best_hyperparameters", "model_run": "Trainer.model_run",
        },
        {"pushed_model": "PushedModel"},
    ),
    "ServingLedger": (
        {
            "decision": "TuningDecision.hyperparameters", "hyperparameters": "Tuner.best_hyperparameters",
            "manifest": "RunManifest.manifest", "model": "Trainer.model", "model_run": "Trainer.model_run",
            "pushed_model": "ReleasePusher.pushed_model", "serving_model": "ServingModel.model",
            "snapshot": "SnapshotGen.snapshot", "verdict": "ReleaseGate.verdict",
        },
        {"release": "pipeline.ServingRelease", "configuration": "pipeline.BestKnownConfiguration"},
    ),
}  # fmt: skip
"""Step -> its inputs (key: what it is, `Step.key`) and outputs (key: type), as in pipeline/pipeline.py."""

SPLITS = {"train": 0.6, "val": 0.2, "group_by": "product_id", "salt": "2026", "tuning_share": 0.5}

EDITS = "image_id,product_id,label,source,updated_at"

EVALUATION = {
    "blessed": True, "evaluated": True, "examples": 40, "failures": [], "notes": [f"{HOSTILE} is new"],
    "metrics": {"accuracy": 0.75, "log_loss": 0.5},
    "slices": [{"kind": "label", "name": HOSTILE, "examples": 20, "accuracy": 0.1 + 0.2}],
}  # fmt: skip

FINDINGS = json.dumps({"max_orphans": "0 (allowed: 0)"})


class Weeks(HandWritten):
    """Writes weeks into a new store; `edits` are lines of the label table, which later weeks may extend."""

    def __init__(self, places, edits: list[str], **splits):
        super().__init__(places)
        self.begin(edits, **splits)

    def begin(self, edits: list[str], **splits) -> None:
        """Packs the photographs of the edits; for weeks to come."""
        self.edits, self.splits = list(edits), SPLITS | splits
        self.labels = pathlib.Path(self.places.store, "labels.csv")
        self.generation = self._pack(sorted({line.split(",")[0] for line in edits}))

    def week(self, date: str, at: str, number: int = 1, rejected: str = "", **manifest) -> str:
        """Writes the run of a snapshot date that released its model at an instant; returns its id.

        Args:
            date: YYYY-MM-DD.
            at: When it was released, `YYYY-MM-DD HH:MM`, UTC.
            number: Of the ledger.
            rejected: Why the gate stopped it; then nothing was trained.
            manifest: What RunManifest recorded otherwise.
        """
        run_id = f"{date.replace('-', '')}-{at[:10].replace('-', '')}T{at[11:].replace(':', '')}00Z"
        self._facts = {
            "manifest": MANIFEST | {"run_id": run_id, "snapshot_date": date, "settings": json.dumps({"splits": self.splits}, sort_keys=True)} | manifest,
            "shards": self.generation,
            "snapshot": self._snapshot(date),
        }
        context = self.run(run_id)
        artifacts, self._sources = {}, {}
        for step, (inputs, outputs) in STEPS.items():
            stopped = rejected and step == "SnapshotGate"
            made = {} if stopped else {key: self._made(run_id, step, key, kind, at, number) for key, kind in outputs.items()}
            artifacts |= {f"{step}.{key}": artifact for key, artifact in made.items()}
            self.step(
                context, step, "FAILED" if stopped else "COMPLETE",
                inputs={key: [artifacts[source].id] for key, source in inputs.items()},
                outputs={key: [artifact] for key, artifact in made.items()},
                parameters=self._parameters(step, run_id, rejected if stopped else ""),
            )  # fmt: skip
            if stopped:
                break
        return run_id

    def folder(self, run_id: str, name: str) -> pathlib.Path:
        """Folder of an artifact of a run, by `Step.key`."""
        return pathlib.Path(self.places.artifacts, *name.split("."), run_id)

    def _pack(self, images: list[str]) -> dict:
        root = pathlib.Path(self.places.shards)
        folder = root / "generation-000001"
        folder.mkdir(parents=True)
        rows, shards = [], {}
        for part in range(2):
            content = b"shard %d" % part * 100
            name = f"shard-{files.sha256(content)[:32]}.tfrecord"
            (root / name).write_bytes(content)
            inside = images[part::2]
            shards[name] = {"records": len(inside), "bytes": len(content), "sha256": files.sha256(content)}
            rows += [
                {"image_id": image, "sha256": files.sha256(image.encode()), "shard": name, "ordinal": ordinal, "bytes": 9, "width": 3, "height": 3}
                for ordinal, image in enumerate(inside)
            ]
        rows.sort(key=lambda row: row["image_id"])
        index = folder / "index-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist(rows), index)
        digest = generations.index_digest("{}", [[row[name] for name in ("image_id", "sha256", "shard", "ordinal")] for row in rows])
        counts = {"images": len(rows), "packed": len(rows), "changed": 0, "gone": 0, "quarantined": 0}
        manifest = {
            "format": generations.FORMAT, "number": 1, "digest": digest, "packing": "{}", "counts": counts, "shards": shards,
            "index": {index.name: files.sha256_of(index)},
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(manifest))
        found = generations.latest(str(root))
        with self._warehouse() as place:
            place.load_parquet(found.index_files(), found.table)
        return {**{name: getattr(found, name) for name in ("folder", "number", "digest", "images", "quarantined")}, "index_table": found.table}

    def _warehouse(self):
        self.labels.write_text("\n".join([EDITS, *self.edits]) + "\n")
        return open_warehouse(Location(kind="duckdb", labels=str(self.labels), database=self.places.warehouse))

    def _snapshot(self, date: str) -> dict:
        with self._warehouse() as place:
            taken = place.snapshot(datetime.date.fromisoformat(date))
            self.query = queries.examples(
                place.address(taken.table), place.address(self.generation["index_table"]),
                **{name: self.splits[name] for name in ("group_by", "salt", "train", "val")},
            )  # fmt: skip
        return {
            "table": taken.table, "table_uri": taken.uri, "checksum": taken.checksum, "as_of": taken.as_of, "rows": taken.rows,
            "date": date, "source": taken.source, "method": taken.method,
        }  # fmt: skip

    def _made(self, run_id, step, name, kind, at, number):
        folder = self.folder(run_id, f"{step}.{name}")
        folder.mkdir(parents=True)
        known = self._facts.get(name) if kind.startswith("pipeline.") else None
        facts = known or getattr(self, f"_{step.lower()}", lambda *_: {})(name, folder, run_id, at, number)
        record = {
            "manifest": "manifest.json", "shards": "generation.json", "snapshot": "snapshot.json", "release": "release.json",
        }.get(name)  # fmt: skip
        if record:
            content = facts | ({"settings": json.loads(facts["settings"])} if "settings" in facts else {})
            (folder / record).write_text(json.dumps(content))
        source = {
            "SnapshotGate.verdict": "gate", "ReleaseGate.verdict": "model_blessing", "Tuner.best_hyperparameters": "hyperparameters",
        }.get(f"{step}.{name}", name)  # fmt: skip
        self._sources[source] = Artifact(0, kind, str(folder), facts)
        return self.new_artifact(kind, facts, uri=str(folder))

    def _snapshotexamplegen(self, *_) -> dict:
        return {"query": self.query}

    def _snapshotgate(self, _, folder, run_id, *__) -> dict:
        digest = self._gate_report(run_id, accepted=True)
        (folder / "gate.json").write_bytes(pathlib.Path(self.places.reports(run_id), "gate.json").read_bytes())
        table = self._facts["snapshot"]["table"]
        return {"verdict": f"{table} is accepted: all 19 rules passed", "accepted": 1, "bootstrap": 1, "findings": FINDINGS, "report_sha256": digest}

    def _gate_report(self, run_id, accepted) -> str:
        path = pathlib.Path(self.places.reports(run_id), "gate.json")
        files.write_atomically(path, json.dumps({"accepted": accepted}))
        return files.sha256_of(path)

    def _tuningdecision(self, *_) -> dict:
        return {"origin": "settings", "reason": "nothing was tuned", "tune": 0, "values": "{}"}

    def _tuner(self, name, *_) -> dict:
        return self._tuningdecision() if name == "best_hyperparameters" else {"tune": 0, "trials": 0}

    def _labeljoin(self, name, folder, *_) -> dict:
        (folder / "Split-train").mkdir()
        (folder / "Split-train" / f"{name}-00000-of-00001").write_text(self._facts["snapshot"]["checksum"])
        return {"sha256": digests.of_folder(str(folder))} if name == "labels" else {}

    def _trainer(self, name, folder, run_id, *_) -> dict:
        self._weights = hashlib.sha256(run_id.encode()).hexdigest()
        if name == "model_run":
            self._training = {"seed": 0, "training": {"seed": 0, "learning_rate": 0.1}, "weights_sha256": self._weights}
            (folder / "training.json").write_text(json.dumps(self._training))
        elif name == "model":
            (folder / "Format-Serving" / "variables").mkdir(parents=True)
            (folder / "Format-Serving" / "saved_model.pb").write_text("graph")
            (folder / "Format-Serving" / "variables" / "variables.data").write_text(self._weights)
            self._export = folder / "Format-Serving"
        return {}

    def _releasegate(self, _, folder, *__) -> dict:
        (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
        return {}

    def _releasepusher(self, _, __, ___, at, number) -> dict:
        destination, when = str(pathlib.Path(self.places.versions, str(number))), at_instant(at)
        content = statement.to_bytes(statement.build(self._sources, str(self._export), finished=when))
        files.write_atomically(beside.statement(destination), content)
        return {"pushed": 1, "pushed_destination": destination, "pushed_at": when, "provenance_sha256": files.sha256(content)}

    def _servingledger(self, name, folder, run_id, at, number) -> dict:
        if name != "release":
            return {}
        version = pathlib.Path(self.places.versions, str(number))
        (version / "variables").mkdir(parents=True)
        for name in ("saved_model.pb", "variables/variables.data"):
            (version / name).write_bytes((self._export / name).read_bytes())
        facts = release_facts(
            run_id, number, at, path=str(version), weights_sha256=self._weights, training=json.dumps(self._training),
            export_sha256=digests.of_folder(str(version)),
        )  # fmt: skip
        path = pathlib.Path(self.places.ledger)
        lines = path.read_bytes().splitlines() if path.exists() else []
        entry = ledger.Entry(
            number=number, at=facts["released_at"], endpoint="default", from_version="", to_version=facts["to_version"],
            path=facts["path"], share=facts["share"], run_id=run_id, snapshot=self._facts["snapshot"]["table"],
            snapshot_date=self._facts["snapshot"]["date"], weights_sha256=self._weights,
            previous=files.sha256(lines[-1]) if lines else "0" * 64,
        )  # fmt: skip
        files.write_atomically(path, b"\n".join([*lines, entry.line()]) + b"\n")
        return facts | {"ledger_line_sha256": entry.line_sha256}

    def _parameters(self, step, run_id, rejected) -> dict:
        if step == "SnapshotGen":
            return {"warehouse": json.dumps({"kind": "duckdb", "labels": str(self.labels), "database": self.places.warehouse})}
        if step != "SnapshotGate":
            return {}
        parameters = {"reports": self.places.all_reports}
        if rejected:
            verdict = {
                "accepted": 0, "bootstrap": 0, "verdict": rejected, "findings": FINDINGS, "failed": '["max_orphans"]',
                "report_sha256": self._gate_report(run_id, accepted=False),
            }  # fmt: skip
            parameters |= {"failure": rejected, "failure_kind": "SnapshotRejected", "failure_facts": json.dumps(verdict)}
        return parameters
