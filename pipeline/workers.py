"""Starts the workers of a training on this machine, a process each, and sees to it that all of them end. No TensorFlow."""

import contextlib
import json
import logging
import pathlib
import queue
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import TrainingError
from pipeline import processes

_FIELDS = (
    "train_files", "eval_files", "schema_path", "custom_config", "hyperparameters", "serving_model_dir", "model_run_dir",
)  # fmt: skip
"""What `models.training.run_fn` reads of TFX's FnArgs."""

# TensorFlow notices a worker that is gone after a dozen seconds; the others then end by themselves and say why.
_GRACE_SECONDS = 30.0


def train(fn_args: Mapping[str, Any], workers: int) -> None:
    """Runs `models.training.run_fn` in processes on this machine, which find each other on loopback.

    What the chief logs goes through this process's loggers, so it is shown as if the training ran here.

    Args:
        fn_args: The fields of TFX's FnArgs that `run_fn` reads: train_files, eval_files, schema_path, custom_config,
            hyperparameters, serving_model_dir, model_run_dir.
        workers: Number of processes, as `custom_config["training"]["workers"]` says.

    Raises:
        TrainingError: The training failed, or a worker was killed; no worker is left.
    """
    with tempfile.TemporaryDirectory(prefix="training-") as folder:
        arguments = pathlib.Path(folder, "arguments.json")
        arguments.write_text(json.dumps({name: fn_args[name] for name in _FIELDS}), encoding="utf-8")
        with _started(arguments, workers) as team:
            _watch(team)


class _Worker(processes.Process):
    """A worker of a training."""

    def __init__(self, index: int, arguments: pathlib.Path, tf_config: dict | None, ended: queue.Queue):
        self.index = index
        environment = {"TF_CONFIG": json.dumps(tf_config) if tf_config else None}
        super().__init__(f"worker {index} of the training", "models.worker", arguments, environment, self._hears, ended)

    def _hears(self, name, level, message):
        if self.index == 0 or level >= logging.WARNING:
            processes.pass_on(name, level, message)

    def failure(self) -> str:
        """Why it ended, if it did not end well."""
        failure = super().failure()
        if self.killed and not self.error:
            return f"{failure}. Start the training again: it goes on from its checkpoint"
        return failure


@contextlib.contextmanager
def _started(arguments, count) -> Iterator[tuple[list[_Worker], queue.Queue]]:
    ended: queue.Queue[_Worker] = queue.Queue()
    team: list[_Worker] = []
    try:
        for index, tf_config in enumerate(loopback(count) if count > 1 else [None]):
            team.append(_Worker(index, arguments, tf_config, ended))
        yield team, ended
    finally:
        for worker in team:
            worker.end()


def _watch(started) -> None:
    team, ended = started
    hanging, failed = list(team), []
    last = None
    for _ in team:
        try:
            worker = ended.get(timeout=None if last is None else max(0.0, last - time.monotonic()))
        except queue.Empty:
            break  # the rest hang; they are ended
        # They end together, whether well or not.
        last = last or time.monotonic() + _GRACE_SECONDS
        hanging.remove(worker)
        if worker.failure():
            failed.append(worker)
    if hanging and not failed:
        named = ", ".join(str(worker.index) for worker in hanging)
        raise TrainingError(f"worker {named} of the training did not end within {_GRACE_SECONDS:g} s of the others")
    if failed:
        # One that says itself what was wrong tells more than those that only lost it.
        failed.sort(key=lambda worker: (" lost another of the " in worker.failure(), worker.process.returncode > 0 and not worker.error))
        raise TrainingError(failed[0].failure())


def loopback(count: int) -> list[dict]:
    """What TF_CONFIG holds for each of so many processes on this machine, chief first; the ports are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    chief, *others = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    cluster = {"chief": [chief], "worker": others}
    tasks = [{"type": "chief", "index": 0}, *({"type": "worker", "index": index} for index in range(count - 1))]
    return [{"cluster": cluster, "task": task} for task in tasks]
