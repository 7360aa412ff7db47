"""The interface to the place where labels live, and the facts that identify a snapshot."""

import abc
import dataclasses
import datetime
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pipeline.errors import PipelineError

# The label table is a log of edits: the newest edit of an image is its label; an empty label
# withdraws the image. Column: BigQuery type.
LABEL_COLUMNS = {
    "image_id": "STRING",
    "product_id": "STRING",
    "label": "STRING",
    "source": "STRING",
    "updated_at": "TIMESTAMP",
}

MAX_QUERY_BYTES = 10**12
"""What one query may read unless the settings say otherwise: some five dollars."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """One dated, immutable table of labels.

    Attributes:
        date: The day whose run it serves, `YYYY-MM-DD`.
        as_of: The instant, UTC, before which an edit counts: the day's first.
        table: Table name, `labels_YYYYMMDD`.
        uri: Where that table is, for people and for the lineage.
        source: The label table that it was taken from.
        rows: Number of rows.
        checksum: SHA-256 over the content, independent of row order and of the warehouse.
        schema_fingerprint: SHA-256 over column names and types.
        method: How it was taken: from a clone of the label table as it was at `as_of`, or by the edits' own times,
            with the reason.
    """

    date: str
    as_of: str
    table: str
    uri: str
    source: str
    rows: int
    checksum: str
    schema_fingerprint: str
    method: str


def parse_date(text: str) -> datetime.date:
    """Reads a snapshot date.

    Raises:
        PipelineError: `text` is no date of the calendar written YYYY-MM-DD.
    """
    try:
        date = datetime.date.fromisoformat(text)
        if str(date) != text:  # ISO 8601 knows weeks and other spellings
            raise ValueError("not written YYYY-MM-DD")
        return date
    except ValueError as error:
        raise PipelineError(
            f"there is no snapshot date {text!r} ({error}): give a day as YYYY-MM-DD, such as 2026-03-02"
        ) from error


def as_of(date: datetime.date) -> datetime.datetime:
    """The instant before which an edit belongs to the snapshot of `date`: midnight UTC.

    Work that analysts do on the day of the retrain itself therefore waits for the next one, whatever
    hour the run starts at, and a run that is repeated later reads the same edits.
    """
    return datetime.datetime.combine(date, datetime.time(), tzinfo=datetime.timezone.utc)


def snapshot_table(date: datetime.date) -> str:
    """Name of the snapshot table of `date`."""
    return f"labels_{date:%Y%m%d}"


_EACH = "each_of_the_tables"
"""Stands for the name of a table until the query is in the warehouse's own dialect: that takes longer than to ask it."""

_AT_ONCE = 100
"""How many tables one query asks."""


def identifier(table: str) -> str:
    """Returns `table` if it is a plain identifier, which no quoting can be broken out of. Raises PipelineError."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", table):
        raise PipelineError(f"{table!r} is no table name: letters, digits and underscores only")
    return table


def content_of(sums: Mapping[str, int | None]) -> tuple[int, str]:
    """Digests the order-independent content sums of a table.

    Args:
        sums: The row of `queries.content_sums`: `n` rows, and in `lane_0` to `lane_7` the sums over all rows of the
            eight 32-bit words of a row's SHA-256. Sums commute, so order does not matter; unlike XOR, they notice a
            row that stands there twice.

    Returns:
        The number of rows, and a checksum of 64 hexadecimal digits.
    """
    lanes = ",".join(str(int(sums[f"lane_{lane}"] or 0)) for lane in range(8))
    return sums["n"], hashlib.sha256(f"{sums['n']}:{lanes}".encode()).hexdigest()


def check_bounds(bounds: Mapping[str, Any], source: str, date: datetime.date) -> None:
    """Checks that a snapshot of `date` would have edits to look at.

    Args:
        bounds: The row of `queries.label_bounds`.
        source: The label table, for errors.
        date: The snapshot's date.

    Raises:
        PipelineError: The label table is empty, has edits of no image or of no time, or its first edit is too late.
    """
    if bounds["edits"] == 0:
        raise PipelineError(f"the label table {source} is empty: there is nothing to take a snapshot of")
    if bounds["incomplete"]:
        raise PipelineError(
            f"{source} has {bounds['incomplete']} edit(s) without image_id or updated_at: complete or remove them"
        )
    first = bounds["first_edit"]
    if first >= as_of(date):
        raise PipelineError(
            f"no label was edited before {date} in {source}: the first edit is of {first:%Y-%m-%d %H:%M} UTC, so the "
            f"first snapshot date is {first.date() + datetime.timedelta(days=1)}"
        )


def require_columns(columns: Mapping[str, str], source: str) -> None:
    """Checks that a label table has the columns that a snapshot takes.

    Args:
        columns: Column of the label table -> its type, in BigQuery's words.
        source: The label table, for errors.

    Raises:
        PipelineError: A column is missing, or is of another type.
    """
    expected = ", ".join(f"{name} {kind}" for name, kind in LABEL_COLUMNS.items())
    missing = [name for name in LABEL_COLUMNS if name not in columns]
    if missing:
        unknown = ", ".join(map(repr, sorted(columns.keys() - LABEL_COLUMNS.keys()))) or "none"
        raise PipelineError(
            f"{source} lacks the column(s) {', '.join(missing)}: it must have {expected}. Columns of other names: "
            f"{unknown}. Rename them there, or name a view that does as the label table"
        )
    for name, kind in LABEL_COLUMNS.items():
        if columns[name] != kind:
            raise PipelineError(
                f"the column {name} of {source} is of type {columns[name]} and must be {kind}: change it there, or name a "
                f"view that casts it as the label table. All columns: {expected}"
            )


def schema_fingerprint(columns: Mapping[str, str]) -> str:
    """SHA-256 over `name:type` of each column in order."""
    return hashlib.sha256("\n".join(f"{name}:{kind}" for name, kind in columns.items()).encode()).hexdigest()


class Warehouse(abc.ABC):
    """Reads the label table, keeps snapshots and shard indexes, runs queries over them.

    Queries are written in BigQuery's dialect; table names in them come from `address`. Use it as a
    context manager.
    """

    RESTORE: str
    """How the first state of an altered snapshot is brought back."""

    def __enter__(self) -> "Warehouse":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the connection; safe to call twice."""

    @abc.abstractmethod
    def address(self, table: str) -> str:
        """Returns `table` as it stands in a query, quoted.

        Raises:
            PipelineError: `table` is no plain identifier.
        """

    @abc.abstractmethod
    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Runs a query.

        Args:
            query: SQL in BigQuery's dialect; `@name` stands for a parameter.
            parameters: Value of each parameter; values never become part of the text.

        Returns:
            The rows, streamed, each as a mapping from column to value.

        Raises:
            PipelineError: The warehouse refuses the query or cannot be reached.
        """

    def rows_of_each(
        self, query: Callable[[str, str], str], tables: Sequence[str], parameters: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Asks one query of each of some tables, many at once.

        Args:
            query: The query of one table, given its name and its address.
            tables: The tables.
            parameters: As for `rows`.

        Yields:
            The rows of all of them.

        Raises:
            PipelineError: As by `rows`.
        """
        one = self._in_dialect(query(_EACH, self.address(_EACH)))
        for start in range(0, len(tables), _AT_ONCE):
            names = [identifier(table) for table in tables[start : start + _AT_ONCE]]
            yield from self._rows_in_dialect(" UNION ALL ".join(one.replace(_EACH, name) for name in names), parameters)

    def _in_dialect(self, query: str) -> str:
        """A query in the warehouse's own dialect."""
        return query

    def _rows_in_dialect(self, query: str, parameters: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
        """As `rows`, of a query that is in the warehouse's own dialect already."""
        return self.rows(query, parameters)

    def require_affordable(self, query: str) -> None:
        """Refuses a query that would read more than the warehouse's settings allow, before anything reads it.

        Raises:
            PipelineError: It would; the message names both figures and the setting.
        """

    def snapshot(self, date: datetime.date) -> Snapshot:
        """Makes the snapshot of `date`, or checks the one that is there.

        Creation is atomic; a second call for the same date, even from another process, returns the
        same snapshot.

        Raises:
            PipelineError: The date lies in the future, no label was edited before it, the label
                table is empty or lacks a column, or the snapshot was altered since it was made.
        """
        instant = as_of(date)
        if instant > datetime.datetime.now(datetime.timezone.utc):
            raise PipelineError(
                f"the snapshot of {date} cannot be made yet: edits until {instant:%Y-%m-%d %H:%M} UTC belong to it"
            )
        table = snapshot_table(date)
        return self._unaltered(self._recorded(table) or self._create(table, date, instant))

    def find(self, table: str) -> Snapshot | None:
        """The snapshot of that name, checked as by `snapshot`; None when there is none.

        Raises:
            PipelineError: It was altered since it was made.
        """
        recorded = self._recorded(table)
        return recorded and self._unaltered(recorded)

    def present(self, tables: Sequence[str]) -> list[str]:
        """Those of some snapshots that the warehouse has, in the same order, unchecked."""
        return [table for table in tables if self._recorded(table) is not None]

    def _unaltered(self, recorded: Snapshot) -> Snapshot:
        # The columns first: without them its content cannot be summed.
        columns = self._columns(recorded.table)
        if schema_fingerprint(columns) != recorded.schema_fingerprint:
            now = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            self._altered(recorded, f"its columns were others, they are {now}")
        rows, digest = self._content(recorded.table)
        if (rows, digest) != (recorded.rows, recorded.checksum):
            self._altered(
                recorded,
                f"it had {recorded.rows} rows and checksum {recorded.checksum[:12]}, it has {rows} rows and checksum "
                f"{digest[:12]}",
            )
        return recorded

    def _altered(self, recorded: Snapshot, difference: str) -> NoReturn:
        raise PipelineError(
            f"snapshot {recorded.uri} was altered since it was made: {difference}. A snapshot is never changed or "
            f"overwritten: {self.RESTORE}"
        )

    @abc.abstractmethod
    def _recorded(self, table: str) -> Snapshot | None:
        """What was recorded when the snapshot was made; None when it was not."""

    @abc.abstractmethod
    def _create(self, table: str, date: datetime.date, instant: datetime.datetime) -> Snapshot:
        """Makes and records a snapshot in one step."""

    @abc.abstractmethod
    def _columns(self, table: str) -> dict[str, str]:
        """Columns of a snapshot as it is now and their types, in BigQuery's words, in order."""

    @abc.abstractmethod
    def _content(self, table: str) -> tuple[int, str]:
        """Rows and checksum of a snapshot as it is now."""

    @abc.abstractmethod
    def load_parquet(self, paths: Sequence[str], table: str) -> None:
        """Loads Parquet files of one schema as `table`, atomically, unless a table of that name is there.

        The name must carry the content's digest: a table that is there is taken to be the same.
        """
