"""The embedded warehouse, and what can be wrong with its files."""

import csv
import itertools
import subprocess
import sys

import duckdb
import pytest

from pipeline.errors import PipelineError
from pipeline.warehouse import Location, open_warehouse
from pipeline.warehouse.base import LABEL_COLUMNS
from pipeline.warehouse.duckdb import DuckDBWarehouse
from tests.pipeline.warehouse.conformance import EDITS, MONDAY, WarehouseConformance


def write_labels(path, edits, columns=tuple(LABEL_COLUMNS)):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(["\\N" if value is None else value for value in edit] for edit in edits)
    return path


class TestDuckDB(WarehouseConformance):
    @pytest.fixture
    def open_with(self, tmp_path):
        numbers = itertools.count()

        def make(edits):
            number = next(numbers)
            labels = write_labels(tmp_path / f"labels{number}.csv", edits)
            location = Location(kind="duckdb", labels=str(labels), database=str(tmp_path / f"{number}.duckdb"))
            return lambda: open_warehouse(location)

        return make


@pytest.fixture
def place(tmp_path):
    labels = write_labels(tmp_path / "labels.csv", EDITS)
    return Location(kind="duckdb", labels=str(labels), database=str(tmp_path / "warehouse.duckdb"))


def refusal(location, date=MONDAY) -> str:
    with open_warehouse(location) as warehouse, pytest.raises(PipelineError) as raised:
        warehouse.snapshot(date)
    return str(raised.value)


def test_a_later_edit_of_the_file_changes_no_snapshot(place):
    with open_warehouse(place) as warehouse:
        first = warehouse.snapshot(MONDAY)
    write_labels(place.labels, [("z", "p9", "cup", "import", "2026-02-25T08:00:00Z")])
    with open_warehouse(place) as warehouse:
        assert warehouse.snapshot(MONDAY) == first


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE labels_20260302 SET label = 'hat' WHERE image_id = 'a'",
        "DELETE FROM labels_20260302",
        "DROP TABLE labels_20260302",
        "ALTER TABLE labels_20260302 ADD COLUMN note VARCHAR",
        "ALTER TABLE labels_20260302 RENAME COLUMN label TO class",
    ],
)
def test_an_altered_snapshot_is_an_error_that_names_it(place, change):
    with open_warehouse(place) as warehouse:
        warehouse.snapshot(MONDAY)
    with duckdb.connect(place.database) as connection:
        connection.execute(change)
    text = refusal(place)
    assert "labels_20260302" in text and "never changed or overwritten" in text


def test_a_missing_label_file_names_the_flag(place):
    text = refusal(Location(kind="duckdb", labels=place.labels + ".gone", database=place.database))
    assert "labels.csv.gone" in text and "--data" in text


def test_a_missing_column_is_named(place):
    write_labels(place.labels, [("a", "p", "cup", "x")], ["image_id", "product_id", "label", "source"])
    assert "lacks the column(s) updated_at" in refusal(place)


def test_a_date_that_is_none_is_named(place):
    write_labels(place.labels, [("a", "p", "cup", "x", "last Tuesday")])
    assert "last Tuesday" in refusal(place)


def test_an_edit_without_an_image_is_refused(place):
    write_labels(place.labels, [("", "p", "cup", "x", "2026-02-25T08:00:00Z")])
    assert "without image_id" in refusal(place)


def test_a_ragged_line_is_refused_not_guessed(place):
    with open(place.labels, "a", encoding="utf-8") as stream:
        stream.write("a,p\n")
    assert "cannot read the label table" in refusal(place)


def test_digits_stay_text(place):
    write_labels(place.labels, [("0012", "007", "cup", "x", "2026-02-25T08:00:00Z")])
    with open_warehouse(place) as warehouse:
        row = next(warehouse.rows(f"SELECT * FROM {warehouse.address(warehouse.snapshot(MONDAY).table)}"))
    assert (row["image_id"], row["product_id"]) == ("0012", "007")


def test_a_failed_snapshot_leaves_no_table(place):
    write_labels(place.labels, [("a", "p", "", "x", "2026-02-25T08:00:00Z")])
    refusal(place)
    with duckdb.connect(place.database) as connection:
        assert connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall() == [("snapshots",)]


def test_a_file_that_is_no_database(tmp_path, place):
    (tmp_path / "text.duckdb").write_text("hello " * 3000)
    with pytest.raises(PipelineError, match="cannot open the warehouse"):
        open_warehouse(Location(kind="duckdb", labels=place.labels, database=str(tmp_path / "text.duckdb")))


def test_rows_of_two_queries_can_be_read_in_turn(place):
    with open_warehouse(place) as warehouse:
        table = warehouse.address(warehouse.snapshot(MONDAY).table)
        outer = warehouse.rows(f"SELECT image_id FROM {table} ORDER BY image_id")
        pairs = [(row["image_id"], len(list(warehouse.rows(f"SELECT * FROM {table}")))) for row in outer]
    assert pairs == [("a", 3), ("b", 3), ("c", 3)]


def test_a_warehouse_that_is_only_read_is_never_made_nor_changed(tmp_path):
    path = tmp_path / "w.duckdb"
    with pytest.raises(PipelineError, match="there is no warehouse .*w.duckdb: bring it back"):
        DuckDBWarehouse(str(path), "labels.csv", read_only=True)
    assert not path.exists()
    duckdb.connect(str(path)).close()
    before = path.read_bytes()
    with DuckDBWarehouse(str(path), "labels.csv", read_only=True) as place:
        assert place.present(["labels_20260302"]) == [] and next(place.rows("SELECT 1 AS one"))["one"] == 1
        with pytest.raises(PipelineError, match="holds no record of snapshots"):
            place.find("labels_20260302")
        with pytest.raises(duckdb.Error):
            place.load_parquet([], "x")
    assert path.read_bytes() == before


def test_a_warehouse_that_a_run_holds_is_told_to_be_in_use(tmp_path):
    path = tmp_path / "w.duckdb"
    holder = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(PipelineError, match="the warehouse .*w.duckdb is in use: a step of a run holds it"):
            DuckDBWarehouse(str(path), "labels.csv", read_only=True)
    finally:
        process.communicate("")
