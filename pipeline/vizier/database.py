"""Where studies live: one file of SQLite, in which a call is either done as a whole or not at all.

Open-source Vizier has a store of its own, which is not used: it commits an operation, each trial and the operation's end
one by one, and takes an operation that a kill left open for one that still runs, so that its client waits for ever.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import sqlite3
import threading
import time
from collections.abc import Iterator

from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2

from pipeline.errors import PipelineError
from pipeline.vizier.refusals import missing
from pipeline.vizier.resources import OperationName, StudyName, TrialName

_APPLICATION_ID = 0x565A5354  # "VZST", in the file's header
_VERSION = 1
_LOCK_SECONDS = 3
"""How long a server waits for the one before it to end."""

_SCHEMA = """
CREATE TABLE studies (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, not even after a deletion
    parent TEXT NOT NULL,
    display_name TEXT NOT NULL,
    message BLOB NOT NULL,                     -- google.cloud.aiplatform.v1.Study
    algorithm TEXT NOT NULL,
    seed INTEGER NOT NULL,
    trials INTEGER NOT NULL DEFAULT 0,
    drawn INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    memory TEXT NOT NULL DEFAULT '',
    UNIQUE (parent, display_name)
);
CREATE TABLE trials (
    study INTEGER NOT NULL REFERENCES studies ON DELETE CASCADE,
    number INTEGER NOT NULL,
    message BLOB NOT NULL,                     -- google.cloud.aiplatform.v1.Trial
    created INTEGER NOT NULL,
    completed INTEGER,
    memory TEXT NOT NULL,
    PRIMARY KEY (study, number)
) WITHOUT ROWID;
CREATE TABLE operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    study INTEGER NOT NULL REFERENCES studies ON DELETE CASCADE,
    message BLOB NOT NULL,                     -- google.longrunning.Operation
    request BLOB                               -- google.cloud.aiplatform.v1.SuggestTrialsRequest, until it is done
);
CREATE INDEX operations_of_study ON operations (study);
"""


@dataclasses.dataclass
class Study:
    """A study and what the service remembers with it.

    Attributes:
        message: As clients see it.
        algorithm: Where its suggestions come from, a name of `algorithms.ALGORITHMS`.
        seed: Of its suggestions.
        trials: Trials made so far, deleted ones included: the last one's number.
        drawn: Suggestions that the algorithm made so far.
        events: Trials begun and ended so far: the study's clock, which no wall clock disturbs.
        memory: What the algorithm wants to find again.
    """

    name: StudyName
    message: v1.Study
    algorithm: str
    seed: int
    trials: int = 0
    drawn: int = 0
    events: int = 0
    memory: str = ""

    def tick(self) -> int:
        """Counts one more event and returns its number."""
        self.events += 1
        return self.events


@dataclasses.dataclass
class Trial:
    """A trial and what the service remembers with it.

    Attributes:
        message: As clients see it.
        created: The study's event that began it.
        completed: The study's event that ended it, or None.
        memory: What the algorithm wants to find again.
    """

    name: TrialName
    message: v1.Trial
    created: int
    completed: int | None = None
    memory: str = ""


class Database:
    """The file, held by one process at a time.

    Args:
        path: The file; made if it does not exist.

    Raises:
        PipelineError: The file is another server's, is no store of studies, or cannot be used.
    """

    def __init__(self, path: str):
        self._path = path
        self._mutex = threading.Lock()
        self._lock = _lock(path)
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # FULL: what was acknowledged survives a power cut too, at the price of a millisecond or two a call.
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            self._prepare()
        except sqlite3.Error as error:
            self._lock.close()
            raise PipelineError(f"cannot use {path} as a store of studies ({error}): name another --database") from error
        except PipelineError:
            self._connection.close()
            self._lock.close()
            raise

    def _prepare(self) -> None:
        def pragma(name):
            return self._connection.execute(f"PRAGMA {name}").fetchone()[0]

        if not self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            marks = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION};"
            # One transaction: a kill while the file is made leaves an empty one.
            self._connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {marks} COMMIT;")
        elif pragma("application_id") != _APPLICATION_ID:
            raise PipelineError(f"{self._path} is a database of something else: name another --database")
        elif pragma("user_version") != _VERSION:
            raise PipelineError(
                f"{self._path} has version {pragma('user_version')} of the store of studies, and this is version "
                f"{_VERSION}: name another --database, or use the version of the project that made it"
            )

    def close(self) -> None:
        """Waits for the transaction under way and lets go of the file."""
        with self._mutex:
            self._connection.close()
            self._lock.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """What is done in the block is on the disk when it ends well, and undone otherwise. One at a time."""
        with self._mutex:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextlib.contextmanager
def looking(path: str | os.PathLike) -> Iterator["Transaction"]:
    """Reads the file as it is at one moment, while a server may hold it; writes nothing.

    Args:
        path: The file.

    Raises:
        PipelineError: There is none, or it is no store of studies.
    """
    try:
        connection = sqlite3.connect(f"{pathlib.Path(path).resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise PipelineError(
            f"there are no studies at {path} ({error}): run local_runner.py --tune, or name another store"
        ) from error
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise PipelineError(f"{path} is no store of studies: name another store")
        connection.execute("BEGIN")
        yield Transaction(connection)
    except sqlite3.Error as error:
        raise PipelineError(f"{path} cannot be read as a store of studies ({error}): name another store") from error
    finally:
        connection.close()


def is_served(path: str | os.PathLike) -> bool:
    """Whether a server holds the file at this moment."""
    try:
        with open(f"{path}.lock", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class Transaction:
    """Reads and writes inside `Database.transaction`; reads inside `looking`."""

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection

    # --- Studies ---

    def add_study(self, parent: str, message: v1.Study, algorithm: str, seed: int) -> Study:
        """Makes a study, gives its message the name, and returns it."""
        columns = "parent, display_name, message, algorithm, seed"
        values = (parent, message.display_name, b"", algorithm, seed)
        cursor = self._connection.execute(f"INSERT INTO studies ({columns}) VALUES (?, ?, ?, ?, ?)", values)
        study = Study(StudyName(parent, cursor.lastrowid), message, algorithm, seed)
        message.name = str(study.name)
        self.save_study(study)
        return study

    def save_study(self, study: Study) -> None:
        """Writes what has changed in a study."""
        values = (v1.Study.serialize(study.message), study.trials, study.drawn, study.events, study.memory)
        self._connection.execute(
            "UPDATE studies SET message = ?, trials = ?, drawn = ?, events = ?, memory = ? WHERE number = ?",
            (*values, study.name.number),
        )

    def study(self, name: StudyName) -> Study:
        """Finds a study. Raises Refused (NOT_FOUND) if there is none."""
        found = self._studies("parent = ? AND number = ?", name)
        if not found:
            raise missing("study", str(name))
        return found[0]

    def find_study(self, parent: str, display_name: str) -> Study | None:
        """The study with a display name, or None."""
        return next(iter(self._studies("parent = ? AND display_name = ?", (parent, display_name))), None)

    def studies(self, parent: str, after: int, limit: int) -> list[Study]:
        """At most `limit` studies with a number above `after`, in the order of numbers."""
        return self._studies("parent = ? AND number > ?", (parent, after), limit)

    def _studies(self, where: str, values: tuple, limit: int = 1) -> list[Study]:
        rows = self._connection.execute(
            "SELECT parent, number, message, algorithm, seed, trials, drawn, events, memory FROM studies "
            f"WHERE {where} ORDER BY number LIMIT ?",
            (*values, limit),
        )
        return [Study(StudyName(row[0], row[1]), v1.Study.deserialize(row[2]), *row[3:]) for row in rows]

    def delete_study(self, name: StudyName) -> None:
        """Deletes a study with its trials and operations."""
        self._connection.execute("DELETE FROM studies WHERE number = ?", (name.number,))

    # --- Trials ---

    def save_trial(self, trial: Trial) -> None:
        """Writes a trial, a new one or one that has changed."""
        values = (v1.Trial.serialize(trial.message), trial.created, trial.completed, trial.memory)
        self._connection.execute(
            "INSERT OR REPLACE INTO trials (study, number, message, created, completed, memory) VALUES (?, ?, ?, ?, ?, ?)",
            (trial.name.study.number, trial.name.number, *values),
        )

    def trial(self, name: TrialName) -> Trial:
        """Finds a trial. Raises Refused (NOT_FOUND) if it or its study does not exist."""
        self.study(name.study)
        found = self.trials(name.study, after=name.number - 1, limit=1)
        if not found or found[0].name != name:
            raise missing("trial", str(name))
        return found[0]

    def trials(self, study: StudyName, after: int = 0, limit: int = -1) -> list[Trial]:
        """At most `limit` trials with a number above `after` (all: -1), in the order of numbers."""
        rows = self._connection.execute(
            "SELECT number, message, created, completed, memory FROM trials WHERE study = ? AND number > ? "
            "ORDER BY number LIMIT ?",
            (study.number, after, limit),
        )
        return [Trial(TrialName(study, row[0]), v1.Trial.deserialize(row[1]), *row[2:]) for row in rows]

    def delete_trial(self, name: TrialName) -> None:
        """Deletes a trial."""
        self._connection.execute("DELETE FROM trials WHERE study = ? AND number = ?", (name.study.number, name.number))

    # --- Operations ---

    def add_operation(self, study: StudyName) -> operations_pb2.Operation:
        """Makes an operation that is not done; only its name is set."""
        cursor = self._connection.execute("INSERT INTO operations (study, message) VALUES (?, ?)", (study.number, b""))
        return operations_pb2.Operation(name=str(OperationName(study, cursor.lastrowid)))

    def save_operation(
        self, name: OperationName, message: operations_pb2.Operation, request: v1.SuggestTrialsRequest | None = None
    ) -> None:
        """Writes an operation, with the request that it is to answer unless it is done."""
        values = (message.SerializeToString(), request and v1.SuggestTrialsRequest.serialize(request))
        self._connection.execute("UPDATE operations SET message = ?, request = ? WHERE number = ?", (*values, name.number))

    def operation(self, name: OperationName) -> operations_pb2.Operation:
        """Finds an operation. Raises Refused (NOT_FOUND) if there is none."""
        self.study(name.study)
        row = self._connection.execute(
            "SELECT message FROM operations WHERE study = ? AND number = ?", (name.study.number, name.number)
        ).fetchone()
        if not row:
            raise missing("operation", str(name))
        return operations_pb2.Operation.FromString(row[0])

    def delete_operation(self, name: OperationName) -> None:
        """Deletes an operation; a trial that it is about to suggest is made all the same."""
        self._connection.execute("DELETE FROM operations WHERE number = ? AND request IS NULL", (name.number,))

    def pending(self) -> list[tuple[OperationName, v1.SuggestTrialsRequest]]:
        """The requests for suggestions that are not answered, in the order in which they came."""
        rows = self._connection.execute(
            "SELECT parent, study, operations.number, request FROM operations JOIN studies "
            "ON study = studies.number WHERE request IS NOT NULL ORDER BY operations.number"
        )
        return [
            (OperationName(StudyName(parent, study), number), v1.SuggestTrialsRequest.deserialize(request))
            for parent, study, number, request in rows
        ]


def _lock(path: str):
    """Opens the lock beside the file; the kernel lets go of it when this process ends, however it ends."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        lock = open(f"{path}.lock", "a+", encoding="utf-8")
    except OSError as error:
        raise PipelineError(
            f"cannot use {path} as a store of studies ({error.strerror}): name another --database"
        ) from error
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                lock.close()
                raise PipelineError(
                    f"{path} belongs to the Vizier service of process {holder}: use that one, or end it first"
                ) from error
            time.sleep(0.05)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
