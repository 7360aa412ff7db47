"""A lineage store written by hand, the way TFX's launcher writes one, without TFX."""

import datetime
import json
import pathlib
import shutil
import time
from collections.abc import Callable

import ml_metadata
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from pipeline import files
from pipeline.places import Places
from pipeline.release import ledger

STATES = {name: pb.Execution.State.Value(name) for name in ("COMPLETE", "FAILED", "CANCELED", "RUNNING", "CACHED")}


def at(text: str) -> str:
    """An instant as the ledger writes it: `at("2026-03-02 05:30")`."""
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc).isoformat(timespec="milliseconds")


def release_facts(run_id: str, number: int, released_at: str, endpoint="default", version=None, **changes) -> dict:
    """What ServingLedger records of a released model."""
    return {
        "run_id": run_id,
        "endpoint": endpoint,
        "weights_sha256": f"{number}" * 64,
        "training": json.dumps({"training": {"seed": 7}, "backbone_sha256": "b" * 64, "tensorflow": {"version": "2"}}),
        "hyperparameters": json.dumps({"space": [], "values": {"dropout": 0.5}}),
        "accuracy": 0.75,
        "log_loss": 0.5,
        "eval_examples": 40,
        "by_class": json.dumps({"cup": [0.5, 20], "hat": [1.0, 20]}),
        "weakest_class": "cup",
        "weakest_accuracy": 0.5,
        "blessed": 1,
        "evaluation_failures": "[]",
        "released": 1,
        "reason": "",
        "released_at": at(released_at),
        "to_version": version or str(number),
        "path": f"/versions/{number}",
        "share": 1.0,
        "ledger_number": number,
        **changes,
    }


MANIFEST = {
    "snapshot_date": "2026-03-02",
    "commit": "c0ffee",
    "tree": "clean",
    "image": "",
    "lock": "tfx-1.16.txt",
    "lock_sha256": "1" * 64,
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "launched_by": "ana",
    "settings": json.dumps({"name": "x"}),
}
SNAPSHOT = {
    "table": "labels_20260302",
    "table_uri": "duckdb:w#labels_20260302",
    "checksum": "5" * 64,
    "as_of": "2026-03-02T00:00:00+00:00",
    "rows": 152,
}
SHARDS = {"number": 3, "digest": "d" * 64, "images": 199, "quarantined": 1}
GATE = {
    "verdict": "labels_20260302 is accepted: all 19 rules passed",
    "bootstrap": 1,
    "findings": json.dumps({"max_orphans": "0 (allowed: 0)"}),
}
TUNING = {
    "tune": 0,
    "reason": "the best-known configuration holds",
    "warning": "",
    "origin": "tuned by run run-0",
    "values": json.dumps({"dropout": 0.5}),
}


class HandWritten:
    """Writes runs into a new lineage store.

    Args:
        places: The store.
        config: Where the lineage is, as ML Metadata's client takes it; without, in SQLite in the store.
    """

    def __init__(self, places: Places, config: pb.ConnectionConfig | None = None):
        self.places = places
        self.tuning = TUNING
        if config is None:
            config = pb.ConnectionConfig()
            config.sqlite.filename_uri = places.metadata
            config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        self.store = ml_metadata.MetadataStore(config)
        self._run_type = self.store.put_context_type(pb.ContextType(name="pipeline_run"))
        self._types: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def now(self) -> datetime.datetime:
        """The time by the clock of the store."""
        return datetime.datetime.now(datetime.timezone.utc)

    def run(self, run_id: str) -> int:
        """Begins a run; returns the id of its context."""
        (context,) = self.store.put_contexts([pb.Context(type_id=self._run_type, name=run_id)])
        self._names[context] = run_id
        return context

    def artifact(self, kind: str, facts: dict, state="LIVE", uri="") -> int:
        """Writes an artifact of a type; returns its id."""
        return self.store.put_artifacts([self.new_artifact(kind, facts, state, uri)])[0]

    def new_artifact(self, kind: str, facts: dict, state="LIVE", uri="") -> pb.Artifact:
        """An artifact that is not written yet."""
        artifact = pb.Artifact(type_id=self._type(pb.ArtifactType(name=kind)), uri=uri, state=pb.Artifact.State.Value(state))
        _set(artifact.custom_properties, facts)
        return artifact

    def step(self, context: int, name: str, state="COMPLETE", inputs=None, outputs=None, parameters=None) -> int:
        """Writes a step of a run in one transaction.

        Args:
            context: The run's.
            name: Of the step.
            state: Of the step.
            inputs, outputs: Key -> artifacts: ids, or new ones, which get theirs.
            parameters: The step's.

        Returns:
            Its id.
        """
        # Two puts of one millisecond would have one time.
        time.sleep(0.002)
        type_id = self._type(pb.ExecutionType(name=f"pipeline.components.{name.lower()}.{name}"))
        execution = pb.Execution(type_id=type_id, last_known_state=STATES[state])
        _set(execution.custom_properties, parameters or {})
        pairs = []
        for kind, puts in ((pb.Event.INPUT, inputs or {}), (pb.Event.OUTPUT, outputs or {})):
            for key, artifacts in puts.items():
                for position, artifact in enumerate(artifacts):
                    event = pb.Event(type=kind)
                    event.path.steps.add().key = key
                    event.path.steps.add().index = position
                    if isinstance(artifact, int):
                        (artifact,) = self.store.get_artifacts_by_id([artifact])
                    pairs.append((artifact, event))
        run = pb.Context(id=context, type_id=self._run_type, name=self._names[context])
        execution_id, ids, _ = self.store.put_execution(execution, pairs, [run])
        for (artifact, _), artifact_id in zip(pairs, ids, strict=True):
            artifact.id = artifact_id
        return execution_id

    def _type(self, kind) -> int:
        put = self.store.put_artifact_type if isinstance(kind, pb.ArtifactType) else self.store.put_execution_type
        if kind.name not in self._types:
            self._types[kind.name] = put(kind)
        return self._types[kind.name]

    def write_ledger(self) -> None:
        """Writes the ledger that the releases of the lineage tell of, with their digests into the lineage."""
        lines, previous = [], "0" * 64
        for artifact in sorted(
            self.store.get_artifacts_by_type("pipeline.ServingRelease"),
            key=lambda artifact: artifact.custom_properties["ledger_number"].int_value,
        ):
            facts = {name: getattr(value, value.WhichOneof("value")) for name, value in artifact.custom_properties.items()}
            entry = ledger.Entry(
                number=facts["ledger_number"], at=facts["released_at"], endpoint=facts["endpoint"], from_version="",
                to_version=facts["to_version"], path=facts["path"], share=facts["share"], run_id=facts["run_id"],
                snapshot="labels_20260302", snapshot_date="2026-03-02", weights_sha256=facts["weights_sha256"], previous=previous,
            )  # fmt: skip
            lines.append(entry.line())
            previous = entry.line_sha256
            artifact.custom_properties["ledger_line_sha256"].string_value = previous
            self.store.put_artifacts([artifact])
        files.write_atomically(self.places.ledger, b"\n".join(lines) + b"\n")

    def whole_run(self, run_id: str, release: dict | None) -> int:
        """Writes a run that ended well, with the artifacts that the audit reads; returns the id of its context."""
        context = self.run(run_id)
        for name, kind, facts in [
            ("RunManifest", "pipeline.RunManifest", MANIFEST),
            ("ImageSharder", "pipeline.ImageShards", SHARDS),
            ("SnapshotGen", "pipeline.LabelSnapshot", SNAPSHOT),
            ("SnapshotGate", "pipeline.GateReport", GATE),
            ("TuningDecision", "HyperParameters", self.tuning),
            ("ServingLedger", "pipeline.ServingRelease", release),
        ]:
            if facts is not None:
                key = "hyperparameters" if name == "TuningDecision" else "out"
                self.step(context, name, outputs={key: [self.new_artifact(kind, facts)]})
        return context


def _set(properties, facts) -> None:
    for name, value in facts.items():
        kind = "int_value" if isinstance(value, int) else "double_value" if isinstance(value, float) else "string_value"
        setattr(properties[name], kind, value)


@pytest.fixture
def places(tmp_path) -> Places:
    (tmp_path / "store").mkdir()
    return Places(store=str(tmp_path / "store"))


@pytest.fixture
def written(places) -> HandWritten:
    return HandWritten(places)


@pytest.fixture
def three_releases(written) -> HandWritten:
    """A store in which run-1 served from 2 March, run-2 from 9 March and run-3 from 16 March on, all at noon."""
    for number, day in enumerate(("2026-03-02", "2026-03-09", "2026-03-16"), start=1):
        written.whole_run(f"run-{number}", release_facts(f"run-{number}", number, f"{day} 12:00"))
    return written


HOSTILE = "<script>alert('x')</script> & \"q\""
"""A class as nobody should call one."""


@pytest.fixture(scope="session")
def weeks(tmp_path_factory):
    """Two weeks that served and one that the gate stopped, with all their files: (`Weeks`, run ids by name).

    p1-a changes its label, p2-a goes, p40-a and one in no shard come; the label of p3-a is hostile in both.
    """
    from tests.pipeline.lineage.weeks import Weeks

    folder = tmp_path_factory.mktemp("weeks") / "store"
    folder.mkdir()
    return three_weeks(lambda edits: Weeks(Places(store=str(folder)), edits))


@pytest.fixture
def store(weeks):
    """The store at its place, for a test to damage; put back afterwards."""
    weeks, runs = weeks
    folder = pathlib.Path(weeks.places.store)
    backup = folder.with_name("backup")
    shutil.copytree(folder, backup)
    yield weeks, runs
    shutil.rmtree(folder)
    backup.rename(folder)


def three_weeks(begin: Callable):
    """Writes what `weeks` gives, by the `Weeks` that `begin` makes of the label edits, and returns it."""
    labels = [f"p{number}-a,p{number},{'cup' if number % 2 else 'hat'},ana,2026-02-01T00:00:00Z" for number in range(41)]
    quoted = HOSTILE.replace('"', '""')
    labels[3] = f'p3-a,p3,"{quoted}",ana,2026-02-01T00:00:00Z'
    labels[40] = labels[40].replace("02-01", "03-05")
    built = begin(labels)
    first = built.week("2026-03-02", "2026-03-02 12:00", 1)
    built.edits += [
        "p1-a,p1,hat,ben,2026-03-05T00:00:00Z", "p2-a,p2,,ben,2026-03-05T00:00:00Z",
        "q'--,q,cup,ben,2026-03-05T00:00:00Z",
    ]  # fmt: skip
    second = built.week("2026-03-09", "2026-03-09 12:00", 2, commit="decade")
    bad = built.week("2026-03-16", "2026-03-16 12:00", 3, rejected=f"labels_20260316 is rejected: {HOSTILE}")
    return built, {"first": first, "second": second, "bad": bad}
