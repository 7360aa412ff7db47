"""Where labels live: one interface, BigQuery and DuckDB behind it."""

from pipeline import typed
from pipeline.warehouse.base import LABEL_COLUMNS, Snapshot, Warehouse

__all__ = ["LABEL_COLUMNS", "Location", "Snapshot", "Warehouse", "open_warehouse"]


@typed.frozen
class Location:
    """Everything that opens a warehouse; plain data, so that it travels as an execution property.

    Attributes:
        kind: `duckdb` or `bigquery`.
        labels: `duckdb`: path of the label edits (CSV or Parquet). `bigquery`: name of the table.
        database: `duckdb`: path of the database file that keeps snapshots and indexes.
        project: `bigquery`: Google Cloud project.
        dataset: `bigquery`: data set of the label table, the snapshots and the indexes.
    """

    kind: str
    labels: str
    database: str = ""
    project: str = ""
    dataset: str = ""


def open_warehouse(location: Location) -> Warehouse:
    """Opens the warehouse at `location`; use it in a `with` block, which closes it."""
    # Each implementation brings a client library that the other's users need not load.
    if location.kind == "duckdb":
        from pipeline.warehouse.duckdb import DuckDBWarehouse

        return DuckDBWarehouse(database=location.database, labels=location.labels)
    if location.kind == "bigquery":
        from pipeline.warehouse.bigquery import BigQueryWarehouse

        return BigQueryWarehouse(project=location.project, dataset=location.dataset, labels=location.labels)
    raise ValueError(f"there is no warehouse of kind {location.kind!r}: duckdb or bigquery")
