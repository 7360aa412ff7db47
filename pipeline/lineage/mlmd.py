"""The lineage store on ML Metadata: SQLite here, MySQL where a team shares one."""

import collections
import datetime
import pathlib

import ml_metadata
from ml_metadata.proto import metadata_store_pb2 as pb

from pipeline.errors import PipelineError
from pipeline.lineage.base import Artifact, Execution, LineageStore, Run

_INPUTS = {pb.Event.INPUT, pb.Event.DECLARED_INPUT, pb.Event.INTERNAL_INPUT}
_OUTPUTS = {pb.Event.OUTPUT, pb.Event.DECLARED_OUTPUT, pb.Event.INTERNAL_OUTPUT}

RELEASE_TYPE = "pipeline.ServingRelease"


class MLMDLineage(LineageStore):
    """Reads ML Metadata by ids and contexts only: filter queries are gone from its newer versions.

    Args:
        path: SQLite file.

    Raises:
        PipelineError: There is no such file, or it holds something else.
    """

    def __init__(self, path: str):
        if not pathlib.Path(path).is_file():
            raise PipelineError(f"there is no lineage store {path}: run the pipeline first, or name its folder by --store")
        config = pb.ConnectionConfig()
        config.sqlite.filename_uri = path
        config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE
        try:
            self._store = ml_metadata.MetadataStore(config)
        except (RuntimeError, ml_metadata.errors.StatusError) as error:
            raise PipelineError(f"{path} is no lineage store ({error}): restore the file from its backup") from error

    def run(self, run_id):
        context = self._store.get_context_by_type_and_name("pipeline_run", run_id)
        if context is None:
            known = self.run_ids()
            hint = f"; the newest is {known[-1]}" if known else "; the store is empty"
            raise PipelineError(f"there is no run {run_id!r} in the lineage store{hint}")
        executions = self._store.get_executions_by_context(context.id)
        events = self._store.get_events_by_execution_ids([execution.id for execution in executions]) if executions else []
        ids = sorted({event.artifact_id for event in events})
        artifacts = {artifact.id: _artifact(artifact) for artifact in (self._store.get_artifacts_by_id(ids) if ids else [])}
        puts = {kind: collections.defaultdict(lambda: collections.defaultdict(list)) for kind in ("in", "out")}
        for event in events:
            kind = "in" if event.type in _INPUTS else "out" if event.type in _OUTPUTS else None
            if kind:
                key = event.path.steps[0].key if event.path.steps else ""
                puts[kind][event.execution_id][key].append(artifacts[event.artifact_id])
        return Run(
            run_id,
            tuple(
                _execution(execution, puts["in"][execution.id], puts["out"][execution.id])
                for execution in sorted(executions, key=lambda execution: execution.id)
            ),
        )

    def releases(self):
        found = []
        # A type that no run has used yet is unknown to the store, which answers with an empty list.
        for artifact in self._store.get_artifacts_by_type(RELEASE_TYPE):
            if artifact.state == pb.Artifact.LIVE:
                record = _artifact(artifact)
                if record.facts.get("released"):
                    found.append(record)
        return sorted(found, key=lambda record: int(record.facts["ledger_number"]))

    def run_ids(self):
        contexts = self._store.get_contexts_by_type("pipeline_run")
        return [context.name for context in sorted(contexts, key=lambda context: context.id)]

    def cancel(self, run_id: str) -> int:
        """Marks the steps of a run that were interrupted; returns how many there were.

        Only for whoever holds the store's lock: nobody else can know that a step is not running.
        """
        context = self._store.get_context_by_type_and_name("pipeline_run", run_id)
        running = [
            execution
            for execution in (self._store.get_executions_by_context(context.id) if context else [])
            if execution.last_known_state == pb.Execution.RUNNING
        ]
        for execution in running:
            execution.last_known_state = pb.Execution.CANCELED
        if running:
            self._store.put_executions(running)
        return len(running)


def _artifact(artifact) -> Artifact:
    return Artifact(artifact.id, artifact.type, artifact.uri, _facts(artifact))


def _execution(execution, inputs, outputs) -> Execution:
    return Execution(
        id=execution.id,
        step=execution.type.rsplit(".", 1)[-1],
        state=pb.Execution.State.Name(execution.last_known_state),
        started=_instant(execution.create_time_since_epoch),
        updated=_instant(execution.last_update_time_since_epoch),
        parameters=_facts(execution),
        inputs={key: tuple(artifacts) for key, artifacts in inputs.items()},
        outputs={key: tuple(artifacts) for key, artifacts in outputs.items()},
    )


def _facts(node) -> dict:
    facts = {}
    for properties in (node.properties, node.custom_properties):
        for name, value in properties.items():
            kind = value.WhichOneof("value")
            if kind in ("string_value", "int_value", "double_value"):
                facts[name] = getattr(value, kind)
    return facts


def _instant(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
