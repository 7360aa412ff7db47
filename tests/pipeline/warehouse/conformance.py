"""What every warehouse must do; one class that each implementation's tests inherit."""

import datetime
import re

import pytest

from pipeline.errors import PipelineError
from pipeline.warehouse import Warehouse, queries
from pipeline.warehouse.base import LABEL_COLUMNS

MONDAY = datetime.date(2026, 3, 2)
NEXT = datetime.date(2026, 3, 9)

EDITS = [
    ("a", "p1", "cup", "import", "2026-02-25T08:00:00Z"),
    ("b", "p2", "cup", "import", "2026-02-25T08:00:01Z"),
    ("c", "p3", "hat", "import", "2026-02-25T08:00:02Z"),
    ("b", "p2", "hat", "ana", "2026-03-01T23:59:59Z"),  # the last second that belongs to 2 March
    ("c", "p3", "cup", "ana", "2026-03-02T00:00:00Z"),  # the first that does not
    ("a", "p1", "", "ben", "2026-03-04T09:00:00Z"),  # withdrawn
    ("d", "p4", "it's \"q\", é\n☃", "ben", "2026-03-05T09:00:00Z"),
    ("e", "p5", "cup", "ana", "2026-03-06T09:00:00Z"),
    ("e", "p5", "hat", "ben", "2026-03-06T09:00:00Z"),  # two edits at once: neither wins
]


class WarehouseConformance:
    """Inherit, and give `open_with(edits)`: a function that returns a way to open the warehouse anew."""

    @pytest.fixture
    def open_with(self, tmp_path):
        """Returns f(edits, columns) -> opener; the opener returns an open warehouse over those edits."""
        raise NotImplementedError

    def labels(self, warehouse: Warehouse, table: str):
        query = f"SELECT image_id, label FROM {warehouse.address(table)} ORDER BY image_id, label"
        return [(row["image_id"], row["label"]) for row in warehouse.rows(query)]

    def test_an_edit_counts_from_the_day_after_it(self, open_with):
        with open_with(EDITS)() as warehouse:
            snapshot = warehouse.snapshot(MONDAY)
            assert self.labels(warehouse, snapshot.table) == [("a", "cup"), ("b", "hat"), ("c", "hat")]
        assert (snapshot.table, snapshot.date, snapshot.rows) == ("labels_20260302", "2026-03-02", 3)
        assert snapshot.as_of == "2026-03-02T00:00:00+00:00"

    def test_withdrawn_images_are_left_out_and_ties_both_stay(self, open_with):
        with open_with(EDITS)() as warehouse:
            found = self.labels(warehouse, warehouse.snapshot(NEXT).table)
        assert [image for image, _ in found] == ["b", "c", "d", "e", "e"]
        assert found[2][1] == "it's \"q\", é\n☃"

    def test_a_label_that_is_null_is_left_for_the_gate_to_report(self, open_with):
        with open_with([*EDITS, ("f", "p6", None, "ana", "2026-03-06T09:00:00Z")])() as warehouse:
            assert self.labels(warehouse, warehouse.snapshot(NEXT).table)[-1] == ("f", None)

    @pytest.mark.parametrize("edit", [("", "p", "cup", "ana", EDITS[0][4]), (None, "p", "cup", "ana", EDITS[0][4]), ("a", "p", "cup", "ana", None)])
    def test_edits_of_no_image_or_no_time_are_counted(self, open_with, edit):
        with open_with([*EDITS, edit])() as warehouse, pytest.raises(PipelineError, match=r"1 edit\(s\) without image_id"):
            warehouse.snapshot(NEXT)

    def test_a_second_call_returns_the_same_snapshot_though_the_labels_moved_on(self, open_with):
        opener = open_with(EDITS)
        with opener() as warehouse:
            first = warehouse.snapshot(MONDAY)
        with opener() as warehouse:
            assert warehouse.snapshot(MONDAY) == first

    def test_the_checksum_tells_content_and_not_order(self, open_with):
        def checksum(edits):
            with open_with(edits)() as warehouse:
                return warehouse.snapshot(NEXT).checksum

        first = checksum(EDITS)
        assert re.fullmatch(r"[0-9a-f]{64}", first)
        assert checksum(EDITS[::-1]) == first
        assert checksum([*EDITS[:-1], ("e", "p5", "cap", "ben", "2026-03-06T09:00:00Z")]) != first
        # Moving a character from one column to the next is another content.
        assert checksum([("ab", "c", "x", "s", EDITS[0][4])]) != checksum([("a", "bc", "x", "s", EDITS[0][4])])

    def test_a_row_that_stands_there_twice_changes_the_checksum(self, open_with):
        with open_with([EDITS[0]])() as warehouse:
            once = warehouse.snapshot(MONDAY).checksum
        with open_with([EDITS[0]] * 3)() as warehouse:
            assert warehouse.snapshot(MONDAY).checksum != once

    def test_an_empty_table(self, open_with):
        with open_with([])() as warehouse, pytest.raises(PipelineError, match="is empty"):
            warehouse.snapshot(MONDAY)

    def test_a_date_before_the_first_label(self, open_with):
        with open_with(EDITS)() as warehouse, pytest.raises(PipelineError, match="(?s)before 2026-02-20.*2026-02-25"):
            warehouse.snapshot(datetime.date(2026, 2, 20))

    def test_a_date_that_is_not_over(self, open_with):
        future = datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=2)
        with open_with(EDITS)() as warehouse, pytest.raises(PipelineError, match="cannot be made yet"):
            warehouse.snapshot(future)

    def test_nothing_left_after_withdrawals(self, open_with):
        edits = [EDITS[0], EDITS[5]]
        with open_with(edits)() as warehouse, pytest.raises(PipelineError, match="withdrawn"):
            warehouse.snapshot(NEXT)

    def test_parameters_are_values_and_never_text(self, open_with):
        with open_with(EDITS)() as warehouse:
            value = "'; DROP TABLE x; --"
            assert list(warehouse.rows("SELECT @v AS v", {"v": value})) == [{"v": value}]

    @pytest.mark.parametrize("name", ["a`b", "a b", 'a"b', "a;b", "", "1a", "a.b"])
    def test_a_table_name_is_checked(self, open_with, name):
        with open_with(EDITS)() as warehouse, pytest.raises(PipelineError, match="no table name"):
            warehouse.address(name)

    def test_a_refused_query_is_a_clear_error(self, open_with):
        with open_with(EDITS)() as warehouse, pytest.raises(PipelineError, match="refused a query"):
            list(warehouse.rows("SELECT nothing FROM `nowhere`"))

    def test_a_group_never_straddles_two_splits_and_shares_hold(self, open_with, tmp_path):
        edits = [(f"i{n:04d}", f"p{n // 2:04d}", "cup", "import", EDITS[0][4]) for n in range(2000)]
        with open_with(edits)() as warehouse:
            table = warehouse.snapshot(MONDAY).table
            warehouse.load_parquet([index_file(tmp_path, [edit[0] for edit in edits])], "image_index_x")
            query = queries.examples(warehouse.address(table), warehouse.address("image_index_x"), "product_id", "", 0.8, 0.1)
            rows = list(warehouse.rows(query))
        splits = {}
        for row in rows:
            splits.setdefault(row["product_id"], set()).add(row["split"])
        assert len(rows) == 2000 and all(len(found) == 1 for found in splits.values())
        share = sum(row["split"] == "train" for row in rows) / len(rows)
        assert abs(share - 0.8) < 0.04
        assert {row["split"] for row in rows} == {"train", "val", "eval"}

    def test_orphans_duplicates_and_relabelled(self, open_with, tmp_path):
        with open_with(EDITS)() as warehouse:
            before, after = warehouse.snapshot(MONDAY).table, warehouse.snapshot(NEXT).table
            warehouse.load_parquet([index_file(tmp_path, ["b", "c", "e"])], "image_index_y")
            before, after, index = (warehouse.address(name) for name in (before, after, "image_index_y"))

            def rows(query, parameters=None):
                return list(warehouse.rows(query, parameters))

            strange = EDITS[6][2]
            assert rows(queries.orphans(after, index)) == [{"image_id": "d", "label": strange, "total": 1}]
            assert rows(queries.duplicates(after)) == [{"image_id": "e", "n": 2, "labels": "cup, hat", "total": 1}]
            assert rows(queries.confusions(after, before)) == [
                {"before_label": "hat", "after_label": "cup", "n": 1, "first_image": "c", "last_image": "c", "total": 1}
            ]
            assert rows(queries.common_images(after, before)) == [{"n": 2}]
            assert rows(queries.null_labels(after)) == rows(queries.null_images(after)) == []
            assert rows(queries.class_counts(after, 2)) == [
                {"label": "cup", "n": 2, "total": 5}, {"label": "hat", "n": 2, "total": 5},
            ]  # fmt: skip
            since = datetime.datetime(2026, 3, 5, 9, tzinfo=datetime.timezone.utc)
            newest = datetime.datetime(2026, 3, 6, 9, tzinfo=datetime.timezone.utc)
            assert rows(queries.edits_since(after), {"since": since}) == [{"n": 3, "newest": newest}]
            examples = queries.examples(after, index, "product_id", "", 0.3, 0.3)
            assert sum(row["n"] for row in rows(queries.split_sizes(examples))) == 4
            assert sum(row["n"] for row in rows(queries.class_counts(queries.eval_labels(examples), 9))) <= 4
            assert rows(queries.straddling(examples)) == []

    def test_loading_the_same_index_twice_is_harmless(self, open_with, tmp_path):
        path = index_file(tmp_path, ["a", "b"])
        with open_with(EDITS)() as warehouse:
            warehouse.load_parquet([path], "image_index_z")
            warehouse.load_parquet([path], "image_index_z")
            assert len(list(warehouse.rows(f"SELECT * FROM {warehouse.address('image_index_z')}"))) == 2

    def test_columns_have_their_types(self, open_with):
        with open_with(EDITS)() as warehouse:
            row = next(warehouse.rows(f"SELECT * FROM {warehouse.address(warehouse.snapshot(MONDAY).table)}"))
        assert list(row) == list(LABEL_COLUMNS)
        assert isinstance(row["updated_at"], datetime.datetime) and isinstance(row["image_id"], str)


def index_file(folder, image_ids) -> str:
    """A shard index with the columns that queries use."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"image_id": image, "shard": "s", "ordinal": n, "bytes": 1000, "width": 10, "height": 10}
        for n, image in enumerate(image_ids)
    ]
    path = str(folder / "index.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
