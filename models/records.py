"""The records that training reads: what is in them, how they are written and how they are parsed.

Three kinds, each a tf.train.Example in an uncompressed TFRecord file:

    image      one photograph of an image shard: pixels, size, digests; no label
    label      the labels of one image shard for one split, in the shard's own order; no pixels
    labelled   one photograph with its label: the eval split and the tuning sample
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

NOT_IN_SPLIT = -1
"""The label, in a label record, of an image that the split does not have."""


_IMAGE_TEXTS = {
    "image_id": "image_id",
    "encoded": "image/encoded",
    "source_sha256": "source/sha256",
    "sha256": "image/sha256",
}
_IMAGE_SIZES = {"width": "image/width", "height": "image/height"}


def encode_image(
    *, image_id: str, encoded: bytes, width: int, height: int, source_sha256: str, sha256: str
) -> bytes:
    """Serializes an image record.

    Args:
        image_id: The photograph's id.
        encoded: JPEG, already resized to the shards' short side.
        width: Pixels of the JPEG.
        height: Pixels of the JPEG.
        source_sha256: Digest, in hex, of the file that the photograph came as.
        sha256: Digest, in hex, of `encoded`.

    Returns:
        A serialized tf.train.Example.
    """
    return _serialize(
        {
            "image_id": image_id,
            "image/encoded": encoded,
            "image/width": width,
            "image/height": height,
            "source/sha256": source_sha256,
            "image/sha256": sha256,
        }
    )


def encode_labels(*, shard_uri: str, shard_sha256: str, shard_bytes: int, labels: Sequence[int]) -> bytes:
    """Serializes a label record.

    Args:
        shard_uri: Path or URI of the image shard.
        shard_sha256: Digest, in hex, of the image shard.
        shard_bytes: Size of the image shard.
        labels: int [n]; one class index for each of the shard's n records, in its order, and
            `NOT_IN_SPLIT` for those that the split does not have.

    Returns:
        A serialized tf.train.Example.
    """
    labels = np.asarray(labels, np.int64)
    return _serialize(
        {
            "shard/uri": shard_uri,
            "shard/sha256": shard_sha256,
            "shard/bytes": shard_bytes,
            "shard/records": len(labels),
            # One more, because a negative number takes ten bytes and most labels of `val` are NOT_IN_SPLIT.
            "labels": labels - NOT_IN_SPLIT,
        }
    )


def encode_labelled(
    *,
    image_id: str,
    product_id: str,
    source: str,
    label: str,
    label_index: int,
    encoded: bytes,
    width: int,
    height: int,
) -> bytes:
    """Serializes a labelled example.

    Args:
        image_id: The photograph's id.
        product_id: Id of the product that it shows.
        source: Where the label came from.
        label: Class name.
        label_index: Index of the class in the schema's domain of `label`.
        encoded: JPEG, as in the image record.
        width: Pixels of the JPEG.
        height: Pixels of the JPEG.

    Returns:
        A serialized tf.train.Example.
    """
    return _serialize(
        {
            "image_id": image_id,
            "product_id": product_id,
            "source": source,
            "label": label,
            "label_index": label_index,
            "image/encoded": encoded,
            "image/width": width,
            "image/height": height,
        }
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ShardLabels:
    """A label record as Python reads it.

    Attributes:
        uri: Path or URI of the image shard.
        sha256: Digest, in hex, of the image shard.
        bytes: Size of the image shard.
        labels: int64 [n]; n is the number of records that the shard must have.
    """

    uri: str
    sha256: str
    bytes: int
    labels: np.ndarray


def decode_labels(record: bytes) -> ShardLabels:
    """Parses a label record outside the graph.

    Raises:
        ValueError: It is no label record, or its count and its labels disagree.
    """
    try:
        feature = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's own type differs between its implementations
        raise ValueError("not a tf.train.Example") from error
    if not {"shard/uri", "shard/sha256", "shard/bytes", "shard/records"} <= set(feature):
        raise ValueError(f"not a label record: its features are {sorted(feature)}")
    labels = np.array(feature["labels"].int64_list.value, np.int64) + NOT_IN_SPLIT
    (size,) = feature["shard/bytes"].int64_list.value
    (records,) = feature["shard/records"].int64_list.value
    (uri,) = feature["shard/uri"].bytes_list.value
    (sha256,) = feature["shard/sha256"].bytes_list.value
    if len(labels) != records:
        raise ValueError(f"the label record of {uri.decode()} announces {records} labels and holds {len(labels)}")
    return ShardLabels(uri=uri.decode(), sha256=sha256.decode(), bytes=size, labels=labels)


def decode_image(record: bytes) -> dict[str, str | bytes | int]:
    """Parses an image record outside the graph.

    Returns:
        The arguments of `encode_image` by name.

    Raises:
        ValueError: It is no image record.
    """
    try:
        feature = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's own type differs between its implementations
        raise ValueError("not a tf.train.Example") from error
    try:
        texts = {name: feature[key].bytes_list.value[0] for name, key in _IMAGE_TEXTS.items()}
        sizes = {name: feature[key].int64_list.value[0] for name, key in _IMAGE_SIZES.items()}
        return {name: text if name == "encoded" else text.decode() for name, text in texts.items()} | sizes
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not an image record: its features are {sorted(feature)}") from error


def parse_image(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses image records, eagerly or inside tf.data.

    Args:
        record: string, of any shape S; serialized image records.

    Returns:
        `image_id`, `image/encoded`, `source/sha256`, `image/sha256`: string S; `image/width`, `image/height`: int64 S.
    """
    return _parse(
        record,
        ("image_id", "image/encoded", "source/sha256", "image/sha256"),
        ("image/width", "image/height"),
    )


def parse_labels(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses one label record, eagerly or inside tf.data.

    Args:
        record: string []; a serialized label record.

    Returns:
        `shard/uri`, `shard/sha256`: string []; `shard/bytes`, `shard/records`: int64 []; `labels`: int64 [n].
    """
    features = {
        "shard/uri": tf.io.FixedLenFeature([], tf.string),
        "shard/sha256": tf.io.FixedLenFeature([], tf.string),
        "shard/bytes": tf.io.FixedLenFeature([], tf.int64),
        "shard/records": tf.io.FixedLenFeature([], tf.int64),
        "labels": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    }
    row = tf.io.parse_single_example(record, features)
    return row | {"labels": row["labels"] + NOT_IN_SPLIT}


def parse_labelled(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses labelled examples, eagerly or inside tf.data.

    Args:
        record: string, of any shape S; serialized labelled examples.

    Returns:
        `image_id`, `product_id`, `source`, `label`, `image/encoded`: string S; `label_index`,
        `image/width`, `image/height`: int64 S.
    """
    return _parse(
        record,
        ("image_id", "product_id", "source", "label", "image/encoded"),
        ("label_index", "image/width", "image/height"),
    )


def _parse(record, strings, integers):
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in strings}
    features |= {name: tf.io.FixedLenFeature([], tf.int64) for name in integers}
    return tf.io.parse_example(record, features)


def _serialize(values) -> bytes:
    return tf.train.Example(
        features=tf.train.Features(feature={name: _feature(value) for name, value in values.items()})
    ).SerializeToString(deterministic=True)


def _feature(value) -> tf.train.Feature:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if isinstance(value, np.ndarray):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
