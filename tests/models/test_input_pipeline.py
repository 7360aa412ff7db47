"""The input pipeline: order and pixels are a function of (seed, epoch) alone, and broken shards are named."""

import hashlib
import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from models import input_pipeline, pixels, records, serving, tfrecords
from models.errors import TrainingError
from tests.models.conftest import jpeg, make_week

SIZES = {"image_size": 32, "short_side": 48}


def split_of(week, name="train"):
    return input_pipeline.read_split(name, week.labels(name), classes=3)


def read(split, epochs=range(0, 2), **changes):
    arguments = {"batch_size": 8, "epochs": epochs, "augmentation": 0.7, "seed": 5, **SIZES, **changes}
    batches = list(input_pipeline.training_dataset(split, **arguments).as_numpy_iterator())
    images = [pixels.recolour(images, colours) for images, colours, _ in batches]
    return np.stack(images), np.stack([labels for *_, labels in batches])


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_reads_the_split_and_nothing_else(week):
    split = split_of(week)
    assert split.examples == len(week.train_ids) == 36
    images, labels = read(split, range(1), batch_size=36, augmentation=0.0)
    assert images.shape == (1, 36, 32, 32, 3)
    assert images.dtype == np.float32 and images.min() >= 0 and 100 < images.max() <= 255
    # The pixels go with the labels: amber has the least blue of all, blue the least red.
    colours = images[0].mean(axis=(1, 2))
    assert ((colours[:, 0] > colours[:, 2] + 60) == (labels[0] == 0)).all()
    assert ((colours[:, 2] > colours[:, 0] + 60) == (labels[0] == 1)).all()


@pytest.mark.parametrize("readers", [2, 7])
def test_number_of_readers_changes_nothing(week, readers):
    split = split_of(week)
    assert same(read(split, readers=1), read(split, readers=readers))


def test_order_and_pixels_follow_seed_and_epoch(week):
    split = split_of(week)
    both = read(split, range(0, 2))
    images, labels = both
    steps = input_pipeline.steps_per_epoch(split, 8)
    assert steps == 4 and len(images) == 2 * steps
    # A training that resumes at epoch 1 reads what an unbroken one does.
    assert same(read(split, range(1, 2)), (images[steps:], labels[steps:]))
    assert not np.array_equal(images[:steps], images[steps:])
    assert not same(read(split, seed=6), both)


def test_each_epoch_has_each_photograph_at_most_once(week):
    images, _ = read(split_of(week), range(1), augmentation=0.0)
    assert len({image.tobytes() for batch in images for image in batch}) == 32


def test_validation_is_the_centre_as_it_is_served(week):
    split = split_of(week, "val")
    batches = list(input_pipeline.validation_dataset(split, batch_size=4, **SIZES))
    assert [len(labels) for _, labels in batches] == [4, 2]
    stored = [
        row["image/encoded"]
        for row in tf.data.TFRecordDataset(tf.io.gfile.glob(week.labelled("val")[0])).map(records.parse_labelled)
    ]
    served = tf.stack([serving.pixels(content, 32, 48) for content in stored])
    np.testing.assert_array_equal(tf.concat([images for images, _ in batches], 0), served)


def test_labelled_examples_read_like_shards(week):
    labelled = input_pipeline.read_labelled_split("train", week.labelled("train"), 3)
    assert labelled.examples == 36
    images, labels = read(labelled, range(1), batch_size=36)
    assert images.shape == (1, 36, 32, 32, 3)
    assert sorted(labels[0].tolist()) == sorted([0] * 12 + [1] * 12 + [2] * 12)


def test_missing_shard(new_week):
    week = new_week()
    week.shards[2].unlink()
    with pytest.raises(TrainingError, match=r"1 of 4 image shards are missing.*shard-2\.tfrecord"):
        split_of(week)


def rewrite(path, change):
    content = change([record.numpy() for record in tf.data.TFRecordDataset(str(path))])
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in content:
            writer.write(record)


@pytest.mark.parametrize(
    "change, count", [(lambda content: content[:-1], 11), (lambda content: content + content[:1], 13)]
)
def test_shard_with_another_number_of_records(new_week, change, count):
    week = new_week()
    split = split_of(week)
    rewrite(week.shards[1], change)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shard-1\.tfrecord has another number of records"):
        read(split)
    found = input_pipeline.explain(split)
    assert f"1 altered ({week.shards[1]}: it holds {count} records, its label record is for 12" in found


def frames(path):
    with open(path, "rb") as stream:
        return list(tfrecords.read(stream))


def flip(path, *places):
    """Changes bytes, each given as (record, byte of its frame): the first twelve are its length and that one's checksum."""
    content, whole = bytearray(path.read_bytes()), frames(path)
    for record, byte in places:
        content[whole[record].offset + byte] ^= 0xFF
    path.write_bytes(content)


def test_damaged_shard(new_week):
    week = new_week()
    split = split_of(week)
    offset = frames(week.shards[3])[5].offset
    flip(week.shards[3], (5, 100))
    with pytest.raises(tf.errors.DataLossError):
        read(split)
    assert input_pipeline.explain(split) == (
        f"the train split cannot be read. Of 4 image shards: 1 damaged ({week.shards[3]}). Records: 1 damaged; the first in "
        f"{week.shards[3]}: record 5 at byte {offset} does not fit its checksum. Restore the shards from a backup, or pack "
        "the photographs again, into another folder"
    )


def test_every_damaged_record_is_counted_and_those_behind_a_broken_length_too(new_week):
    week = new_week()
    split = split_of(week)
    flip(week.shards[0], (2, 100), (9, 100))
    flip(week.shards[1], (4, 0))  # its length: records 5 to 11 cannot be found
    cut = frames(week.shards[2])[10].offset + 3
    week.shards[2].write_bytes(week.shards[2].read_bytes()[:cut])
    found = input_pipeline.explain(split)
    assert f"3 damaged ({week.shards[0]}, {week.shards[1]}, {week.shards[2]})" in found
    assert "Records: 4 damaged, 8 more cannot be found behind them" in found
    assert f"the first in {week.shards[0]}: record 2 at byte" in found


def test_a_shard_that_storage_does_not_give(new_week):
    week = new_week()
    split = split_of(week)
    week.shards[1].unlink()
    week.shards[1].mkdir()
    found = input_pipeline.explain(split)
    assert f"Of 4 image shards: 1 unreadable ({week.shards[1]}: " in found and "directory" in found
    assert "See to it that storage gives" in found and "Restore" not in found


def test_each_kind_of_damage_is_counted_and_the_message_stays_short(new_week):
    week = new_week(shards=40, each=8)
    split = split_of(week)
    shards = sorted(week.shards)
    for shard in shards[0:10]:
        shard.unlink()
    for shard in shards[10:27]:
        flip(shard, (0, 100), (7, 100))
    for shard in shards[27:31]:
        shard.write_bytes(shards[31].read_bytes())
    found = input_pipeline.explain(split)
    assert f"10 missing ({shards[0]}, {shards[1]}, {shards[2]} and 7 more)" in found
    assert f"17 damaged ({shards[10]}, {shards[11]}, {shards[12]} and 14 more)" in found
    assert f"4 altered ({shards[27]}: its bytes are not those" in found and "and 1 more)" in found
    assert "Records: 34 damaged; the first" in found
    assert found.count("shard-") == 3 + 3 + 3 + 1 and "\n" not in found


def broken_record(name, encoded, size):
    return records.encode_image(image_id=name, encoded=encoded, source_sha256="", sha256="", **size)


def png():
    content = io.BytesIO()
    Image.new("RGB", (48, 48)).save(content, "PNG")
    return content.getvalue()


@pytest.mark.parametrize(
    "encoded, height",
    [(b"no jpeg", 1), (b"", 1), (png(), 48), (jpeg(48, 48)[:-300], 48), (jpeg(48, 48), 200), (jpeg(48, 48), 0)],
    ids=["text", "nothing", "a PNG", "cut short", "higher than its record says", "no height"],
)
def test_photograph_that_cannot_be_decoded(new_week, encoded, height):
    week = new_week(shards=2)
    split = split_of(week)
    broken = broken_record("broken", encoded, {"width": 48, "height": height})
    rewrite(week.shards[0], lambda content: [content[0], broken, *content[2:]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        read(split, augmentation=0.0)
    found = input_pipeline.explain(split)
    assert f"1 altered ({week.shards[0]}: its bytes" in found
    assert (
        f"Photographs: 1 cannot be decoded; the first in {week.shards[0]}: photograph broken, record 1, is no JPEG" in found
    )


def test_photographs_that_were_packed_broken(tmp_path):
    """Their shards are as they were packed: no backup helps, and what another split has of them is not its matter."""
    path = tmp_path / "shard"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name in ("a", "b", "c", "d"):
            content = jpeg() if name == "a" else b"no jpeg"
            writer.write(broken_record(name, content, {"width": 48, "height": 48}))
    with tf.io.TFRecordWriter(str(tmp_path / "labels")) as writer:
        content = path.read_bytes()
        facts = {"shard_sha256": hashlib.sha256(content).hexdigest(), "shard_bytes": len(content)}
        writer.write(records.encode_labels(shard_uri=str(path), labels=[0, -1, 1, 2], **facts))
    found = input_pipeline.explain(input_pipeline.read_split("val", [str(tmp_path / "labels")], 3))
    assert found.startswith(
        f"the val split cannot be read. Photographs: 2 cannot be decoded; the first in {path}: photograph c, record 2, is no"
    )
    assert "Withdraw the labels" in found and "Restore" not in found


def test_records_of_another_kind(new_week):
    week = new_week()
    split = split_of(week)
    rewrite(week.shards[0], lambda content: [b"\x07" * 20_000, *content[1:]])
    found = input_pipeline.explain(split)
    assert f"in {week.shards[0]}: record 0 at byte 0 cannot be parsed: not a tf.train.Example" in found
    path = pathlib.Path(tf.io.gfile.glob(week.labelled("train"))[0])
    labelled = input_pipeline.read_labelled_split("train", week.labelled("train"), 3)
    rewrite(path, lambda content: [b"\x07" * 20_000, *content[1:]])
    found = input_pipeline.explain(labelled)
    assert f"in {path}: record 0 at byte 0 cannot be parsed" in found and len(found) < 1000 + 3 * len(str(path))


def test_damaged_labelled_examples(new_week):
    week = new_week()
    path = pathlib.Path(tf.io.gfile.glob(week.labelled("train"))[0])
    split = input_pipeline.read_labelled_split("train", week.labelled("train"), 3)
    assert input_pipeline.explain(split) is None
    flip(path, (3, 100), (20, 0))
    found = input_pipeline.explain(split)
    assert f"Of 1 files: 1 damaged ({path}). Records: 2 damaged, 15 more cannot be found behind them; the first" in found
    assert f"in {path}: record 3 at byte" in found and "LabelJoin" in found


def test_looking_for_damage_tells_how_far_it_is(week, monkeypatch, caplog):
    monkeypatch.setattr(input_pipeline, "SECONDS_BETWEEN_REPORTS", 0.0)
    with caplog.at_level("INFO", "models.input_pipeline"):
        input_pipeline.explain(split_of(week))
    assert "the train split cannot be read: all of its 4 image shards are read once more" in caplog.text
    assert "read 2 of 4 image shards again, found fault with 0" in caplog.text


def test_nothing_wrong_is_nothing_to_explain(week):
    assert input_pipeline.explain(split_of(week)) is None


def test_shard_replaced_by_another(new_week):
    week = new_week()
    split = split_of(week)
    week.shards[0].write_bytes(week.shards[1].read_bytes())
    assert "not those of its label record's digest" in input_pipeline.explain(split)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x"])
def test_a_shard_of_another_size_is_refused_before_anything_is_read(tmp_path, change):
    week = make_week(tmp_path)
    week.shards[1].write_bytes(change(week.shards[1].read_bytes()))
    with pytest.raises(TrainingError, match=r"image shard .* bytes, its label record says .*altered.*Restore") as raised:
        split_of(week)
    assert str(week.shards[1]) in str(raised.value)


def test_empty_and_wrong_label_files(tmp_path):
    with pytest.raises(TrainingError, match="the val split has no files.*nothing-here"):
        input_pipeline.read_split("val", [str(tmp_path / "nothing-here*")], 3)

    def write(*labels):
        with tf.io.TFRecordWriter(str(tmp_path / "labels")) as writer:
            for each in labels:
                writer.write(records.encode_labels(shard_uri="/data/shard-9", shard_sha256="", shard_bytes=1, labels=each))
        return [str(tmp_path / "labels")]

    with pytest.raises(TrainingError, match="the train split is empty"):
        input_pipeline.read_split("train", write([-1, -1]), 3)
    with pytest.raises(TrainingError, match="shard-9 names class 3; the schema has 3"):
        input_pipeline.read_split("train", write([0, 3]), 3)
    with pytest.raises(TrainingError, match="shard-9 has two label records"):
        input_pipeline.read_split("train", write([0], [1]), 3)
    pathlib.Path(tmp_path / "labels").write_bytes(b"not a TFRecord file at all")
    with pytest.raises(TrainingError, match="labels cannot be read"):
        input_pipeline.read_split("train", [str(tmp_path / "labels")], 3)


def test_examples_of_each_class(week):
    split = split_of(week)
    labels = read(split, range(1), batch_size=36)[1]
    wanted = np.bincount(labels[0], minlength=3)
    for each in (split, input_pipeline.read_labelled_split("train", week.labelled("train"), 3)):
        counts = input_pipeline.class_counts(each)
        assert counts.dtype == np.int64 and counts.tolist() == wanted.tolist()
        input_pipeline.require_every_class(each, ("amber", "blue", "chalk"))


def test_a_class_without_photographs_is_named(week):
    for read_one, patterns in (
        (input_pipeline.read_split, week.labels("train")), (input_pipeline.read_labelled_split, week.labelled("train")),
    ):  # fmt: skip
        with pytest.raises(TrainingError) as raised:
            input_pipeline.require_every_class(read_one("train", patterns, 4), ("amber", "blue", "chalk", "dune"))
        assert str(raised.value) == (
            "the train split has no photograph of 1 of 4 classes: 'dune'. Remove it from schema/schema.pbtxt, or label "
            "photographs of it"
        )
    many = ["amber", "blue", "chalk", *(f"class-{number}" for number in range(30))]
    with pytest.raises(TrainingError, match="of 30 of 33 classes: 'class-0', .*'class-9' and 20 more. Remove them"):
        input_pipeline.require_every_class(input_pipeline.read_split("train", week.labels("train"), 33), many)


def test_a_labelled_example_of_no_class_is_refused(week):
    split = input_pipeline.read_labelled_split("train", week.labelled("train"), 2)
    with pytest.raises(TrainingError, match="examples, of the train split, names class 2; .* has 2.*Run the week again"):
        input_pipeline.class_counts(split)
