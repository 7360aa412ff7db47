"""The queries, as far as their text alone decides; what they answer is in conformance.py."""

import csv
import datetime

import duckdb
import pytest

from pipeline.warehouse import LABEL_COLUMNS, Location, open_warehouse, queries
from tests.pipeline.warehouse.conformance import index_file


@pytest.mark.parametrize(
    ("train", "val", "bounds"),
    [
        (0.5, 0.25, ("80000000", "c0000000")),
        (0.8, 0.1, ("cccccccd", "e6666666")),
        (0.25, 0.75, ("40000000", "ffffffff")),  # never nine digits, which would sort before everything
        (1e-12, 0.5, ("00000000", "80000000")),
    ],
)
def test_shares_become_places_on_the_hash_line(train, val, bounds):
    assert queries.split_bounds(train, val) == bounds


@pytest.fixture
def splits(tmp_path):
    """f(rows of (image, product), group_by, salt) -> image -> split."""

    def run(pairs, group_by="product_id", salt="", train=0.5, val=0.25):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with open(folder / "labels.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(LABEL_COLUMNS)
            writer.writerows((image, product, "cup", "x", "2026-03-01T00:00:00Z") for image, product in pairs)
        location = Location(kind="duckdb", labels=str(folder / "labels.csv"), database=str(folder / "w.duckdb"))
        with open_warehouse(location) as warehouse:
            table = warehouse.address(warehouse.snapshot(datetime.date(2026, 3, 2)).table)
            warehouse.load_parquet([index_file(folder, [image for image, _ in pairs])], "image_index_1")
            query = queries.examples(table, warehouse.address("image_index_1"), group_by, salt, train, val)
            return {row["image_id"]: row["split"] for row in warehouse.rows(query)}

    return run


PAIRS = [(f"i{number:03d}", f"p{number // 2:03d}") for number in range(200)]


def test_additions_move_nobody(splits):
    before = splits(PAIRS)
    after = splits([*PAIRS, *((f"new{number}", f"q{number}") for number in range(50))])
    assert {image: after[image] for image in before} == before


def test_the_shares_nest_so_that_a_larger_train_split_keeps_its_images(splits):
    smaller, larger = splits(PAIRS, train=0.3), splits(PAIRS, train=0.6)
    train = {image for image, split in smaller.items() if split == "train"}
    assert train and all(larger[image] == "train" for image in train)


def test_another_salt_divides_otherwise(splits):
    assert splits(PAIRS, salt="a") != splits(PAIRS, salt="b")


def test_the_group_decides(splits):
    by_product, by_image = splits(PAIRS), splits(PAIRS, group_by="image_id")
    twins = [(f"i{number:03d}", f"i{number + 1:03d}") for number in range(0, 200, 2)]
    assert all(by_product[one] == by_product[other] for one, other in twins)
    assert any(by_image[one] != by_image[other] for one, other in twins)


def test_photographs_without_a_product_are_not_one_group(splits):
    assert len(set(splits([(f"i{number:03d}", "") for number in range(60)]).values())) == 3


def test_labels_can_come_as_parquet(tmp_path):
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT 'a' AS image_id, '007' AS product_id, 'cup' AS label, 'x' AS source, "
            f"TIMESTAMPTZ '2026-03-01 00:00:00+00' AS updated_at) TO '{tmp_path / 'labels.parquet'}'"
        )
    location = Location(kind="duckdb", labels=str(tmp_path / "labels.parquet"), database=str(tmp_path / "w.duckdb"))
    with open_warehouse(location) as warehouse:
        snapshot = warehouse.snapshot(datetime.date(2026, 3, 2))
        (row,) = warehouse.rows(f"SELECT image_id, product_id, label FROM {warehouse.address(snapshot.table)}")
    assert row == {"image_id": "a", "product_id": "007", "label": "cup"}
