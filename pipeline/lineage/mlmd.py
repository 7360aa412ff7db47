"""The lineage store on ML Metadata in SQLite: the file of a store on this machine, opened read-only."""

import contextlib
import os
import pathlib
import sqlite3
from collections.abc import Iterator

from pipeline.errors import PipelineError
from pipeline.lineage.mlmd_sql import BY_TIME, Session, SQLLineage, check_version, filled

_WAIT_SECONDS = 5.0


class MLMDLineage(SQLLineage):
    """Reads ML Metadata's SQLite file.

    Args:
        path: The file.

    Raises:
        PipelineError: There is no such file, it holds something else, or a run writes to it for too long.
    """

    def __init__(self, path: str):
        self.place = path
        if not pathlib.Path(path).is_file():
            raise PipelineError(f"there is no lineage store {path}: run the pipeline first, or name its folder by --store")
        with self._opened() as session:
            # Within one transaction: nobody writes to the file while it is measured.
            session.rows("BEGIN")
            found = session.rows("SELECT schema_version FROM MLMDEnv")
            _check_whole(session, path)
        check_version(found, path)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Session]:
        try:
            uri = f"{pathlib.Path(os.path.abspath(self.place)).as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as connection:
                yield _SQLite(connection)
        except sqlite3.Error as error:
            raise self._refused(error) from error

    def _refused(self, error: sqlite3.Error) -> PipelineError:
        if "locked" in str(error) or "busy" in str(error):
            return PipelineError(
                f"the lineage store {self.place} is in use: a run has been writing for {_WAIT_SECONDS:.0f} s. Ask again later"
            )
        if os.path.exists(f"{self.place}-journal"):
            return PipelineError(
                f"the lineage store {self.place} was left in the middle of a write ({error}): a process was "
                "killed there. The next run on this store mends it"
            )
        if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
            return PipelineError(f"the lineage store {self.place} cannot be opened ({error}): may you read it?")
        return PipelineError(f"{self.place} is no lineage store ({error}): restore the file from its backup")


class _SQLite(Session):
    by_time = f"INDEXED BY {BY_TIME}"

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection

    def rows(self, text, **values):
        text, given = filled(text, values, "?")
        return self._connection.execute(text, given).fetchall()


def _check_whole(session: Session, path: str) -> None:
    """SQLite does not notice that a part of the last page is missing, as long as nobody asks for what was on it."""
    [(pages,)], [(size,)] = (session.rows(f"PRAGMA {name}") for name in ("page_count", "page_size"))
    if os.path.getsize(path) < pages * size:
        raise sqlite3.DatabaseError("its end is missing")
