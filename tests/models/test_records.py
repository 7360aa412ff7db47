"""Records: what is written is read, eagerly and inside tf.data, which differ."""

import numpy as np
import pytest
import tensorflow as tf

from models import records

IMAGE = records.encode_image(
    image_id="p1-a", encoded=b"\xff\xd8jpeg", width=300, height=256, source_sha256="ab", sha256="cd"
)
LABELS = records.encode_labels(shard_uri="gs://bucket/shard-1", shard_sha256="ef", shard_bytes=7, labels=[2, -1, 0])
LABELLED = records.encode_labelled(
    image_id="p1-a",
    product_id="p1",
    source="import",
    label="bird",
    label_index=3,
    encoded=b"\xff\xd8jpeg",
    width=300,
    height=256,
)


def eagerly(parse, record):
    return {name: value.numpy() for name, value in parse(tf.constant(record)).items()}


def inside_tf_data(parse, record):
    (row,) = tf.data.Dataset.from_tensors(record).map(parse).as_numpy_iterator()
    return row


@pytest.mark.parametrize("run", [eagerly, inside_tf_data])
def test_image(run):
    row = run(records.parse_image, IMAGE)
    assert row == {
        "image_id": b"p1-a",
        "image/encoded": b"\xff\xd8jpeg",
        "image/width": 300,
        "image/height": 256,
        "source/sha256": b"ab",
        "image/sha256": b"cd",
    }


@pytest.mark.parametrize("run", [eagerly, inside_tf_data])
def test_labels(run):
    row = run(records.parse_labels, LABELS)
    assert row.pop("labels").tolist() == [2, -1, 0]
    assert row == {"shard/uri": b"gs://bucket/shard-1", "shard/sha256": b"ef", "shard/bytes": 7, "shard/records": 3}


@pytest.mark.parametrize("run", [eagerly, inside_tf_data])
def test_labelled(run):
    row = run(records.parse_labelled, LABELLED)
    assert row == {
        "image_id": b"p1-a",
        "product_id": b"p1",
        "source": b"import",
        "label": b"bird",
        "label_index": 3,
        "image/encoded": b"\xff\xd8jpeg",
        "image/width": 300,
        "image/height": 256,
    }


def test_labelled_in_batches():
    rows = records.parse_labelled(tf.constant([LABELLED, LABELLED]))
    assert rows["label_index"].numpy().tolist() == [3, 3]


def test_labels_outside_the_graph():
    labels = records.decode_labels(LABELS)
    assert (labels.uri, labels.sha256, labels.bytes) == ("gs://bucket/shard-1", "ef", 7)
    np.testing.assert_array_equal(labels.labels, [2, -1, 0])
    assert records.decode_labels(records.encode_labels(shard_uri="s", shard_sha256="", shard_bytes=0, labels=[])).labels.size == 0


def test_what_is_no_label_record():
    with pytest.raises(ValueError, match="not a tf.train.Example"):
        records.decode_labels(b"\x00rubbish")
    with pytest.raises(ValueError, match="not a label record.*image/encoded"):
        records.decode_labels(IMAGE)
    example = tf.train.Example.FromString(LABELS)
    example.features.feature["shard/records"].int64_list.value[0] = 4
    with pytest.raises(ValueError, match="announces 4 labels and holds 3"):
        records.decode_labels(example.SerializeToString())


def test_same_bytes_each_time():
    again = records.encode_labels(shard_uri="gs://bucket/shard-1", shard_sha256="ef", shard_bytes=7, labels=np.array([2, -1, 0]))
    assert again == LABELS


def test_an_image_record_outside_the_graph():
    fields = {"image_id": "Ä", "encoded": b"\xff\xd8", "width": 3, "height": 4, "source_sha256": "ab", "sha256": "cd"}
    assert records.decode_image(records.encode_image(**fields)) == fields
    with pytest.raises(ValueError, match="not a tf.train.Example"):
        records.decode_image(b"\x00rubbish")
    with pytest.raises(ValueError, match="not an image record"):
        records.decode_image(LABELS)


def test_labels_outside_a_split_take_a_byte_each():
    few, many = (
        records.encode_labels(shard_uri="s", shard_sha256="ef", shard_bytes=7, labels=[records.NOT_IN_SPLIT] * count)
        for count in (10, 110)
    )
    assert len(many) - len(few) <= 105
