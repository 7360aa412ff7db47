"""The questions of a lineage store, asked of ML Metadata's tables by SQL, whichever database holds them.

ML Metadata's own client reads every property of every artifact of a type, which takes longer with each week; its tables
have the indexes that a question needs. They are read and never written here.

Tables and numbers are those of ml_metadata's schema version 10 (ml_metadata/util/metadata_source_query_config.cc and
ml_metadata/proto/metadata_store.proto), which ML Metadata 1.16 and 1.21 both write.
"""

import abc
import collections
import contextlib
import datetime
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pipeline.errors import PipelineError
from pipeline.lineage.base import (
    RELEASE_TYPE,
    Artifact,
    Execution,
    LineageStore,
    Run,
    Use,
    releases_of,
    state_of,
    unknown_run,
)

SCHEMA = 10
"""Version of ML Metadata's tables that this module reads."""

STATES = {0: "UNKNOWN", 1: "NEW", 2: "RUNNING", 3: "COMPLETE", 4: "FAILED", 5: "CACHED", 6: "CANCELED"}
"""Execution.State."""

LIVE = 2
"""Artifact.State.LIVE."""

# Event.Type; 7 is an output that is announced and not there yet.
INPUTS, OUTPUTS = {2, 3, 5}, {1, 4, 6}

_ARTIFACT, _CONTEXT = 1, 2

RELEASE_FACTS = (
    "ledger_number", "released", "released_at", "endpoint", "run_id", "to_version", "share", "path", "ledger_line_sha256",
    "ledger_entries",
)  # fmt: skip
"""What a release is read from."""

BY_TIME = "idx_context_create_time_since_epoch"
"""Name of ML Metadata's index of contexts by the time when they were made."""


class Session(abc.ABC):
    """An open connection, for one question.

    Attributes:
        by_time: How this database is told to walk contexts by time, and no other way.
    """

    by_time: str

    @abc.abstractmethod
    def rows(self, text: str, **values: Any) -> list[tuple]:
        """Asks.

        Args:
            text: SQL that SQLite and MySQL read alike, with `:name` for each value.
            values: The values; a collection stands for a list in brackets.

        Returns:
            All rows.
        """


def filled(text: str, values: Mapping[str, Any], mark: str) -> tuple[str, list]:
    """SQL with `mark` for each value, and the values in that order.

    An empty list becomes one that holds nothing that could be equal.
    """
    given: list = []

    def put(found: re.Match) -> str:
        value = values[found[1]]
        if isinstance(value, Collection) and not isinstance(value, str):
            given.extend(value)
            return f"({', '.join([mark] * len(value)) or 'NULL'})"
        given.append(value)
        return mark

    return re.sub(r":(\w+)", put, text), given


class SQLLineage(LineageStore):
    """Reads ML Metadata's tables.

    Attributes:
        place: Where they are, as errors name it.
    """

    place: str

    @abc.abstractmethod
    def _opened(self) -> contextlib.AbstractContextManager[Session]:
        """A connection for one question; what the database refuses becomes a sentence."""

    def run(self, run_id):
        with self._opened() as session:
            found = session.rows(
                "SELECT c.id, c.name FROM Context c JOIN Type t ON t.id = c.type_id "
                "WHERE t.name = 'pipeline_run' AND t.type_kind = :kind AND c.name = :name",
                kind=_CONTEXT,
                name=run_id,
            )
            # MySQL takes `Run-1` for `run-1`.
            for context, name in found:
                if name == run_id:
                    return Run(run_id, _executions(session, context))
        raise unknown_run(run_id, self.run_ids(), f"the lineage store {self.place}")

    def releases(self):
        with self._opened() as session:
            rows = session.rows(
                "SELECT p.artifact_id, p.name, p.string_value, p.int_value, p.double_value FROM Type t "
                "JOIN Artifact a ON a.type_id = t.id JOIN ArtifactProperty p ON p.artifact_id = a.id "
                "WHERE t.name = :type AND t.type_kind = :kind AND a.state = :live AND p.name IN :names",
                type=RELEASE_TYPE,
                kind=_ARTIFACT,
                live=LIVE,
                names=RELEASE_FACTS,
            )
        return releases_of(_by_owner(rows).values())

    def run_ids(self):
        with self._opened() as session:
            rows = session.rows(
                "SELECT c.name FROM Type t JOIN Context c ON c.type_id = t.id "
                "WHERE t.name = 'pipeline_run' AND t.type_kind = :kind ORDER BY c.id",
                kind=_CONTEXT,
            )
        return [name for (name,) in rows]

    def values(self, type_name, fact):
        with self._opened() as session:
            rows = session.rows(
                "SELECT p.string_value FROM Type t JOIN Artifact a ON a.type_id = t.id "
                "JOIN ArtifactProperty p ON p.artifact_id = a.id AND p.name = :fact AND p.is_custom_property = 1 "
                "WHERE t.name = :type AND t.type_kind = :kind AND p.string_value IS NOT NULL",
                fact=fact,
                type=type_name,
                kind=_ARTIFACT,
            )
        # Not DISTINCT, which of `a` and `A` has one in MySQL.
        return sorted({value for (value,) in rows})

    def uses(self, type_name, fact, values):
        wanted = set(values)
        with self._opened() as session:
            # CROSS JOIN keeps SQLite on the way from the indexed property to its artifact, however many others there are.
            artifacts = dict(
                session.rows(
                    "SELECT p.artifact_id, p.string_value FROM ArtifactProperty p CROSS JOIN Artifact a ON a.id = p.artifact_id "
                    "CROSS JOIN Type t ON t.id = a.type_id AND t.name = :type AND t.type_kind = :kind "
                    "WHERE p.name = :fact AND p.is_custom_property = 1 AND p.string_value IN :values",
                    type=type_name,
                    kind=_ARTIFACT,
                    fact=fact,
                    values=sorted(wanted),
                )
            )
            events = session.rows(
                "SELECT artifact_id, execution_id FROM Event WHERE artifact_id IN :ids",
                ids=[artifact for artifact, value in artifacts.items() if value in wanted],
            )
            runs = _runs_of(session, {execution for _, execution in events})
            names = dict(session.rows("SELECT id, name FROM Context WHERE id IN :ids", ids=set(runs.values())))
            steps = _unfinished(session, names)
        pairs = {(runs[execution], artifacts[artifact]) for artifact, execution in events if execution in runs}
        return [
            Use(names[run], value, state_of(steps[run]), any(step == ("COMPLETE", "Trainer") for step in steps[run]))
            for run, value in sorted(pairs)
        ]

    def facts(self, type_name, names, run_ids):
        with self._opened() as session:
            rows = session.rows(
                "SELECT c.name, p.name, p.string_value, p.int_value, p.double_value FROM Type k "
                "JOIN Context c ON c.type_id = k.id JOIN Association s ON s.context_id = c.id "
                "JOIN Event v ON v.execution_id = s.execution_id JOIN Artifact a ON a.id = v.artifact_id "
                "JOIN Type t ON t.id = a.type_id JOIN ArtifactProperty p ON p.artifact_id = a.id "
                "WHERE k.name = 'pipeline_run' AND k.type_kind = :kind AND c.name IN :runs AND v.type IN :outputs "
                "AND a.state = :live AND t.name = :type AND p.name IN :names",
                kind=_CONTEXT,
                runs=sorted(set(run_ids)),
                outputs=OUTPUTS,
                live=LIVE,
                type=type_name,
                names=sorted(set(names)),
            )
        return _by_owner(rows)


def check_version(found: Sequence[tuple], place: str) -> None:
    """Raises PipelineError unless `found`, the rows of MLMDEnv, name the version that this module reads."""
    if list(found) != [(SCHEMA,)]:
        raise PipelineError(
            f"the lineage store {place} has schema version {found[0][0] if found else 'none'} of ML Metadata, and this code "
            f"reads {SCHEMA}: use the code that wrote it, or migrate a copy with ML Metadata"
        )


def _runs_of(session: Session, executions: Collection[int]) -> dict[int, int]:
    """Execution -> context of the run that it belongs to.

    No index leads from an execution to its contexts, only one from a context to its executions. A run's context is made
    before its first execution, so the newest context that is older than the execution is the run's, as long as no two runs go
    on at once; from there it is searched backwards, and last, should a clock have gone backwards, everywhere.
    """
    belongs = (
        "SELECT c.id FROM Context c {} WHERE c.type_id = k.id {} "
        "AND EXISTS (SELECT 1 FROM Association s WHERE s.context_id = c.id AND s.execution_id = e.id)"
    )
    # The sign keeps SQLite from the index of the type, which would have it sort all runs.
    near = belongs.format(session.by_time, "AND c.create_time_since_epoch <= e.create_time_since_epoch").replace("= k.id", "= +k.id")
    rows = session.rows(
        f"SELECT e.id, COALESCE(({near} ORDER BY c.create_time_since_epoch DESC LIMIT 1), ({belongs.format('', '')} LIMIT 1)) "
        "FROM Type k CROSS JOIN Execution e WHERE k.name = 'pipeline_run' AND k.type_kind = :kind AND e.id IN :ids",
        kind=_CONTEXT,
        ids=executions,
    )
    return {execution: context for execution, context in rows if context is not None}


def _unfinished(session: Session, contexts: Collection[int]) -> dict[int, list[tuple[str, str]]]:
    """Run's context -> state and name of the steps that `state_of` must see, and of its Trainer, in order."""
    rows = session.rows(
        "SELECT s.context_id, e.last_known_state, t.name FROM Association s "
        "JOIN Execution e ON e.id = s.execution_id JOIN Type t ON t.id = e.type_id WHERE s.context_id IN :contexts "
        "AND (e.last_known_state NOT IN (3, 5) OR t.name LIKE '%Trainer' OR t.name LIKE '%.ServingLedger') ORDER BY e.id",
        contexts=contexts,
    )
    steps = collections.defaultdict(list)
    for context, state, name in rows:
        steps[context].append((STATES.get(state, "UNKNOWN"), _step(name)))
    return steps


def _executions(session: Session, context: int) -> tuple[Execution, ...]:
    executions = session.rows(
        "SELECT e.id, t.name, e.last_known_state, e.create_time_since_epoch, e.last_update_time_since_epoch "
        "FROM Association s JOIN Execution e ON e.id = s.execution_id JOIN Type t ON t.id = e.type_id "
        "WHERE s.context_id = :context ORDER BY e.id",
        context=context,
    )
    ids = [execution for execution, *_ in executions]
    parameters = _properties(session, "Execution", ids)
    events = session.rows(
        "SELECT v.execution_id, v.artifact_id, v.type, "
        "(SELECT MIN(p.step_key) FROM EventPath p WHERE p.event_id = v.id AND p.is_index_step = 0) "
        "FROM Event v WHERE v.execution_id IN :ids ORDER BY v.id",
        ids=ids,
    )
    artifacts = _artifacts(session, {artifact for _, artifact, _, _ in events})
    puts: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for execution, artifact, kind, key in events:
        if kind in INPUTS or kind in OUTPUTS:
            puts[execution, kind in INPUTS][key or ""].append(artifacts[artifact])
    return tuple(
        Execution(
            id=execution,
            step=_step(name),
            state=STATES.get(state, "UNKNOWN"),
            started=_instant(created),
            updated=_instant(updated),
            parameters=parameters.get(execution, {}),
            inputs={key: tuple(found) for key, found in puts[execution, True].items()},
            outputs={key: tuple(found) for key, found in puts[execution, False].items()},
        )
        for execution, name, state, created, updated in executions
    )


def _artifacts(session: Session, ids: Collection[int]) -> dict[int, Artifact]:
    facts = _properties(session, "Artifact", ids)
    rows = session.rows("SELECT a.id, t.name, a.uri FROM Artifact a JOIN Type t ON t.id = a.type_id WHERE a.id IN :ids", ids=ids)
    return {number: Artifact(number, name, uri or "", facts.get(number, {})) for number, name, uri in rows}


def _properties(session: Session, kind: str, ids: Collection[int]) -> dict[int, dict]:
    owner = f"{kind.lower()}_id"
    rows = session.rows(
        f"SELECT {owner}, name, string_value, int_value, double_value FROM {kind}Property "
        # Declared ones first: a custom property of the same name counts.
        f"WHERE {owner} IN :ids ORDER BY is_custom_property",
        ids=ids,
    )
    # Sorted here: each database has an order of its own.
    return {owner: dict(sorted(facts.items())) for owner, facts in _by_owner(rows).items()}


def _by_owner(rows: Iterable[tuple]) -> dict:
    found: dict = collections.defaultdict(dict)
    for owner, name, text, whole, real in rows:
        value = text if text is not None else whole if whole is not None else real
        if value is not None:
            found[owner][name] = value
    return dict(found)


def _step(type_name: str) -> str:
    return type_name.rsplit(".", 1)[-1]


def _instant(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
