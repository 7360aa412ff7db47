"""The production warehouse: BigQuery, through Google's client and application default credentials."""

import contextlib
import datetime
import json
import tempfile
from collections.abc import Iterator, Mapping

import pyarrow.parquet as pq
import pyarrow_hotfix  # noqa: F401, for CVE-2023-47248
import requests
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery

from pipeline.errors import PipelineError
from pipeline.warehouse import queries
from pipeline.warehouse.base import (
    Snapshot,
    Warehouse,
    check_bounds,
    content_of,
    identifier,
    require_columns,
    schema_fingerprint,
)

_PARAMETER_TYPES = {str: "STRING", int: "INT64", float: "FLOAT64", bool: "BOOL", datetime.datetime: "TIMESTAMP"}

# The API still answers with the names of the older dialect.
_TYPES = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "RECORD": "STRUCT"}

# How long the history of a table reaches back unless its data set says otherwise.
_TIME_TRAVEL_HOURS = 168

_DESCRIBED = "Label snapshot. "


class BigQueryWarehouse(Warehouse):
    """Label table, snapshots and shard indexes in one data set.

    A snapshot's facts are kept in its table's description, which BigQuery writes with the table, in
    one step. Where the label table's history reaches back to the snapshot's instant, the table as it was then is kept
    beside it (`labels_YYYYMMDD_edits`, a table snapshot, which costs what differs), and the labels are taken from that:
    what was edited later and dated back is not in it.

    Args:
        project: Google Cloud project.
        dataset: Data set.
        labels: Name of the label table or view.
        expiry_days: Days after which BigQuery deletes a snapshot; 0 keeps it.
        table_labels: Labels, in BigQuery's sense, of the tables that are made.
        max_query_bytes: Bytes that a query may read.

    Raises:
        PipelineError: There are no credentials.
    """

    RESTORE = "bring its first state back by time travel"

    def __init__(
        self,
        project: str,
        dataset: str,
        labels: str,
        expiry_days: int,
        table_labels: Mapping[str, str],
        max_query_bytes: int,
    ):
        self._dataset = f"{project}.{dataset}"
        self._labels = labels
        self._expiry_days = expiry_days
        self._table_labels = dict(table_labels)
        self._max_query_bytes = max_query_bytes
        with _explained("cannot sign in to Google Cloud"):
            self._client = bigquery.Client(project=project)

    def close(self):
        self._client.close()

    def address(self, table):
        return f"`{self._dataset}.{identifier(table)}`"

    def rows(self, query, parameters=None):
        with _explained("BigQuery refused a query"):
            for row in self._run(query, parameters):
                yield dict(row.items())

    def require_affordable(self, query):
        with _explained("BigQuery refused a query"):
            self._require_affordable(query, [])

    def load_parquet(self, paths, table):
        destination = f"{self._dataset}.{identifier(table)}"
        # As the API writes it: the client has no name for the labels of a table that a load makes.
        config = bigquery.LoadJobConfig.from_api_repr(
            {
                "load": {
                    "sourceFormat": bigquery.SourceFormat.PARQUET,
                    "writeDisposition": bigquery.WriteDisposition.WRITE_EMPTY,
                    "destinationTableProperties": {"labels": self._table_labels},
                }
            }
        )
        with _explained(f"cannot load {paths[0]} into {destination}"):
            if self._table(table) is not None:
                return
            try:
                if all(path.startswith("gs://") for path in paths):
                    self._client.load_table_from_uri(list(paths), destination, job_config=config).result()
                else:
                    with tempfile.TemporaryFile() as stream:
                        # A load from here takes one file, and only one load is atomic.
                        _concatenate(paths, stream)
                        self._client.load_table_from_file(stream, destination, rewind=True, job_config=config).result()
            except exceptions.GoogleAPICallError as error:
                # WRITE_EMPTY refuses a table that is there by now, and the name carries the content's digest.
                if not _is_taken(error):
                    raise

    def _create(self, table, date, instant) -> Snapshot:
        """Makes the rows under a name of their own, then publishes them with their facts in one statement.

        CREATE TABLE refuses a name that is taken: of two launches at once, one publishes and the
        other finds the table there.
        """
        source = f"{self._dataset}.{self._labels}"
        with _explained(f"cannot make the snapshot {self._dataset}.{table}"):
            labels = self._table(self._labels)
            if labels is None:
                raise PipelineError(
                    f"there is no label table {source}: correct warehouse.project, warehouse.dataset or warehouse.labels "
                    "in the settings"
                )
            require_columns(_columns_of(labels), source)
            check_bounds(next(self._run(queries.label_bounds(self.address(self._labels)))), source, date)
            method = "clone"
            reason = self._no_clone(labels, instant)
            edits = self._labels
            if reason is None:
                edits = f"{table}_edits"
                self._clone(edits, instant)
            else:
                method = f"by the edits' own times: {reason}"
            staging = f"{table}_staging_{datetime.datetime.now(datetime.timezone.utc):%Y%m%d%H%M%S%f}"
            try:
                self._run(
                    # Gone in a day, should this process be killed.
                    f"CREATE TABLE {self.address(staging)} OPTIONS (expiration_timestamp = "
                    f"TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 1 DAY)) AS "
                    f"{queries.labels_as_of(self.address(edits))}",
                    {"as_of": instant},
                )
                rows, digest = self._content(staging)
                if rows == 0:
                    raise PipelineError(f"every label in {source} is withdrawn as of {date}: nothing is left to train on")
                facts = {
                    "source": source,
                    "as_of": instant.isoformat(),
                    "rows": rows,
                    "checksum": digest,
                    "schema_fingerprint": schema_fingerprint(_columns_of(self._client.get_table(f"{self._dataset}.{staging}"))),
                    "method": method,
                }
                self._create_unless_taken(
                    f"CREATE TABLE {self.address(table)} {self._options(_DESCRIBED + json.dumps(facts))} "
                    f"AS SELECT * FROM {self.address(staging)}"
                )
            finally:
                # If it cannot be deleted it goes in a day; what went wrong before that is what should be said.
                with contextlib.suppress(exceptions.GoogleAPICallError):
                    self._client.delete_table(f"{self._dataset}.{staging}", not_found_ok=True)
        recorded = self._recorded(table)
        if recorded is None:
            raise PipelineError(f"the snapshot {self._dataset}.{table} vanished while it was made: run again")
        return recorded

    def _no_clone(self, labels: bigquery.Table, instant: datetime.datetime) -> str | None:
        """Why the label table as it was at `instant` cannot be cloned; None when it can."""
        if labels.table_type != "TABLE":
            return f"the source is a {labels.table_type.lower().replace('_', ' ')}"
        if labels.created > instant:
            return "the label table was made later"
        hours = int(self._client.get_dataset(self._dataset)._properties.get("maxTimeTravelHours") or _TIME_TRAVEL_HOURS)
        if datetime.datetime.now(datetime.timezone.utc) - instant > datetime.timedelta(hours=hours - 1):
            return f"the label table's history reaches back {hours} hours only"
        return None

    def _clone(self, name: str, instant: datetime.datetime) -> None:
        self._create_unless_taken(
            f"CREATE SNAPSHOT TABLE {self.address(name)} CLONE {self.address(self._labels)} "
            f"FOR SYSTEM_TIME AS OF TIMESTAMP '{instant.isoformat()}' {self._options('The label table as it was then.')}"
        )

    def _create_unless_taken(self, statement: str) -> None:
        try:
            self._run(statement)
        except exceptions.GoogleAPICallError as error:
            if not _is_taken(error):
                raise

    def _options(self, description: str) -> str:
        options = [f"description = {_literal(description)}"]
        if self._expiry_days:
            end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=self._expiry_days)
            options.append(f"expiration_timestamp = TIMESTAMP '{end.isoformat(timespec='seconds')}'")
        if self._table_labels:
            pairs = ", ".join(f"({_literal(key)}, {_literal(value)})" for key, value in sorted(self._table_labels.items()))
            options.append(f"labels = [{pairs}]")
        return f"OPTIONS ({', '.join(options)})"

    def _recorded(self, table) -> Snapshot | None:
        with _explained(f"cannot reach {self._dataset}.{table}"):
            found = self._table(table)
        if found is None:
            return None
        facts = _read_description(found.description or "")
        if facts is None:
            raise PipelineError(
                f"the table {self._dataset}.{table} was not made by this pipeline (its description lacks the "
                "snapshot's facts): rename it, then run again"
            )
        return Snapshot(date=facts["as_of"][:10], table=table, uri=f"bigquery:{self._dataset}.{table}", **facts)

    def _table(self, name: str) -> bigquery.Table | None:
        try:
            return self._client.get_table(f"{self._dataset}.{name}")
        except exceptions.NotFound:
            return None

    def _columns(self, table) -> dict[str, str]:
        with _explained(f"cannot reach {self._dataset}.{table}"):
            return _columns_of(self._client.get_table(f"{self._dataset}.{table}"))

    def _content(self, table) -> tuple[int, str]:
        return content_of(next(self.rows(queries.content_sums(self.address(table)))))

    def _run(self, query, parameters=None) -> Iterator[bigquery.Row]:
        values = [
            bigquery.ScalarQueryParameter(name, _PARAMETER_TYPES[type(value)], value)
            for name, value in (parameters or {}).items()
        ]
        self._require_affordable(query, values)
        # The estimate is BigQuery's upper bound; should it ever be none, the job itself stops at the cap.
        config = bigquery.QueryJobConfig(query_parameters=values, maximum_bytes_billed=self._max_query_bytes)
        return iter(self._client.query(query, job_config=config).result())

    def _require_affordable(self, query, values) -> None:
        config = bigquery.QueryJobConfig(query_parameters=values, dry_run=True, use_query_cache=False)
        estimate = self._client.query(query, job_config=config).total_bytes_processed or 0
        if estimate > self._max_query_bytes:
            raise PipelineError(
                f"a query would read {estimate / 1e9:.2f} GB and may read {self._max_query_bytes / 1e9:.2f} GB: is "
                f"{self._dataset}.{self._labels} the right table? If so, raise warehouse.max_query_bytes in the settings"
            )


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns what the client raises into one sentence that says what to do."""
    try:
        yield
    except exceptions.Forbidden as error:
        raise PipelineError(
            f"{what}: {_first_line(error)}. Whoever runs this needs roles/bigquery.dataEditor on the data set and "
            "roles/bigquery.user on the project"
        ) from error
    except exceptions.TooManyRequests as error:
        raise PipelineError(f"{what}: {_first_line(error)}. The project's quota is used up: run again later") from error
    except exceptions.GoogleAPICallError as error:
        raise PipelineError(f"{what}: {_first_line(error)}") from error
    except GoogleAuthError as error:
        raise PipelineError(
            f"{what}: {error}. Give the machine a service account, or run `gcloud auth application-default login`"
        ) from error
    except (exceptions.RetryError, requests.RequestException, ConnectionError) as error:
        raise PipelineError(f"{what}: BigQuery did not answer ({error}). Check the network, then run again") from error


def _first_line(error: exceptions.GoogleAPICallError) -> str:
    # The client adds the job's id and place below.
    return error.message.split("\n")[0].strip()


def _is_taken(error: exceptions.GoogleAPICallError) -> bool:
    return isinstance(error, exceptions.Conflict) or "Already Exists" in str(error)


def _columns_of(table: bigquery.Table) -> dict[str, str]:
    return {
        field.name: f"ARRAY<{_TYPES.get(field.field_type, field.field_type)}>"
        if field.mode == "REPEATED"
        else _TYPES.get(field.field_type, field.field_type)
        for field in table.schema
    }


def _concatenate(paths, stream) -> None:
    """Writes Parquet files of one schema as one, a row group at a time."""
    with pq.ParquetWriter(stream, pq.read_schema(paths[0])) as writer:
        for path in paths:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group))


def _literal(text: str) -> str:
    """`text` as a string of BigQuery's dialect: https://cloud.google.com/bigquery/docs/reference/standard-sql/lexical."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _read_description(text: str) -> dict | None:
    if not text.startswith(_DESCRIBED):
        return None
    try:
        facts = json.loads(text.removeprefix(_DESCRIBED))
    except ValueError:
        return None
    names = {"source", "as_of", "rows", "checksum", "schema_fingerprint", "method"}
    return facts if isinstance(facts, dict) and facts.keys() == names else None
