"""The embedded warehouse: label edits in a CSV or Parquet file, snapshots in a DuckDB file."""

import functools
import pathlib
import re

import duckdb
import sqlglot

from pipeline.errors import PipelineError
from pipeline.warehouse import queries
from pipeline.warehouse.base import (
    LABEL_COLUMNS,
    Snapshot,
    Warehouse,
    check_bounds,
    content_of,
    identifier,
    require_columns,
    schema_fingerprint,
)

# What is recorded when a snapshot is made, and checked whenever it is used again.
_REGISTRY = """
CREATE TABLE IF NOT EXISTS snapshots (
  table_name VARCHAR PRIMARY KEY, date VARCHAR, as_of VARCHAR, source VARCHAR,
  row_count BIGINT, checksum VARCHAR, schema_fingerprint VARCHAR
)"""

_BATCH = 10_000

_METHOD = "by the edits' own times: a file has no history"

# DuckDB's types -> BigQuery's, for those that a snapshot has.
_TYPES = {"VARCHAR": "STRING", "TIMESTAMP WITH TIME ZONE": "TIMESTAMP"}


class DuckDBWarehouse(Warehouse):
    """Labels in a file, snapshots in one database file beside the other local state.

    Args:
        database: Path of the database file; made when missing.
        labels: Path of the label edits: CSV with a header, or Parquet, with the columns of
            `LABEL_COLUMNS`.
        read_only: Whether nothing is to be made or changed, the file itself included.

    Raises:
        PipelineError: The database cannot be opened, or is not there to be read.
    """

    RESTORE = "restore the database file from its backup"

    def __init__(self, database: str, labels: str, read_only: bool = False):
        self._database = database
        self._labels = pathlib.Path(labels)
        if read_only and not pathlib.Path(database).is_file():
            raise PipelineError(f"there is no warehouse {database}: bring it back from a backup, or name its store by --store")
        try:
            self._connection = duckdb.connect(database, read_only=read_only)
        except duckdb.Error as error:
            if read_only and "lock" in str(error).lower():
                raise PipelineError(
                    f"the warehouse {database} is in use: a step of a run holds it. Ask again later"
                ) from error
            raise PipelineError(f"cannot open the warehouse {database}: {error}") from error
        self._connection.execute("SET TimeZone = 'UTC'")
        # One thread: aggregates that depend on arrival order then have one answer.
        self._connection.execute("SET threads = 1")
        if not read_only:
            self._connection.execute(_REGISTRY)

    def close(self):
        self._connection.close()

    def address(self, table):
        return f"`{identifier(table)}`"

    def rows(self, query, parameters=None):
        # A cursor of its own, so that one query may run while another one's rows are still read.
        return self._rows_in_dialect(self._in_dialect(query), parameters)

    def _rows_in_dialect(self, query, parameters):
        cursor = self._connection.cursor()
        cursor.execute("SET TimeZone = 'UTC'")
        return self._rows(cursor, query, parameters)

    def present(self, tables):
        # One query: a store of ten years has five hundred.
        names = {name for (name,) in self._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        return [table for table in tables if table in names]

    def load_parquet(self, paths, table):
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._quoted(table)} AS SELECT * FROM read_parquet(?)", [list(paths)]
        )

    def _create(self, table, date, instant) -> Snapshot:
        # One transaction: a killed run leaves neither a table without its record nor the reverse.
        self._connection.execute("BEGIN")
        try:
            self._load_edits()
            check_bounds(self._one(queries.label_bounds(self.address("edits"))), str(self._labels), date)
            select = self._in_dialect(queries.labels_as_of(self.address("edits")))
            self._connection.execute(
                f"CREATE TABLE {self._quoted(table)} AS {select} ORDER BY image_id, label, source", {"as_of": instant}
            )
            rows, digest = self._content(table)
            if rows == 0:
                raise PipelineError(f"every label in {self._labels} is withdrawn as of {date}: nothing is left to train on")
            snapshot = Snapshot(
                date=str(date),
                as_of=instant.isoformat(),
                table=table,
                uri=f"duckdb:{self._database}#{table}",
                source=str(self._labels),
                rows=rows,
                checksum=digest,
                schema_fingerprint=schema_fingerprint(LABEL_COLUMNS),
                method=_METHOD,
            )
            self._connection.execute(
                "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?)",
                [table, snapshot.date, snapshot.as_of, snapshot.source, rows, digest, snapshot.schema_fingerprint],
            )
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        return snapshot

    def _recorded(self, table) -> Snapshot | None:
        try:
            row = self._connection.execute("SELECT * FROM snapshots WHERE table_name = ?", [table]).fetchone()
        except duckdb.CatalogException as error:  # only where nothing may be made
            raise PipelineError(f"{self._database} holds no record of snapshots: {self.RESTORE}") from error
        if row is None:
            return None
        name, date, instant, source, count, digest, fingerprint = row
        return Snapshot(
            date=date,
            as_of=instant,
            table=name,
            uri=f"duckdb:{self._database}#{name}",
            source=source,
            rows=count,
            checksum=digest,
            schema_fingerprint=fingerprint,
            method=_METHOD,
        )

    def _columns(self, table) -> dict[str, str]:
        try:
            rows = self._connection.execute(f"DESCRIBE {self._quoted(table)}").fetchall()
        except duckdb.Error as error:
            raise self._unreadable(table, _brief(error)) from error
        return {name: _TYPES.get(kind, kind) for name, kind, *_ in rows}

    def _content(self, table) -> tuple[int, str]:
        try:
            return content_of(self._one(queries.content_sums(self.address(table))))
        except PipelineError as error:
            raise self._unreadable(table, error) from error

    def _unreadable(self, table, error) -> PipelineError:
        return PipelineError(
            f"snapshot duckdb:{self._database}#{table} is recorded but cannot be read: {error}. A snapshot is never "
            f"changed or overwritten: {self.RESTORE}"
        )

    def _load_edits(self):
        """Reads the label file into the temporary table `edits`, every column as its type."""
        if not self._labels.is_file():
            raise PipelineError(f"there is no label table {self._labels}: give the folder that holds labels.csv by --data")
        reader = (
            "read_parquet(?)"
            if self._labels.suffix == ".parquet"
            # Everything as text first: a column of digits must not lose its leading zeros. One
            # thread and a header, so that the same bytes always parse the same way.
            else "read_csv(?, header=true, delim=',', quote='\"', escape='\"', all_varchar=true, nullstr=['\\N'], strict_mode=true)"
        )
        try:
            relation = self._connection.execute(f"DESCRIBE SELECT * FROM {reader}", [str(self._labels)]).fetchall()
            # What is text is cast; the names are all that must be right.
            require_columns({row[0]: LABEL_COLUMNS.get(row[0], row[1]) for row in relation}, str(self._labels))
            columns = ", ".join(
                f"CAST({name} AS {'TIMESTAMPTZ' if kind == 'TIMESTAMP' else 'VARCHAR'}) AS {name}"
                for name, kind in LABEL_COLUMNS.items()
            )
            self._connection.execute(
                f"CREATE OR REPLACE TEMP TABLE edits AS SELECT {columns} FROM {reader}", [str(self._labels)]
            )
        except duckdb.Error as error:
            raise PipelineError(f"cannot read the label table {self._labels}: {_brief(error)}") from error

    def _one(self, query: str) -> dict:
        """First row of a query inside the connection's own transaction, temporary tables included."""
        return next(self._rows(self._connection, self._in_dialect(query), None))

    def _rows(self, connection, query, parameters):
        try:
            cursor = connection.execute(query, dict(parameters or {}))
        except duckdb.Error as error:
            raise PipelineError(f"the warehouse {self._database} refused a query: {_brief(error)}") from error
        names = [column[0] for column in cursor.description]
        while batch := cursor.fetchmany(_BATCH):
            for row in batch:
                yield dict(zip(names, row, strict=True))

    def _in_dialect(self, query: str) -> str:
        # Tables have other names each week, while the queries are few: what differs is put in afterwards.
        names = list(dict.fromkeys(re.findall(r"`([^`]*)`", query)))
        shape = re.sub(r"`([^`]*)`", lambda found: f"`name_{names.index(found[1])}_of_a_query`", query)
        return re.sub(r"name_(\d+)_of_a_query", lambda found: names[int(found[1])], _translated(shape))

    def _quoted(self, table: str) -> str:
        return self.address(table).replace("`", '"')


@functools.lru_cache(maxsize=256)
def _translated(query: str) -> str:
    """A query in DuckDB's dialect. To translate one takes longer than to ask it."""
    (statement,) = sqlglot.transpile(query, read="bigquery", write="duckdb")
    return statement


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
