"""What all warehouses share: dates, names, digests, and how one is opened."""

import datetime
import re

import pytest

from pipeline.errors import PipelineError
from pipeline.warehouse import Location, base, open_warehouse


@pytest.mark.parametrize("text", ["2026-03-02", "2024-02-29", "1999-12-31"])
def test_a_day_of_the_calendar(text):
    assert str(base.parse_date(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01", "2026-02-29", "2026-3-2", "2026-03-02T00:00", "02.03.2026", "next week!", "", "2026-03-00",
        "20260302", "20260302  ", "2026-W10-1",
    ],  # fmt: skip
)
def test_what_is_no_date_is_named_with_an_example(text):
    with pytest.raises(PipelineError) as raised:
        base.parse_date(text)
    assert repr(text) in str(raised.value) and "YYYY-MM-DD, such as 2026-03-02" in str(raised.value)


def test_a_snapshot_holds_the_edits_of_before_its_day_began():
    date = datetime.date(2026, 3, 2)
    assert base.as_of(date).isoformat() == "2026-03-02T00:00:00+00:00"
    assert base.snapshot_table(date) == "labels_20260302"


def sums(rows, *lanes) -> dict:
    return {"n": rows, **{f"lane_{number}": lane for number, lane in enumerate(lanes)}}


def test_the_checksum_depends_on_every_lane_and_on_the_number_of_rows():
    lanes = (1, 2, 3, 4, 5, 6, 7, 8)
    contents = [sums(8, *lanes), sums(9, *lanes), *(sums(8, *lanes[:n], 99, *lanes[n + 1 :]) for n in range(8))]
    # Sums that only run together to the same digits.
    contents += [sums(8, 12, 3, 4, 5, 6, 7, 8, 9), sums(8, 1, 23, 4, 5, 6, 7, 8, 9)]
    found = [base.content_of(content) for content in contents]
    assert [rows for rows, _ in found] == [8, 9] + [8] * 10
    assert len({digest for _, digest in found}) == 12
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for _, digest in found)


def test_an_empty_table_has_a_checksum():
    assert base.content_of(sums(0, *[None] * 8)) == base.content_of(sums(0, *[0] * 8))


@pytest.mark.parametrize("name", ["labels_20260302", "_x", "A1"])
def test_a_plain_identifier_stays_as_it_is(name):
    assert base.identifier(name) == name


@pytest.mark.parametrize("name", ["a`b", 'a"b', "a b", "a-b", "a.b", "1a", "", "é", "a\n", "a;--"])
def test_whatever_could_break_out_of_quotes_is_no_table_name(name):
    with pytest.raises(PipelineError) as raised:
        base.identifier(name)
    assert str(raised.value).startswith(f"{name!r} is no table name")


MONDAY = datetime.date(2026, 3, 2)


def first_edit(text) -> dict:
    first = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc)
    return {"edits": 1, "incomplete": 0, "first_edit": first, "last_edit": first}


def test_an_edit_from_the_last_moment_before_the_day_is_enough():
    base.check_bounds(first_edit("2026-03-01 23:59:59.999999"), "labels.csv", MONDAY)


@pytest.mark.parametrize(
    ("first", "date"),
    [("2026-03-02 00:00", "2026-03-03"), ("2026-03-02 23:59", "2026-03-03"), ("2026-12-31 08:00", "2027-01-01")],
)
def test_a_date_before_the_first_edit_names_the_first_that_works(first, date):
    with pytest.raises(PipelineError) as raised:
        base.check_bounds(first_edit(first), "labels.csv", MONDAY)
    for words in ["before 2026-03-02 in labels.csv", f"of {first} UTC", f"the first snapshot date is {date}"]:
        assert words in str(raised.value)
    base.check_bounds(first_edit(first), "labels.csv", datetime.date.fromisoformat(date))


def test_a_label_table_without_edits():
    with pytest.raises(PipelineError, match="the label table labels.csv is empty"):
        base.check_bounds({"edits": 0, "incomplete": 0, "first_edit": None, "last_edit": None}, "labels.csv", MONDAY)


def test_the_fingerprint_knows_names_types_and_order():
    columns = {"a": "STRING", "b": "TIMESTAMP"}
    others = [
        {"b": "TIMESTAMP", "a": "STRING"},
        {"a": "STRING", "b": "STRING"},
        {"a": "STRING", "c": "TIMESTAMP"},
        {"a": "STRING"},
    ]
    found = {base.schema_fingerprint(other) for other in [columns, *others]}
    assert len(found) == 5 and base.schema_fingerprint(dict(columns)) in found


def test_a_warehouse_of_another_kind():
    with pytest.raises(ValueError, match="no warehouse of kind 'oracle': duckdb or bigquery"):
        open_warehouse(Location(kind="oracle", labels="x"))
