"""How the label join grows, and what a week of changed labels costs against writing the photographs again.

    .venv/bin/python bench/label_join.py

Writes bench/label_join.json and prints a table. The weeks are made up: 2,000 photographs an image shard, 80 % train,
10 % val, 10 % eval, a tuning sample of 12 %, ten classes, one file of rows a split. The JPEGs have some hundred bytes,
so that a million of them fit on a small disk; what depends on their size is also told for 20 KB, by arithmetic. Each
join runs as the pipeline runs it on one machine, in a process of its own, whose peak memory is told together with what
the imports alone take. `labels only` makes all rows train, with a tuning sample of one photograph a class.
Takes about five minutes on two cores and 3 GB of disk.
"""

import argparse
import dataclasses
import datetime
import gzip
import importlib.metadata
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

from bench.shards import machine  # noqa: E402
from models import records, tfrecords  # noqa: E402
from pipeline import storage  # noqa: E402
from pipeline.shards import label_join  # noqa: E402

PER_SHARD = 2000
CLASSES = tuple(f"class-{number}" for number in range(10))
SHARE = 0.12
USUAL_JPEG = 20_000
"""Bytes of a photograph at a short side of 256 pixels."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """Image shards of the bench, made without the sharder."""

    folder: str

    def shard_facts(self) -> dict[str, dict]:
        """As of a generation of the pipeline."""
        return json.loads(pathlib.Path(self.folder, "facts.json").read_text(encoding="utf-8"))

    def shard_path(self, name: str) -> str:
        """As of a generation of the pipeline."""
        return os.path.join(self.folder, name)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--output", default=str(ROOT / "bench" / "label_join.json"))
    parser.add_argument("--join", nargs=3, help=argparse.SUPPRESS)  # what the processes of the bench are started with
    options = parser.parse_args()
    if options.join:
        _join(*options.join)
        return 0
    versions = ("tfx", "apache-beam", "tfx-bsl", "pyarrow", "numpy")
    result = {
        "command": " ".join([".venv/bin/python bench/label_join.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": {name: importlib.metadata.version(name) for name in versions},
        "photographs_a_shard": PER_SHARD,
        "joins": [],
    }
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            jpeg_bytes = _make_shards(folder / "shards", rows)
            _make_rows(folder / "rows", rows, changed=0.0)
            result["jpeg_bytes"] = jpeg_bytes
            result["joins"].append(_measured(folder, "week", rows))
            result["joins"].append(_measured(folder, "labels only", rows))
            if rows == max(options.rows):
                result["one_percent_changed"] = _changed_week(folder, rows, jpeg_bytes)
    result["growth"] = {kind: _growth(result["joins"], kind) for kind in ("week", "labels only")}
    pathlib.Path(options.output).write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _make_shards(folder: pathlib.Path, rows: int) -> float:
    """Writes the image shards and returns the mean size of a JPEG."""
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (50, 12, 12, 3), np.uint8)
    jpegs = []
    for picture in noise:
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "JPEG", quality=30, optimize=True)
        jpegs.append(content.getvalue())
    facts = {}
    for shard in range(rows // PER_SHARD):
        with open(folder / _name(shard), "wb") as stream:
            writer = tfrecords.Writer(stream)
            for ordinal in range(PER_SHARD):
                writer.write(
                    records.encode_image(
                        image_id=_image_id(shard, ordinal),
                        encoded=jpegs[ordinal % len(jpegs)],
                        width=12,
                        height=12,
                        source_sha256="0" * 64,
                        sha256="0" * 64,
                    )
                )
        facts[_name(shard)] = {"records": writer.records, "bytes": writer.bytes, "sha256": writer.sha256}
        _progress(f"image shard {shard + 1} of {rows // PER_SHARD}")
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    return sum(map(len, jpegs)) / len(jpegs)


def _name(shard: int) -> str:
    return f"shard-{shard:032x}.tfrecord"


def _image_id(shard: int, ordinal: int) -> str:
    return f"photo-{shard * PER_SHARD + ordinal:08d}"


def _make_rows(folder: pathlib.Path, rows: int, changed: float) -> None:
    """Writes what SnapshotExampleGen writes, in no order of the shards; `changed` is the share of other labels."""
    draw = np.random.default_rng(1)
    order = draw.permutation(rows)
    splits = draw.choice(np.array(["train", "val", "eval"]), rows, p=[0.8, 0.1, 0.1])
    labels = draw.integers(0, len(CLASSES), rows)
    other = np.random.default_rng(2).random(rows) < changed
    labels = np.where(other, (labels + 1) % len(CLASSES), labels)
    writers, streams = {}, []
    for split in label_join.SPLITS:
        (folder / split).mkdir(parents=True)
        streams.append(gzip.open(folder / split / "rows.gz", "wb", compresslevel=6))
        writers[split] = tfrecords.Writer(streams[-1])
    for count, row in enumerate(order.tolist()):
        shard, ordinal = divmod(row, PER_SHARD)
        values = {
            "image_id": _image_id(shard, ordinal),
            "product_id": f"product-{row // 3:08d}",
            "label": CLASSES[labels[row]],
            "source": ("catalogue", "ana", "model")[row % 3],
            "split": splits[row],
            "shard": _name(shard),
        }
        feature = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
            for name, value in values.items()
        }
        for name, value in {"ordinal": ordinal, "bytes": USUAL_JPEG, "width": 12, "height": 12}.items():
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        writers[splits[row]].write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        if count % 10_000 == 0:
            _progress(f"row {count:,} of {rows:,}")
    for stream in streams:
        stream.close()


def _measured(folder: pathlib.Path, kind: str, rows: int, rows_folder: str = "rows") -> dict:
    """Joins in a new process."""
    _progress(f"{kind} of {rows:,} rows")
    output = folder / f"{kind}-{rows_folder}"
    words = [sys.executable, __file__, "--join", kind, str(folder), rows_folder]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    measured = json.loads(done.stdout.splitlines()[-1])
    written = {place: _bytes(output / place) for place in ("labels", "eval", "tuning")}
    result = {
        "kind": kind,
        "rows": rows,
        "shards": rows // PER_SHARD,
        "seconds": measured["seconds"],
        "rows_a_second": round(rows / measured["seconds"]),
        "peak_memory_mib": measured["peak_memory_mib"],
        "of_it_imports_mib": measured["imports_mib"],
        "images": measured["images"],
        "written_bytes": written,
    }
    _progress("")
    print(
        f"{kind}: {rows:9,} rows {result['seconds']:7.1f} s {result['rows_a_second']:7,} rows/s "
        f"{result['peak_memory_mib']:6,} MiB, imports {result['of_it_imports_mib']} MiB",
        flush=True,
    )
    return result


def _join(kind: str, folder: str, rows_folder: str) -> None:
    """What a process of the bench does."""
    import apache_beam as beam

    output = os.path.join(folder, f"{kind}-{rows_folder}")
    rows = {split: [os.path.join(folder, rows_folder, split, "rows.gz")] for split in label_join.SPLITS}
    share = SHARE
    if kind == "labels only":
        # All of it is train, and the sample is one photograph of each class.
        rows, share = {"train": [path for paths in rows.values() for path in paths]}, 0.0
    imports = _memory("VmRSS")
    started = time.monotonic()
    images = label_join.run(
        beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner"),
        rows=rows,
        generation=Generation(os.path.join(folder, "shards")),
        classes=CLASSES,
        tuning_share=share,
        labels=os.path.join(output, "labels"),
        eval_examples=os.path.join(output, "eval"),
        tuning_examples=os.path.join(output, "tuning"),
    )
    seconds = round(time.monotonic() - started, 1)
    memory = {"imports_mib": imports, "peak_memory_mib": _memory("VmHWM")}
    print(json.dumps({"seconds": seconds, **memory, "images": images}))


def _changed_week(folder: pathlib.Path, rows: int, jpeg_bytes: float) -> dict:
    """One percent of the labels change: the join, against shards that would hold labels beside pixels."""
    _make_rows(folder / "changed", rows, changed=0.01)
    week = _measured(folder, "week", rows, "changed")
    generation = Generation(str(folder / "shards"))
    started, rewritten = time.monotonic(), 0
    for number, name in enumerate(generation.shard_facts()):
        with storage.scratch(str(folder / "copy")) as scratch:
            path = os.path.join(scratch, name)
            with storage.opened(generation.shard_path(name)) as source, open(path, "wb") as stream:
                writer = tfrecords.Writer(stream)
                for record in tfrecords.read(source):
                    writer.write(record.payload)
            storage.publish(path, str(folder / "copy" / name))
        rewritten += writer.bytes
        _progress(f"image shard {number + 1} written again")
    seconds = round(time.monotonic() - started, 1)
    labels = week["written_bytes"]["labels"]
    examples = week["written_bytes"]["eval"] + week["written_bytes"]["tuning"]
    copied = sum(count for name, count in week["images"].items() if name not in label_join.LABELLED_SPLITS)
    # Each photograph would be as much larger as a usual JPEG is.
    more = USUAL_JPEG - jpeg_bytes
    usual_images, usual_examples = rewritten + more * rows, examples + more * copied
    result = {
        "rows": rows,
        "join": {"seconds": week["seconds"], "label_bytes": labels, "example_bytes": examples},
        "images_written_again": {"seconds": seconds, "bytes": rewritten},
        "images_to_labels": round(rewritten / labels, 1),
        "images_to_labels_and_examples": round(rewritten / (labels + examples), 1),
        "by_arithmetic_for_jpegs_of_20_kb": {
            "image_bytes": round(usual_images),
            "example_bytes": round(usual_examples),
            "images_to_labels": round(usual_images / labels),
            "images_to_labels_and_examples": round(usual_images / (labels + usual_examples), 1),
        },
    }
    times = result["by_arithmetic_for_jpegs_of_20_kb"]["images_to_labels"]
    _progress("")
    print(
        f"1 % of the labels changed: label records {labels:,} bytes, examples {examples:,} bytes, {week['seconds']} s; "
        f"all images again {rewritten:,} bytes, {seconds} s\n"
        f"at 20 KB a JPEG the images are {times} times the label records"
    )
    return result


def _growth(joins: list[dict], kind: str) -> dict:
    first, *_, last = [join for join in joins if join["kind"] == kind] * 2
    return {
        "rows": round(last["rows"] / first["rows"], 2),
        "seconds": round(last["seconds"] / first["seconds"], 2),
        "memory_bytes_a_row": round(
            (last["peak_memory_mib"] - first["peak_memory_mib"]) * 2**20 / max(1, last["rows"] - first["rows"])
        ),
    }


def _bytes(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.tfrecord"))


def _memory(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) // 1024


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
