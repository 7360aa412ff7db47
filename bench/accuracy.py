"""How good the sample's model is, and what a run costs: whole runs of the pipeline, one for each seed.

    .venv/bin/python bench/accuracy.py

Writes bench/accuracy.json and prints a table. Each run is `local_runner.py` with the committed settings, but for the
seed, on a store of its own; eval accuracy is the Evaluator's, on products that no training saw. Takes about five minutes
on two cores.
"""

import argparse
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

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

from pipeline.lineage import audit  # noqa: E402
from pipeline.lineage.mlmd import MLMDLineage  # noqa: E402


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--date", default="2026-04-06", help="snapshot date (default: 2026-04-06)")
    parser.add_argument("--output", default=str(ROOT / "bench" / "accuracy.json"))
    options = parser.parse_args()
    runs = [_run(seed, options.date) for seed in options.seeds]
    accuracies = [run["accuracy"] for run in runs]
    result = {
        "command": "python bench/accuracy.py " + " ".join(sys.argv[1:]),
        "machine": _machine(),
        "snapshot_date": options.date,
        "mean_accuracy": round(statistics.mean(accuracies), 4),
        "runs": runs,
    }
    pathlib.Path(options.output).write_text(json.dumps(result, indent=2) + "\n")
    print(f"mean accuracy {result['mean_accuracy']:.3f} over seeds {options.seeds}")
    return 0


def _run(seed: int, date: str) -> dict:
    settings = yaml.safe_load((ROOT / "pipeline" / "configs" / "local.yaml").read_text())
    settings["training"]["seed"] = seed
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings))
        store = pathlib.Path(folder, "store")
        words = [sys.executable, str(ROOT / "local_runner.py"), "--snapshot-date", date]
        started = time.monotonic()
        process = subprocess.Popen(
            [*words, "--settings", str(path), "--store", str(store)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"the run of seed {seed} failed:\n{out}")
        seconds = time.monotonic() - started
        lineage = MLMDLineage(str(store / "metadata.sqlite"))
        facts = audit.run_facts(lineage.run(lineage.run_ids()[-1]))
    steps = {step: float(took) for step, took in re.findall(r"^(?:\[.*\] |        \[.*\] )?([\w ]+?) +(\d+\.\d) s$", out, re.MULTILINE)}
    run = {
        "seed": seed,
        "accuracy": round(facts["evaluation"]["accuracy"], 4),
        "eval_examples": facts["evaluation"]["examples"],
        "log_loss": round(facts["evaluation"]["log_loss"], 4),
        "by_class": facts["evaluation"]["by_class"],
        "weights_sha256": facts["release"]["weights_sha256"],
        "epochs": {"frozen": facts["training"]["training"]["frozen_epochs"], "unfrozen": facts["training"]["training"]["unfrozen_epochs"]},
        "seconds": round(seconds, 1),
        "seconds_by_step": steps,
        "peak_memory_mib": usage.ru_maxrss // 1024,
    }
    print(f"seed {seed}: accuracy {run['accuracy']:.3f} on {run['eval_examples']}, {seconds:.0f} s, {run['peak_memory_mib']} MiB", flush=True)
    return run


def _machine() -> str:
    names = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor()}, {platform.platform()}"


if __name__ == "__main__":
    sys.exit(main())
