"""What starts again, how often, and what is given up; by workers and a service that only die."""

import dataclasses
import pathlib
import queue
import signal
import time

import pytest

from models.config import TrainingConfig, TuningConfig
from pipeline import processes
from pipeline.errors import PipelineError
from pipeline.tuning import supervisor
from pipeline.tuning.task import Task
from tests.models.studies import MemoryStudy


class Worker:
    """In place of a process: does what a script of its client says, one entry a start."""

    scripts: dict[str, list] = {}
    starts: list[str] = []
    most = 0
    running = 0

    def __init__(self, index, client_id, arguments, gpu, ended):
        self.index, self.client_id, self.error, self.process = index, client_id, "", self
        Worker.starts.append(client_id)
        Worker.running += 1
        Worker.most = max(Worker.most, Worker.running)
        self.returncode = Worker.scripts[client_id].pop(0)
        if isinstance(self.returncode, str):
            self.error, self.returncode = self.returncode, 1
        ended.put(self)

    killed = processes.Process.killed
    failure = processes.Process.failure

    @property
    def name(self):
        return f"{self.client_id} of the study"

    def end(self):
        Worker.running -= 1


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(study, scripts, count=2, clients=None, finish=False):
        Worker.scripts, Worker.starts, Worker.most, Worker.running = scripts, [], 0, 0
        monkeypatch.setattr(supervisor, "_Worker", Worker)
        team = supervisor.Team(study, {"custom_config": {}}, pathlib.Path(tmp_path), count, 0, queue.Queue())
        team.run(clients or list(scripts), finish)

    return run


KILL = -signal.SIGKILL


def test_a_worker_that_is_killed_starts_again_under_its_client_id(run):
    study = MemoryStudy([{}] * 4)
    study.suggest("a")
    run(study, {"a": [KILL, KILL, 0], "b": [0]})
    assert sorted(Worker.starts) == ["a", "a", "a", "b"] and study.trials()[0].under_way and Worker.running == 0


def test_a_trial_that_ends_its_worker_each_time_is_infeasible_and_the_study_goes_on(run):
    study = MemoryStudy([{}] * 4)
    study.suggest("a")
    run(study, {"a": [KILL, KILL, KILL, 0]})
    (one,) = study.trials()
    assert one.state == "INFEASIBLE"
    assert one.reason == "its worker was ended by SIGKILL (the kernel does so when memory runs out), 3 times"


def test_a_worker_that_dies_before_it_has_a_trial_is_given_up(run):
    with pytest.raises(PipelineError, match="a of the study was ended by SIGKILL .*, 3 times before it had a trial"):
        run(MemoryStudy([{}]), {"a": [KILL] * 3})


@pytest.mark.parametrize(
    "ended, words", [("the train split has no files", "the train split"), (1, "ended with status 1; the log says why")]
)
def test_what_a_worker_found_wrong_ends_all(run, ended, words):
    with pytest.raises(PipelineError, match=words):
        run(MemoryStudy([{}]), {"a": [ended], "b": [0]})
    assert Worker.running == 0, "all are ended"


def test_no_more_run_at_once_than_the_machine_bears(run):
    run(MemoryStudy([]), {name: [0] for name in "abcdef"}, count=2)
    assert len(Worker.starts) == 6 and Worker.most == 2


class Dying:
    """In place of the service: its processes are gone when somebody looks."""

    address, port = "127.0.0.1:1", 1

    def __init__(self):
        self.process = self

    def wait(self):
        return KILL

    def end(self):
        pass


def test_a_service_that_dies_again_and_again_is_given_up(monkeypatch, caplog):
    starts = []
    monkeypatch.setattr(supervisor.local, "start", lambda *words: starts.append(words) or Dying())
    with supervisor._Service("/s/studies.sqlite", TuningConfig(seed=7, algorithm="eagle")) as service:
        error = service.troubles.get(timeout=10)
    assert isinstance(error, PipelineError) and "/s/studies.sqlite.log says why" in str(error)
    assert starts[0] == ("/s/studies.sqlite", "eagle", 7) and set(starts[1:]) == {("/s/studies.sqlite", "eagle", 7, 1)}
    assert len(starts) == 11 and "Vizier's service was ended by SIGKILL" in caplog.text


def test_a_service_that_cannot_start_again_is_told(monkeypatch):
    answers = iter([Dying()])

    def start(*words):
        made = next(answers, None)
        if made is None:
            raise PipelineError("port 1 of the loopback cannot be had")
        return made

    monkeypatch.setattr(supervisor.local, "start", start)
    with supervisor._Service("/s", TuningConfig()) as service:
        assert "port 1 of the loopback" in str(service.troubles.get(timeout=10))


def task(tuning=None, until=None, **training):
    custom = {
        "network": {"width": 8}, "training": dataclasses.asdict(TrainingConfig(**training)), "short_side": 48,
        "tuning": dataclasses.asdict(TuningConfig(**(tuning or {}))),
    }  # fmt: skip
    return Task("p", "labels_20260302", "2026-03-02", "run-1", [], [], "", custom, "/s", "/r", until)


def test_trials_that_cannot_be_compared_belong_to_different_studies():
    def settings(tuning=None, **training):
        return task(tuning, **training).display_name

    assert settings() not in [settings({"epochs": 4}), settings(seed=3), settings(unfrozen_epochs=7)]
    # A run with more workers or another window goes on with the same study; and the search sets the dropout.
    assert settings() == settings(workers=2) == settings(reserve_minutes=5.0) == settings(dropout=0.4)
    assert settings() == settings({"parallel": 2})


def test_a_window_without_time_starts_no_worker_and_ends_what_was_under_way(monkeypatch, caplog):
    class Service(Dying):
        def __enter__(self):
            return self

        troubles = queue.Queue()

        def __exit__(self, *error):
            pass

    class Complete(MemoryStudy):
        name = "studies/1"

        def is_complete(self):
            return False

        def trim(self):
            return []

    study = Complete([{"dropout": 0.1}, {"dropout": 0.2}, {"dropout": 0.3}])
    for client in ("worker-0", "worker-1"):
        study.suggest(client)
    study.measure(study.trials()[0], 1, 0.5)
    monkeypatch.setattr(supervisor, "_Service", lambda *words: Service())
    monkeypatch.setattr(supervisor.local, "client_of", lambda address: None)
    monkeypatch.setattr(supervisor.Task, "open", lambda *words: study)
    monkeypatch.setattr(supervisor, "_Worker", None)
    with caplog.at_level("INFO", logger="pipeline.tuning.supervisor"):
        found = supervisor.search(task(until=time.time() - 1))
    assert [(one.number, one.state, one.value) for one in found.trials] == [(1, "SUCCEEDED", 0.5)]
    assert "the window leaves no time for trials" in caplog.text


def test_workers_are_told_when_their_time_is_over_and_the_study_is_the_same():
    assert task(until=1234.5).worker_arguments("p")["custom_config"]["until"] == 1234.5
    assert task(until=1234.5).display_name == task().display_name


def test_workers_hear_nothing_of_a_cluster(monkeypatch, tmp_path):
    """TF_CONFIG of the process that searches is not theirs."""
    monkeypatch.setenv("TF_CONFIG", "{}")
    found = []

    def start(words, env, **rest):
        found.append((words, env))
        raise OSError("not started")

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    with pytest.raises(OSError, match="not started"):
        supervisor._Worker(1, "worker-1", tmp_path / "a.json", "3", queue.Queue())
    words, environment = found[0]
    assert words[1:3] == ["-m", "pipeline.tuning.worker"] and "TF_CONFIG" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "3" and environment["TF_USE_LEGACY_KERAS"] == "1"
