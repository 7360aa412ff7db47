"""Trains the best trials of a search on the full snapshot, and says how well the tuning sample ranked them.

    python -m pipeline tune verify-ranking RUN_ID 5

Each is trained as the run's own model was, but for the trial's hyperparameters, in a process of its own; the winner was
trained by the run itself. The lineage is read and never written to, and the store's lock is not taken. DIR, which --to names,
ends up with

    ranking.json        what came of it
    trial-7/            of each trial: its hyperparameters, trial.json, and the record of its training, training.json
    verify.log          everything that was logged

A trial that is there is not trained again, so a command that was killed goes on where it was. Models are not kept.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from models.config import TUNED
from models.errors import TrainingError
from pipeline import console, files, replay, storage, workers
from pipeline.errors import PipelineError
from pipeline.lineage.base import LineageStore
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.places import Places
from pipeline.release.quality import METRIC
from pipeline.store import interruptible
from pipeline.tuning import ranking, results

_RANKING, _LOG = "ranking.json", "verify.log"


def verify_ranking(options: argparse.Namespace, train: Callable[[Mapping[str, Any], int], None] = workers.train) -> int:
    """Answers the command.

    Args:
        options: `run_id`, `trials`, `to` and `store`.
        train: `pipeline.workers.train`, or what does the same.

    Returns:
        The exit status, 0.

    Raises:
        PipelineError: The run did not search or has too few trials, or one of them cannot be trained.
    """
    places = Places(store=os.path.abspath(options.store))
    lineage = MLMDLineage(places.metadata)
    recorded = replay.read(lineage, options.run_id, places)
    trials = ranking.top(trials_of(lineage, options.run_id), options.trials)
    to = pathlib.Path(options.to or os.path.join(places.store, "rankings", recorded.run_id)).absolute()
    progress = console.Progress()
    with interruptible(), _claimed(to), console.quiet_logs(str(to / _LOG), progress), console.stderr_in_log(str(to / _LOG)):
        print(f"Ranking of run {recorded.run_id}\n  to     {to}\n  log    {to / _LOG}", flush=True)
        full = []
        for number, trial in enumerate(trials, start=1):
            full.append(_full_metric(recorded, trial, to, f"[{number}/{len(trials)}] trial {trial['trial']}", progress, train))
        found = ranking.verify(trials, full)
        rows = [dict(trial, full=value) for trial, value in zip(trials, full)]
        content = {"run_id": recorded.run_id, "metric": METRIC, "trials": rows, "ranking": dataclasses.asdict(found)}
        files.write_atomically(to / _RANKING, files.to_json(content))
    print(f"\n{'trial':<24}{'sample':>8}{'full':>8}")
    for row in rows:
        print(f"{row['trial']:<24}{row['metric']:>8.3f}{row['full']:>8.3f}")
    print(f"\n{found.sentence()}")
    return 0


def trials_of(lineage: LineageStore, run_id: str) -> list[dict]:
    """The trials of a run's search, in their order.

    Args:
        lineage: The lineage.
        run_id: The run.

    Returns:
        Of each `trial` (its id), `parameters` and `metric`.

    Raises:
        PipelineError: The run did not search, or what its search left cannot be read.
    """
    artifact = lineage.run(run_id).output("TunerResults")
    if artifact is None or not artifact.facts.get("tune", True):
        raise PipelineError(f"run {run_id} did not search for hyperparameters: name one that did, or search by --tune")
    path = storage.join(artifact.uri, results.ROWS)
    try:
        # As TFX's Tuner writes them: a list of rows.
        rows = json.loads(storage.read(path))
        return [_trial(row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{path} holds no trials ({type(error).__name__}: {error}): restore it from a backup") from error


def _trial(row: Mapping[str, Any]) -> dict:
    trial = str(row["trial_id"])
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", trial):
        raise ValueError(f"the id {trial!r} cannot name a folder")
    return {"trial": trial, "parameters": {name: row[name] for name in TUNED if name in row}, "metric": row["score"]}


def _full_metric(recorded, trial, to, title, progress, train) -> float:
    folder = to / f"trial-{trial['trial']}"
    if (recorded.record.get("hyperparameters") or {}) == trial["parameters"]:
        print(f"{title}: trained by the run itself", flush=True)
        return _metric(recorded.record, recorded.record_uri)
    facts = {
        "run_id": recorded.run_id,
        "weights_sha256": recorded.record["weights_sha256"],
        "parameters": trial["parameters"],
    }
    if folder.exists():
        _require_same(folder, facts)
        print(f"{title}: was trained before", flush=True)
    else:
        progress.begin(title)
        try:
            _train(recorded, facts, folder, train)
        except TrainingError as error:
            raise PipelineError(f"trial {trial['trial']} of run {recorded.run_id} cannot be trained in full: {error}") from error
        finally:
            progress.close_line()
        progress.end()
    return _metric(_json(folder / "training.json"), folder / "training.json")


def _train(recorded, facts, folder: pathlib.Path, train) -> None:
    with files.new_folder(folder) as new:
        hyperparameters = {"space": [], "values": facts["parameters"]}
        where = {"serving_model_dir": str(new / "model"), "model_run_dir": str(new / "model_run")}
        train(recorded.fn_args | {"hyperparameters": hyperparameters} | where, recorded.workers)
        os.rename(new / "model_run" / "training.json", new / "training.json")
        for name in ("model", "model_run"):
            shutil.rmtree(new / name, ignore_errors=True)
        (new / "trial.json").write_text(files.to_json(facts), encoding="utf-8")


def _require_same(folder: pathlib.Path, facts: Mapping[str, Any]) -> None:
    if _json(folder / "trial.json") != facts:
        raise PipelineError(f"{folder} is of another run or trial: nothing was touched. Name another folder by --to")


def _metric(record: Mapping[str, Any], where) -> float:
    value = record.get(METRIC)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise PipelineError(f"{where} has the {METRIC} {value!r}, which cannot be ranked")
    return float(value)


def _json(path: pathlib.Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} cannot be read ({error}): delete its folder, and its trial is trained anew") from error


@contextlib.contextmanager
def _claimed(to: pathlib.Path) -> Iterator[None]:
    """Holds the folder, until this process ends at the latest, however it ends."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        held = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PipelineError(f"cannot use {to}: {error.strerror}. Name another folder by --to") from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PipelineError(
                f"another command writes to {to}: wait for it to end, or name another folder by --to"
            ) from error
        # Of one that was killed.
        for left in to.glob(".trial-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(held)
