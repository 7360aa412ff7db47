"""How good the sample's model is, and what a run costs: whole runs of the pipeline, one for each seed.

    .venv/bin/python bench/accuracy.py

Writes bench/accuracy.json and prints a table. Each run is `local_runner.py` with the committed settings, but for the
seed, on a store of its own; eval accuracy is the Evaluator's, on products that no training saw. The series:

    as_committed         the settings as they are
    decoded_in_full      each photograph is decoded in full before it is resized for its shard: what the decoder's own
                         reduction costs
    other_shards         larger shards: the same pictures in another order, which is what chance alone changes
    from_random_weights  without the backbone, the frozen epochs trained unfrozen too: what the backbone is worth

Takes about thirteen minutes on two cores.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

from bench.shards import machine  # noqa: E402
from pipeline.lineage import audit  # noqa: E402
from pipeline.lineage.mlmd import MLMDLineage  # noqa: E402

SERIES = ("as_committed", "decoded_in_full", "other_shards", "from_random_weights")

# local_runner.py whose photographs are packed without the decoder's reduction.
_DECODED_IN_FULL = (
    "import runpy, sys\n"
    "from pipeline.shards import photographs\n"
    "photographs._decode_scale = lambda short, short_side: 1\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--date", default="2026-04-06", help="snapshot date (default: 2026-04-06)")
    parser.add_argument("--output", default=str(ROOT / "bench" / "accuracy.json"))
    parser.add_argument("--series", nargs="+", choices=SERIES, default=SERIES, help="which series (default: all)")
    options = parser.parse_args()
    settings = yaml.safe_load((ROOT / "pipeline" / "configs" / "local.yaml").read_text())
    scratch = json.loads(json.dumps(settings))
    training = scratch["training"]
    del training["backbone"]
    training["unfrozen_epochs"] += training.pop("frozen_epochs")
    larger = settings | {"shards": settings["shards"] | {"target_bytes": 200_000}}
    output = pathlib.Path(options.output)
    result = json.loads(output.read_text()) if output.exists() else {}
    arguments = {
        "as_committed": (settings,),
        "decoded_in_full": (settings, ("-c", _DECODED_IN_FULL)),
        "other_shards": (larger,),
        "from_random_weights": (scratch,),
    }
    for name in options.series:
        result[name] = {
            "command": " ".join([".venv/bin/python bench/accuracy.py", *sys.argv[1:]]),
            "machine": machine(),
            "snapshot_date": options.date,
            **_series(name.replace("_", " "), options, *arguments[name]),
        }
        output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _series(name: str, options: argparse.Namespace, settings: dict, python: tuple[str, ...] = ()) -> dict:
    runs = [_run(name, settings, seed, options.date, python) for seed in options.seeds]
    mean = round(statistics.mean(run["accuracy"] for run in runs), 4)
    print(f"{name}: mean accuracy {mean:.3f} over seeds {options.seeds}")
    return {"mean_accuracy": mean, "runs": runs}


def _run(name: str, settings: dict, seed: int, date: str, python: tuple[str, ...]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings | {"training": settings["training"] | {"seed": seed}}))
        store = pathlib.Path(folder, "store")
        words = [sys.executable, *python, str(ROOT / "local_runner.py"), "--snapshot-date", date]
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
    steps = re.findall(r"^(?:\[ *\d+/\d+\] )?(\S[\w ]+?) +(\d+\.\d) s$", out, re.MULTILINE)
    run = {
        "seed": seed,
        "accuracy": round(facts["evaluation"]["accuracy"], 4),
        "eval_examples": facts["evaluation"]["examples"],
        "log_loss": round(facts["evaluation"]["log_loss"], 4),
        "by_class": facts["evaluation"]["by_class"],
        "weights_sha256": facts["release"]["weights_sha256"],
        "seconds": round(seconds, 1),
        "seconds_by_step": {step: float(took) for step, took in steps},
        "peak_memory_mib": usage.ru_maxrss // 1024,
    }
    print(
        f"{name}, seed {seed}: accuracy {run['accuracy']:.3f} on {run['eval_examples']}, {seconds:.0f} s, "
        f"{run['peak_memory_mib']} MiB",
        flush=True,
    )
    return run


if __name__ == "__main__":
    sys.exit(main())
