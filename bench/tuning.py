"""What a search of 60 trials finds, by its algorithm and by how many trials run at once, and what stopping saves.

    .venv/bin/python bench/tuning.py            # 10 minutes, then 25 for each surface of the Gaussian process, if nothing
                                                # else runs: it takes 5 to 8 s for a suggestion, and several times that if so
    .venv/bin/python bench/tuning.py --quick    # a minute: few seeds, no Gaussian process; writes nothing

The studies are real: production's search space, the service of pipeline/vizier in .venv-vizier, Google's own client, and the
calls that the pipeline makes. What a trial measures is not: a surface with a known optimum (another one for each seed, the
same ones for all algorithms), learning curves and noise take the place of trainings, and a clock that jumps from event to
event takes the place of waiting for them: what waiting comes to is computed from how long each suggestion really took.

The result, bench/tuning.json, has one row a study. It is written after each, and a study that is in it is not run again, so
that a run which was killed goes on; --fresh begins anew. Times travel as ratios only. Regret depends on no clock: with the
same versions the same seeds give the same, except where a Gaussian process rounds otherwise on another processor.
"""

import argparse
import dataclasses
import datetime
import functools
import heapq
import importlib.metadata
import itertools
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short

from google.cloud import aiplatform_v1 as v1  # noqa: E402

from bench import shards, training  # noqa: E402
from models.config import LOGARITHMIC, MAX_TRIALS, TUNED, TuningConfig  # noqa: E402
from pipeline.files import write_atomically  # noqa: E402
from pipeline.vizier import local, study  # noqa: E402

SPACE = TuningConfig()
EPOCHS = SPACE.epochs
OBJECTIVE = "val_accuracy"
ALGORITHMS = ("eagle", "quasi_random", "random", "gaussian_process")  # what takes long comes last
PARALLEL = (1, study.MAX_PARALLEL, MAX_TRIALS)

NOISE = 0.005
"""Standard deviation of a measured accuracy: what an accuracy of 0.9 on 3,600 photographs has by chance."""

LENGTHS = {"10 seconds": 10, "1 minute": 60, "20 minutes": 1200}
"""Lengths of a trial, in seconds, for which the waiting is computed: the sample's, and what production's may have."""


class Surface:
    """What a trial with some values would measure: accuracy by epoch, with a known optimum.

    The final accuracy is 0.1 + 0.8 exp(-d), with d a positive definite quadratic form in the distance from the optimum, each
    parameter scaled to 0..1 (on its logarithm where the space says so): parameters matter unequally, and interact in pairs. An
    epoch's accuracy approaches it exponentially; low learning rates and strong augmentation are slow, so that curves cross.

    Args:
        seed: Decides where the optimum is, how much each parameter matters, and how they interact.
    """

    def __init__(self, seed: int):
        rng = random.Random(f"surface {seed}")
        self._optimum = {name: rng.uniform(0.15, 0.85) for name in TUNED}
        self._optimum["batch_size"] = _unit("batch_size", rng.choice(SPACE.batch_size))
        weights = [2.0, 1.0, 0.5, 0.25, 0.12, 0.06]
        rng.shuffle(weights)
        self._weights = dict(zip(TUNED, weights))
        pairs = rng.sample(list(itertools.combinations(TUNED, 2)), 3)
        # Below 1/2, as no parameter is in more than all three: the form stays positive definite.
        self._pairs = {pair: rng.uniform(-0.3, 0.3) for pair in pairs}
        self.best = 0.9

    def final(self, values: Mapping[str, float]) -> float:
        """The accuracy that a trial with these values tends to, without noise; at most `best`."""
        away = {name: math.sqrt(self._weights[name]) * (_unit(name, values[name]) - self._optimum[name]) for name in TUNED}
        form = sum(each * each for each in away.values())
        form += sum(2 * share * away[one] * away[other] for (one, other), share in self._pairs.items())
        return 0.1 + (self.best - 0.1) * math.exp(-form)

    def curve(self, values: Mapping[str, float], rng: random.Random) -> list[float]:
        """The accuracy after each epoch, with noise; without it, the last one is `final`."""
        rate, augmentation = (_unit(name, values[name]) for name in ("learning_rate", "augmentation"))
        slow = 1.0 + 1.5 * (1 - rate) + augmentation
        reached = [(1 - math.exp(-epoch / slow)) / (1 - math.exp(-EPOCHS / slow)) for epoch in range(1, EPOCHS + 1)]
        final = self.final(values)
        return [0.1 + (final - 0.1) * share + rng.gauss(0, NOISE) for share in reached]


def _unit(name: str, value: float) -> float:
    bounds = getattr(SPACE, name)
    scale = math.log if name in LOGARITHMIC or name == "batch_size" else float
    low, high = scale(min(bounds)), scale(max(bounds))
    return (scale(value) - low) / (high - low)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of study: what a row of the result is about."""

    algorithm: str
    parallel: int
    stopping: bool
    seed: int


class Vizier:
    """The calls that a study takes. Not `pipeline.vizier.study.Study`, which refuses more trials at once than 8."""

    def __init__(self, client: v1.VizierServiceClient, kind: Kind):
        spec = study.study_spec(SPACE, OBJECTIVE)
        if kind.algorithm == "random":
            spec.algorithm = v1.StudySpec.Algorithm.RANDOM_SEARCH
        made = v1.Study(display_name=json.dumps(dataclasses.asdict(kind)), study_spec=spec)
        self._client = client
        self._name = client.create_study(parent=local.PARENT, study=made).name

    def suggest(self, worker: int) -> v1.Trial:
        request = {"parent": self._name, "suggestion_count": 1, "client_id": f"worker-{worker}"}
        (trial,) = self._client.suggest_trials(request).result(timeout=900, polling=study._POLLING).trials
        return trial

    def should_stop(self, trial: str, step: int, value: float) -> bool:
        self._client.add_trial_measurement({"trial_name": trial, "measurement": self._measurement(step, value)})
        operation = self._client.check_trial_early_stopping_state({"trial_name": trial})
        return operation.result(timeout=60, polling=study._POLLING).should_stop

    def complete(self, trial: str, step: int, value: float) -> None:
        self._client.complete_trial({"name": trial, "final_measurement": self._measurement(step, value)})

    @staticmethod
    def _measurement(step, value):
        return {"step_count": step, "metrics": [{"metric_id": OBJECTIVE, "value": value}]}


@dataclasses.dataclass
class Running:
    """A trial under way: what it will report, how long an epoch of it is (in lengths of a trial), and how far it is."""

    worker: int
    name: str
    values: dict[str, float]
    curve: list[float]
    epoch_length: float
    epoch: int = 0


def run(vizier, kind: Kind, trials: int = MAX_TRIALS) -> dict:
    """Runs one study on the clock that jumps.

    Args:
        vizier: A `Vizier`, or what has its methods.
        kind: What to run.
        trials: Its budget.

    Returns:
        The row of the result: `regret` (the best possible accuracy less what the chosen trial's values would reach without
        noise), after `regret_after` so many trials ended, `suggestion_seconds` in their order, `epochs_run`, `stopped`,
        `lengths`, from the first trial's begin to the last one's end in lengths of a trial, without waiting.
    """
    surface, rng = Surface(kind.seed), random.Random(f"noise {kind.seed}")
    events, order, begun = [], itertools.count(), 0
    ended: list[tuple[float, float]] = []
    seconds, epochs, stopped, now = [], 0, 0, 0.0

    def begin(worker):
        nonlocal begun
        begun += 1
        asked = time.perf_counter()
        trial = vizier.suggest(worker)
        seconds.append(time.perf_counter() - asked)
        values = {each.parameter_id: each.value for each in trial.parameters}
        # Trainings are not equally long, and so end one by one.
        length = rng.uniform(0.8, 1.2)
        running = Running(worker, trial.name, values, surface.curve(values, rng), length / EPOCHS)
        heapq.heappush(events, (now + running.epoch_length, next(order), running))

    for worker in range(min(kind.parallel, trials)):
        begin(worker)
    while events:
        now, _, running = heapq.heappop(events)
        value = running.curve[running.epoch]
        running.epoch, epochs = running.epoch + 1, epochs + 1
        last = running.epoch == EPOCHS
        stop = kind.stopping and not last and vizier.should_stop(running.name, running.epoch, value)
        if not last and not stop:
            heapq.heappush(events, (now + running.epoch_length, next(order), running))
            continue
        stopped += stop
        vizier.complete(running.name, running.epoch, value)
        ended.append((value, surface.best - surface.final(running.values)))
        if begun < trials:
            begin(running.worker)
    return {
        "regret": round(max(ended)[1], 5),
        "regret_after": {str(count): round(max(ended[:count])[1], 5) for count in range(10, trials + 1, 10)},
        "suggestion_seconds": [round(each, 4) for each in seconds],
        "epochs_run": epochs,
        "stopped": stopped,
        "lengths": round(now, 2),
    }


def waiting_share(suggestion_seconds: Sequence[float], parallel: int, length: float) -> float:
    """Share of the workers' time that goes by waiting for suggestions, which are made one at a time, in turn.

    >>> waiting_share([1.0] * 4, parallel=1, length=9.0), waiting_share([1.0, 1.0], parallel=2, length=10.0)
    (0.1, 0.13043478260869565)

    Args:
        suggestion_seconds: How long each took, in their order.
        parallel: Workers.
        length: Seconds of a trial, the same for all.

    Returns:
        Waiting / (waiting + training), of all workers together.
    """
    asking, free, waited = [0.0] * parallel, 0.0, 0.0
    for seconds in suggestion_seconds:
        asked = heapq.heappop(asking)
        free = max(asked, free) + seconds
        waited += free - asked
        heapq.heappush(asking, free + length)
    return waited / (waited + length * len(suggestion_seconds))


def kinds(seeds: Mapping[str, int]) -> Iterator[Kind]:
    """The studies, those of one service together: a service has one algorithm and one seed for its new studies."""
    for algorithm in ALGORITHMS:
        for seed in range(seeds[algorithm]):
            yield Kind(algorithm, study.MAX_PARALLEL, False, seed)
            yield from (Kind(algorithm, parallel, False, seed) for parallel in PARALLEL if parallel != study.MAX_PARALLEL)
            yield Kind(algorithm, study.MAX_PARALLEL, True, seed)


def measure(wanted: Iterable[Kind]) -> Iterator[tuple[Kind, dict]]:
    """Runs studies and yields each with what came of it."""
    for (algorithm, seed), group in itertools.groupby(wanted, key=lambda kind: (kind.algorithm, kind.seed)):
        default = "quasi_random" if algorithm == "random" else algorithm
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            with local.running(pathlib.Path(folder, "studies.sqlite"), default, seed) as service:
                client = service.client()
                # The first suggestion loads JAX.
                Vizier(client, Kind(algorithm, 0, False, seed)).suggest(0)
                for kind in group:
                    started = time.perf_counter()
                    with open("/proc/loadavg", encoding="ascii") as file:
                        load = float(file.read().split()[0])
                    row = run(Vizier(client, kind), kind)
                    yield kind, row | {"seconds": round(time.perf_counter() - started, 1), "load": load}
                client.transport.close()


def summarize(rows: Sequence[dict]) -> dict:
    """The figures of all seeds, by algorithm and number of trials at once.

    Args:
        rows: What `measure` gave, each with the fields of its `Kind`.

    Returns:
        Under `search`, `waiting` and `stopping`, each by the name of the group.
    """
    result = {"search": {}, "share_of_waiting": {}, "stopping": {}}

    def of(algorithm, parallel, stopping):
        wanted = algorithm, parallel, stopping
        found = [row for row in rows if (row["algorithm"], row["parallel"], row["stopping"]) == wanted]
        return sorted(found, key=lambda row: row["seed"])

    for algorithm, parallel in itertools.product(ALGORITHMS, PARALLEL):
        group, name = of(algorithm, parallel, False), f"{algorithm}, {parallel} at once"
        if not group:
            continue
        after = {count: _mean(row["regret_after"][count] for row in group) for count in group[0]["regret_after"]}
        result["search"][name] = {
            "seeds": len(group),
            "regret": _spread(row["regret"] for row in group),
            "mean_regret_after_trials": after,
            "more_regret_than_one_at_once": _spread(
                row["regret"] - other["regret"]
                for row, other in zip(group, of(algorithm, 1, False))
                if row["seed"] == other["seed"]
            ),
            "seconds_a_suggestion": training._summary(itertools.chain(*(row["suggestion_seconds"] for row in group)), 3),
            "lengths_of_a_trial": _mean((row["lengths"] for row in group), 1),
        }
        result["share_of_waiting"][name] = {
            words: _mean((waiting_share(row["suggestion_seconds"], parallel, length) for row in group), 4)
            for words, length in LENGTHS.items()
        }
    for algorithm in ALGORITHMS:
        stopped = of(algorithm, study.MAX_PARALLEL, True)
        whole = {row["seed"]: row for row in of(algorithm, study.MAX_PARALLEL, False)}
        pairs = [(row, whole[row["seed"]]) for row in stopped if row["seed"] in whole]
        if pairs:
            result["stopping"][f"{algorithm}, {study.MAX_PARALLEL} at once"] = {
                "seeds": len(pairs),
                "trials_stopped": _mean((row["stopped"] for row, _ in pairs), 1),
                "trials_saved": _mean(((other["epochs_run"] - row["epochs_run"]) / EPOCHS for row, other in pairs), 1),
                "regret_with": _spread(row["regret"] for row, _ in pairs),
                "regret_without": _spread(other["regret"] for _, other in pairs),
                "regret_more": _spread(row["regret"] - other["regret"] for row, other in pairs),
            }
    return result


def _mean(values: Iterable[float], digits: int = 4) -> float:
    return round(statistics.fmean(values), digits)


def _spread(values: Iterable[float]) -> dict:
    """Mean with its standard error, then median, least and most; nothing of nothing."""
    values = list(values)
    if not values:
        return {}
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": _mean(values), "standard_error": error and round(error, 4), **training._summary(values, 4)}


@functools.cache
def _versions() -> dict[str, str]:
    script = "import importlib.metadata as m; print(*(m.version(p) for p in ('google-vizier', 'jax')))"
    done = subprocess.run([local.PYTHON, "-c", script], check=True, capture_output=True, text=True)
    vizier, jax = done.stdout.split()
    client = importlib.metadata.version("google-cloud-aiplatform")
    return {"google-vizier": vizier, "jax": jax, "google-cloud-aiplatform": client}


def what() -> dict:
    """What studies must have in common to be in one result."""
    return {
        "trials": MAX_TRIALS, "epochs": EPOCHS, "noise": NOISE, "versions": _versions(),
        "space": {name: list(getattr(SPACE, name)) for name in TUNED},
    }  # fmt: skip


def _write(output: pathlib.Path, result: dict) -> None:
    """One study a line: indented, ten thousand durations would fill as many lines."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in result["studies"])
    text = json.dumps(result | {"studies": []}, indent=2)
    write_atomically(output, text.replace('"studies": []', f'"studies": [\n{rows}\n  ]') + "\n")


def main() -> int:
    """Runs the studies that are not in the result yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 seeds, no Gaussian process; nothing is written")
    parser.add_argument("--fresh", action="store_true", help="measure all anew")
    parser.add_argument("--seeds", type=int, default=20, help="surfaces for each quick algorithm (default: %(default)s)")
    parser.add_argument("--gaussian-process-seeds", type=int, default=1, help="surfaces for this one (default: %(default)s)")
    parser.add_argument("--output", default=str(ROOT / "bench" / "tuning.json"))
    options = parser.parse_args()
    seeds = dict.fromkeys(ALGORITHMS, 2 if options.quick else options.seeds)
    seeds["gaussian_process"] = 0 if options.quick else options.gaussian_process_seeds
    output = pathlib.Path(options.output)
    result = {"studies": []}
    if output.exists() and not options.fresh and not options.quick:
        result = json.loads(output.read_text())
        if result["what"] != what():
            raise SystemExit(f"{output} is of other studies, {result['what']}: begin anew with --fresh")
    there = [tuple(row[name] for name in ("algorithm", "parallel", "stopping", "seed")) for row in result["studies"]]
    wanted = [kind for kind in kinds(seeds) if dataclasses.astuple(kind) not in there]
    for kind, row in measure(wanted):
        result["studies"].append(dataclasses.asdict(kind) | row)
        print(kind, {name: row[name] for name in ("regret", "stopped", "epochs_run", "seconds")}, file=sys.stderr, flush=True)
        if not options.quick:
            _write(output, _told(result))
    result = _told(result)
    if not options.quick:
        _write(output, result)  # also when nothing was left to measure: the summary may be of older code
    print(json.dumps(result["summary"], indent=2))
    return 0


def _told(result: dict) -> dict:
    return result | {
        "command": ".venv/bin/python bench/tuning.py",
        "date": datetime.date.today().isoformat(),
        "machine": shards.machine(),
        "what": what(),
        "seconds": round(sum(row["seconds"] for row in result["studies"])),
        "summary": summarize(result["studies"]),
    }


if __name__ == "__main__":
    sys.exit(main())
