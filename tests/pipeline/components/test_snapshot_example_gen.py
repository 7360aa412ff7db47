"""The query of a week's Examples: one pattern for every run, the addresses of this one's tables put in."""

import pytest
import tensorflow as tf

from pipeline.artifacts import ImageShards, LabelSnapshot
from pipeline.components import facts, snapshot_example_gen
from pipeline.errors import PipelineError
from pipeline.settings import SplitSettings
from pipeline.warehouse import Location, open_warehouse, queries


def artifacts(table="labels_20260302", index="image_index_0123"):
    snapshot, shards = LabelSnapshot(), ImageShards()
    facts.record(snapshot, {"table": table})
    facts.record(shards, {"index_table": index})
    return snapshot, shards


@pytest.fixture
def warehouse(tmp_path):
    with open_warehouse(Location(kind="duckdb", labels="none.csv", database=str(tmp_path / "w.duckdb"))) as warehouse:
        yield warehouse


SPLITS = SplitSettings(train=0.6, val=0.15, group_by="image_id", salt="5938")


def test_the_pattern_is_the_same_every_week_and_has_places_for_two_tables():
    pattern = snapshot_example_gen.pattern_of(SPLITS)
    assert pattern.count("{snapshot}") == pattern.count("{index}") == 1
    assert pattern == queries.examples("{snapshot}", "{index}", "image_id", "5938", 0.6, 0.15)


def test_the_tables_of_the_run_stand_in_the_query(warehouse):
    query = snapshot_example_gen.query_of(snapshot_example_gen.pattern_of(SPLITS), warehouse, *artifacts())
    assert "FROM `labels_20260302` AS s JOIN `image_index_0123` AS i" in query
    assert "{" not in query and "'5938'" in query


def test_a_table_name_that_is_none_never_becomes_part_of_a_query(warehouse):
    pattern = snapshot_example_gen.pattern_of(SPLITS)
    with pytest.raises(PipelineError, match="no table name"):
        snapshot_example_gen.query_of(pattern, warehouse, *artifacts(table="labels` --"))


@pytest.mark.parametrize(("split", "number"), [("train", 0), ("val", 1), ("eval", 2)])
def test_a_row_goes_to_the_split_that_the_query_gave_it(split, number):
    example = tf.train.Example()
    example.features.feature["split"].bytes_list.value.append(split.encode())
    assert snapshot_example_gen._split_of(example, 3) == number
