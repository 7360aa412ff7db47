"""The input pipeline: order and pixels are a function of (seed, epoch) alone, and broken shards are named."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline, records, serving
from models.errors import TrainingError
from tests.models.conftest import jpeg, make_week

SIZES = {"image_size": 32, "short_side": 48}


def split_of(week, name="train"):
    return input_pipeline.read_split(name, week.labels(name), classes=3)


def read(split, epochs=range(0, 2), **changes):
    arguments = {"batch_size": 8, "epochs": epochs, "augmentation": 0.7, "seed": 5, **SIZES, **changes}
    batches = list(input_pipeline.training_dataset(split, **arguments).as_numpy_iterator())
    return np.stack([images for images, _ in batches]), np.stack([labels for _, labels in batches])


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


def drawn(seed):
    return tf.random.stateless_uniform([input_pipeline.DRAWS], [seed, 3])


def test_augmentation_depends_on_the_photograph_and_not_on_its_neighbours(week):
    content = next(iter(tf.data.TFRecordDataset(str(week.shards[0])).map(records.parse_image)))["image/encoded"]
    shape, draws = tf.io.extract_jpeg_shape(content)[:2], drawn(4)
    once = input_pipeline.augment(content, shape, 32, 48, 0.7, draws)
    assert np.array_equal(once, input_pipeline.augment(content, shape, 32, 48, 0.7, draws))
    assert not np.array_equal(once, input_pipeline.augment(content, shape, 32, 48, 0.7, drawn(5)))
    (mapped,) = tf.data.Dataset.from_tensors(content).map(lambda c: input_pipeline.augment(c, shape, 32, 48, 0.7, draws))
    assert np.array_equal(once, mapped)


@pytest.mark.parametrize("number", range(12))
def test_augmentation_is_what_it_says_one_step_after_the_other(number):
    """The colours are changed in one pass; here in the three that its description has."""
    content, strength, draws = jpeg(70, 48, (200, 90, 40), seed=number), 0.8, drawn(number)
    image = input_pipeline.augment(content, tf.constant([48, 70]), 32, 48, strength, draws)
    np.testing.assert_allclose(image, slowly_augmented(content, strength, draws.numpy().astype(float)), atol=0.01)


def slowly_augmented(content, strength, draws):
    area, ratio = 48 * 70 * (1 - 0.92 * strength * (1 - draws[0])), (4 / 3) ** (strength * (2 * draws[1] - 1))
    height, width = min(48, round((area / ratio) ** 0.5)), min(70, round((area * ratio) ** 0.5))
    top, left = int(draws[2] * (49 - height)), int(draws[3] * (71 - width))
    part = tf.io.decode_jpeg(content, dct_method="INTEGER_ACCURATE")[top : top + height, left : left + width]
    image = tf.image.resize(part, [32, 32]).numpy()
    if draws[4] < 0.5:
        image = image[:, ::-1]
    brightness, contrast, saturation = 1 + 0.4 * strength * (2 * draws[5:] - 1)
    mean = np.mean(part) * brightness
    image = mean + (image * brightness - mean) * contrast
    grey = image @ np.array([[0.299], [0.587], [0.114]])
    return np.clip(grey + (image - grey) * saturation, 0, 255)


def test_the_mean_of_a_large_photograph_does_not_overflow():
    # The bytes of the large one add up to more than 2 ** 31; of one colour, both should come out alike.
    large, small = (
        input_pipeline.augment(jpeg(side, side, (250, 250, 250), seed=1), tf.constant([side, side]), 32, side, 0.2, drawn(4))
        for side in (2000, 100)
    )
    assert abs(np.mean(large) - np.mean(small)) < 3


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
    assert f"shard-1.tfrecord: it holds {count} records, its label record is for 12" in input_pipeline.explain(split)


def test_damaged_shard(new_week):
    week = new_week()
    split = split_of(week)
    content = bytearray(week.shards[3].read_bytes())
    content[len(content) // 2] ^= 0xFF
    week.shards[3].write_bytes(content)
    with pytest.raises(tf.errors.DataLossError):
        read(split)
    assert "shard-3.tfrecord: record 5 is damaged: corrupted record at" in input_pipeline.explain(split)


def test_photograph_that_cannot_be_decoded(new_week):
    week = new_week()
    split = split_of(week)
    broken = records.encode_image(
        image_id="broken", encoded=b"no jpeg", width=1, height=1, source_sha256="", sha256=""
    )
    rewrite(week.shards[0], lambda content: [broken, *content[1:]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        read(split)
    assert "shard-0.tfrecord: photograph broken, record 0, is no JPEG" in input_pipeline.explain(split)


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
