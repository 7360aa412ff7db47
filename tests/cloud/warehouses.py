"""What tests do to BigQuery, by Google's own client."""

import datetime
import io
import itertools
import os
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from google.cloud import bigquery

from pipeline.warehouse import LABEL_COLUMNS, Location
from tests.cloud import google_apis

_numbers = itertools.count(1)


class BigQuery:
    """A client, and data sets that go with it. Use it in a `with` block.

    Attributes:
        google: The hosts behind it.
        client: Google's client.
        dataset: A data set of its own, empty.
    """

    def __init__(self, google: google_apis.GoogleApis):
        self.google = google
        self.client = bigquery.Client()
        self._datasets: list[str] = []

    def __enter__(self) -> "BigQuery":
        self.dataset = self.new_dataset()
        return self

    def __exit__(self, *exception) -> None:
        self.google.heal()
        for name in self._datasets:
            self.client.delete_dataset(name, delete_contents=True, not_found_ok=True)
        self.client.close()

    def new_dataset(self) -> str:
        """Makes another data set; returns its name."""
        name = f"retrain_{os.getpid()}_{next(_numbers)}"
        self.client.create_dataset(name)
        self._datasets.append(name)
        return name

    def address(self, table: str, dataset: str | None = None) -> str:
        """Project, data set and name of a table."""
        return f"{google_apis.PROJECT}.{dataset or self.dataset}.{table}"

    def load_labels(self, edits: Iterable[tuple], dataset: str | None = None) -> Location:
        """Makes the table `labels` of these edits; returns the warehouse's location."""
        dataset = dataset or self.dataset
        address = self.address("labels", dataset)
        self.client.create_table(
            bigquery.Table(address, [bigquery.SchemaField(name, kind) for name, kind in LABEL_COLUMNS.items()])
        )
        columns = list(zip(*edits, strict=True))
        if columns:
            times = [text and datetime.datetime.fromisoformat(text.replace("Z", "+00:00")) for text in columns[4]]
            arrays = [*map(pa.array, columns[:4]), pa.array(times, pa.timestamp("us", "UTC"))]
            stream = io.BytesIO()
            pq.write_table(pa.table(arrays, names=list(LABEL_COLUMNS)), stream)
            config = bigquery.LoadJobConfig(source_format="PARQUET", write_disposition="WRITE_APPEND")
            self.client.load_table_from_file(stream, address, rewind=True, job_config=config).result()
        return Location(kind="bigquery", labels="labels", project=google_apis.PROJECT, dataset=dataset)

    def rows(self, query: str) -> list[dict]:
        """Runs a query; returns its rows."""
        return [dict(row.items()) for row in self.client.query(query).result()]

    def tables(self, dataset: str | None = None) -> list[str]:
        """Names of the tables that there are."""
        return sorted(table.table_id for table in self.client.list_tables(dataset or self.dataset))
