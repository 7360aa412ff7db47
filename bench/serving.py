"""What the export costs to serve: photographs as clients send them, in batches of 1, 8 and 32, through its own signature.

    .venv/bin/python bench/serving.py

Writes bench/serving.json and prints a table. ResNet-50 at 224 pixels with random weights, whose speed is that of trained
ones, and the small network of the sample; TensorFlow on this machine's processors, in one process that has loaded nothing
else. The batches take turns, and each figure is a median, so that what else the machine does falls on all alike. Takes about
two minutes on two cores.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

BATCHES = (1, 8, 32)

# Sides of the photographs as clients send them, pixels: as large as the case's, and as small as the shards'.
SIDES = (1024, 256)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="times that each batch is asked (default: 9)")
    parser.add_argument("--output", default=str(ROOT / "bench" / "serving.json"))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)  # model and photographs: the process that serves
    options = parser.parse_args()
    if options.measure:
        model, folder = options.measure
        print(json.dumps(_measure(model, pathlib.Path(folder), options.rounds)))
        return 0
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    from bench.shards import machine
    from pipeline import settings

    local = settings.load(settings.CONFIGS / "local.yaml")
    production = settings.NetworkConfig()
    networks = {
        "ResNet-50 at 224 pixels": (production, settings.ShardSettings().short_side),
        "the sample's network at 96 pixels": (local.network, local.short_side),
    }
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        _write_photographs(pathlib.Path(folder))
        measured = {name: _network(*made, folder, options.rounds) for name, made in networks.items()}
    result = {
        "command": " ".join([".venv/bin/python bench/serving.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load_average_before": [round(value, 1) for value in load],
        "networks": measured,
    }
    pathlib.Path(options.output).write_text(json.dumps(result, indent=2) + "\n")
    _print(result)
    return 0


def _network(config, short_side, photographs, rounds) -> dict:
    """Exports a network and has it measured by a process of its own."""
    from models import serving
    from models.network import Classifier

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = os.path.join(folder, "model")
        classes = [f"class {number}" for number in range(100)]
        serving.export(Classifier(config, len(classes), 0), classes, config.image_size, short_side, path)
        size = sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())
        words = [sys.executable, __file__, "--measure", path, photographs, "--rounds", str(rounds)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return {"export_megabytes": round(size / 1e6, 1), **json.loads(done.stdout.splitlines()[-1])}


def _write_photographs(folder: pathlib.Path) -> None:
    """The sample's photographs as bench/shards.py enlarges them, and made as small as the sharder makes them."""
    from bench.shards import square_photographs
    from pipeline.settings import ShardSettings
    from pipeline.shards import photographs

    for number, large in enumerate(square_photographs(64)[: max(BATCHES)]):
        for side in SIDES:
            settings = ShardSettings(short_side=side)
            content = large if side == max(SIDES) else photographs.pack("p", large, settings).encoded
            (folder / str(side)).mkdir(exist_ok=True)
            (folder / str(side) / f"{number:02d}.jpg").write_bytes(content)


def _measure(model: str, folder: pathlib.Path, rounds: int) -> dict:
    import tensorflow as tf

    started = time.perf_counter()
    serve = tf.saved_model.load(model).signatures["serving_default"]
    loaded = time.perf_counter() - started
    figures = []
    for side in SIDES:
        photographs = [path.read_bytes() for path in sorted((folder / str(side)).iterdir())]
        requests = {batch: tf.constant(photographs[:batch]) for batch in BATCHES}
        times = {batch: [] for batch in BATCHES}
        for turn in range(rounds + 1):
            for batch, request in requests.items():
                started = time.perf_counter()
                serve(bytes_inputs=request)["probabilities"].numpy()
                if turn:  # the first traces and allocates
                    times[batch].append(time.perf_counter() - started)
        medians = {batch: statistics.median(each) for batch, each in times.items()}
        for batch, seconds in medians.items():
            figures.append(
                {
                    "side": side,
                    "kilobytes": round(sum(map(len, photographs)) / len(photographs) / 1000),
                    "batch": batch,
                    "milliseconds": round(1000 * seconds, 1),
                    "slowest_milliseconds": round(1000 * max(times[batch]), 1),
                    "photographs_a_second": round(batch / seconds, 1),
                    "throughput_against_batch_1": round(batch / seconds * medians[1], 2),
                }
            )
    return {"load_seconds": round(loaded, 2), "figures": figures}


def _print(result) -> None:
    for name, measured in result["networks"].items():
        print(f"{name}: {measured['export_megabytes']} MB, loads in {measured['load_seconds']} s")
        for row in measured["figures"]:
            print(
                f"  {row['side']:4d} px, batch {row['batch']:2d}: {row['milliseconds']:8.1f} ms, "
                f"{row['photographs_a_second']:7.1f} photographs/s, {row['throughput_against_batch_1']:.2f} x batch 1"
            )


if __name__ == "__main__":
    sys.exit(main())
