"""Where a pipeline keeps its things on this machine: one folder, the store."""

import dataclasses
import os
import pathlib

SCHEMA = pathlib.Path(__file__).resolve().parent.parent / "schema"
"""Classes and limits that people edit: those of the sample data, and in `production` the limits of production."""

PRODUCTION = SCHEMA / "production"

DEFAULT_STORE = str(pathlib.Path(__file__).resolve().parent.parent / "store")
"""Where runs leave their things unless another place is named."""


@dataclasses.dataclass(frozen=True)
class Places:
    """The folders and files of a run.

    Attributes:
        store: Everything that runs leave behind.
        images: Folder of JPEG files.
        labels: The label edits.
        schema: Folder of schema.pbtxt and gate.yaml.
    """

    store: str
    images: str = ""
    labels: str = ""
    schema: str = ""

    def _in_store(self, *parts: str) -> str:
        return os.path.join(self.store, *parts)

    @property
    def metadata(self) -> str:
        """SQLite file of ML Metadata: the lineage."""
        return self._in_store("metadata.sqlite")

    @property
    def warehouse(self) -> str:
        """DuckDB file of snapshots and indexes."""
        return self._in_store("warehouse.duckdb")

    @property
    def shards(self) -> str:
        """Image shards and their generations."""
        return self._in_store("shards")

    @property
    def artifacts(self) -> str:
        """TFX's pipeline root."""
        return self._in_store("artifacts")

    @property
    def accepted(self) -> str:
        """Pointer and statistics of each accepted snapshot."""
        return self._in_store("accepted")

    @property
    def configurations(self) -> str:
        """Best-known hyperparameters, one file a tuned and released snapshot."""
        return self._in_store("configurations")

    @property
    def studies(self) -> str:
        """SQLite file of the studies, which Vizier's service keeps."""
        return self._in_store("studies.sqlite")

    @property
    def study_records(self) -> str:
        """What `tune status` knows of each study, a file each."""
        return self._in_store("studies")

    @property
    def quality(self) -> str:
        """How well each run trained, one file a run."""
        return self._in_store("quality")

    @property
    def versions(self) -> str:
        """SavedModels that were pushed, a folder a version."""
        return self._in_store("serving", "versions")

    @property
    def candidates(self) -> str:
        """What a release on Vertex wants to know of each run's model, a file a run."""
        return self._in_store("serving", "candidates")

    @property
    def ledger(self) -> str:
        """The serving ledger."""
        return self._in_store("serving", "ledger.jsonl")

    @property
    def newest_profile(self) -> str:
        """Points to the record of the newest training."""
        return self._in_store("profiles", "newest.json")

    @property
    def checkpoints(self) -> str:
        """Trainings on their way, a folder each; it goes when its training is done."""
        return self._in_store("checkpoints")

    @property
    def lock(self) -> str:
        """Held while a run uses the store."""
        return self._in_store("lock")

    @property
    def all_reports(self) -> str:
        """Reports, a folder a run."""
        return self._in_store("reports")

    def reports(self, run_id: str) -> str:
        """Reports of a run, those of a rejected one included."""
        return os.path.join(self.all_reports, run_id)

    def openlineage(self, run_id: str) -> str:
        """OpenLineage events of a run, where the settings ask for them."""
        return self._in_store("openlineage", f"{run_id}.ndjson")

    def log(self, run_id: str) -> str:
        """Log of a run."""
        return self._in_store("logs", f"{run_id}.log")
