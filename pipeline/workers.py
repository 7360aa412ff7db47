"""Starts the workers of a training on this machine, a process each, and sees to it that all of them end. No TensorFlow."""

import contextlib
import json
import logging
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import TrainingError

_log = logging.getLogger(__name__)

_PROJECT = pathlib.Path(__file__).resolve().parent.parent

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


class _Worker:
    """One process, and the threads that hear it."""

    def __init__(self, index: int, arguments: pathlib.Path, tf_config: dict | None, ended: queue.Queue):
        self.index = index
        self.error = ""
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PROJECT), os.environ.get("PYTHONPATH")]))
        environment.pop("TF_CONFIG", None)
        if tf_config:
            environment["TF_CONFIG"] = json.dumps(tf_config)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "models.worker", str(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        threading.Thread(target=self._hear, args=(ended,), daemon=True).start()

    def _hear(self, ended):
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a library's print
            if not isinstance(said, dict):
                continue
            if "error" in said:
                self.error = said["error"]
            elif self.index == 0 or said["level"] >= logging.WARNING:
                logging.getLogger(said["name"]).log(said["level"], "%s", said["message"])
        self.process.wait()
        ended.put(self)

    def failure(self) -> str:
        """Why it ended, if it did not end well."""
        code = self.process.returncode
        if code == 0:
            return ""
        if self.error:
            return self.error
        if code < 0:
            why = f"was ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"was ended by signal {-code}"
            memory = " (the kernel does so when memory runs out)" if -code == signal.SIGKILL else ""
            return f"worker {self.index} of the training {why}{memory}. Start the training again: it goes on from its checkpoint"
        return f"worker {self.index} of the training ended with status {code}; the log says why"


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
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            worker.process.stdin.close()


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
