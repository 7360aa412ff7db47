"""What the pipeline itself writes into ML Metadata: how a run ended that did not end well, and releases that people decided.

TFX's launcher marks a failed step as FAILED and says nothing of the reason; a step that was killed stays RUNNING for ever.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import ml_metadata
from ml_metadata.proto import metadata_store_pb2 as pb

from pipeline.errors import PipelineError, user_error
from pipeline.lineage.facts import FAILURE, FAILURE_FACTS, FAILURE_KIND
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.lineage.base import RELEASE_TYPE
from pipeline.release.ledger import Entry
from pipeline.validation.text import shortened

_LONGEST = 20_000


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run ended early.

    Attributes:
        kind: Class of the error, `interrupted` or `killed`.
        reason: What a person was told.
        facts: What the error brought with it for the lineage, such as the gate's findings.
    """

    kind: str
    reason: str
    facts: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that an exception means; a defect is named by its class and text."""
        if isinstance(error, KeyboardInterrupt):
            return cls("interrupted", "interrupted by Ctrl-C or SIGTERM")
        known = user_error(error)
        if known is None:
            return cls(type(error).__name__, f"{type(error).__name__}: {error}")
        return cls(type(known).__name__, str(known), getattr(known, "facts", {}))


KILLED = Failure("killed", "the process ended without a word: it was killed, or the machine went down")


def end(path: str, run_id: str, failure: Failure | None) -> int:
    """Marks the steps of a run that were interrupted, and says of those that did not end well why.

    Only for whoever holds the store's lock: nobody else can know that a step is not running.

    Args:
        path: ML Metadata's SQLite file.
        run_id: The run.
        failure: Why it ended early, or None when it did not.

    Returns:
        How many steps were marked as cancelled.

    Raises:
        PipelineError: The file is no lineage store.
    """
    store = _opened(path)
    context = store.get_context_by_type_and_name("pipeline_run", run_id)
    executions = store.get_executions_by_context(context.id) if context else []
    running = [execution for execution in executions if execution.last_known_state == pb.Execution.RUNNING]
    for execution in running:
        execution.last_known_state = pb.Execution.CANCELED
    changed = {execution.id: execution for execution in running}
    if failure:
        for execution in executions:
            if execution.last_known_state in (pb.Execution.FAILED, pb.Execution.CANCELED):
                if FAILURE not in execution.custom_properties:
                    _record(execution, failure)
                    changed[execution.id] = execution
    if changed:
        store.put_executions(list(changed.values()))
    return len(running)


def record_releases(path: str, entries: Sequence[Entry]) -> int:
    """Records what people decided, as ServingLedger records what a run did; what is recorded already stays.

    Args:
        path: ML Metadata's SQLite file.
        entries: Entries of the serving ledger, one a decision.

    Returns:
        How many were new.

    Raises:
        PipelineError: The file is no lineage store, or cannot be written.
    """
    known = {release.number for release in MLMDLineage(path).releases()}
    new = [entry for entry in entries if entry.number not in known]
    if not new:
        return 0
    try:
        store = _opened(path)
        type_id = store.put_artifact_type(pb.ArtifactType(name=RELEASE_TYPE), can_add_fields=True)
        store.put_artifacts([_artifact(type_id, entry) for entry in new])
    except (RuntimeError, ml_metadata.errors.StatusError) as error:
        raise PipelineError(f"the lineage store {path} cannot be written ({error})") from error
    return len(new)


def _artifact(type_id: int, entry: Entry) -> pb.Artifact:
    artifact = pb.Artifact(type_id=type_id, state=pb.Artifact.LIVE)
    facts = dataclasses.asdict(entry)
    facts |= {"released": 1, "released_at": facts.pop("at"), "ledger_number": facts.pop("number")}
    for name, value in {**facts, "ledger_line_sha256": entry.line_sha256}.items():
        if isinstance(value, int):
            artifact.custom_properties[name].int_value = value
        elif isinstance(value, float):
            artifact.custom_properties[name].double_value = value
        else:
            artifact.custom_properties[name].string_value = value
    return artifact


def _record(execution, failure: Failure) -> None:
    execution.custom_properties[FAILURE].string_value = shortened(failure.reason, _LONGEST)
    execution.custom_properties[FAILURE_KIND].string_value = failure.kind
    if failure.facts:
        execution.custom_properties[FAILURE_FACTS].string_value = json.dumps(dict(failure.facts), sort_keys=True)


def _opened(path: str) -> ml_metadata.MetadataStore:
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = path
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE
    try:
        return ml_metadata.MetadataStore(config)
    except (RuntimeError, ml_metadata.errors.StatusError) as error:
        raise PipelineError(f"{path} is no lineage store ({error}): restore the file from its backup") from error
