"""Runs a study on this machine: Vizier's service, as many workers as the machine bears, and again what of it dies.

All of a study is in the service's file. Whatever is killed, this process too, a rerun opens the same study and its workers
get back the trials that they had.
"""

import collections
import json
import logging
import os
import pathlib
import queue
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from models.config import NetworkConfig, TuningConfig
from models.study import Trial
from pipeline import processes, typed
from pipeline.errors import PipelineError
from pipeline.tuning import machine
from pipeline.tuning.results import Results
from pipeline.tuning.task import Task
from pipeline.vizier import local
from pipeline.vizier.study import Study

_log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a trial may end its worker before it counts as infeasible, and a worker die without one before all is given up."""

_SERVICE_STARTS = 10


def search(task: Task) -> Results:
    """Runs a study until its budget is spent or its time is over, or goes on with it.

    Args:
        task: What is searched.

    Returns:
        All trials, none under way.

    Raises:
        PipelineError: Settings, data or the machine cannot be used, or something died more often than it may; what was
            searched by then is kept.
    """
    tuning = task.tuning
    network = typed.from_dict(NetworkConfig, dict(task.custom_config["network"]), "network")
    found = machine.here()
    count = found.workers(tuning.parallel, machine.worker_bytes(network, max(tuning.batch_size)))
    with _Service(task.database, tuning) as service, tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        study = task.open(local.client_of(service.address), local.PARENT, {"database": task.database})
        arguments = {**task.worker_arguments(local.PARENT), "address": service.address, "working_dir": folder}
        arguments["custom_config"]["workers"] = count
        team = Team(study, arguments, pathlib.Path(folder), count, found.gpus, service.troubles)
        before = study.trials()
        _log.info(
            "study %s: %d of %d trials, %d at once%s", task.display_name, len(before), tuning.trials, count,
            "" if count == tuning.parallel else f" of {tuning.parallel}, which this machine bears",
        )  # fmt: skip
        own = [f"worker-{number}" for number in range(count)]
        if task.over:
            _log.info("the window leaves no time for trials")
            return task.ended(study)
        # Trials of a run that was killed and had more workers: their clients come back, end them and go.
        team.run(clients_gone(before, own), finish=True)
        if not study.is_complete():
            team.run(own, finish=False)
        return task.ended(study)


def clients_gone(trials: Iterable[Trial], own: Collection[str]) -> list[str]:
    """The clients that have trials under way and are none of ours, each once, in the order of their trials."""
    return list(dict.fromkeys(trial.client_id for trial in trials if trial.under_way and trial.client_id not in own))


class _Service:
    """Vizier's service, started again at the same address when it dies: its clients wait for it."""

    def __init__(self, database: str, tuning: TuningConfig):
        self.troubles: queue.Queue = queue.Queue()
        self._database, self._tuning = database, tuning
        self._lock = threading.Lock()
        self._ending = False

    def __enter__(self) -> "_Service":
        self._running = local.start(self._database, self._tuning.algorithm, self._tuning.seed)
        self.address = self._running.address
        threading.Thread(target=self._keep, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        with self._lock:
            self._ending = True
            self._running.end()

    def _keep(self) -> None:
        for _ in range(_SERVICE_STARTS):
            code = self._running.process.wait()
            with self._lock:
                if self._ending:
                    return
                _log.warning("Vizier's service %s; it starts again", processes.told(code) if code else "ended")
                try:
                    self._running.end()
                    self._running = local.start(
                        self._database, self._tuning.algorithm, self._tuning.seed, self._running.port
                    )
                except Exception as error:
                    self.troubles.put(error)
                    return
        code = self._running.process.wait()
        with self._lock:
            if not self._ending:
                self.troubles.put(
                    PipelineError(
                        f"Vizier's service ended {_SERVICE_STARTS + 1} times; {self._database}.log says why. Run the same "
                        "command again: the study goes on"
                    )
                )


class Team:
    """The workers of a study.

    Args:
        study: The study.
        arguments: What each worker is started with.
        folder: Where the files of arguments go.
        count: How many run at once.
        gpus: GPUs to give them.
        ended: Where workers put themselves when they end, and others what makes an end of all.
    """

    def __init__(
        self, study: Study, arguments: Mapping[str, Any], folder: pathlib.Path, count: int, gpus: int, ended: queue.Queue
    ):
        self._study, self._arguments, self._folder = study, arguments, folder
        self._count, self._gpus, self._ended = count, gpus, ended
        self._deaths: collections.Counter = collections.Counter()

    def run(self, client_ids: Iterable[str], finish: bool) -> None:
        """Runs a worker for each client until all have ended well.

        Raises:
            PipelineError: One failed; none is left.
        """
        waiting = collections.deque(enumerate(client_ids))
        running: list[_Worker] = []
        try:
            while waiting or running:
                while waiting and len(running) < self._count:
                    running.append(self._start(*waiting.popleft(), finish))
                ended = self._ended.get()
                if isinstance(ended, Exception):
                    raise ended
                running.remove(ended)
                ended.end()
                if ended.failure():
                    self._judge(ended)
                    waiting.append((ended.index, ended.client_id))
        finally:
            for worker in running:
                worker.end()

    def _start(self, index: int, client_id: str, finish: bool) -> "_Worker":
        path = self._folder / f"{client_id}.json"
        arguments = {**self._arguments, "client_id": client_id}
        arguments["custom_config"] = {**arguments["custom_config"], "finish": finish}
        path.write_text(json.dumps(arguments), encoding="utf-8")
        return _Worker(index, client_id, path, machine.gpu_of(index, self._gpus), self._ended)

    def _judge(self, worker: "_Worker") -> None:
        """Decides whether a worker that did not end well is to start again; raises if not."""
        if worker.error or not worker.killed:
            raise PipelineError(worker.failure())
        trial = self._trial_of(worker.client_id)
        died = worker.client_id, trial.number if trial else 0
        self._deaths[died] += 1
        if self._deaths[died] < ATTEMPTS:
            with_it = f" and goes on with trial {trial.number}" if trial else ""
            _log.warning("%s; it starts again%s", worker.failure(), with_it)
        elif trial:
            reason = f"its worker {processes.told(worker.process.returncode)}, {ATTEMPTS} times"
            self._study.infeasible(trial, reason)
            _log.warning("trial %d is infeasible: %s", trial.number, reason)
        else:
            raise PipelineError(
                f"{worker.failure()}, {ATTEMPTS} times before it had a trial. Run the same command again when that is "
                "mended: the study goes on"
            )

    def _trial_of(self, client_id: str) -> Trial | None:
        return next((one for one in self._study.trials() if one.under_way and one.client_id == client_id), None)


class _Worker(processes.Process):
    """A worker of a study."""

    def __init__(self, index: int, client_id: str, arguments: os.PathLike, gpu: str | None, ended: queue.Queue):
        self.index, self.client_id = index, client_id
        # Who runs machines of a job sets these; a worker here is alone.
        environment: dict[str, str | None] = dict.fromkeys(("TF_CONFIG", "CLUSTER_SPEC", "KERASTUNER_ORACLE_IP"))
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        super().__init__(f"{client_id} of the study", "pipeline.tuning.worker", arguments, environment, self._hears, ended)

    def _hears(self, name: str, level: int, message: str) -> None:
        # The epochs of trials are in the log, where its own standard error goes; here is what each came to.
        if name == "models.tuning" or level >= logging.WARNING:
            processes.pass_on(name, level, message)
