"""The production warehouse: BigQuery, through Google's client and application default credentials."""

import datetime
import re
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
from google.api_core import exceptions
from google.cloud import bigquery

from pipeline.errors import PipelineError
from pipeline.warehouse import queries
from pipeline.warehouse.base import (
    LABEL_COLUMNS,
    Snapshot,
    Warehouse,
    check_bounds,
    content_of,
    identifier,
    schema_fingerprint,
)

_PARAMETER_TYPES = {str: "STRING", int: "INT64", float: "FLOAT64", bool: "BOOL", datetime.datetime: "TIMESTAMP"}


class BigQueryWarehouse(Warehouse):
    """Label table, snapshots and shard indexes in one data set.

    A snapshot's facts are kept in its table's description, which BigQuery writes with the table, in
    one step.

    Args:
        project: Google Cloud project.
        dataset: Data set.
        labels: Name of the label table.
        client: A client to use instead of a new one for `project`.
    """

    RESTORE = "bring its first state back by time travel"

    def __init__(self, project: str, dataset: str, labels: str, client: bigquery.Client | None = None):
        self._dataset = f"{project}.{dataset}"
        self._labels = labels
        self._client = client or bigquery.Client(project=project)

    def close(self):
        self._client.close()

    def address(self, table):
        return f"`{self._dataset}.{identifier(table)}`"

    def rows(self, query, parameters=None):
        job = self._run(query, parameters)
        for row in job:
            yield dict(row.items())

    def load_parquet(self, paths, table):
        destination = f"{self._dataset}.{table}"
        config = bigquery.LoadJobConfig(
            source_format=bigquery.SourceFormat.PARQUET, write_disposition=bigquery.WriteDisposition.WRITE_EMPTY
        )
        try:
            if all(path.startswith("gs://") for path in paths):
                self._client.load_table_from_uri(list(paths), destination, job_config=config).result()
            else:
                with tempfile.TemporaryFile() as stream:
                    # A load from here takes one file, and only one load is atomic.
                    pq.write_table(pa.concat_tables([pq.read_table(path) for path in paths]), stream)
                    self._client.load_table_from_file(stream, destination, rewind=True, job_config=config).result()
        except exceptions.GoogleAPICallError as error:
            # WRITE_EMPTY refuses a table that is there, and the name carries the content's digest.
            if "Already Exists" not in str(error) and "duplicate" not in str(error):
                raise PipelineError(f"cannot load {paths[0]} into {destination}: {error.message}") from error

    def _create(self, table, date, instant) -> Snapshot:
        """Makes the rows under a name of their own, then publishes them with their facts in one statement.

        CREATE TABLE refuses a name that is taken: of two launches at once, one publishes and the
        other finds the table there.
        """
        bounds = next(self.rows(queries.label_bounds(self.address(self._labels))))
        check_bounds(bounds, f"{self._dataset}.{self._labels}", date)
        staging = f"{table}_staging_{datetime.datetime.now(datetime.timezone.utc):%Y%m%d%H%M%S%f}"
        config = bigquery.QueryJobConfig(
            query_parameters=[bigquery.ScalarQueryParameter("as_of", "TIMESTAMP", instant)],
            destination=f"{self._dataset}.{staging}",
            write_disposition=bigquery.WriteDisposition.WRITE_EMPTY,
        )
        try:
            self._client.query(queries.labels_as_of(self.address(self._labels)), job_config=config).result()
            rows, digest = self._content(staging)
            if rows == 0:
                raise PipelineError(
                    f"every label in {self.address(self._labels)} is withdrawn as of {date}: nothing is left to train on"
                )
            # The description holds identifiers, digits and a date only, so quoting it is safe.
            description = _describe(rows, digest, instant, f"{self._dataset}.{self._labels}")
            self._client.query(
                f"CREATE TABLE {self.address(table)} OPTIONS (description = '{description}') AS "
                f"SELECT * FROM {self.address(staging)}"
            ).result()
        except exceptions.GoogleAPICallError as error:
            if "Already Exists" not in str(error) and "duplicate" not in str(error):
                raise PipelineError(f"cannot make the snapshot {self._dataset}.{table}: {error.message}") from error
        finally:
            self._client.delete_table(f"{self._dataset}.{staging}", not_found_ok=True)
        recorded = self._recorded(table)
        if recorded is None:
            raise PipelineError(f"the snapshot {self._dataset}.{table} vanished while it was made: run again")
        return recorded

    def _recorded(self, name) -> Snapshot | None:
        try:
            table = self._client.get_table(f"{self._dataset}.{name}")
        except exceptions.NotFound:
            return None
        except exceptions.GoogleAPICallError as error:
            raise PipelineError(f"cannot reach {self._dataset}.{name}: {error.message}") from error
        facts = _read_description(table.description or "")
        if facts is None:
            raise PipelineError(
                f"the table {self._dataset}.{name} was not made by this pipeline (its description lacks the "
                "snapshot's facts): rename it, then run again"
            )
        return Snapshot(
            date=facts["as_of"][:10],
            as_of=facts["as_of"],
            table=name,
            uri=f"bigquery:{self._dataset}.{name}",
            source=facts["source"],
            rows=int(facts["rows"]),
            checksum=facts["checksum"],
            schema_fingerprint=schema_fingerprint(LABEL_COLUMNS),
        )

    def _content(self, table) -> tuple[int, str]:
        return content_of(next(self.rows(queries.content_sums(self.address(table)))))

    def _run(self, query, parameters):
        config = bigquery.QueryJobConfig(
            query_parameters=[
                bigquery.ScalarQueryParameter(name, _PARAMETER_TYPES[type(value)], value)
                for name, value in (parameters or {}).items()
            ]
        )
        try:
            return self._client.query(query, job_config=config).result()
        except exceptions.GoogleAPICallError as error:
            raise PipelineError(f"BigQuery refused a query: {error.message}") from error


def _describe(rows: int, digest: str, instant: datetime.datetime, source: str) -> str:
    return f"Label snapshot. rows={rows} checksum={digest} as_of={instant.isoformat()} source={source}"


def _read_description(text: str) -> dict[str, str] | None:
    found = re.fullmatch(
        r"Label snapshot\. rows=(?P<rows>\d+) checksum=(?P<checksum>[0-9a-f]{64}) as_of=(?P<as_of>\S+) source=(?P<source>\S+)",
        text,
    )
    return found.groupdict() if found else None
