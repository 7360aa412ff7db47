"""What training and validation read: image shards zipped with their labels, decoded and cropped.

Order is a function of (seed, epoch) and every random choice of (seed, epoch, position of the image in its split),
never of the number of readers, of threads or of what was read before. So two runs read the same bits, and a training
that resumes at epoch e reads what an unbroken one does.

    label records (one a shard, sorted) ─┐
    image shards (read in sequence) ─────┴─ zip ─ drop -1 ─ shuffle ─ decode, crop ─ batch
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import logging
import re
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf

from models import pixels, records, tfrecords
from models.errors import TrainingError

_log = logging.getLogger(__name__)

# Shards read in turn, and records taken from each at a time. The order of the data depends on both; readers don't.
_CYCLE, _BLOCK = 16, 16

# Encoded photographs in the shuffle buffer: at 20 KB each, 330 MB.
_SHUFFLE = 16384

_END = -2


@dataclasses.dataclass(frozen=True)
class Split:
    """The labels of one split, as they will be read.

    Attributes:
        name: Name of the split, for errors.
        shards: One for each image shard, sorted by URI.
        classes: Number of classes.
        labelled: Whether `files` hold labelled examples; then `shards` is empty.
        files: The TFRecord files, sorted.
        examples: Photographs in the split.
        starts: Of each shard, the position in the whole split of its first photograph.
    """

    name: str
    files: tuple[str, ...]
    classes: int
    examples: int
    shards: tuple[records.ShardLabels, ...] = ()
    labelled: bool = False
    starts: tuple[int, ...] = ()

    def part(self, index: int, count: int) -> "Split":
        """What one of several workers reads: whole shards, about as many photographs as each of the others.

        Args:
            index: The worker, from 0.
            count: Number of workers; 1 gives the split itself. Files of labelled examples cannot be divided.

        Returns:
            Its part, perhaps empty; the parts of all workers are the split. Photographs keep their positions.
        """
        if count == 1:
            return self
        if self.labelled:
            raise ValueError(f"the labelled examples of the {self.name} split cannot be divided over {count} workers")
        sizes = [_photographs(shard) for shard in self.shards]
        loads, parts = [0] * count, [[] for _ in range(count)]
        # The largest first, each to whoever has least: within one small shard of an even division.
        for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
            worker = loads.index(min(loads))
            loads[worker] += sizes[number]
            parts[worker].append(number)
        mine = sorted(parts[index])
        return dataclasses.replace(
            self,
            examples=loads[index],
            shards=tuple(self.shards[number] for number in mine),
            starts=tuple(self.starts[number] for number in mine),
        )


def _photographs(shard: records.ShardLabels) -> int:
    return int((shard.labels >= 0).sum())


def read_split(name: str, patterns: Sequence[str], classes: int) -> Split:
    """Reads the label records of one split; they are a few bytes a photograph.

    Args:
        name: Name of the split, for errors.
        patterns: Glob patterns of uncompressed TFRecord files of label records.
        classes: Number of classes.

    Returns:
        The split.

    Raises:
        TrainingError: There is no file, no photograph, a record that is none, a shard twice, a label that is no
            class, or an image shard that is not where its label record says, or is of another size.
    """
    files = _expand(name, patterns)
    shards = []
    for file in files:
        for record in _read_all(file):
            try:
                shards.append(records.decode_labels(record))
            except ValueError as error:
                raise TrainingError(f"{file}, of the {name} split: {error}") from error
    shards.sort(key=lambda shard: shard.uri)
    for before, after in zip(shards, shards[1:]):
        if before.uri == after.uri:
            raise TrainingError(f"image shard {after.uri} has two label records in the {name} split")
    for shard in shards:
        wrong = shard.labels[(shard.labels < records.NOT_IN_SPLIT) | (shard.labels >= classes)]
        if len(wrong):
            raise TrainingError(
                f"the label record of {shard.uri} names class {wrong[0]}; the schema has {classes}, counted from 0: labels "
                "and schema are of two runs. Run the week again, from LabelJoin on"
            )
    *starts, examples = itertools.accumulate((_photographs(shard) for shard in shards), initial=0)
    _require_examples(name, examples)
    _require_shards(shards)
    return Split(
        name=name, files=files, classes=classes, examples=examples, shards=tuple(shards), starts=tuple(starts)
    )


def read_labelled_split(name: str, patterns: Sequence[str], classes: int) -> Split:
    """Counts the labelled examples of one split; arguments, result and errors as in `read_split`."""
    files = _expand(name, patterns)
    examples = sum(1 for file in files for _ in _read_all(file))
    _require_examples(name, examples)
    return Split(name=name, files=files, classes=classes, examples=examples, labelled=True)


def digest(split: Split) -> str:
    """SHA-256 of what is read of a split of label records: which shards by content, and every label."""
    content = hashlib.sha256()
    for shard in split.shards:
        content.update(f"{shard.sha256}:{len(shard.labels)}:".encode() + shard.labels.tobytes())
    return content.hexdigest()


def _expand(name, patterns) -> tuple[str, ...]:
    files = sorted({file for pattern in patterns for file in tf.io.gfile.glob(pattern)})
    if not files:
        raise TrainingError(f"the {name} split has no files: nothing matches {list(patterns)}")
    return tuple(files)


def _read_all(file):
    try:
        for record in tf.data.TFRecordDataset(file):
            yield record.numpy()
    except tf.errors.OpError as error:
        raise TrainingError(f"{file} cannot be read: {plain(error)}. Write it again") from error


def _require_examples(name, examples):
    if not examples:
        raise TrainingError(
            f"the {name} split is empty: not one photograph of this week is in it. Look at the splits' shares and at "
            "the snapshot's rows"
        )


def _require_shards(shards):
    # Not their digests: that would read all of them once more. A flipped byte fails its record's checksum.
    with futures.ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(lambda shard: _size(shard.uri), shards))
    missing = [shard.uri for shard, size in zip(shards, sizes) if size is None]
    if missing:
        raise TrainingError(f"{len(missing)} of {len(shards)} image shards are missing, the first is {missing[0]}")
    for shard, size in zip(shards, sizes):
        if size != shard.bytes:
            raise TrainingError(
                f"image shard {shard.uri} has {size} bytes, its label record says {shard.bytes}: it was altered. "
                "Restore the shard, or pack the photographs again, into another folder"
            )


def _size(uri):
    try:
        return tf.io.gfile.stat(uri).length
    except tf.errors.NotFoundError:
        return None


def training_dataset(
    split: Split,
    *,
    image_size: int,
    short_side: int,
    batch_size: int,
    epochs: range,
    augmentation: float,
    seed: int,
    steps: int | None = None,
    skip_steps: int = 0,
    readers: int = 4,
) -> tf.data.Dataset:
    """Batches for all epochs, one epoch after the other without a pause between them.

    The photographs left over differ from epoch to epoch.

    Args:
        split: What to read.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side of the stored photographs.
        batch_size: Images a batch; at most `split.examples`.
        epochs: The epochs to read, counted from 0.
        augmentation: Strength, 0 to 1; see `pixels.random_crop` and `pixels.colour_factors`.
        seed: Seed of order and augmentation.
        steps: Batches an epoch; None for `steps_per_epoch`, the most there are.
        skip_steps: Batches of the first of these epochs that are left out, as a training that goes on has had them; they
            are read and not decoded.
        readers: Shards that are read in parallel; no other order comes of it.

    Returns:
        A dataset of (uint8 [batch_size, size, size, 3]; float32 [batch_size, 3], what `pixels.recolour` takes of them; int64
        [batch_size] class indices).
    """
    each = (steps_per_epoch(split, batch_size) if steps is None else steps) * batch_size

    def one_epoch(epoch):
        key = _fold_epoch(seed, epoch)

        def drawn(start, encoded, shape, label):
            block_key = tf.random.experimental.stateless_fold_in(key, start + 2)
            return tf.random.stateless_uniform([tf.size(label), pixels.DRAWS], block_key), encoded, shape, label

        photographs = blocks(split, readers, order=_fold(seed, epoch, 0)).map(drawn).unbatch()
        # Not reshuffled: the next epoch has a seed of its own.
        photographs = photographs.shuffle(
            min(split.examples, _SHUFFLE), seed=_fold_int64(seed, epoch, 1), reshuffle_each_iteration=False
        )
        had = tf.where(tf.equal(epoch, epochs.start), skip_steps * batch_size, 0)
        return photographs.take(each).skip(tf.cast(had, tf.int64))

    def prepared(draws, encoded, shape, label):
        image = pixels.random_crop(encoded, shape, image_size, short_side, augmentation, draws)
        return image, pixels.colour_factors(augmentation, draws), label

    dataset = tf.data.Dataset.range(epochs.start, epochs.stop).flat_map(one_epoch)
    dataset = dataset.map(prepared, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return _finished(dataset, batch_size, drop_remainder=True)


def validation_dataset(
    split: Split, *, image_size: int, short_side: int, batch_size: int, readers: int = 4
) -> tf.data.Dataset:
    """Batches of one pass over the split, centre-cropped, in the order of the shards; the last one may be smaller.

    Args:
        split: What to read.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side of the stored photographs.
        batch_size: Images a batch.
        readers: Shards that are read in parallel.

    Returns:
        A dataset of (float32 [batch, size, size, 3], 0 to 255; int64 [batch] class indices).
    """
    photographs = blocks(split, readers, order=None).map(lambda start, *columns: columns).unbatch()
    dataset = photographs.map(
        lambda encoded, shape, label: (pixels.centre_crop(encoded, shape, image_size, short_side), label),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return _finished(dataset, batch_size, drop_remainder=False)


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Full batches in an epoch. Raises ValueError when there is none."""
    if batch_size > split.examples:
        raise ValueError(f"batch_size {batch_size} exceeds the {split.examples} photographs of the {split.name} split")
    return split.examples // batch_size


def blocks(split: Split, readers: int, order: tf.Tensor | None) -> tf.data.Dataset:
    """One pass over the photographs in blocks, because an op on a block costs little more than one on a photograph.

    A block is (the position in the split of its first photograph, JPEGs [n], heights and widths [n, 2], labels [n]) and
    may be empty. `order`, int32 [2], shuffles the shards.
    """
    if split.labelled:
        blocks = tf.data.TFRecordDataset(list(split.files)).batch(_BLOCK).enumerate()
        return blocks.map(lambda index, block: _labelled_block(index * _BLOCK, block))

    labels = tf.RaggedTensor.from_row_lengths(
        np.concatenate([np.zeros(0, np.int64), *(shard.labels for shard in split.shards)]),
        np.array([len(shard.labels) for shard in split.shards], np.int64),
    )
    uris = tf.constant([shard.uri for shard in split.shards], tf.string)
    starts = tf.constant(split.starts, tf.int64)
    shards = tf.range(len(split.shards), dtype=tf.int64)
    if order is not None:
        shards = tf.random.experimental.stateless_shuffle(shards, seed=order)

    return tf.data.Dataset.from_tensor_slices(shards).interleave(
        lambda shard: _shard_blocks(uris[shard], labels[shard], starts[shard]),
        cycle_length=_CYCLE,
        num_parallel_calls=readers,
        deterministic=True,
    )


def _shard_blocks(uri, labels, start):
    """The blocks of one shard, without what the split does not have; fails unless it has as many records as labels."""
    # `zip` stops at the shorter of the two: an end mark on both tells which one that was.
    stored = tf.data.TFRecordDataset(uri).concatenate(tf.data.Dataset.from_tensors("")).batch(_BLOCK)
    before = start + tf.cumsum(tf.cast(labels >= 0, tf.int64), exclusive=True)
    starts = tf.data.Dataset.from_tensor_slices(tf.concat([before, [0]], 0)[::_BLOCK])
    wanted = tf.data.Dataset.from_tensor_slices(tf.concat([labels, [_END]], 0)).batch(_BLOCK)

    def block(start, stored, labels):
        both = tf.minimum(tf.size(stored), tf.size(labels))
        ends_agree = tf.reduce_all((stored[:both] == "") == (labels[:both] == _END))
        fits = tf.logical_and(tf.size(stored) == tf.size(labels), ends_agree)
        message = tf.strings.join(["image shard ", uri, " has another number of records than its label record"])
        with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
            here = tf.where(labels >= 0)[:, 0]
        row = records.parse_image(tf.gather(stored, here))
        return start, row["image/encoded"], _shape(row), tf.gather(labels, here)

    return tf.data.Dataset.zip((starts, stored, wanted)).map(block)


def _labelled_block(start, stored):
    row = records.parse_labelled(stored)
    return start, row["image/encoded"], _shape(row), row["label_index"]


def _shape(row):
    return tf.cast(tf.stack([row["image/height"], row["image/width"]], axis=-1), tf.int32)


def _finished(dataset, batch_size, drop_remainder):
    options = tf.data.Options()
    options.deterministic = True
    return dataset.batch(batch_size, drop_remainder=drop_remainder).prefetch(tf.data.AUTOTUNE).with_options(options)


def _fold(seed, epoch, index):
    """int32 [2]: a key of its own for each (seed, epoch, index)."""
    return tf.random.experimental.stateless_fold_in(_fold_epoch(seed, epoch), index)


def _fold_epoch(seed, epoch):
    return tf.random.experimental.stateless_fold_in(tf.constant([seed, 0x5EED], tf.int32), epoch)


def _fold_int64(seed, epoch, index):
    return tf.cast(_fold(seed, epoch, index)[0], tf.int64) & 0x7FFFFFFF


def plain(error: tf.errors.OpError) -> str:
    """The message of a TensorFlow error without the names of the nodes that it passed through."""
    lines = [line for line in error.message.splitlines() if line.strip()] or [type(error).__name__]
    return re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:.*", "", lines[0]).strip()


# Shards that are looked at in parallel, one record of each in memory: most of the time is spent waiting for storage.
_LOOKERS = 16

SECONDS_BETWEEN_REPORTS = 30.0
"""Between two lines that say how far something long has come."""

_NAMED = 3


# What damaged, missing and altered files raise; others, out of memory say, are no reason to read everything once more.
_OF_THE_DATA = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
)


@contextlib.contextmanager
def reading(split: Split) -> Iterator[None]:
    """Looks into a failure to read a split, so that a TrainingError names what is wrong with it."""
    try:
        yield
    except tf.errors.OpError as error:
        found = explain(split) if isinstance(error, _OF_THE_DATA) else None
        raise TrainingError(found or f"the {split.name} split cannot be read: {plain(error)}") from error


def explain(split: Split) -> str | None:
    """Counts what is wrong with a split after reading it failed: reads all of it once more, shard by shard.

    Args:
        split: The split.

    Returns:
        How many shards (or files of labelled examples) are missing, cannot be read, are damaged or altered, with the
        first three of each; how many records are damaged, or cannot be found behind a damaged one; how many photographs
        of the split cannot be decoded; the first of each, and what to do. None when everything is in order.
    """
    noun = "files" if split.labelled else "image shards"
    sources = [(file, None) for file in split.files] if split.labelled else [(each.uri, each) for each in split.shards]
    _log.warning("the %s split cannot be read: all of its %d %s are read once more", split.name, len(sources), noun)
    found, seen, told = [], 0, time.monotonic()
    with futures.ThreadPoolExecutor(_LOOKERS) as pool:
        for number, looked in enumerate(pool.map(lambda source: _look_at(*source), sources), start=1):
            seen += looked.seen
            if looked.kind or looked.faults:
                found.append(looked)
            if time.monotonic() - told >= SECONDS_BETWEEN_REPORTS:
                told = time.monotonic()
                _log.info("read %d of %d %s again, found fault with %d", number, len(sources), noun, len(found))
    if not found:
        return None

    kinds = {kind: [looked.named for looked in found if looked.kind == kind] for kind in _KINDS}
    damaged, undecodable = (sum(looked.faults[fault] for looked in found) for fault in (_DAMAGED, _UNDECODABLE))
    hidden = sum(looked.hidden for looked in found)
    if split.labelled and damaged and not (kinds["missing"] or kinds["unreadable"]):
        hidden = max(0, split.examples - seen)
    text = f"the {split.name} split cannot be read."
    if any(kinds.values()):
        counts = [f"{len(names)} {kind} ({_first(names)})" for kind, names in kinds.items() if names]
        text += f" Of {len(sources)} {noun}: {', '.join(counts)}."
    if damaged:
        behind = f", {hidden} more cannot be found behind them" if hidden else ""
        text += f" Records: {damaged} damaged{behind}; the first {_first_of(found, _DAMAGED)}."
    if undecodable:
        text += f" Photographs: {undecodable} cannot be decoded; the first {_first_of(found, _UNDECODABLE)}."
    if split.labelled:
        return text + " Write the files again (LabelJoin), from photographs that can be decoded"
    if kinds["unreadable"]:
        text += " See to it that storage gives what is unreadable."
    if kinds["missing"] or kinds["damaged"] or kinds["altered"]:
        text += " Restore the shards from a backup, or pack the photographs again, into another folder."
    if any(looked.faults[_UNDECODABLE] and not looked.kind for looked in found):
        text += " Withdraw the labels of photographs that cannot be decoded though their shard is as it was packed."
    return text.removesuffix(".")


_KINDS = ("missing", "unreadable", "damaged", "altered")

_DAMAGED, _UNDECODABLE = "damaged", "undecodable"


@dataclasses.dataclass
class _Looked:
    """What is wrong with a shard or file: `kind` (of `_KINDS`, or "") and `why`; and with its records, by fault."""

    uri: str
    kind: str = ""
    why: str = ""
    seen: int = 0
    hidden: int = 0
    faults: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    firsts: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def named(self):
        return f"{self.uri}: {self.why}" if self.why else self.uri


def _look_at(uri: str, shard: records.ShardLabels | None) -> _Looked:
    """Reads a shard, or with None a file of labelled examples; decodes the photographs that the split has of it."""
    looked, fault = _Looked(uri), None
    try:
        with tf.io.gfile.GFile(uri, "rb") as file:
            stream = tfrecords.Digested(file)
            for number, record in enumerate(tfrecords.survey(stream)):
                looked.seen += 1
                wanted = shard is None or (number < len(shard.labels) and shard.labels[number] >= 0)
                fault, text = _fault(record, number, wanted, _labelled_of if shard is None else _image_of)
                if fault:
                    looked.faults[fault] += 1
                    # Cut: TensorFlow quotes what it cannot parse, a whole photograph perhaps.
                    looked.firsts.setdefault(fault, f"in {uri}: {text[:300]}")
    except tf.errors.NotFoundError:
        looked.kind = "missing"
        return looked
    except tf.errors.OpError as error:
        looked.kind, looked.why = "unreadable", plain(error)
        return looked
    if looked.faults[_DAMAGED]:
        looked.kind = "damaged"
        if shard is not None and fault == _DAMAGED:  # the last one: where the next begins cannot be known
            looked.hidden = max(0, len(shard.labels) - looked.seen)
    elif shard is not None and looked.seen != len(shard.labels):
        looked.kind = "altered"
        looked.why = f"it holds {looked.seen} records, its label record is for {len(shard.labels)}"
    elif shard is not None and stream.sha256 != shard.sha256:
        looked.kind, looked.why = "altered", "its bytes are not those of its label record's digest"
    return looked


def _fault(record, number, wanted, parse) -> tuple[str, str]:
    """The fault of a record, or "", and what it is; only a photograph that is `wanted` is decoded."""
    if isinstance(record, tfrecords.DamagedError):
        return _DAMAGED, str(record)
    try:
        image_id, encoded, height, width = parse(record.payload)
    except (ValueError, tf.errors.OpError) as error:
        return _DAMAGED, f"record {number} at byte {record.offset} cannot be parsed: {_reason(error)}"
    if wanted:
        try:
            # As training decodes: other operations take a PNG too, or do not mind a wrong size.
            pixels.decode(encoded, [0, 0, height, width])
        except (ValueError, tf.errors.OpError) as error:
            return _UNDECODABLE, f"photograph {image_id}, record {number}, is no JPEG that can be decoded: {_reason(error)}"
    return "", ""


def _reason(error):
    return plain(error) if isinstance(error, tf.errors.OpError) else str(error)


def _image_of(payload):
    row = records.decode_image(payload)
    return row["image_id"], row["encoded"], row["height"], row["width"]


def _labelled_of(payload):
    row = records.parse_labelled(payload)
    height, width = (int(row[name]) for name in ("image/height", "image/width"))
    return row["image_id"].numpy().decode(errors="replace"), row["image/encoded"], height, width


def _first(names, limit=_NAMED):
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _first_of(found, fault):
    return next(looked.firsts[fault] for looked in found if fault in looked.firsts)


def class_counts(split: Split) -> np.ndarray:
    """Counts the photographs of each class; labelled examples are read for it.

    Args:
        split: The split.

    Returns:
        int64 [classes].

    Raises:
        TrainingError: A file of labelled examples cannot be read, or names a class that the schema does not have.
    """
    counts = np.zeros(split.classes, np.int64)
    for shard in split.shards:
        counts += np.bincount(shard.labels[shard.labels >= 0], minlength=split.classes)
    if split.labelled:
        for file in split.files:
            counts += np.bincount(_label_indices(file, split), minlength=split.classes)
    return counts


def _label_indices(file, split):
    only = {"label_index": tf.io.FixedLenFeature([], tf.int64)}
    batches = tf.data.TFRecordDataset(file).batch(256).map(lambda rows: tf.io.parse_example(rows, only)["label_index"])
    try:
        indices = np.concatenate([np.zeros(0, np.int64), *batches.as_numpy_iterator()])
    except tf.errors.OpError as error:
        raise TrainingError(f"{file}, of the {split.name} split, cannot be read: {plain(error)}. Write it again") from error
    wrong = indices[(indices < 0) | (indices >= split.classes)]
    if len(wrong):
        raise TrainingError(
            f"{file}, of the {split.name} split, names class {wrong[0]}; the schema has {split.classes}, counted from 0: "
            "labels and schema are of two runs. Run the week again, from LabelJoin on"
        )
    return indices


def require_every_class(split: Split, classes: Sequence[str]) -> None:
    """Makes sure that there is something to learn of each class.

    Args:
        split: The split.
        classes: Names of the classes, in the order of the indices.

    Raises:
        TrainingError: Classes have no photograph in the split; it names the first ten. Or see `class_counts`.
    """
    absent = [repr(name) for name, count in zip(classes, class_counts(split), strict=True) if not count]
    if absent:
        raise TrainingError(
            f"the {split.name} split has no photograph of {len(absent)} of {len(classes)} classes: {_first(absent, 10)}. "
            f"Remove {'it' if len(absent) == 1 else 'them'} from schema/schema.pbtxt, or label photographs of "
            f"{'it' if len(absent) == 1 else 'them'}"
        )
