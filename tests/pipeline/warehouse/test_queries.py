"""The queries, as far as their text alone decides; what they answer is in conformance.py."""

import csv
import datetime

import duckdb
import pytest
import sqlglot

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


EVERY = {
    "class_counts": queries.class_counts("`s`", 5),
    "duplicates": queries.duplicates("`s`"),
    "orphans": queries.orphans("`s`", "`i`"),
    "null_labels": queries.null_labels("`s`"),
    "null_images": queries.null_images("`s`"),
    "straddling": queries.straddling("SELECT * FROM `e`"),
    "confusions": queries.confusions("`s`", "`b`"),
}


@pytest.mark.parametrize("name", EVERY)
def test_what_the_gate_asks_is_bounded_ordered_and_bigquery(name):
    statement = sqlglot.parse_one(EVERY[name], read="bigquery")
    assert int(statement.args["limit"].expression.name) <= queries.EXAMPLES
    # Examples of one snapshot are the same in every run.
    assert statement.args["order"] is not None
    assert "total" in statement.named_selects or statement.is_star


@pytest.fixture
def answers():
    """f(query, rows of the snapshot `s` and of the baseline `b`) -> rows."""

    def run(query, rows=(), before=()):
        with duckdb.connect() as connection:
            for table, content in (("s", rows), ("b", before)):
                connection.execute(f"CREATE TABLE {table} (image_id VARCHAR, product_id VARCHAR, label VARCHAR)")
                if content:
                    connection.executemany(f"INSERT INTO {table} VALUES (?, 'p', ?)", list(content))
            connection.execute("CREATE TABLE i (image_id VARCHAR)")
            (statement,) = sqlglot.transpile(query, read="bigquery", write="duckdb")
            return connection.execute(statement).fetchall()

    return run


MANY = [(f"i{number:02d}", "cup") for number in range(20)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        (EVERY["duplicates"], ("i00", 2, "cup", 20)),
        (EVERY["orphans"], ("i00", "cup", 20)),
        (queries.null_labels("(SELECT image_id, NULL AS label FROM `s`)"), ("i00", 40)),
        (queries.null_images("(SELECT '' AS image_id, product_id, image_id AS label FROM `s`)"), ("p", "i00", 40)),
    ],
)
def test_a_few_examples_in_the_order_of_their_ids_and_the_number_of_all(answers, query, first):
    found = answers(query, [*MANY[::-1], *MANY])
    assert len(found) == queries.EXAMPLES and found[0] == first
    assert found == answers(query, [*MANY, *MANY[::-1]]) and {row[-1] for row in found} == {first[-1]}


@pytest.mark.parametrize("query", EVERY.values(), ids=EVERY)
def test_without_rows_there_is_no_answer(answers, query):
    if "`e`" not in query:
        assert answers(query) == []


def test_confusions_are_counted_by_label_before_and_after_the_commonest_first(answers):
    before = [*MANY, ("x", "hat"), ("y", "hat"), ("z", None)]
    changed = [(image, "hat" if number < 15 else "tie") for number, (image, _) in enumerate(MANY)]
    after = [*changed, ("x", "cup"), ("y", None), ("z", "cup")]
    assert answers(EVERY["confusions"], after, before) == [
        ("cup", "hat", 15, "i00", "i14", 21), ("cup", "tie", 5, "i15", "i19", 21), ("hat", "cup", 1, "x", "x", 21),
    ]  # fmt: skip


def test_an_image_with_two_labels_is_confused_once_and_never_with_itself(answers):
    assert answers(EVERY["confusions"], [("a", "cup"), ("a", "hat")], [("a", "cup"), ("a", "hat")]) == []
    assert answers(EVERY["confusions"], [("a", "cup"), ("a", "hat")], [("a", "tie")]) == [("tie", "cup", 1, "a", "a", 1)]


def test_labels_are_counted_the_commonest_first_and_null_as_none(answers):
    rows = [("a", "cup"), ("b", None), ("c", ""), ("d", "hat"), ("e", "hat"), ("f", "hat")]
    assert answers(queries.class_counts("`s`", 2), rows) == [("hat", 3, 6), ("", 2, 6)]
