"""Labels meet the image shards: without pixels for training, with them for the judges."""

import collections
import dataclasses
import errno
import hashlib
import io
import itertools
import json
import pathlib
import pickle

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline, records, tfrecords
from models.errors import TrainingError
from pipeline import storage
from pipeline.errors import PipelineError, user_error
from pipeline.shards import label_join
from tests.cloud import storage_emulator

CLASSES = ("cup", "hat")
RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the week, as SnapshotExampleGen writes it."""

    image_id: str
    product_id: str
    label: str
    source: str
    split: str
    shard: str
    ordinal: int


@dataclasses.dataclass(frozen=True)
class Generation:
    """What the join needs of a generation."""

    folder: str
    facts: dict

    def shard_facts(self):
        return self.facts

    def shard_path(self, name):
        return f"{self.folder}/{name}"


def pixels(image_id: str) -> bytes:
    return b"pixels of " + image_id.encode()


def write_shard(path: pathlib.Path, image_ids) -> dict:
    """Writes one image shard and returns its facts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        writer = tfrecords.Writer(stream)
        for image_id in image_ids:
            encoded = pixels(image_id)
            writer.write(
                records.encode_image(
                    image_id=image_id,
                    encoded=encoded,
                    width=len(encoded),
                    height=32,
                    source_sha256="0" * 64,
                    sha256=hashlib.sha256(encoded).hexdigest(),
                )
            )
    return {"records": writer.records, "bytes": writer.bytes, "sha256": writer.sha256}


def make_generation(folder: pathlib.Path, shards: dict[str, list[str]]) -> Generation:
    return Generation(str(folder), {name: write_shard(folder / name, ids) for name, ids in shards.items()})


SHARDS = {
    f"shard-{letter}.tfrecord": [f"{letter}{number}" for number in range(count)]
    for letter, count in {"b": 5, "a": 7, "c": 4, "d": 3}.items()
}


@pytest.fixture
def generation(tmp_path):
    return make_generation(tmp_path / "shards", SHARDS)


def row(shard: str, ordinal: int, **changes) -> Row:
    name = f"shard-{shard}.tfrecord"
    image_id = SHARDS[name][ordinal] if name in SHARDS and 0 <= ordinal < len(SHARDS[name]) else "?"
    values = {"image_id": image_id, "product_id": f"product of {image_id}", "label": "cup", "source": "ana"}
    return Row(**{**values, "split": "train", "shard": name, "ordinal": ordinal, **changes})


ROWS = [
    row("a", 0), row("a", 2, label="hat"), row("a", 3, split="val"), row("a", 5, split="eval", label="hat"),
    row("a", 6), row("b", 1), row("b", 4, split="eval"), row("b", 3, label="hat", split="val"),
    row("c", 0, split="eval"), row("c", 3, split="eval", label="hat"),
    row("d", 2, label="hat"),
]  # fmt: skip


def write_rows(path: pathlib.Path, rows, leave_out=()) -> str:
    """What SnapshotExampleGen writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for one in rows:
            example = tf.train.Example()
            for name, value in dataclasses.asdict(one).items():
                feature = example.features.feature[name]
                if isinstance(value, int):
                    feature.int64_list.value.append(value)
                elif name not in leave_out:
                    feature.bytes_list.value.append(value.encode())
            example.features.feature["bytes"].int64_list.value.append(7)
            writer.write(example.SerializeToString())
    return str(path)


def cut_into_files(folder: pathlib.Path, rows, parts=2, leave_out=()) -> dict[str, list[str]]:
    """Split -> files, each row in one of `parts` of them."""
    files = {}
    for split in ("train", "val", "eval"):
        mine = [r for r in rows if r.split == split]
        paths = [folder / f"Split-{split}" / f"part-{part}.gz" for part in range(parts)]
        files[split] = [write_rows(path, mine[part::parts], leave_out) for part, path in enumerate(paths)]
    return files


@dataclasses.dataclass(frozen=True)
class Joined:
    """What a join left behind."""

    folder: pathlib.Path
    images: dict[str, int]

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != label_join.OUTCOME
        }

    def labels(self, split) -> dict[str, list[int]]:
        """Name of each shard -> its label record."""
        found = [records.decode_labels(r) for r in read(self.folder / "labels" / f"Split-{split}" / "*")]
        assert [item.uri for item in found] == sorted(item.uri for item in found)
        return {item.uri.rpartition("/")[2]: item.labels.tolist() for item in found}

    def examples(self, folder, split) -> list[dict]:
        parsed = [records.parse_labelled(r) for r in read(self.folder / folder / f"Split-{split}" / "*")]
        return [{name: value.numpy() for name, value in item.items()} for item in parsed]

    def ids(self, folder, split) -> list[str]:
        return [example["image_id"].decode() for example in self.examples(folder, split)]

    def sample(self) -> set[str]:
        return {image_id for split in ("train", "val") for image_id in self.ids("tuning", split)}


def read(pattern: pathlib.Path) -> list[bytes]:
    paths = sorted(pattern.parent.glob(pattern.name))
    return [record.numpy() for path in paths for record in tf.data.TFRecordDataset(str(path))]


def join(folder: pathlib.Path, generation, rows, share=0.5, classes=CLASSES) -> Joined:
    """Joins rows, or files of rows by split, into a new folder."""
    if not isinstance(rows, dict):
        rows = cut_into_files(folder.parent / f"{folder.name}-rows", rows)
    return Joined(folder, run(str(folder), generation, rows, share, classes))


def run(root: str, generation, files, share=0.5, classes=CLASSES) -> dict[str, int]:
    return label_join.run(
        beam.Pipeline(runner=RUNNER),
        rows=files,
        generation=generation,
        classes=classes,
        tuning_share=share,
        labels=f"{root}/labels",
        eval_examples=f"{root}/eval",
        tuning_examples=f"{root}/tuning",
    )


@pytest.fixture
def joined(tmp_path, generation):
    return join(tmp_path / "out", generation, ROWS)


def test_label_records_have_a_label_for_every_record_of_their_shard(joined, generation):
    train = {"shard-a.tfrecord": [0, -1, 1, -1, -1, -1, 0], "shard-b.tfrecord": [-1, 0, -1, -1, -1]}
    assert joined.labels("train") == train | {"shard-d.tfrecord": [-1, -1, 1]}
    val = {"shard-a.tfrecord": [-1, -1, -1, 0, -1, -1, -1], "shard-b.tfrecord": [-1, -1, -1, 1, -1]}
    assert joined.labels("val") == val
    for record in read(joined.folder / "labels" / "Split-*" / "*"):
        item = records.decode_labels(record)
        assert item.sha256 == hashlib.sha256(pathlib.Path(item.uri).read_bytes()).hexdigest()


def test_training_reads_the_label_records(joined):
    split = input_pipeline.read_split("train", [str(joined.folder / "labels" / "Split-train" / "*")], len(CLASSES))
    assert split.examples == joined.images["train"] == 5
    assert [shard.uri[-10:] for shard in split.shards] == ["a.tfrecord", "b.tfrecord", "d.tfrecord"]


def test_a_shard_without_a_photograph_of_the_split_has_no_label_record_and_no_examples(joined):
    assert "shard-c.tfrecord" not in joined.labels("train") | joined.labels("val")
    assert [path.name for path in sorted((joined.folder / "eval" / "Split-eval").iterdir())] == [
        "shard-a.tfrecord", "shard-b.tfrecord", "shard-c.tfrecord"
    ]  # fmt: skip


def test_eval_examples_hold_the_right_pixels_for_the_right_id_in_the_order_of_the_shards(joined):
    wanted = sorted((r for r in ROWS if r.split == "eval"), key=lambda r: (r.shard, r.ordinal))
    examples = joined.examples("eval", "eval")
    assert len(examples) == joined.images["eval"] == 4
    for example, r in zip(examples, wanted, strict=True):
        assert example == {
            "image_id": r.image_id.encode(),
            "product_id": r.product_id.encode(),
            "source": b"ana",
            "label": r.label.encode(),
            "label_index": CLASSES.index(r.label),
            "image/encoded": pixels(r.image_id),
            "image/width": len(pixels(r.image_id)),
            "image/height": 32,
        }


def test_the_tuning_sample_has_pixels_too_and_is_of_train_and_val(joined):
    labels = {r.image_id: r for r in ROWS}
    for split, by_class in {"train": {"cup": 2, "hat": 1}, "val": {"cup": 1, "hat": 1}}.items():
        examples = joined.examples("tuning", split)
        assert collections.Counter(example["label"].decode() for example in examples) == by_class
        assert joined.images[f"tuning_{split}"] == len(examples)
        for example in examples:
            image_id = example["image_id"].decode()
            assert labels[image_id].split == split
            assert example["image/encoded"] == pixels(image_id)
            assert example["label"].decode() == labels[image_id].label


def test_no_temporary_files_are_left(joined):
    assert not [path for path in joined.folder.rglob("*") if path.name.startswith(".")]


def test_a_file_is_whole_when_it_appears(tmp_path, generation, monkeypatch):
    appeared = {}

    def look(path, uri):
        appeared[str(pathlib.Path(uri).relative_to(tmp_path / "out"))] = pathlib.Path(path).read_bytes()
        publish(path, uri)

    publish = storage.publish
    monkeypatch.setattr(storage, "publish", look)
    assert join(tmp_path / "out", generation, ROWS).files() == appeared


@pytest.mark.parametrize(("gathered", "batch"), [(1, 1), (1, 3), (10**9, 2), (10**9, 10**6)])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_bytes_do_not_depend_on_how_rows_are_cut(tmp_path, generation, joined, monkeypatch, parts, gathered, batch):
    monkeypatch.setattr(label_join, "_GATHERED", gathered)
    monkeypatch.setattr(label_join, "_BATCH", batch)
    files = cut_into_files(tmp_path / "cut", ROWS[::-1], parts)
    again = join(tmp_path / "again", generation, {split: paths[::-1] for split, paths in files.items()})
    assert again.files() == joined.files()
    assert again.images == joined.images
    assert len(joined.files()) >= 8


def test_a_second_run_into_the_same_folders_leaves_the_same_bytes(tmp_path, generation, joined):
    before = joined.files()
    assert join(tmp_path / "out", generation, ROWS).files() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[::2])
def test_an_image_with_two_rows_has_its_one_label_or_none(tmp_path, generation, caplog, order):
    same, torn, other = row("a", 0, product_id="one"), row("a", 1), row("a", 2)
    again, hat = dataclasses.replace(same, product_id="two"), dataclasses.replace(torn, label="hat")
    rows = [same, torn, other, again, hat, same]
    third = [rows[part::3] for part in order]
    files = [write_rows(tmp_path / f"part-{number}", part) for number, part in enumerate(third)]
    joined = join(tmp_path / "out", generation, {"train": files}, share=1.0)
    assert joined.labels("train") == {"shard-a.tfrecord": [0, -1, 0, -1, -1, -1, -1]}
    products = {example["image_id"]: example["product_id"] for example in joined.examples("tuning", "train")}
    assert products == {b"a0": b"one", b"a2": b"product of a2"}
    assert joined.images["train"] == 2
    assert [r.getMessage() for r in caplog.records if r.name == label_join.__name__] == [
        "photograph a1 is left out: it has the labels cup, hat"
    ]


def test_an_image_with_rows_in_two_splits_is_in_the_split_of_its_smallest_product(tmp_path, generation, caplog):
    rows = [
        row("a", 0, product_id="p2", split="train"), row("a", 0, product_id="p1", split="eval"),
        row("a", 1, product_id="p1", split="val"), row("a", 1, product_id="p2", split="eval"),
        row("a", 2, product_id="p", split="val"), row("a", 2, product_id="p", split="train"),
        row("a", 3, split="train", label="cup"), row("a", 3, split="eval", label="hat"),
    ]  # fmt: skip
    joined = join(tmp_path / "out", generation, rows, share=1.0)
    assert joined.ids("eval", "eval") == ["a0"]
    assert joined.labels("val") == {"shard-a.tfrecord": [-1, 0, -1, -1, -1, -1, -1]}
    assert joined.labels("train") == {"shard-a.tfrecord": [-1, -1, 0, -1, -1, -1, -1]}
    assert "photograph a3 is left out: it has the labels cup, hat" in caplog.text
    assert joined.images == {"train": 1, "val": 1, "eval": 1, "tuning_train": 1, "tuning_val": 1}


def test_of_many_that_are_left_out_the_first_are_named_and_the_rest_counted(tmp_path, caplog):
    generation = make_generation(tmp_path / "shards", {"shard-x": [f"x{number:02d}" for number in range(40)]})
    rows = [
        Row(f"x{number:02d}", "", label, "", "train", "shard-x", number)
        for number in range(40)
        for label in (("cup", "hat") if number < 30 else ("cup",))
    ]
    join(tmp_path / "out", generation, rows)
    messages = [r.getMessage() for r in caplog.records if r.name == label_join.__name__]
    assert len(messages) == 11 and messages[0].startswith("photograph x00 is left out")
    assert messages[-1] == "and 20 more photographs are left out"


def test_text_is_read_as_it_was_written_and_a_missing_one_is_empty(tmp_path):
    ids = ["Ärmel ☃", "it's \"q\"\n", "日本", "plain"]
    generation = make_generation(tmp_path / "shards", {"shard-ü.tfrecord": ids})
    rows = [Row(image_id, "ß", "čáp", "", "eval", "shard-ü.tfrecord", number) for number, image_id in enumerate(ids)]
    rows[3] = dataclasses.replace(rows[3], split="train")
    files = cut_into_files(tmp_path / "rows", rows, leave_out=("product_id", "source"))
    joined = join(tmp_path / "out", generation, files, classes=("čáp",))
    examples = joined.examples("eval", "eval")
    assert [example["image_id"].decode() for example in examples] == ids[:3]
    assert {(example["product_id"], example["source"], example["label"]) for example in examples} == {
        (b"", b"", "čáp".encode())
    }


def test_some_texts_may_be_missing_and_others_not(tmp_path, generation):
    files = [write_rows(tmp_path / "1", [row("a", 0)], ("product_id",)), write_rows(tmp_path / "2", [row("a", 1)])]
    joined = join(tmp_path / "out", generation, {"eval": files})
    assert [example["product_id"] for example in joined.examples("eval", "eval")] == [b"", b"product of a1"]


def test_splits_without_rows_are_empty_files_that_their_readers_complain_of(tmp_path, generation):
    joined = join(tmp_path / "out", generation, [])
    assert joined.images == {"train": 0, "val": 0, "eval": 0, "tuning_train": 0, "tuning_val": 0}
    assert joined.files() == {
        "labels/Split-train/labels-00000-of-00001.tfrecord": b"",
        "labels/Split-val/labels-00000-of-00001.tfrecord": b"",
        "eval/Split-eval/examples-00000-of-00001.tfrecord": b"",
        "tuning/Split-train/examples-00000-of-00001.tfrecord": b"",
        "tuning/Split-val/examples-00000-of-00001.tfrecord": b"",
    }
    with pytest.raises(TrainingError, match="the train split is empty"):
        input_pipeline.read_split("train", [str(joined.folder / "labels" / "Split-train" / "*")], 2)
    with pytest.raises(TrainingError, match="the val split is empty"):
        input_pipeline.read_labelled_split("val", [str(joined.folder / "tuning" / "Split-val" / "*")], 2)


def test_no_files_are_no_rows(tmp_path, generation):
    assert set(join(tmp_path / "out", generation, {}).images.values()) == {0}


def test_one_split_may_be_empty(tmp_path, generation):
    joined = join(tmp_path / "out", generation, [r for r in ROWS if r.split != "val"])
    assert joined.images["val"] == joined.images["tuning_val"] == 0
    assert joined.labels("val") == {} and joined.images["train"] == 5


def test_many_shards_with_few_rows(tmp_path):
    shards = {f"shard-{number:03d}": [f"{number:03d}-{ordinal}" for ordinal in range(2)] for number in range(150)}
    generation = make_generation(tmp_path / "shards", shards)
    splits = ("train", "val", "eval")
    rows = [
        Row(ids[number % 2], "", "hat" if number % 2 else "cup", "", splits[number % 3], shard, number % 2)
        for number, (shard, ids) in enumerate(shards.items())
    ]
    joined = join(tmp_path / "out", generation, rows, share=0.1)
    assert joined.images == {"train": 50, "val": 50, "eval": 50, "tuning_train": 4, "tuning_val": 4}
    assert joined.ids("eval", "eval") == [r.image_id for r in rows if r.split == "eval"]
    assert {shard: labels[int(shard[-3:]) % 2] for shard, labels in joined.labels("train").items()} == {
        r.shard: CLASSES.index(r.label) for r in rows if r.split == "train"
    }
    assert len(read(tmp_path / "out" / "eval" / "Split-eval" / "shard-*")) == 50


def sample(counts: dict[str, int], share: float, seed=0, shards=1) -> dict[str, set[str]]:
    """The sample of each class of made-up photographs, spread over shards."""
    ids = [(label, f"{label}{number:05d}") for label, count in counts.items() for number in range(count)]
    np.random.default_rng(seed).shuffle(ids)
    labels = sorted(counts)
    parts = []
    for shard in range(shards):
        mine = ids[shard::shards]
        hashes = label_join.hash_of(image_id.encode() for _, image_id in mine)
        parts.append((f"s{shard}", np.array([labels.index(label) for label, _ in mine], np.int32), hashes))
    cuts = label_join.cuts_of(parts[::-1], share)
    found = {label: set() for label in counts}
    for number, (shard, class_of, hashes) in enumerate(parts):
        chosen = label_join.in_sample(cuts, shard, class_of, hashes)
        for (label, image_id), taken in zip(ids[number::shards], chosen, strict=True):
            if taken:
                found[label].add(image_id)
    return found


def sizes(found) -> dict[str, int]:
    return {label: len(ids) for label, ids in found.items()}


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
    assert tuple(sizes(sample({"cup": counts[0], "hat": counts[1]}, share, shards=3)).values()) == wanted


def test_a_sample_is_exact_whatever_the_numbers():
    draw = np.random.default_rng(1)
    for seed in range(150):
        counts = {label: int(draw.integers(1, 60)) for label in "abcd"}
        share = float(draw.uniform(0, 1))
        found = sample(counts, share, seed, shards=int(draw.integers(1, 6)))
        assert sizes(found) == {label: max(1, round(share * count)) for label, count in counts.items()}, (counts, share)


def test_a_sample_is_those_with_the_smallest_digests():
    def digest(image_id):
        return hashlib.sha256(image_id.encode()).digest()

    ids = [f"cup{number:05d}" for number in range(300)]
    assert sample({"cup": 300}, 0.2, shards=7)["cup"] == set(sorted(ids, key=digest)[:60])


def test_equal_hashes_are_cut_by_shard_and_place():
    draw = np.random.default_rng(2)
    for _ in range(300):
        parts = [
            (f"s{shard}", draw.integers(0, 2, size).astype(np.int32), draw.integers(0, 4, size).astype(np.uint64))
            for shard, size in enumerate(draw.integers(1, 9, 4))
        ]
        share = float(draw.uniform(0, 1))
        cuts = label_join.cuts_of([parts[place] for place in draw.permutation(4)], share)
        ranked = sorted(
            (int(hash_), shard, place, int(label))
            for shard, labels, hashes in parts
            for place, (label, hash_) in enumerate(zip(labels, hashes))
        )
        for label in (0, 1):
            members = [(shard, place) for _, shard, place, of in ranked if of == label]
            wanted = set(members[: max(1, round(share * len(members)))]) if members else set()
            found = {
                (shard, int(place))
                for shard, labels, hashes in parts
                for place in np.flatnonzero(label_join.in_sample(cuts, shard, labels, hashes) & (labels == label))
            }
            assert found == wanted


def test_a_sample_does_not_depend_on_order_or_shards():
    assert sample({"cup": 50}, 0.3, seed=1, shards=1) == sample({"cup": 50}, 0.3, seed=2, shards=5)


def test_additions_leave_most_of_a_sample_in_place():
    before, after = sample({"cup": 200}, 0.2)["cup"], sample({"cup": 220}, 0.2)["cup"]
    assert len(after) == 44 and len(before & after) >= 0.8 * len(before)
    # It is the hash that decides: the first ids of the alphabet are no sample.
    assert before != {f"cup{number:05d}" for number in range(40)}


def test_another_class_does_not_move_a_sample():
    assert sample({"cup": 100, "hat": 70}, 0.2, shards=3)["cup"] == sample({"cup": 100}, 0.2)["cup"]


def test_the_sample_that_is_written_is_the_sample(tmp_path):
    shards = {f"shard-{number}": [f"{number}-{ordinal}" for ordinal in range(40)] for number in range(5)}
    generation = make_generation(tmp_path / "shards", shards)
    rows = [
        Row(image_id, "", CLASSES[ordinal % 3 == 0], "", ("train", "val")[ordinal % 5 == 0], shard, ordinal)
        for shard, ids in shards.items()
        for ordinal, image_id in enumerate(ids)
    ]
    joined = join(tmp_path / "out", generation, rows, share=0.15)
    for split in ("train", "val"):
        wanted = set()
        for label in CLASSES:
            members = [r.image_id for r in rows if (r.split, r.label) == (split, label)]
            members.sort(key=lambda image_id: hashlib.sha256(image_id.encode()).digest())
            wanted |= set(members[: max(1, round(0.15 * len(members)))])
        assert set(joined.ids("tuning", split)) == wanted


def failure(tmp_path, generation, rows, **options) -> str:
    """The text of the error; the label records, which come last, are not there after it."""
    with pytest.raises(PipelineError) as raised:
        join(tmp_path / "out", generation, rows, **options)
    assert not list((tmp_path / "out").rglob("labels-*"))
    assert json.loads((tmp_path / "out" / "labels" / label_join.OUTCOME).read_text())["problem_count"] >= 1
    assert "while running" not in str(raised.value) and "Traceback" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("split", ["train", "val", "eval"])
def test_a_label_that_the_schema_does_not_have_names_image_and_label(tmp_path, generation, split):
    text = failure(tmp_path, generation, [*ROWS, row("a", 1, label="vehical", split=split)])
    for words in ["a1", "'vehical'", "correct the label", "schema/schema.pbtxt"]:
        assert words in text
    assert not list((tmp_path / "out").rglob("shard-*"))


@pytest.mark.parametrize(
    ("split", "place"),
    [("train", {"ordinal": 7}), ("val", {"ordinal": -1}), ("eval", {"shard": "shard-of-another-generation.tfrecord"})],
)
def test_a_row_of_another_generation_is_an_error_that_names_image_and_shard(tmp_path, generation, split, place):
    wrong = dataclasses.replace(row("a", 1, split=split), **place)
    text = failure(tmp_path, generation, [*ROWS, wrong])
    assert f"image {wrong.image_id} should be record {wrong.ordinal} of {wrong.shard}" in text
    assert "run the week again" in text


def test_of_many_problems_the_first_are_shown_and_the_rest_counted(tmp_path, generation):
    rows = [dataclasses.replace(r, label="vehical") for r in ROWS if r.shard != "shard-d.tfrecord"]
    text = failure(tmp_path, generation, rows).splitlines()
    # One of each shard.
    assert [line.split()[1] for line in text[:-1]] == ["a0", "b1", "c0"]
    assert text[-1] == "and 7 more"


@pytest.mark.parametrize("split", ["train", "eval"])
def test_an_index_that_disagrees_with_its_shard_is_an_error(tmp_path, generation, split):
    text = failure(tmp_path, generation, [row("b", 2, split=split, image_id="somebody else")], share=1.0)
    assert "shard-b.tfrecord holds another photograph at 2 than its index says (somebody else)" in text
    assert "pack the photographs again" in text
    assert not list((tmp_path / "out").rglob("shard-*"))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_missing_shard_is_an_error(tmp_path, generation, split):
    pathlib.Path(generation.shard_path("shard-b.tfrecord")).unlink()
    text = failure(tmp_path, generation, [*ROWS, row("b", 2, split=split)], share=1.0)
    assert f"cannot read the image shard {generation.shard_path('shard-b.tfrecord')}: No such file" in text
    assert "Restore it, or pack the photographs again" in text
    assert f"`python -m pipeline shard --output {generation.folder} --verify`" in text


@pytest.mark.parametrize("place", [0, 14, 40, -1])
def test_a_flipped_byte_is_an_error_and_nothing_of_its_shard_is_there(tmp_path, generation, place):
    path = pathlib.Path(generation.shard_path("shard-b.tfrecord"))
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    # The photograph wanted is not the one that is damaged: the shard counts as a whole.
    text = failure(tmp_path, generation, [row("b", 2, split="eval"), row("a", 1, split="eval")])
    assert f"cannot read the image shard {path}: " in text and "--verify" in text
    assert [found.name for found in (tmp_path / "out").rglob("shard-*")] == ["shard-a.tfrecord"]


@pytest.mark.parametrize("records_left", [4, 3, 6])
def test_a_shard_of_another_length_is_an_error(tmp_path, generation, records_left):
    path = pathlib.Path(generation.shard_path("shard-b.tfrecord"))
    write_shard(path, [f"b{number}" for number in range(records_left)])
    text = failure(tmp_path, generation, [row("b", 1, split="eval"), row("b", 4)])
    assert f"the image shard {path} holds {records_left} records, its generation has 5" in text


def test_a_shard_that_nothing_is_copied_from_is_not_read(tmp_path, generation):
    pathlib.Path(generation.shard_path("shard-d.tfrecord")).unlink()
    one = make_generation(tmp_path / "more", {"shard-e.tfrecord": ["e0", "e1"]})
    both = Generation(generation.folder, generation.facts | one.facts)
    # The smallest digest of each class decides which shard the sample is taken from.
    digests = {image_id: hashlib.sha256(image_id.encode()).digest() for image_id in ("a0", "d1")}
    assert min(digests, key=digests.get) == "a0"
    joined = join(tmp_path / "out", both, [row("a", 0), row("d", 1)], share=0.1)
    assert set(joined.labels("train")) == {"shard-a.tfrecord", "shard-d.tfrecord"} and joined.sample() == {"a0"}


@pytest.mark.parametrize("damage", ["cut", "cut early", "junk", "flipped"])
def test_rows_that_cannot_be_read_are_an_error(tmp_path, generation, damage):
    files = cut_into_files(tmp_path / "rows", ROWS)
    path = pathlib.Path(files["train"][1])
    content = path.read_bytes()
    flipped = content[:12] + bytes(255 - byte for byte in content[12:20]) + content[20:]
    path.write_bytes({"cut": content[:-9], "cut early": content[:20], "junk": b"junk", "flipped": flipped}[damage])
    text = failure(tmp_path, generation, files)
    assert f"cannot read the rows {path}" in text and "Run the week again" in text


def test_rows_that_are_gone_are_an_error(tmp_path, generation):
    files = cut_into_files(tmp_path / "rows", ROWS)
    pathlib.Path(files["val"][0]).unlink()
    assert f"cannot read the rows {files['val'][0]}: No such file" in failure(tmp_path, generation, files)


def test_a_shard_whose_records_are_no_photographs_is_an_error(tmp_path, generation):
    path = pathlib.Path(generation.shard_path("shard-b.tfrecord"))
    with path.open("wb") as stream:
        writer = tfrecords.Writer(stream)
        for _ in range(5):
            writer.write(b"junk")
    assert f"cannot read the image shard {path}: not a" in failure(tmp_path, generation, [row("b", 1, split="eval")])


def test_a_full_disk_is_told_as_such(tmp_path, generation, monkeypatch):
    def full(path, uri):
        raise OSError(errno.ENOSPC, "No space left on device", uri)

    monkeypatch.setattr(storage, "publish", full)
    with pytest.raises(Exception) as raised:
        join(tmp_path / "out", generation, ROWS)
    assert "the disk is full" in str(user_error(raised.value))


@pytest.fixture
def cloud(tmp_path, generation):
    """An emulator with image shards and rows in `data`."""
    with storage_emulator.running("data", "out") as emulator:
        for name in SHARDS:
            emulator.put(f"gs://data/shards/{name}", pathlib.Path(generation.shard_path(name)).read_bytes())
        for split, paths in cut_into_files(tmp_path / "rows", ROWS).items():
            for number, path in enumerate(paths):
                emulator.put(f"gs://data/rows/Split-{split}/{number}", pathlib.Path(path).read_bytes())
        yield emulator


IN_CLOUD = {split: [f"gs://data/rows/Split-{split}/{number}" for number in range(2)] for split in label_join.SPLITS}


def test_in_cloud_storage_it_is_the_same(cloud, generation, joined):
    assert run("gs://out/week", Generation("gs://data/shards", generation.facts), IN_CLOUD) == joined.images
    found, wanted = cloud.below("gs://out/week"), joined.files()
    assert set(found) == set(wanted) | {f"labels/{label_join.OUTCOME}"}
    for name, content in wanted.items():
        if not name.startswith("labels"):
            assert found[name] == content
            continue
        # Label records name their shard by its URI.
        here, there = (
            [records.decode_labels(record.payload) for record in tfrecords.read(io.BytesIO(whole))]
            for whole in (content, found[name])
        )
        moved = [item.uri.replace(generation.folder, "gs://data/shards") for item in here]
        assert [item.uri for item in there] == moved
        assert [(item.sha256, item.labels.tolist()) for item in here] == [
            (item.sha256, item.labels.tolist()) for item in there
        ]


@pytest.mark.parametrize(("status", "words"), [(403, "Cloud Storage refuses access"), (404, "there is no such object")])
def test_what_cloud_storage_refuses_is_told(cloud, generation, status, words):
    cloud.answer(status, lambda call: call.name.endswith("shard-b.tfrecord"))
    with pytest.raises(PipelineError) as raised:
        run("gs://out/week", Generation("gs://data/shards", generation.facts), IN_CLOUD)
    assert f"cannot read the image shard gs://data/shards/shard-b.tfrecord: {words}" in str(raised.value)
    mend = {403: "Let the account", 404: "`python -m pipeline shard --output gs://data/shards --verify`"}
    assert mend[status] in str(raised.value)
    assert not [name for name in cloud.below("gs://out/week") if "labels-" in name]


def test_outcomes_add_up_in_any_order():
    outcomes = [
        label_join.Outcome({"train": number}, [f"p{number % 7}"], 2, [f"l{number:02d}"], 1) for number in range(1, 30)
    ]
    whole = label_join.add(outcomes)
    assert whole.images == {"train": sum(range(30))} and (whole.problem_count, whole.left_out_count) == (58, 29)
    assert whole.problems == sorted(f"p{number % 7}" for number in range(1, 30))[:10]
    assert whole.left_out == [f"l{number:02d}" for number in range(1, 11)]
    halves = label_join.add([label_join.add(outcomes[20:]), label_join.add(outcomes[:20][::-1])])
    assert halves == whole
    assert label_join.add([]) == label_join.Outcome({}, [], 0, [], 0)
    assert pickle.loads(pickle.dumps(whole)) == whole
