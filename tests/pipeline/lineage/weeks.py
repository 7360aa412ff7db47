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
from pipeline.release import ledger
from pipeline.shards import generations
from pipeline.warehouse import Location, open_warehouse, queries
from tests.pipeline.lineage.conftest import MANIFEST, HandWritten, release_facts

STEPS = {
    "ImageSharder": ({}, {"shards": "pipeline.ImageShards"}),
    "ImportSchemaGen": ({}, {"schema": "Schema"}),
    "RunManifest": ({}, {"manifest": "pipeline.RunManifest"}),
    "SnapshotGen": ({"manifest": "manifest"}, {"snapshot": "pipeline.LabelSnapshot"}),
    "LastAccepted": ({"snapshot": "snapshot"}, {"baseline": "ExampleStatistics"}),
    "SnapshotExampleGen": ({"snapshot": "snapshot", "shards": "shards"}, {"examples": "Examples"}),
    "StatisticsGen": ({"examples": "examples"}, {"statistics": "ExampleStatistics"}),
    "DistributionValidator": ({"baseline_statistics": "baseline", "statistics": "statistics"}, {"drift": "ExampleAnomalies"}),
    "ExampleValidator": ({"schema": "schema", "statistics": "statistics"}, {"anomalies": "ExampleAnomalies"}),
    "SnapshotGate": (
        {
            "baseline": "baseline", "schema": "schema", "schema_anomalies": "anomalies", "statistics": "statistics",
            "drift_anomalies": "drift", "examples": "examples", "snapshot": "snapshot", "shards": "shards",
        },
        {"verdict": "pipeline.GateReport"},
    ),
    "TuningDecision": ({"verdict": "verdict"}, {"hyperparameters": "HyperParameters"}),
    "LabelJoin": (
        {"examples": "examples", "schema": "schema", "shards": "shards", "verdict": "verdict"},
        {"labels": "Examples", "eval_examples": "Examples", "tuning_examples": "Examples"},
    ),
    "ServingModel": ({"verdict": "verdict"}, {"serving_model": "Model"}),
    "Trainer": (
        {"examples": "labels", "hyperparameters": "hyperparameters", "schema": "schema"},
        {"model": "Model", "model_run": "ModelRun"},
    ),
    "Evaluator": (
        {"model": "model", "baseline_model": "serving_model", "examples": "eval_examples"},
        {"blessing": "ModelBlessing", "evaluation": "ModelEvaluation"},
    ),
    "ReleasePusher": ({"model": "model", "snapshot": "snapshot", "model_blessing": "blessing"}, {"pushed_model": "PushedModel"}),
    "ServingLedger": (
        {
            "hyperparameters": "hyperparameters", "model": "model", "blessing": "blessing", "model_run": "model_run",
            "pushed_model": "pushed_model", "evaluation": "evaluation", "snapshot": "snapshot",
        },
        {"release": "pipeline.ServingRelease"},
    ),
}  # fmt: skip
"""Step -> its inputs (key: name of the artifact) and outputs (name: type), as in pipeline/pipeline.py."""

SPLITS = {"train": 0.6, "val": 0.2, "group_by": "product_id", "salt": "2026", "tuning_share": 0.5}

EDITS = "image_id,product_id,label,source,updated_at"

FINDINGS = json.dumps({"max_orphans": "0 (allowed: 0)"})


class Weeks(HandWritten):
    """Writes weeks into a new store; `edits` are lines of the label table, which later weeks may extend."""

    def __init__(self, places, edits: list[str], **splits):
        super().__init__(places)
        self.edits, self.splits = list(edits), SPLITS | splits
        self.labels = pathlib.Path(places.store, "labels.csv")
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
        artifacts = {}
        for step, (inputs, outputs) in STEPS.items():
            stopped = rejected and step == "SnapshotGate"
            made = {} if stopped else {name: self._made(run_id, step, name, kind, at, number) for name, kind in outputs.items()}
            artifacts |= made
            self.step(
                context, step, "FAILED" if stopped else "COMPLETE",
                inputs={key: [artifacts[name].id] for key, name in inputs.items()},
                outputs={name: [artifact] for name, artifact in made.items()},
                parameters=self._parameters(step, run_id, rejected if stopped else ""),
            )  # fmt: skip
            if stopped:
                break
        return run_id

    def folder(self, run_id: str, name: str) -> pathlib.Path:
        """Folder of an artifact of a run."""
        return pathlib.Path(self.places.artifacts, name, run_id)

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
        folder = self.folder(run_id, name)
        folder.mkdir(parents=True)
        facts = self._facts.get(name) or getattr(self, f"_{step.lower()}", lambda *_: {})(name, folder, run_id, at, number)
        record = {
            "manifest": "manifest.json", "shards": "generation.json", "snapshot": "snapshot.json", "release": "release.json",
        }.get(name)  # fmt: skip
        if record:
            content = facts | ({"settings": json.loads(facts["settings"])} if "settings" in facts else {})
            (folder / record).write_text(json.dumps(content))
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

    def _knownhyperparameters(self, *_) -> dict:
        return {"origin": "settings", "values": "{}"}

    def _labeljoin(self, name, folder, *_) -> dict:
        (folder / "Split-train").mkdir()
        (folder / "Split-train" / f"{name}-00000-of-00001").write_text(json.dumps(self._facts["snapshot"]))
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

    def _servingledger(self, _, folder, run_id, at, number) -> dict:
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
