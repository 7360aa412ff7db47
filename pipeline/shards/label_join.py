"""Joins labels to image shards without copying pixels, but for what must be looked at whole.

`train` and `val` become label records: for each image shard one record with the labels in the shard's own order.
`eval` and the tuning sample become full examples with pixels, for TFMA and for the trials.

    rows, a split a folder ── columns ── by image shard ── one label a photograph ─┬─► label records
                                                                                   ├── hashes ── cuts of the sample
    image shards, each read once at most ──────────────────────────────────────────┴─► examples with pixels

It runs on Beam. A worker holds the rows of one image shard at a time; but one of them holds the hashes of a split, to
cut the sample exactly (some 50 bytes a photograph at the most), and one the label records of a split. What a user
can mend travels as data to the end, where `run` raises it: Dataflow hands no exception of a worker back.
"""

import collections
import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import apache_beam as beam
import numpy as np
import pyarrow as pa
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders import example_coder

from models import records, tfrecords
from pipeline import files, storage
from pipeline.errors import PipelineError
from pipeline.shards.generations import Generation

log = logging.getLogger(__name__)

LABELLED_SPLITS = ("train", "val")
SPLITS = ("eval", "train", "val")
"""Sorted, so that their positions, which stand for them in columns, sort as they do."""

OUTCOME = "outcome.json"
"""In the folder of the label records: what was written, and what hindered it."""

_EVAL = SPLITS.index("eval")
_TEXTS = ("image_id", "product_id", "label", "source", "shard")
_PIXEL_COLUMNS = ("split", "ordinal", "class", "image_id", "product_id", "source")

# Rows decoded at a time, and bytes of columns gathered before they are divided by shard: few enough for the many
# threads of a Dataflow worker, enough that 1,700 shards get some hundred rows each.
_BATCH = 16384
_GATHERED = 32 * 2**20

# Of what a storage may refuse, what it will refuse again; for the rest Beam tries again.
_NOT_PASSING = (FileNotFoundError, PermissionError)

# Problems, and photographs left out, that are shown; of the others the number is.
_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of some rows; outcomes add up.

    Attributes:
        images: Photographs by what they went into: `train`, `val`, `eval`, `tuning_train`, `tuning_val`.
        problems: What a user has to mend, the first few in the order of their texts.
        problem_count: How many there are; a row is one, and so is a file.
        left_out: Why photographs are left out, the first few.
        left_out_count: How many there are.
    """

    images: Mapping[str, int] = dataclasses.field(default_factory=dict)
    problems: Sequence[str] = ()
    problem_count: int = 0
    left_out: Sequence[str] = ()
    left_out_count: int = 0


def run(
    pipeline: beam.Pipeline,
    rows: Mapping[str, Sequence[str]],
    generation: Generation,
    classes: Sequence[str],
    tuning_share: float,
    labels: str,
    eval_examples: str,
    tuning_examples: str,
) -> dict[str, int]:
    """Runs the join; the same rows give the same bytes, however they are cut into files and bundles.

    A photograph counts once in a week, whatever its splits. The gate's `max_duplicates` may let some through that have
    more rows: one label twice is one label, and of its rows the smallest counts (by image_id, product_id, label, source
    and split), so the split is that of the product it names; two labels are none, and the photograph is left out.

    Args:
        pipeline: Runs here and is waited for.
        rows: Split -> gzipped TFRecord files of tf.train.Example, as SnapshotExampleGen writes them. A split
            without files is empty.
        generation: The image shards.
        classes: Class names, in the order of the model's outputs.
        tuning_share: Share of each class of train and val, 0 to 1, that the tuning sample takes: exact to one
            photograph, at least one, those with the smallest hashes of their ids. So next month's is mostly
            this month's.
        labels: Folder for label records: `Split-train/` and `Split-val/`, one file each, sorted by shard.
        eval_examples: Folder for `Split-eval/`: a file for each image shard that has a photograph of it.
        tuning_examples: Folder for the same of `Split-train/` and `Split-val/`.

    Returns:
        `Outcome.images`, with a number for each of the five.

    Raises:
        PipelineError: A label that is no class, a row that is of another generation, an image shard that is missing,
            damaged or holds other photographs, rows that cannot be read. What is in the folders then is worth nothing.
    """
    generation.shard_facts()  # raises here what no worker could hand back
    with pipeline:
        _build(pipeline, rows, generation, tuple(classes), tuning_share, labels, eval_examples, tuning_examples)
    outcome = Outcome(**json.loads(storage.read(storage.join(labels, OUTCOME))))
    for text in outcome.left_out:
        log.warning("%s", text)
    if outcome.left_out_count > len(outcome.left_out):
        log.warning("and %d more photographs are left out", outcome.left_out_count - len(outcome.left_out))
    if outcome.problem_count:
        more = outcome.problem_count - len(outcome.problems)
        raise PipelineError("\n".join([*outcome.problems, *([f"and {more} more"] if more else [])]))

    images = {name: outcome.images.get(name, 0) for name in _outputs(labels, eval_examples, tuning_examples)}
    for name, uri in _outputs(labels, eval_examples, tuning_examples).items():
        if not images[name]:
            # A split without a file looks like a path that is wrong; one with an empty file is said to be empty.
            storage.write(uri, b"")
    return images


def _outputs(labels: str, eval_examples: str, tuning_examples: str) -> dict[str, str]:
    """For each of `Outcome.images`, the file that stands for nothing."""
    empty = "examples-00000-of-00001.tfrecord"
    return {
        **{split: _labels_file(labels, split) for split in LABELLED_SPLITS},
        "eval": _split_file(eval_examples, "eval", empty),
        **{f"tuning_{split}": _split_file(tuning_examples, split, empty) for split in LABELLED_SPLITS},
    }


def _labels_file(folder: str, split: str) -> str:
    return _split_file(folder, split, "labels-00000-of-00001.tfrecord")


def _split_file(folder: str, split: str, name: str) -> str:
    return storage.join(folder, f"Split-{split}", name)


def _build(pipeline, rows, generation, classes, tuning_share, labels, eval_examples, tuning_examples):
    """The graph. What each step hands on is a few elements an image shard, never one a row."""
    paths = [(split, path) for split in SPLITS for path in sorted(rows.get(split, ()))]
    read = (
        pipeline
        | "Files" >> beam.Create(paths)
        | "Spread" >> beam.Reshuffle()
        | "Read" >> beam.ParDo(_Read()).with_outputs("outcome", main="rows")
    )
    clean = (
        read.rows
        | "ByShard" >> beam.GroupByKey()
        | "Clean" >> beam.ParDo(_Clean(generation, classes)).with_outputs("outcome", "labels", "hashes", main="rows")
    )
    cuts = clean.hashes | "HashesOfSplit" >> beam.GroupByKey() | "Cut" >> beam.Map(_cuts, tuning_share)
    # No image shard is read, and no label written, once something is known to be wrong.
    found = (read.outcome, clean.outcome) | "Found" >> beam.Flatten() | "SumFound" >> beam.CombineGlobally(add)
    written = clean.rows | "Write" >> beam.ParDo(
        _WriteExamples(generation, classes, eval_examples, tuning_examples),
        cuts=beam.pvalue.AsDict(cuts),
        found=beam.pvalue.AsSingleton(found),
    )
    outcome = (found, written) | "All" >> beam.Flatten() | "Sum" >> beam.CombineGlobally(add)
    by_split = clean.labels | "LabelsOfSplit" >> beam.GroupByKey()
    by_split | "WriteLabels" >> beam.Map(_write_labels, labels, outcome=beam.pvalue.AsSingleton(outcome))
    outcome | "WriteOutcome" >> beam.Map(_write_outcome, storage.join(labels, OUTCOME))


def add(outcomes: Iterable[Outcome]) -> Outcome:
    """The sum, which no order of the summands changes."""
    images = collections.Counter()
    problems, left_out, problem_count, left_out_count = [], [], 0, 0
    for outcome in outcomes:
        images.update(outcome.images)
        problems = heapq.nsmallest(_SHOWN, [*problems, *outcome.problems])
        left_out = heapq.nsmallest(_SHOWN, [*left_out, *outcome.left_out])
        problem_count += outcome.problem_count
        left_out_count += outcome.left_out_count
    return Outcome(dict(images), problems, problem_count, left_out, left_out_count)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _problem(text: str, count: int = 1) -> Outcome:
    return Outcome(problems=(text,), problem_count=count)


class _Read(beam.DoFn):
    """(split, file of rows) -> (image shard, packed rows), a few for each shard."""

    def setup(self):
        schema = schema_pb2.Schema()
        for name in _TEXTS:
            schema.feature.add(name=name, type=schema_pb2.BYTES)
        schema.feature.add(name="ordinal", type=schema_pb2.INT)
        self._schema = schema.SerializeToString()

    def process(self, element):
        split, path = element
        # One for each file: it is of no use any more once it met something that it could not decode.
        decoder = example_coder.ExamplesToRecordBatchDecoder(self._schema)
        gathered, size = [], 0
        try:
            with storage.opened(path) as stream:
                rows = (record.payload for record in tfrecords.read(stream, compressed=True))
                while batch := list(itertools.islice(rows, _BATCH)):
                    columns = _first_values(decoder.DecodeBatch(batch))
                    gathered.append(columns)
                    size += sum(column.nbytes for column in columns.values())
                    if size >= _GATHERED:
                        yield from _by_shard(split, gathered)
                        gathered, size = [], 0
        except (tfrecords.DamagedError, *_NOT_PASSING) as error:
            text = f"cannot read the rows {path}: {_reason(error)}. Run the week again"
            yield beam.pvalue.TaggedOutput("outcome", _problem(text))
            return
        if gathered:
            yield from _by_shard(split, gathered)


def _first_values(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The one value of each feature; a text that is missing is empty."""
    columns = {}
    for name, lists in zip(batch.schema.names, batch.columns, strict=True):
        offsets = lists.offsets.to_numpy()
        missing = np.diff(offsets) == 0
        values = lists.values.take(pa.array(offsets[:-1], mask=missing))
        if missing.any():
            if name == "ordinal":
                raise ValueError("a row has no ordinal: SnapshotExampleGen's query gives one to every row")
            values = values.fill_null(b"")
        columns[name] = values
    return columns


def _by_shard(split: str, gathered: list[dict[str, pa.Array]]) -> Iterator[tuple[str, bytes]]:
    columns = {name: pa.concat_arrays([part[name] for part in gathered]) for name in gathered[0]}
    shards = columns.pop("shard").dictionary_encode()
    codes = shards.indices.to_numpy()
    columns["split"] = pa.array(np.full(len(codes), SPLITS.index(split), np.int8))
    order = np.argsort(codes, kind="stable")
    rows = _taken(columns, order)
    ends = np.cumsum(np.bincount(codes, minlength=len(shards.dictionary)))
    for shard, start, end in zip(shards.dictionary.to_pylist(), [0, *ends], ends):
        yield shard.decode(), _pack(rows.slice(start, end - start))


def _taken(columns: Mapping[str, pa.Array], order: np.ndarray) -> pa.RecordBatch:
    taken = [column.take(pa.array(order)) for column in columns.values()]
    return pa.RecordBatch.from_arrays(taken, names=list(columns))


def _pack(rows: pa.RecordBatch) -> bytes:
    # Compressed, because a runner on one machine holds all of them in memory.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def _unpack(packed: Iterable[bytes]) -> dict[str, pa.Array]:
    batches = [batch for part in packed for batch in pa.ipc.open_stream(part)]
    names = batches[0].schema.names
    return {name: pa.concat_arrays([batch.column(name) for batch in batches]) for name in names}


class _Clean(beam.DoFn):
    """(image shard, all its packed rows) -> (image shard, packed rows: one a photograph, in the shard's order).

    Besides, tagged: `labels`, (split, (shard's URI, label record)); `hashes`, (split, (shard, classes, hashes));
    `outcome`. A shard with a problem gives only that.
    """

    def __init__(self, generation: Generation, classes: tuple[str, ...]):
        self._generation = generation
        self._classes = classes

    def setup(self):
        self._facts = self._generation.shard_facts()

    def process(self, element):
        shard, packed = element
        columns, left_out = one_label_each(_unpack(packed))
        records_there = self._facts[shard]["records"] if shard in self._facts else 0
        problem = _misplaced(columns, shard, records_there) or _unknown_label(columns, self._classes)
        if problem:
            yield beam.pvalue.TaggedOutput("outcome", problem)
            return
        class_of, split_of, ordinals = _classes_of(columns, self._classes), _split(columns), _ordinals(columns)
        images = {}
        for split in LABELLED_SPLITS:
            inside = split_of == SPLITS.index(split)
            images[split] = int(inside.sum())
            if not images[split]:
                continue
            labels = np.full(records_there, records.NOT_IN_SPLIT, np.int64)
            labels[ordinals[inside]] = class_of[inside]
            uri = self._generation.shard_path(shard)
            facts = self._facts[shard]
            record = records.encode_labels(
                shard_uri=uri, shard_sha256=facts["sha256"], shard_bytes=facts["bytes"], labels=labels
            )
            yield beam.pvalue.TaggedOutput("labels", (split, (uri, record)))
            hashes = hash_of(columns["image_id"].filter(pa.array(inside)).to_pylist())
            yield beam.pvalue.TaggedOutput("hashes", (split, (shard, class_of[inside].tobytes(), hashes.tobytes())))
        outcome = Outcome(images, left_out=left_out[:_SHOWN], left_out_count=len(left_out))
        yield beam.pvalue.TaggedOutput("outcome", outcome)
        if len(split_of):
            columns["class"] = pa.array(class_of)
            names = list(_PIXEL_COLUMNS)
            yield shard, _pack(pa.RecordBatch.from_arrays([columns[name] for name in names], names=names))


def one_label_each(columns: Mapping[str, pa.Array]) -> tuple[dict[str, pa.Array], list[str]]:
    """Sorts the rows of one shard by ordinal and keeps one for each photograph; `run` says which.

    Args:
        columns: `split`, `ordinal`, `image_id`, `product_id`, `label`, `source`, in any order.

    Returns:
        The columns, and for each photograph that was left out a text.
    """
    order = np.argsort(_ordinals(columns), kind="stable")
    again = np.flatnonzero(np.diff(_ordinals(columns)[order]) == 0)
    left_out = []
    if len(again):
        keep = np.ones(len(order), bool)
        for members in _runs(again):
            names = ("image_id", "product_id", "label", "source", "split")
            rows = sorted(
                (*(columns[name][position].as_py() for name in names), position)
                for position in order[members].tolist()
            )
            labels = sorted({row[2].decode() for row in rows})
            keep[members] = False
            if len(labels) > 1:
                left_out.append(f"photograph {rows[0][0].decode()} is left out: it has the labels {', '.join(labels)}")
            else:
                order[members[0]] = rows[0][-1]
                keep[members[0]] = True
        order = order[keep]
    rows = _taken(columns, order)
    return dict(zip(rows.schema.names, rows.columns, strict=True)), sorted(left_out)


def _runs(again: np.ndarray) -> list[np.ndarray]:
    """Positions that equal their successor -> the positions of each run of equals."""
    parts = np.split(again, np.flatnonzero(np.diff(again) > 1) + 1)
    return [np.append(part, part[-1] + 1) for part in parts]


def _ordinals(columns) -> np.ndarray:
    return columns["ordinal"].to_numpy()


def _split(columns) -> np.ndarray:
    return columns["split"].to_numpy()


def _misplaced(columns, shard: str, count: int) -> Outcome | None:
    wrong = np.flatnonzero((_ordinals(columns) < 0) | (_ordinals(columns) >= count))
    if not len(wrong):
        return None
    image_id, ordinal = (columns[name][wrong[0]].as_py() for name in ("image_id", "ordinal"))
    return _problem(
        f"image {image_id.decode()} should be record {ordinal} of {shard}, which has {count} in this generation: "
        "the shard index is of another generation; run the week again",
        len(wrong),
    )


def _unknown_label(columns, classes: Sequence[str]) -> Outcome | None:
    wrong = np.flatnonzero(_classes_of(columns, classes) < 0)
    if not len(wrong):
        return None
    image_id, label = (columns[name][wrong[0]].as_py().decode() for name in ("image_id", "label"))
    return _problem(
        f"image {image_id} has the label {label!r}, which the schema does not have: correct the label, "
        "or add the class to schema/schema.pbtxt",
        len(wrong),
    )


def _classes_of(columns, classes: Sequence[str]) -> np.ndarray:
    """int32 [n]; -1 for a label that is no class."""
    labels = columns["label"].dictionary_encode()
    index = {name.encode(): position for position, name in enumerate(classes)}
    known = np.array([index.get(label, -1) for label in labels.dictionary.to_pylist()], np.int32)
    return known[labels.indices.to_numpy()]


def hash_of(image_ids: Iterable[bytes]) -> np.ndarray:
    """uint64 [n]: the first 64 bits of the SHA-256 of each id, so that they sort as the digests do."""
    digests = b"".join(hashlib.sha256(image_id).digest()[:8] for image_id in image_ids)
    return np.frombuffer(digests, ">u8").astype(np.uint64)


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where the sample of one class ends.

    Attributes:
        last: The largest hash that is in the sample.
        ties: Of the photographs with that hash, how many of each shard are in it, the first ones; None for all.
    """

    last: int
    ties: Mapping[str, int] | None = None


def cuts_of(parts: Iterable[tuple[str, np.ndarray, np.ndarray]], share: float) -> dict[int, Cut]:
    """Cuts each class so that exactly max(1, round(share * n)) of its n photographs are in the sample.

    Of photographs with equal hashes those in the shards of the smallest names are in it, and in a shard the first.

    Args:
        parts: (image shard, class indices int32 [n], hashes uint64 [n]), one a shard, in the shard's order.
        share: 0 to 1.

    Returns:
        Class index -> cut, for the classes that have a photograph.
    """
    parts = sorted(parts, key=lambda part: part[0])
    classes = np.concatenate([part[1] for part in parts])
    hashes = np.concatenate([part[2] for part in parts])
    order = np.argsort(classes, kind="stable")
    classes, hashes = classes[order], hashes[order]
    present, starts = np.unique(classes, return_index=True)
    cuts = {}
    for label, members in zip(present.tolist(), np.split(hashes, starts[1:]), strict=True):
        wanted = max(1, round(share * len(members)))
        last = np.partition(members, wanted - 1)[wanted - 1]
        missing = wanted - int((members < last).sum())
        if missing == (members == last).sum():
            cuts[label] = Cut(int(last))
            continue
        ties = {}
        for shard, class_of, hash_ in parts:
            ties[shard] = min(missing, int(((class_of == label) & (hash_ == last)).sum()))
            missing -= ties[shard]
        cuts[label] = Cut(int(last), {shard: count for shard, count in ties.items() if count})
    return cuts


def in_sample(cuts: Mapping[int, Cut], shard: str, class_of: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """bool [n]: which photographs of one shard and one split are in the sample; arguments as in `cuts_of`."""
    chosen = np.zeros(len(hashes), bool)
    for label in np.unique(class_of).tolist():
        cut, members = cuts[label], class_of == label
        chosen |= members & (hashes <= np.uint64(cut.last))
        if cut.ties is not None:
            equal = np.flatnonzero(members & (hashes == np.uint64(cut.last)))
            chosen[equal[cut.ties.get(shard, 0) :]] = False
    return chosen


def _cuts(hashes_of_split, share: float) -> tuple[str, dict[int, Cut]]:
    split, parts = hashes_of_split
    arrays = (
        (shard, np.frombuffer(class_of, np.int32), np.frombuffer(hashes, np.uint64))
        for shard, class_of, hashes in parts
    )
    return split, cuts_of(arrays, share)


class _WriteExamples(beam.DoFn):
    """(image shard, packed rows) -> `Outcome`, and a file for each split that has a row to be written with pixels."""

    def __init__(self, generation: Generation, classes: tuple[str, ...], eval_examples: str, tuning_examples: str):
        self._generation = generation
        self._classes = classes
        self._folders = {"eval": eval_examples} | {split: tuning_examples for split in LABELLED_SPLITS}

    def setup(self):
        self._facts = self._generation.shard_facts()

    def process(self, element, cuts, found):
        if found.problem_count:
            return
        shard, packed = element
        columns = _unpack([packed])
        split_of, class_of = _split(columns), columns["class"].to_numpy()
        wanted = split_of == _EVAL
        for split in LABELLED_SPLITS:
            inside = split_of == SPLITS.index(split)
            if inside.any():
                hashes = hash_of(columns["image_id"].filter(pa.array(inside)).to_pylist())
                wanted[inside] = in_sample(cuts[split], shard, class_of[inside], hashes)
        if wanted.any():
            try:
                yield Outcome(self._write(shard, _taken(columns, np.flatnonzero(wanted)).to_pylist()))
            except PipelineError as error:
                yield _problem(str(error))

    def _write(self, shard: str, rows: list[dict]) -> dict[str, int]:
        """Writes rows, which are in the order of the shard, and returns how many went where."""
        images = collections.Counter()
        with contextlib.ExitStack() as stack:
            streams = {}
            for split in {SPLITS[row["split"]] for row in rows}:
                folder = stack.enter_context(storage.scratch(self._folders[split]))
                streams[split] = stack.enter_context(open(os.path.join(folder, shard), "wb"))
            writers = {split: tfrecords.Writer(stream) for split, stream in streams.items()}
            for row, image in self._with_pixels(shard, rows):
                split = SPLITS[row["split"]]
                writers[split].write(_labelled(row, image, self._classes))
                images["eval" if split == "eval" else f"tuning_{split}"] += 1
            # Here the whole shard was read and found in order.
            for split, stream in streams.items():
                stream.close()
                storage.publish(stream.name, _split_file(self._folders[split], split, shard))
        return images

    def _with_pixels(self, shard: str, rows: list[dict]) -> Iterator[tuple[dict, Mapping]]:
        """Reads a shard from end to end and yields each row with its image record, see `records.decode_image`."""
        uri = self._generation.shard_path(shard)
        mend = (
            "Restore it, or pack the photographs again; "
            f"`python -m pipeline shard --output {uri.rpartition('/')[0]} --verify` looks at every shard"
        )
        rows, read = {row["ordinal"]: row for row in rows}, 0
        try:
            with storage.opened(uri) as stream:
                for ordinal, record in enumerate(tfrecords.read(stream)):
                    read += 1
                    if ordinal not in rows:
                        continue
                    image = records.decode_image(record.payload)
                    if image["image_id"] != rows[ordinal]["image_id"].decode():
                        raise PipelineError(
                            f"{uri} holds another photograph at {ordinal} than its index says "
                            f"({rows[ordinal]['image_id'].decode()}): pack the photographs again into another folder"
                        )
                    yield rows[ordinal], image
        except PermissionError as error:
            text = f"cannot read the image shard {uri}: {_reason(error)}. Let the account that runs this read it"
            raise PipelineError(text) from error
        except (ValueError, FileNotFoundError) as error:
            raise PipelineError(f"cannot read the image shard {uri}: {_reason(error)}. {mend}") from error
        if read != self._facts[shard]["records"]:
            told = self._facts[shard]["records"]
            raise PipelineError(f"the image shard {uri} holds {read} records, its generation has {told}. {mend}")


def _labelled(row: Mapping, image: Mapping, classes: Sequence[str]) -> bytes:
    return records.encode_labelled(
        image_id=row["image_id"].decode(),
        product_id=row["product_id"].decode(),
        source=row["source"].decode(),
        label=classes[row["class"]],
        label_index=row["class"],
        encoded=image["encoded"],
        width=image["width"],
        height=image["height"],
    )


def _write_labels(labels_of_split, folder: str, outcome: Outcome) -> None:
    split, labels = labels_of_split
    if outcome.problem_count:
        return
    with storage.scratch(folder) as scratch:
        path = os.path.join(scratch, split)
        with open(path, "wb") as stream:
            writer = tfrecords.Writer(stream)
            for _, record in sorted(labels):
                writer.write(record)
        storage.publish(path, _labels_file(folder, split))


def _write_outcome(outcome: Outcome, uri: str) -> None:
    storage.write(uri, files.to_json(dataclasses.asdict(outcome)).encode())
