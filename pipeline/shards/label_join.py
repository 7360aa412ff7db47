"""Joins labels to image shards without copying pixels, but for what must be looked at whole.

`train` and `val` become label records: for each image shard one record with the labels in the shard's
own order. `eval` and the tuning sample become full examples with pixels, for TFMA and for the trials.
"""

import collections
import dataclasses
import hashlib
import logging
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from models import records
from pipeline.errors import PipelineError
from pipeline.shards.sharder import Generation

log = logging.getLogger(__name__)

LABELLED_SPLITS = ("train", "val")


@dataclasses.dataclass(frozen=True)
class LabelledRow:
    """One row of the week: a label and where its photograph lies."""

    image_id: str
    product_id: str
    label: str
    source: str
    split: str
    shard: str
    ordinal: int


def read_rows(paths: Iterable[str]) -> list[LabelledRow]:
    """Reads the rows that SnapshotExampleGen wrote (gzipped TFRecords of tf.train.Example), in the order of the shards."""
    rows = []
    for path in sorted(paths):
        for record in tf.data.TFRecordDataset(path, compression_type="GZIP"):
            feature = tf.train.Example.FromString(record.numpy()).features.feature
            values = {
                field.name: feature[field.name].int64_list.value[0]
                if field.type is int
                else (feature[field.name].bytes_list.value or [b""])[0].decode()
                for field in dataclasses.fields(LabelledRow)
            }
            rows.append(LabelledRow(**values))
    return _one_label_each(rows)


def _one_label_each(rows: list[LabelledRow]) -> list[LabelledRow]:
    """Sorts the rows, whose order Beam left to chance, and keeps one for each photograph.

    The gate's `max_duplicates` may let some pass: the same label twice is one label, two different labels are none.
    """
    by_place = collections.defaultdict(list)
    for row in rows:
        by_place[row.shard, row.ordinal].append(row)
    kept = []
    for place in sorted(by_place):
        members = sorted(by_place[place], key=dataclasses.astuple)
        labels = sorted({row.label for row in members})
        if len(labels) > 1:
            log.warning("photograph %s is left out: it has the labels %s", members[0].image_id, ", ".join(labels))
            continue
        kept.append(members[0])
    return kept


def stratified_sample(rows: Sequence[LabelledRow], share: float) -> list[LabelledRow]:
    """Takes `share` of each class, exact to one row, at least one.

    By the hash of the image id, so that next month's sample is mostly this month's.

    Args:
        rows: Rows of one split.
        share: 0 to 1.

    Returns:
        The sample, in the order of `rows`.
    """
    by_class = collections.defaultdict(list)
    for row in rows:
        by_class[row.label].append(row)
    chosen = set()
    for members in by_class.values():
        members = sorted(members, key=lambda row: hashlib.sha256(row.image_id.encode()).digest())
        chosen.update(row.image_id for row in members[: max(1, round(share * len(members)))])
    return [row for row in rows if row.image_id in chosen]


def write_label_records(
    path: pathlib.Path, rows: Sequence[LabelledRow], generation: Generation, classes: Mapping[str, int]
) -> None:
    """Writes one label record for each image shard that holds a photograph of `rows`, sorted by shard.

    Args:
        path: TFRecord file to write, uncompressed.
        rows: Rows of one split.
        generation: The image shards.
        classes: Class name -> index.
    """
    facts = generation.shard_facts()
    by_shard = collections.defaultdict(list)
    for row in rows:
        by_shard[row.shard].append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for shard in sorted(by_shard):
            labels = np.full(_records(facts, shard, by_shard[shard]), records.NOT_IN_SPLIT, np.int64)
            for row in by_shard[shard]:
                labels[row.ordinal] = class_index(row, classes)
            writer.write(
                records.encode_labels(
                    shard_uri=generation.shard_path(shard), shard_sha256=facts[shard]["sha256"], labels=labels
                )
            )


def write_labelled_examples(
    path: pathlib.Path, rows: Sequence[LabelledRow], generation: Generation, classes: Mapping[str, int]
) -> None:
    """Writes a full example, pixels included, for each of `rows`, in the order of the shards."""
    facts = generation.shard_facts()
    by_shard = collections.defaultdict(dict)
    for row in rows:
        by_shard[row.shard][row.ordinal] = row
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for shard in sorted(by_shard):
            wanted = by_shard[shard]
            _records(facts, shard, wanted.values())
            for ordinal, record in enumerate(tf.data.TFRecordDataset(generation.shard_path(shard))):
                if ordinal not in wanted:
                    continue
                row = wanted[ordinal]
                image = tf.train.Example.FromString(record.numpy()).features.feature
                if image["image_id"].bytes_list.value[0].decode() != row.image_id:
                    raise PipelineError(
                        f"{generation.shard_path(shard)} holds another photograph at {ordinal} than its index says "
                        f"({row.image_id}): pack the photographs again into another folder"
                    )
                writer.write(
                    records.encode_labelled(
                        image_id=row.image_id,
                        product_id=row.product_id,
                        source=row.source,
                        label=row.label,
                        label_index=class_index(row, classes),
                        encoded=image["image/encoded"].bytes_list.value[0],
                        width=image["image/width"].int64_list.value[0],
                        height=image["image/height"].int64_list.value[0],
                    )
                )


def _records(facts: Mapping[str, dict], shard: str, rows: Iterable[LabelledRow]) -> int:
    """Number of records in a shard; raises PipelineError when the rows and the generation do not belong together."""
    count = facts[shard]["records"] if shard in facts else 0
    for row in rows:
        if not 0 <= row.ordinal < count:
            raise PipelineError(
                f"image {row.image_id} should be record {row.ordinal} of {shard}, which has {count} in this generation: "
                "the shard index is of another generation; run the week again"
            )
    return count


def class_index(row: LabelledRow, classes: Mapping[str, int]) -> int:
    """Index of the row's class. Raises PipelineError for a label that the schema does not have."""
    if row.label not in classes:
        raise PipelineError(
            f"image {row.image_id} has the label {row.label!r}, which the schema does not have: correct the label, "
            "or add the class to schema/schema.pbtxt"
        )
    return classes[row.label]
