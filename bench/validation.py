"""What the gate costs: from the label table to the verdict, at 100,000 and at 1,000,000 labels.

    .venv/bin/python bench/validation.py

Writes bench/validation.json and prints a table. Each figure comes from `local_runner.py` as a user runs it, on DuckDB,
over made-up labels and an image index without images: two weeks are accepted, the second judged against the first and
measured, and each run then ends because there is nothing to train on. Takes about ten minutes on two cores.
"""

import argparse
import csv
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

from bench.shards import machine, recorded  # noqa: E402
from pipeline import settings  # noqa: E402

CLASSES = ("bird", "coin", "flower", "hoofed", "produce", "tool", "vehicle")

# The steps of TensorFlow Data Validation, and all that come before the verdict.
TFDV = ("StatisticsGen", "ExampleValidator", "DistributionValidator")
STEPS = ("ImageSharder", "SnapshotGen", "SnapshotExampleGen", *TFDV, "SnapshotGate")

# 2.1 TB of 184 KB files.
_IMAGES = 11_400_000


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs=2, default=[100_000, 1_000_000], metavar=("FEW", "MANY"))
    parser.add_argument("--output", default=str(ROOT / "bench" / "validation.json"))
    options = parser.parse_args()
    few, many = (_week(rows) for rows in options.rows)
    # A line through both: what does not grow with the rows is start-up.
    slope = {step: (many["steps"][step] - few["steps"][step]) / (many["rows"] - few["rows"]) for step in STEPS}
    memory = (many["peak_memory_mib"] - few["peak_memory_mib"]) / (many["rows"] - few["rows"])
    projected = {step: round(many["steps"][step] + slope[step] * (_IMAGES - many["rows"])) for step in STEPS}
    result = {
        "command": " ".join([".venv/bin/python bench/validation.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "weeks": [few, many],
        "growth": {
            "rows": many["rows"] / few["rows"],
            "seconds": round(many["seconds"] / few["seconds"], 2),
            "memory_bytes_a_row": round(memory * 2**20),
        },
        "projection": {
            "assumptions": "a straight line through both weeks; one process on this machine, as DuckDB and Beam run here. "
            "On Vertex the rows are read and summed up by BigQuery and Dataflow",
            "rows": _IMAGES,
            "minutes_by_step": {step: round(seconds / 60, 1) for step, seconds in projected.items()},
            "minutes": round(sum(projected.values()) / 60, 1),
            "peak_memory_gib": round((many["peak_memory_mib"] + memory * (_IMAGES - many["rows"])) / 1024, 1),
        },
    }
    pathlib.Path(options.output).write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["growth"]), json.dumps(result["projection"], indent=2))
    return 0


def _week(rows: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        folder = pathlib.Path(folder)
        data, store = folder / "data", folder / "store"
        (data / "schema").mkdir(parents=True)
        store.mkdir()
        config = settings.load(settings.CONFIGS / "local.yaml")
        recorded(data / "images", store / "shards", rows, config.shards)
        (data / "schema" / "schema.pbtxt").write_bytes((ROOT / "schema" / "schema.pbtxt").read_bytes())
        limits = yaml.safe_load((ROOT / "schema" / "gate.yaml").read_text())
        limits |= {"max_rows": 10 * rows}
        (data / "schema" / "gate.yaml").write_text(yaml.safe_dump(limits))
        _labels(data / "labels.csv", rows)
        for date in ("2026-03-02", "2026-03-09"):
            run = _run(data, store, date)
            if not (store / "accepted" / f"labels_{date.replace('-', '')}" / "accepted.json").exists():
                raise SystemExit(f"the week of {date} should be accepted:\n{run['output']}")
    steps = {step: float(took) for step, took in re.findall(r"^\[ *\d+/\d+\] (\w+) +(\d+\.\d) s", run["output"], re.MULTILINE)}
    judging = sum(steps[step] for step in STEPS)
    week = {
        "rows": rows,
        "seconds": round(judging, 1),
        "rows_a_second": round(rows / judging),
        "of_it_in_tfdv": round(sum(steps[step] for step in TFDV) / judging, 2),
        "peak_memory_mib": run["peak_memory_mib"],
        "steps": {step: steps[step] for step in STEPS},
    }
    print(f"{rows:,} labels: {judging:.1f} s, {week['peak_memory_mib']} MiB, {week['of_it_in_tfdv']:.0%} in TFDV", flush=True)
    return week


def _labels(path: pathlib.Path, rows: int) -> None:
    """98 % of the photographs labelled before the first Monday; then 2 % of these change and the others follow."""
    rng = np.random.default_rng(4)
    classes = rng.integers(0, len(CLASSES), rows)
    changed = rng.random(rows) < 0.02
    late = np.arange(rows) >= 0.98 * rows
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image_id", "product_id", "label", "source", "updated_at"])
        for number in range(rows):
            day = "2026-03-04" if late[number] else "2026-02-25"
            row = [f"p{number:07d}", f"p{number // 2:07d}"]
            writer.writerow([*row, CLASSES[classes[number]], "import", f"{day}T08:00:00Z"])
            if changed[number] and not late[number]:
                writer.writerow([*row, CLASSES[(classes[number] + 1) % len(CLASSES)], "ana", "2026-03-05T08:00:00Z"])


def _run(data: pathlib.Path, store: pathlib.Path, date: str) -> dict:
    words = [sys.executable, str(ROOT / "local_runner.py"), "--snapshot-date", date, "--data", str(data), "--store", str(store)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    return {
        "output": output,
        "peak_memory_mib": usage.ru_maxrss // 1024,
    }


if __name__ == "__main__":
    sys.exit(main())
