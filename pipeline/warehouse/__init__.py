"""Where labels live: one interface, BigQuery and DuckDB behind it."""

import pydantic

from pipeline import typed
from pipeline.warehouse.base import LABEL_COLUMNS, MAX_QUERY_BYTES, Snapshot, Warehouse

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
        expiry_days, table_labels, max_query_bytes: `bigquery`: as in `WarehouseSettings`.
    """

    kind: str
    labels: str
    database: str = ""
    project: str = ""
    dataset: str = ""
    expiry_days: int = 0
    table_labels: dict[str, str] = pydantic.Field(default_factory=dict)
    max_query_bytes: int = MAX_QUERY_BYTES


def open_warehouse(location: Location, read_only: bool = False) -> Warehouse:
    """Opens the warehouse at `location`; use it in a `with` block, which closes it.

    Args:
        location: Where it is.
        read_only: Whether it is only to be asked. An embedded one is opened so; in BigQuery it is the account's rights that
            say who may write.
    """
    # Each implementation brings a client library that the other's users need not load.
    if location.kind == "duckdb":
        from pipeline.warehouse.duckdb import DuckDBWarehouse

        return DuckDBWarehouse(database=location.database, labels=location.labels, read_only=read_only)
    if location.kind == "bigquery":
        from pipeline.warehouse.bigquery import BigQueryWarehouse

        return BigQueryWarehouse(
            project=location.project,
            dataset=location.dataset,
            labels=location.labels,
            expiry_days=location.expiry_days,
            table_labels=location.table_labels,
            max_query_bytes=location.max_query_bytes,
        )
    raise ValueError(f"there is no warehouse of kind {location.kind!r}: duckdb or bigquery")
