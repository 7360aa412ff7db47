"""What photographs cost on their way: packing one into a shard, and reading it back in training.

    .venv/bin/python bench/shards.py codec
    .venv/bin/python bench/shards.py packing
    .venv/bin/python bench/shards.py input

Each part prints its figures and writes them under its own name into bench/shards.json. The photographs are the
sample's, enlarged and strewn with soft noise until they weigh what photographs of their size do. All rates are
photographs per second of processor time, best of three rounds; the rounds of what is compared take turns, because other
work on the machine moves them all. Ratios travel, absolute figures do not. `codec` takes two minutes on two cores,
`packing` ten, `input` one.

    codec   photographs.pack against TensorFlow, and against libjpeg-turbo alone with nothing between decoder and
            encoder; and what the decoder's reduction changes in the pictures
    packing the whole command, from 1,000 to 20,000 photographs, and over a million that did not change; what follows
            for 2.1 TB on Dataflow
    input   the shards as training reads them, against the full-size files
"""

import argparse
import dataclasses
import datetime
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image, features

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from models.config import TrainingConfig  # noqa: E402
from pipeline.settings import ShardSettings  # noqa: E402
from pipeline.shards import photographs  # noqa: E402

ROUNDS = 3
SHORT_SIDE, IMAGE_SIZE = 256, 224

# The files that the case's figures come from: 1024 x 1024 at quality 90 and 184 KB each.
FILE_KB, NOISE = 184, 5.8


def main() -> int:
    """Runs one part of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--output", default=str(ROOT / "bench" / "shards.json"))
    options = parser.parse_args()
    output = pathlib.Path(options.output)
    figures = PARTS[options.part]()
    result = json.loads(output.read_text()) if output.exists() else {}
    result[options.part] = {
        "command": " ".join([".venv/bin/python bench/shards.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": _versions(),
        **figures,
    }
    output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def square_photographs(count: int = 400) -> list[bytes]:
    """JPEGs of 1024 x 1024 pixels at quality 90, 184 KB in the mean."""
    rng = np.random.default_rng(1)
    files = [_photograph(number, (1024, 1024), rng) for number in range(count)]
    mean = _mean_kb(files)
    if abs(mean / FILE_KB - 1) > 0.1:
        raise SystemExit(f"the photographs weigh {mean:.0f} KB in the mean and should {FILE_KB}: change NOISE")
    return files


def mixed_photographs(count: int = 200) -> list[bytes]:
    """JPEGs at quality 90, shorter side 600 to 1600 pixels, up to 3 : 2, upright and lying."""
    rng = np.random.default_rng(2)
    files = []
    for number in range(count):
        short = int(rng.integers(600, 1601))
        size = short, round(short * rng.uniform(1, 1.5))
        files.append(_photograph(number, size[:: rng.choice((1, -1))], rng))
    return files


def _photograph(number: int, size: tuple[int, int], rng: np.random.Generator) -> bytes:
    sample = sorted((ROOT / "data" / "sample" / "images").glob("*.jpg"))
    width, height = size
    image = Image.open(sample[number % len(sample)]).convert("RGB").resize(size, Image.LANCZOS)
    # Half the resolution, as a sensor's noise is after demosaicing; white noise would weigh too much.
    noise = rng.normal(0, NOISE, ((height + 1) // 2, (width + 1) // 2)).astype(np.float32)
    noise = np.asarray(Image.fromarray(noise).resize(size, Image.BICUBIC))
    pixels = np.clip(np.asarray(image, np.float32) + noise[..., np.newaxis], 0, 255).astype(np.uint8)
    return _jpeg(Image.fromarray(pixels))


def _jpeg(image: Image.Image, **options) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90, **options)
    return content.getvalue()


def _mean_kb(files: list[bytes]) -> float:
    return round(statistics.mean(map(len, files)) / 1000, 1)


def _rates(candidates: dict, count: int) -> dict[str, float]:
    """Photographs per second of processor time for each function, which handles `count` of them a call."""
    best = {}
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            started = time.process_time()
            run()
            took = (time.process_time() - started) / count
            best[name] = min(took, best.get(name, took))
    return {name: round(1 / took, 1) for name, took in best.items()}


def codec() -> dict:
    """Packing a photograph: speed, and what the decoder's reduction does to it."""
    import simplejpeg
    import tensorflow as tf

    from models import records

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    settings = ShardSettings(short_side=SHORT_SIDE)

    def ours(content):
        packed = photographs.pack("photograph", content, settings)
        return records.encode_image(
            image_id=packed.image_id,
            encoded=packed.encoded,
            width=packed.width,
            height=packed.height,
            source_sha256=packed.source_sha256,
            sha256=packed.sha256,
        )

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def tensorflow(content):
        image = tf.io.decode_jpeg(content, channels=3)
        sides = tf.cast(tf.shape(image)[:2], tf.float32)
        size = tf.cast(tf.round(sides * SHORT_SIDE / tf.reduce_min(sides)), tf.int32)
        image = tf.image.resize(image, size, antialias=True)
        image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
        return tf.io.encode_jpeg(image, quality=90, chroma_downsampling=False)

    def libjpeg(content):
        # The same reduction as ours, and a picture of the size that is stored, cut out and not filtered.
        height, width, _, _ = simplejpeg.decode_jpeg_header(content)
        scale = photographs._decode_scale(min(width, height), SHORT_SIDE)
        least = {"min_height": -(-height // scale), "min_width": -(-width // scale)} if scale > 1 else {}
        pixels = simplejpeg.decode_jpeg(content, **least)
        width, height = photographs._stored_size((width, height), SHORT_SIDE)
        pixels = np.ascontiguousarray(pixels[:height, :width])
        return simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="444")

    candidates = {"pack": ours, "tensorflow": lambda content: tensorflow(content).numpy(), "libjpeg_alone": libjpeg}
    result = {"short_side": SHORT_SIDE, "speed": {}, "reduction": {}}
    mixed = mixed_photographs()
    for name, files in (("1024 x 1024", square_photographs()), ("mixed sizes", mixed)):
        rates = _rates({key: _over(run, files) for key, run in candidates.items()}, len(files))
        ratios = {f"pack_to_{key}": round(rates["pack"] / rates[key], 2) for key in rates if key != "pack"}
        stored = [photographs.pack("photograph", content, settings).encoded for content in files]
        result["speed"][name] = {
            "photographs": len(files),
            "kb_a_file": _mean_kb(files),
            "kb_stored": _mean_kb(stored),
            "photographs_a_cpu_second": rates,
            **ratios,
        }
        print(f"{name}: {rates}, {ratios}", flush=True)
    sample = [path.read_bytes() for path in sorted((ROOT / "data" / "sample" / "images").glob("*.jpg"))]
    result["reduction"]["the sample to 112"] = _reduction(sample, 112)
    result["reduction"]["the sample to 200"] = _reduction(sample, 200)
    result["reduction"]["mixed sizes to 256"] = _reduction(mixed, SHORT_SIDE)
    room = photographs._ROOM
    for other in (1, 1.25, 1.5, 2):
        photographs._ROOM = other
        rates = _rates({"pack": _over(lambda content: photographs.pack("p", content, settings), mixed)}, len(mixed))
        result["reduction"][f"mixed sizes to 256, room {other}"] = {
            **_reduction(mixed, SHORT_SIDE),
            "cpu_ms_a_photograph": round(1000 / rates["pack"], 2),
        }
    photographs._ROOM = room
    for name, figures in result["reduction"].items():
        print(f"{name}: {figures}")
    return result


def _over(run, files):
    return lambda: [run(content) for content in files]


def _reduction(files: list[bytes], short_side: int) -> dict:
    """PSNR, in dB, against a full decode and the same filter; of the reduced photographs alone where it says so."""
    reduced, encoded, exact_encoded = [], [], []
    for content in files:
        with Image.open(io.BytesIO(content)) as image:
            full = image.size
            pixels = photographs.scaled(image, short_side)
            is_reduced = image.size != full
        with Image.open(io.BytesIO(content)) as image:
            exact = image.convert("RGB")
            exact = exact if exact.size == pixels.size else exact.resize(pixels.size, Image.LANCZOS)
        if is_reduced:
            reduced.append(_psnr(pixels, exact))
            encoded.append(_psnr(_reencoded(pixels), exact))
            exact_encoded.append(_psnr(_reencoded(exact), exact))
    result = {"photographs": len(files), "of_these_reduced": len(reduced)}
    for name, values in (
        ("psnr_decoded", reduced), ("psnr_encoded", encoded), ("psnr_encoded_after_full_decode", exact_encoded)
    ):
        result[name] = {"mean": round(statistics.mean(values), 1), "worst": round(min(values), 1)} if values else None
    return result


def _reencoded(image: Image.Image) -> Image.Image:
    return Image.open(io.BytesIO(_jpeg(image, subsampling=0)))


def _psnr(image: Image.Image, other: Image.Image) -> float:
    error = np.mean((np.asarray(image, float) - np.asarray(other, float)) ** 2)
    return 10 * np.log10(255**2 / max(error, 1e-6))


def packing() -> dict:
    """The whole command over 1,000 and 20,000 photographs, and over 100,000 and 1,000,000 that did not change."""
    import simplejpeg

    files = square_photographs(200)
    small = [photographs.pack("p", content, ShardSettings()).encoded for content in files]
    pixels = [simplejpeg.decode_jpeg(content) for content in small]
    result = {"files": {"distinct": len(files), "mean_kb": _mean_kb(files)}}

    def ceiling():
        return 1 / _process_seconds(lambda: _simplejpeg_alone(simplejpeg, files, pixels), len(files))

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        folder = pathlib.Path(folder)
        # What a process of this command costs before the first photograph.
        one = _linked(folder / "one", files, 1)
        start = _command(one, folder / "shards-one")
        result["start"] = start
        for count in (1_000, 20_000):
            images = _linked(folder / f"images-{count}", files, count)
            before = ceiling()
            first = _command(images, folder / f"shards-{count}")
            # Before and after, because the machine is not equally fast for as long as this takes.
            alone = (before + ceiling()) / 2
            again = _command(images, folder / f"shards-{count}")
            rate = count / (first["cpu_seconds"] - start["cpu_seconds"])
            result[f"{count} photographs"] = {
                "packed": first,
                "nothing_new": again,
                "per_cpu_second_after_the_start": round(rate, 1),
                "simplejpeg_alone_per_cpu_second": round(alone, 1),
                "ratio_to_simplejpeg_alone": round(rate / alone, 2),
            }
            print(f"{count} photographs: {result[f'{count} photographs']}", flush=True)
        for count in (100_000, 1_000_000):
            images, shards = recorded(folder / f"images-{count}", folder / f"shards-{count}", count, ShardSettings())
            result[f"{count} photographs, nothing new"] = _command(images, shards)
            print(f"{count} unchanged: {result[f'{count} photographs, nothing new']}", flush=True)
    result["projection"] = _projection(rate, result["1000000 photographs, nothing new"])
    print(json.dumps(result["projection"], indent=2))
    return result


def _simplejpeg_alone(simplejpeg, files, pixels) -> None:
    for content, stored in zip(files, pixels):
        simplejpeg.decode_jpeg(content, min_height=SHORT_SIDE, min_width=SHORT_SIDE)
        simplejpeg.encode_jpeg(stored, quality=90, colorsubsampling="444")


def _process_seconds(run, count: int) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times) / count


def _linked(folder: pathlib.Path, files: list[bytes], count: int) -> pathlib.Path:
    """A folder of `count` photographs, few of them distinct: what they cost is the same, and the disk stays free."""
    folder.mkdir()
    originals = folder.parent / "originals"
    if not originals.exists():
        originals.mkdir()
        for number, content in enumerate(files):
            (originals / f"{number}").write_bytes(content)
    for number in range(count):
        os.link(originals / f"{number % len(files)}", folder / f"p{number:07d}.jpg")
    return folder


def recorded(images: pathlib.Path, shards: pathlib.Path, count: int, settings) -> tuple[pathlib.Path, pathlib.Path]:
    """Makes a folder of `count` files and shards whose index knows them all: packing a million would take an hour.

    The index is true of the files and of nothing else: the shard that it names is empty.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline.shards import generations, planning, sharder

    images.mkdir()
    rows = []
    for number in range(count):
        part = images / f"{number // 10_000:03d}"
        if number % 10_000 == 0:
            part.mkdir()
            (part / "p.txt").write_bytes(b"no photograph is read here")
        path = part / f"p{number:07d}.jpg"
        os.link(part / "p.txt", path)
        rows.append((f"p{number:07d}", str(path)))
    status = {part: os.stat(part / "p.txt") for part in images.iterdir()}
    rng = np.random.default_rng(3)
    columns = {name: [0] * count for name in planning.INDEX_SCHEMA.names}
    columns |= {
        name: [hashlib.sha256(image_id.encode()).hexdigest() for image_id, _ in rows] for name in ("sha256", "source_sha256")
    }
    columns["image_id"], columns["source_uri"] = zip(*rows)
    columns["source_bytes"] = [status[pathlib.Path(uri).parent].st_size for _, uri in rows]
    columns["source_version"] = [status[pathlib.Path(uri).parent].st_mtime_ns for _, uri in rows]
    columns |= {"width": rng.integers(256, 385, count), "height": np.full(count, 256), "ordinal": range(count)}
    columns["bytes"] = rng.integers(12_000, 28_000, count)
    packing_json = sharder._packing(settings)
    columns |= {"shard": ["shard-0.tfrecord"] * count, "packing": [packing_json] * count}
    generation = pathlib.Path(generations.folder_of(str(shards), 1))
    generation.mkdir(parents=True)
    (shards / "shard-0.tfrecord").write_bytes(b"")
    pq.write_table(pa.table(columns, schema=planning.INDEX_SCHEMA), generation / "index-00000-of-00001.parquet")
    (generation / "quarantine.json").write_text("[]")
    counts = dict.fromkeys(("images", "new", "changed", "packed", "gone", "kept", "quarantined", "vanished"), 0)
    manifest = {
        "format": generations.FORMAT, "number": 1, "digest": "0" * 64, "packing": packing_json,
        "counts": counts | {"images": count}, "settings": dataclasses.asdict(settings),
        "shards": {"shard-0.tfrecord": {"records": count, "bytes": 0, "sha256": ""}},
        "index": {"index-00000-of-00001.parquet": ""},
    }  # fmt: skip
    (generation / generations.MANIFEST).write_text(json.dumps(manifest))
    return images, shards


def _command(images: pathlib.Path, shards: pathlib.Path) -> dict:
    """Seconds, processor seconds and peak memory of `python -m pipeline shard` in a process of its own."""
    arguments = [sys.executable, "-m", "pipeline", "shard", "--images", str(images), "--output", str(shards)]
    script = (
        "import json, resource, subprocess, sys, time\n"
        "started = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "usage = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps({'seconds': round(time.perf_counter() - started, 1), 'cpu_seconds': round(usage.ru_utime + "
        "usage.ru_stime, 1), 'peak_mb': round(usage.ru_maxrss / 1024)}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, cwd=ROOT, text=True)
    return json.loads(done.stdout)


# Dataflow's list prices in us-central1, dollars, as read in 2026: batch worker vCPU hour and GB hour, GB of disk hour.
# n1-standard-4 workers, one harness thread a process (docs/shards.md), a factor for slower cores and for waiting.
_VCPU_HOUR, _GB_HOUR, _DISK_GB_HOUR = 0.056, 0.003557, 0.000054
_TERABYTES, _FILE_KB, _VCPUS, _GB_PER_VCPU, _SLOWER = 2.1, 184, 128, 3.75, 1.5


def _projection(rate: float, unchanged: dict) -> dict:
    images = _TERABYTES * 1e9 / _FILE_KB
    hours = images / rate * _SLOWER / 3600
    dollars = hours * (_VCPU_HOUR + _GB_PER_VCPU * _GB_HOUR + 25 / 4 * _DISK_GB_HOUR)
    return {
        "assumptions": (
            f"{_TERABYTES} TB of {_FILE_KB} KB files; the rate above divided by {_SLOWER} for slower cores and waiting; "
            f"{_VCPUS} vCPUs of n1-standard-4 with 25 GB of disk each; {_VCPU_HOUR} $ a vCPU hour, {_GB_HOUR} $ a GB hour, "
            f"{_DISK_GB_HOUR} $ a GB hour of disk; same region, so no egress; 10 minutes to start; not run on Dataflow"
        ),
        "images": round(images),
        "vcpu_hours": round(hours, 1),
        "hours": round(hours / _VCPUS + 1 / 6, 2),
        "dollars": round(dollars, 2),
        "dollars_of_reads_and_listings": round(images / 1e4 * 0.004 + images / 1e3 / 1e3 * 0.005, 2),
        "shards": round(images * 20e3 / (128 * 2**20)),
        "minutes_when_nothing_is_new": round(
            (images / 1e6 * unchanged["seconds"] + images / 1e3 * 0.1 / 16) / 60, 1
        ),
    }


def input_(rounds: int = ROUNDS) -> dict:
    """Reading for training: 224 x 224 pixels of each photograph, in batches; the best of so many rounds."""
    import tensorflow as tf

    from models import input_pipeline, records

    default = TrainingConfig().augmentation
    files = square_photographs()
    with tempfile.TemporaryDirectory() as folder:
        paths, shards, labels = _written(pathlib.Path(folder), files, tf, records)
        split = input_pipeline.read_split("train", [str(labels)], classes=10)

        def prototype():
            dataset = tf.data.Dataset.from_tensor_slices(paths * 2)
            return dataset.map(
                lambda path: tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), [IMAGE_SIZE] * 2),
                num_parallel_calls=tf.data.AUTOTUNE,
            ).batch(32).prefetch(tf.data.AUTOTUNE)

        def ours(augmentation, epochs=20):
            return input_pipeline.training_dataset(
                split, image_size=IMAGE_SIZE, short_side=SHORT_SIDE, batch_size=40, epochs=range(epochs),
                augmentation=augmentation, seed=0,
            )

        def ceiling():
            return tf.data.TFRecordDataset(shards * 100).batch(40).prefetch(tf.data.AUTOTUNE)

        variants = {
            "files_decoded_in_full": (prototype, 2),
            "shards_cropped": (lambda: ours(0.0), 20),
            "shards_augmented": (lambda: ours(default), 20),
            "shards_read_only": (ceiling, 100),
        }
        # A pass over a dataset costs the same start each time, which a long one makes small.
        rates = {}
        for _ in range(rounds):
            for name, (make, passes) in variants.items():
                dataset = make()
                started = time.process_time()
                for _ in dataset:
                    pass
                rate = passes * len(files) / (time.process_time() - started)
                rates[name] = max(rate, rates.get(name, 0))
        stored = sum(path.stat().st_size for path in map(pathlib.Path, shards)) / len(files) / 1000
    base = rates["files_decoded_in_full"]
    result = {
        "photographs": len(files),
        "image_size": IMAGE_SIZE,
        "short_side": SHORT_SIDE,
        "augmentation": default,
        "kb_a_file": _mean_kb(files),
        "kb_a_record": round(stored, 1),
        "photographs_a_cpu_second": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_files": {name: round(rate / base, 1) for name, rate in rates.items()},
    }
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} a CPU second, {rate / base:.1f} x")
    return result


def _written(folder, files, tf, records):
    """The files one by one; and packed, in four shards with one label file. Paths of all three."""
    settings = ShardSettings(short_side=SHORT_SIDE)
    paths, shards = [], []
    for number, content in enumerate(files):
        paths.append(str(folder / f"{number:04d}.jpg"))
        pathlib.Path(paths[-1]).write_bytes(content)
    labels = folder / "labels.tfrecord"
    with tf.io.TFRecordWriter(str(labels)) as label_writer:
        for shard in range(4):
            shards.append(str(folder / f"shard-{shard}.tfrecord"))
            part = files[shard::4]
            with tf.io.TFRecordWriter(shards[-1]) as writer:
                for number, content in enumerate(part):
                    packed = photographs.pack(f"{shard}-{number}", content, settings)
                    writer.write(
                        records.encode_image(
                            image_id=packed.image_id,
                            encoded=packed.encoded,
                            width=packed.width,
                            height=packed.height,
                            source_sha256=packed.source_sha256,
                            sha256=packed.sha256,
                        )
                    )
            digest = hashlib.sha256(pathlib.Path(shards[-1]).read_bytes()).hexdigest()
            classes = [number % 10 for number in range(len(part))]
            label_writer.write(records.encode_labels(shard_uri=shards[-1], shard_sha256=digest, shard_bytes=os.path.getsize(shards[-1]), labels=classes))
    return paths, shards, labels


def machine() -> str:
    """Cores, processor and system, for a result."""
    names = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor()}, {platform.platform()}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "libjpeg-turbo in pillow": features.version("libjpeg_turbo")}
    for package in ("pillow", "tensorflow", "numpy", "simplejpeg"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return versions


PARTS = {"codec": codec, "packing": packing, "input": input_}


if __name__ == "__main__":
    sys.exit(main())
