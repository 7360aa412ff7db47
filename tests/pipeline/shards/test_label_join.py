"""Labels meet the image shards: without pixels for training, with them for the judges."""

import dataclasses
import hashlib
import itertools

import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from models import records
from pipeline.errors import PipelineError
from pipeline.shards import label_join, sharder
from pipeline.shards.label_join import LabelledRow
from tests.pipeline.shards.conftest import shard_settings

CLASSES = {"cup": 0, "hat": 1}


@pytest.fixture
def generation(images, tmp_path):
    return sharder.pack_folder(images, tmp_path / "shards", shard_settings())


@pytest.fixture
def index(generation):
    return {row["image_id"]: row for row in pq.read_table(generation.index).to_pylist()}


@pytest.fixture
def rows(index):
    """Every second photograph, in the order of the shards."""
    labelled = [
        LabelledRow(
            image_id=image_id,
            product_id=f"product of {image_id}",
            label="cup" if number % 4 else "hat",
            source="ana",
            split="train",
            shard=place["shard"],
            ordinal=place["ordinal"],
        )
        for number, (image_id, place) in enumerate(index.items())
        if number % 2 == 0
    ]
    return sorted(labelled, key=lambda row: (row.shard, row.ordinal))


def made_up(count: int, label="cup", prefix="i") -> list[LabelledRow]:
    return [LabelledRow(f"{prefix}{number:05d}", "p", label, "ana", "train", "s", number) for number in range(count)]


def write_rows(path, rows, leave_out=()):
    """What SnapshotExampleGen writes."""
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for row in rows:
            example = tf.train.Example()
            for name, value in dataclasses.asdict(row).items():
                feature = example.features.feature[name]
                if isinstance(value, int):
                    feature.int64_list.value.append(value)
                elif name not in leave_out:
                    feature.bytes_list.value.append(value.encode())
            writer.write(example.SerializeToString())
    return str(path)


def written(path) -> list[bytes]:
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[::2])
def test_rows_come_in_the_order_of_the_shards_however_the_files_are_cut(tmp_path, rows, order):
    parts = [rows[::3], rows[1::3], rows[2::3]]
    paths = [write_rows(tmp_path / f"part-{number}", parts[part][::-1]) for number, part in enumerate(order)]
    assert label_join.read_rows(paths) == rows
    assert label_join.read_rows(paths[::-1]) == rows


@pytest.mark.parametrize("order", [1, -1])
def test_an_image_with_two_rows_has_its_one_label_or_none(tmp_path, rows, order, caplog):
    same, torn, *others = rows
    again = dataclasses.replace(same, product_id="zzz")
    other = dataclasses.replace(torn, label={"cup": "hat", "hat": "cup"}[torn.label])
    files = [[*others, again, torn], [other, same]]
    paths = [write_rows(tmp_path / f"part-{number}", part) for number, part in enumerate(files[::order])]
    assert label_join.read_rows(paths) == [same, *others]
    assert f"photograph {torn.image_id} is left out: it has the labels cup, hat" in caplog.text
    assert same.image_id not in caplog.text


def test_text_is_read_as_it_was_written_and_a_missing_one_is_empty(tmp_path):
    row = LabelledRow("Ärmel ☃", "", "it's \"q\"\n", "", "val", "s", 3)
    path = write_rows(tmp_path / "rows", [row], leave_out=("product_id", "source"))
    assert label_join.read_rows([path]) == [row]


def test_no_files_are_no_rows():
    assert label_join.read_rows([]) == []


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        ((100, 10), 0.12, (12, 1)),
        ((100, 10), 0.5, (50, 5)),
        ((3, 1), 0.01, (1, 1)),  # at least one of each class
        ((7, 8), 1.0, (7, 8)),
        ((1000, 40), 0.155, (155, 6)),
    ],
)
def test_a_sample_takes_its_share_of_each_class(counts, share, wanted):
    rows = made_up(counts[0], "cup") + made_up(counts[1], "hat", prefix="h")
    sample = label_join.stratified_sample(rows, share)
    assert tuple(sum(row.label == label for row in sample) for label in ("cup", "hat")) == wanted
    assert sample == [row for row in rows if row in set(sample)]


def test_a_sample_of_nothing():
    assert label_join.stratified_sample([], 0.5) == []


def test_a_sample_does_not_depend_on_the_order_of_the_rows():
    rows = made_up(50)
    assert set(label_join.stratified_sample(rows[::-1], 0.3)) == set(label_join.stratified_sample(rows, 0.3))


def test_additions_leave_most_of_a_sample_in_place():
    rows = made_up(200)
    before = {row.image_id for row in label_join.stratified_sample(rows, 0.2)}
    after = {row.image_id for row in label_join.stratified_sample(rows + made_up(20, prefix="new"), 0.2)}
    assert len(after) == 44 and len(before & after) >= 0.8 * len(before)
    # It is the hash that decides: the first ids of the alphabet are no sample.
    assert before != {row.image_id for row in rows[:40]}


def test_another_class_does_not_move_a_sample():
    rows = made_up(100)
    alone = label_join.stratified_sample(rows, 0.2)
    beside = label_join.stratified_sample(rows + made_up(70, "hat", prefix="h"), 0.2)
    assert [row for row in beside if row.label == "cup"] == alone


def test_label_records_have_a_label_for_every_record_of_their_shard(tmp_path, rows, generation, index):
    label_join.write_label_records(tmp_path / "deep" / "labels", rows, generation, CLASSES)
    found = [records.decode_labels(record) for record in written(tmp_path / "deep" / "labels")]
    assert [item.uri for item in found] == sorted({generation.shard_path(row.shard) for row in rows})
    labels = {row.image_id: CLASSES[row.label] for row in rows}
    facts = generation.shard_facts()
    for item in found:
        name = item.uri.rsplit("/", 1)[1]
        assert len(item.labels) == facts[name]["records"] == len(written(item.uri))
        assert item.sha256 == hashlib.sha256(open(item.uri, "rb").read()).hexdigest()
        in_order = sorted((row for row in index.values() if row["shard"] == name), key=lambda row: row["ordinal"])
        assert item.labels.tolist() == [labels.get(row["image_id"], records.NOT_IN_SPLIT) for row in in_order]
    assert sum((item.labels >= 0).sum() for item in found) == len(rows) == 6


def test_a_shard_without_a_photograph_of_the_split_has_no_label_record(tmp_path, rows, generation):
    label_join.write_label_records(tmp_path / "labels", rows[:1], generation, CLASSES)
    (found,) = [records.decode_labels(record) for record in written(tmp_path / "labels")]
    assert found.uri == generation.shard_path(rows[0].shard)


def test_labelled_examples_hold_the_right_pixels_for_the_right_id(tmp_path, rows, generation, index):
    label_join.write_labelled_examples(tmp_path / "examples", rows, generation, CLASSES)
    found = [records.parse_labelled(record) for record in written(tmp_path / "examples")]
    assert [item["image_id"].numpy().decode() for item in found] == [row.image_id for row in rows]
    for item, row in zip(found, rows, strict=True):
        place = index[row.image_id]
        assert hashlib.sha256(item["image/encoded"].numpy()).hexdigest() == place["sha256"]
        assert (item["image/width"], item["image/height"]) == (place["width"], place["height"])
        assert item["product_id"].numpy().decode() == f"product of {row.image_id}"
        assert (item["label"].numpy().decode(), item["label_index"]) == (row.label, CLASSES[row.label])
        assert item["source"].numpy() == b"ana"


def test_no_rows_give_an_empty_file(tmp_path, generation):
    label_join.write_labelled_examples(tmp_path / "examples", [], generation, CLASSES)
    assert written(tmp_path / "examples") == []


@pytest.mark.parametrize("write", [label_join.write_label_records, label_join.write_labelled_examples])
def test_a_label_that_the_schema_does_not_have_names_image_and_label(tmp_path, rows, generation, write):
    wrong = dataclasses.replace(rows[2], label="vehical")
    with pytest.raises(PipelineError) as raised:
        write(tmp_path / "out", [*rows[:2], wrong, *rows[3:]], generation, CLASSES)
    for words in [wrong.image_id, "'vehical'", "correct the label", "schema/schema.pbtxt"]:
        assert words in str(raised.value)


def test_an_index_that_disagrees_with_its_shard_is_an_error(tmp_path, rows, generation):
    moved = dataclasses.replace(rows[0], image_id="somebody else")
    words = r"shard-.*holds another photograph at \d+ than .*somebody else.*pack the photographs again"
    with pytest.raises(PipelineError, match=words):
        label_join.write_labelled_examples(tmp_path / "examples", [moved], generation, CLASSES)


@pytest.mark.parametrize("write", [label_join.write_label_records, label_join.write_labelled_examples])
@pytest.mark.parametrize("place", [{"ordinal": 10**6}, {"ordinal": -1}, {"shard": "shard-of-another-generation.tfrecord"}])
def test_a_row_of_another_generation_is_an_error_that_names_image_and_shard(tmp_path, rows, generation, write, place):
    wrong = dataclasses.replace(rows[0], **place)
    with pytest.raises(PipelineError) as raised:
        write(tmp_path / "out", [wrong, *rows[1:]], generation, CLASSES)
    assert f"image {wrong.image_id} should be record {wrong.ordinal} of {wrong.shard}" in str(raised.value)
