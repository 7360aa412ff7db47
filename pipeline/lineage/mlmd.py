"""The lineage store on ML Metadata in SQLite, read by SQL.

ML Metadata's own client reads every property of every artifact of a type, which takes longer with each week; its tables
have the indexes that a question needs. It is read and never written here: the file is opened read-only.

Tables and numbers are those of ml_metadata's schema version 10 (ml_metadata/util/metadata_source_query_config.cc and
ml_metadata/proto/metadata_store.proto), which ML Metadata 1.16 and 1.21 both write.
"""

import collections
import contextlib
import datetime
import json
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from pipeline.errors import PipelineError
from pipeline.lineage.base import CUT_OFF, DONE, Artifact, Execution, LineageStore, Release, Run, Use, closest

SCHEMA = 10
"""Version of ML Metadata's tables that this module reads."""

RELEASE_TYPE = "pipeline.ServingRelease"

STATES = {0: "UNKNOWN", 1: "NEW", 2: "RUNNING", 3: "COMPLETE", 4: "FAILED", 5: "CACHED", 6: "CANCELED"}
"""Execution.State."""

LIVE = 2
"""Artifact.State.LIVE."""

# Event.Type; 7 is an output that is announced and not there yet.
INPUTS, OUTPUTS = {2, 3, 5}, {1, 4, 6}

_WAIT_SECONDS = 5.0

_ARTIFACT, _CONTEXT = 1, 2

# How a list of values travels as one parameter.
_LISTED = "(SELECT value FROM json_each(?))"

_RELEASE_FACTS = (
    "ledger_number", "released", "released_at", "endpoint", "run_id", "to_version", "share", "path", "ledger_line_sha256",
)  # fmt: skip


class MLMDLineage(LineageStore):
    """Reads ML Metadata's SQLite file.

    Args:
        path: The file.

    Raises:
        PipelineError: There is no such file, it holds something else, or a run writes to it for too long.
    """

    def __init__(self, path: str):
        self._path = path
        if not pathlib.Path(path).is_file():
            raise PipelineError(f"there is no lineage store {path}: run the pipeline first, or name its folder by --store")
        with self._opened() as connection:
            # Within one transaction: nobody writes to the file while it is measured.
            connection.execute("BEGIN")
            found = connection.execute("SELECT schema_version FROM MLMDEnv").fetchone()
            _check_whole(connection, path)
        if found != (SCHEMA,):
            raise PipelineError(
                f"the lineage store {path} has schema version {found[0] if found else 'none'} of ML Metadata, and this code "
                f"reads {SCHEMA}: use the code that wrote it, or migrate a copy with ML Metadata"
            )

    def run(self, run_id):
        with self._opened() as connection:
            context = connection.execute(
                "SELECT c.id FROM Context c JOIN Type t ON t.id = c.type_id "
                "WHERE t.name = 'pipeline_run' AND t.type_kind = ? AND c.name = ?",
                (_CONTEXT, run_id),
            ).fetchone()
            if context is not None:
                return Run(run_id, _executions(connection, context[0]))
        known = self.run_ids()
        near = closest(run_id, known)
        hint = f"the closest: {', '.join(near)}" if near else f"the newest is {known[-1]}" if known else "the store is empty"
        raise PipelineError(f"there is no run {run_id!r} in the lineage store {self._path}; {hint}")

    def releases(self):
        with self._opened() as connection:
            rows = connection.execute(
                "SELECT p.artifact_id, p.name, p.string_value, p.int_value, p.double_value FROM Type t "
                "JOIN Artifact a ON a.type_id = t.id JOIN ArtifactProperty p ON p.artifact_id = a.id "
                f"WHERE t.name = ? AND t.type_kind = ? AND a.state = ? AND p.name IN {_LISTED}",
                (RELEASE_TYPE, _ARTIFACT, LIVE, json.dumps(_RELEASE_FACTS)),
            ).fetchall()
        found = [
            Release(
                number=int(facts["ledger_number"]),
                at=facts["released_at"],
                endpoint=facts["endpoint"],
                run_id=facts["run_id"],
                version=facts["to_version"],
                share=float(facts["share"]),
                path=facts["path"],
                line_sha256=facts.get("ledger_line_sha256"),
            )
            for facts in _by_owner(rows).values()
            if facts.get("released")
        ]
        return sorted(found, key=lambda release: release.number)

    def run_ids(self):
        with self._opened() as connection:
            rows = connection.execute(
                "SELECT c.name FROM Type t JOIN Context c ON c.type_id = t.id "
                "WHERE t.name = 'pipeline_run' AND t.type_kind = ? ORDER BY c.id",
                (_CONTEXT,),
            ).fetchall()
        return [name for (name,) in rows]

    def values(self, type_name, fact):
        with self._opened() as connection:
            rows = connection.execute(
                "SELECT DISTINCT p.string_value FROM Type t JOIN Artifact a ON a.type_id = t.id "
                "JOIN ArtifactProperty p ON p.artifact_id = a.id AND p.name = ? AND p.is_custom_property = 1 "
                "WHERE t.name = ? AND t.type_kind = ? AND p.string_value IS NOT NULL ORDER BY p.string_value",
                (fact, type_name, _ARTIFACT),
            ).fetchall()
        return [value for (value,) in rows]

    def uses(self, type_name, fact, values):
        with self._opened() as connection:
            # CROSS JOIN keeps SQLite on the way from the indexed property to the runs, however many other artifacts there are.
            found = connection.execute(
                "SELECT DISTINCT c.id, c.name, p.string_value FROM json_each(?) w "
                "CROSS JOIN ArtifactProperty p ON p.string_value = w.value AND p.name = ? AND p.is_custom_property = 1 "
                "CROSS JOIN Artifact a ON a.id = p.artifact_id CROSS JOIN Type t ON t.id = a.type_id AND t.name = ? "
                "CROSS JOIN Event v ON v.artifact_id = a.id CROSS JOIN Association s ON s.execution_id = v.execution_id "
                "CROSS JOIN Context c ON c.id = s.context_id "
                "CROSS JOIN Type k ON k.id = c.type_id AND k.name = 'pipeline_run' ORDER BY c.id, p.string_value",
                (_list(values), fact, type_name),
            ).fetchall()
            states = connection.execute(
                "SELECT s.context_id, e.last_known_state, t.name FROM Association s "
                "JOIN Execution e ON e.id = s.execution_id JOIN Type t ON t.id = e.type_id "
                f"WHERE s.context_id IN {_LISTED} "
                "AND (e.last_known_state NOT IN (3, 5) OR t.name LIKE '%Trainer' OR t.name LIKE '%.ServingLedger') "
                "ORDER BY e.id",
                (json.dumps([context for context, _, _ in found]),),
            ).fetchall()
        steps = collections.defaultdict(list)
        for context, state, name in states:
            steps[context].append((STATES.get(state, "UNKNOWN"), _step(name)))
        return [
            Use(run_id, value, state_of(steps[context]), any(step == ("COMPLETE", "Trainer") for step in steps[context]))
            for context, run_id, value in found
        ]

    def facts(self, type_name, names, run_ids):
        with self._opened() as connection:
            rows = connection.execute(
                "SELECT c.name, p.name, p.string_value, p.int_value, p.double_value FROM Type k "
                "JOIN Context c ON c.type_id = k.id JOIN Association s ON s.context_id = c.id "
                "JOIN Event v ON v.execution_id = s.execution_id JOIN Artifact a ON a.id = v.artifact_id "
                "JOIN Type t ON t.id = a.type_id JOIN ArtifactProperty p ON p.artifact_id = a.id "
                f"WHERE k.name = 'pipeline_run' AND k.type_kind = ? AND c.name IN {_LISTED} AND v.type IN {_LISTED} "
                f"AND a.state = ? AND t.name = ? AND p.name IN {_LISTED}",
                (_CONTEXT, _list(run_ids), _list(OUTPUTS), LIVE, type_name, _list(names)),
            ).fetchall()
        return _by_owner(rows)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection for one question; what SQLite refuses becomes a sentence."""
        try:
            uri = f"{pathlib.Path(os.path.abspath(self._path)).as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise self._refused(error) from error

    def _refused(self, error: sqlite3.Error) -> PipelineError:
        if "locked" in str(error) or "busy" in str(error):
            return PipelineError(
                f"the lineage store {self._path} is in use: a run has been writing for {_WAIT_SECONDS:.0f} s. Ask again later"
            )
        if os.path.exists(f"{self._path}-journal"):
            return PipelineError(
                f"the lineage store {self._path} was left in the middle of a write ({error}): a process was "
                "killed there. The next run on this store mends it"
            )
        if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
            return PipelineError(f"the lineage store {self._path} cannot be opened ({error}): may you read it?")
        return PipelineError(f"{self._path} is no lineage store ({error}): restore the file from its backup")


def _check_whole(connection: sqlite3.Connection, path: str) -> None:
    """SQLite does not notice that a part of the last page is missing, as long as nobody asks for what was on it."""
    (pages,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    if os.path.getsize(path) < pages * size:
        raise sqlite3.DatabaseError("its end is missing")


def state_of(steps: Sequence[tuple[str, str]]) -> str:
    """How far a run came.

    Args:
        steps: State and name of its steps in order; those that ended well may be left out, but for ServingLedger.

    Returns:
        `COMPLETE`, `RUNNING`, or such as `FAILED at SnapshotGate`.
    """
    for state, step in steps:
        if state in CUT_OFF:
            return f"{state} at {step}"
    return "COMPLETE" if any(step == "ServingLedger" and state in DONE for state, step in steps) else "RUNNING"


def _list(values: Iterable) -> str:
    return json.dumps(sorted(set(values)))


def _executions(connection, context: int) -> tuple[Execution, ...]:
    executions = connection.execute(
        "SELECT e.id, t.name, e.last_known_state, e.create_time_since_epoch, e.last_update_time_since_epoch "
        "FROM Association s JOIN Execution e ON e.id = s.execution_id JOIN Type t ON t.id = e.type_id "
        "WHERE s.context_id = ? ORDER BY e.id",
        (context,),
    ).fetchall()
    ids = json.dumps([execution for execution, *_ in executions])
    parameters = _properties(connection, "Execution", ids)
    events = connection.execute(
        "SELECT v.execution_id, v.artifact_id, v.type, "
        "(SELECT p.step_key FROM EventPath p WHERE p.event_id = v.id AND p.is_index_step = 0 ORDER BY p.rowid LIMIT 1) "
        f"FROM Event v WHERE v.execution_id IN {_LISTED} ORDER BY v.id",
        (ids,),
    ).fetchall()
    artifacts = _artifacts(connection, {artifact for _, artifact, _, _ in events})
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


def _artifacts(connection, ids: Iterable[int]) -> dict[int, Artifact]:
    listed = json.dumps(sorted(ids))
    facts = _properties(connection, "Artifact", listed)
    rows = connection.execute(
        f"SELECT a.id, t.name, a.uri FROM Artifact a JOIN Type t ON t.id = a.type_id WHERE a.id IN {_LISTED}", (listed,)
    )
    return {number: Artifact(number, name, uri or "", facts.get(number, {})) for number, name, uri in rows.fetchall()}


def _properties(connection, kind: str, ids: str) -> dict[int, dict]:
    owner = f"{kind.lower()}_id"
    return _by_owner(
        connection.execute(
            f"SELECT {owner}, name, string_value, int_value, double_value FROM {kind}Property "
            # Declared ones first: a custom property of the same name counts.
            f"WHERE {owner} IN {_LISTED} ORDER BY is_custom_property",
            (ids,),
        ).fetchall()
    )


def _by_owner(rows: Iterable[tuple]) -> dict:
    found: dict = collections.defaultdict(dict)
    for owner, name, *values in rows:
        value = next((value for value in values if value is not None), None)
        if value is not None:
            found[owner][name] = value
    return dict(found)


def _step(type_name: str) -> str:
    return type_name.rsplit(".", 1)[-1]


def _instant(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
