"""Several workers on this machine, in processes of their own: they follow one worker, repeat, go on after a kill, and end."""

import json
import logging
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

from models.errors import TrainingError
from pipeline import workers
from tests.models.conftest import make_week

# Two phases of some seconds; a checkpoint after every step.
PHASES = {
    "frozen_epochs": 3, "unfrozen_epochs": 4, "frozen_learning_rate": 0.01, "batch_size": 8, "workers": 2, "dropout": 0.3,
    "checkpoint_minutes": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return make_week(tmp_path_factory.mktemp("week") / "data", shards=8)


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    """Settings that train two phases."""
    import tensorflow  # noqa: F401  (before Keras)

    from models import network
    from models.config import NetworkConfig

    path = str(tmp_path_factory.mktemp("backbone") / "backbone.npz")
    config = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)
    network.save_backbone(network.resnet(config, seed=7), path, {"made": "for a test"})
    return {**PHASES, "backbone": path}


@pytest.fixture(scope="module")
def unbroken(week, phases, tmp_path_factory):
    """training.json of two workers that nobody killed."""
    return trained(week, tmp_path_factory.mktemp("unbroken"), phases)


def arguments(week, out, settings, checkpoints=None):
    fn_args = week.fn_args(out, training=settings)
    fn_args.custom_config["checkpoints"] = str(checkpoints or "")
    return vars(fn_args)


def trained(week, out, settings, checkpoints=None):
    workers.train(arguments(week, out, settings, checkpoints), settings.get("workers", 1))
    return json.loads((out / "run" / "training.json").read_text())


def losses(record):
    return [(epoch["loss"], epoch["val_loss"]) for phase in record["phases"] for epoch in phase["epochs"]]


def children():
    """The processes that this one started and that live, in the order of their start."""
    found = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # that thread has ended
    return sorted(pid for pid in found if b"models.worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())


def test_two_workers_follow_one(week, tmp_path):
    """With all photographs in every batch both see the same: what differs is the order in which sums are made."""
    everything = {"batch_size": 72, "unfrozen_epochs": 4, "learning_rate": 0.003, "augmentation": 0.5, "dropout": 0.0}
    one = trained(week, tmp_path / "one", everything)
    two = trained(week, tmp_path / "two", {**everything, "workers": 2})
    assert (one["workers"], two["workers"], one["steps"], two["steps"]) == (1, 2, 4, 4)
    assert np.allclose(losses(one), losses(two), rtol=1e-4)
    assert losses(one)[0][0] - losses(one)[-1][0] > 0.03  # and they have learnt


def test_two_workers_repeat_bit_for_bit_and_write_once(week, phases, unbroken, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        again = trained(week, tmp_path, phases)
    assert again["weights_sha256"] == unbroken["weights_sha256"] and losses(again) == losses(unbroken)
    # The chief's voice alone.
    assert caplog.text.count("epoch 7/7 unfrozen") == 1 and "2 workers" in caplog.text
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["profile.html", "tensorboard", "training.json"]


@pytest.mark.parametrize(("phase", "victim"), [("frozen", 1), ("unfrozen", 0)])
def test_a_killed_worker_ends_the_training_and_the_next_one_goes_on(week, phases, unbroken, tmp_path, phase, victim):
    checkpoints = tmp_path / "checkpoints"
    failure = []

    def train():
        try:
            trained(week, tmp_path / "killed", phases, checkpoints)
        except TrainingError as error:
            failure.append(str(error))

    thread = threading.Thread(target=train)
    thread.start()
    kill_when(checkpoints, phase, victim)
    thread.join(120)
    assert not thread.is_alive() and not children()
    assert failure and f"worker {victim} of the training was ended by SIGKILL" in failure[0]
    assert not (tmp_path / "killed" / "run" / "training.json").exists()
    record = trained(week, tmp_path / "again", phases, checkpoints)
    assert record["weights_sha256"] == unbroken["weights_sha256"] and losses(record) == losses(unbroken)
    assert list(checkpoints.iterdir()) == []


def kill_when(checkpoints, phase, victim):
    for _ in range(18000):  # two processes load TensorFlow first, on a busy machine for more than a minute
        for path in checkpoints.glob("*/checkpoint.npz"):
            with np.load(path) as saved:
                state = json.loads(str(saved["state"]))
            if state["phase"] == phase and state["step"] > 2:
                os.kill(children()[victim], signal.SIGKILL)
                return
        time.sleep(0.01)
    raise AssertionError(f"no checkpoint of the {phase} phase")


def test_what_a_worker_found_wrong_is_told(week, tmp_path):
    with pytest.raises(TrainingError, match="training.backbone .*nowhere.npz cannot be read"):
        trained(week, tmp_path, {"backbone": str(tmp_path / "nowhere.npz"), "workers": 2})
    assert not children() and not (tmp_path / "serving").exists()


def test_a_worker_that_hangs_when_the_others_have_ended_is_named(monkeypatch):
    monkeypatch.setattr(workers, "_GRACE_SECONDS", 0.1)
    team = [types.SimpleNamespace(index=index, failure=lambda: "") for index in range(3)]
    ended = queue.Queue()
    ended.put(team[0])
    ended.put(team[2])
    with pytest.raises(TrainingError, match="worker 1 of the training did not end within 0.1 s of the others"):
        workers._watch((team, ended))


_STARTER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pipeline import workers
workers.train(json.loads(sys.argv[2]), 1)
"""


def test_workers_end_with_whoever_started_them(week, tmp_path):
    long = arguments(week, tmp_path, {"unfrozen_epochs": 1000, "early_stopping_patience": 1000})
    root = str(pathlib.Path(workers.__file__).parents[1])
    starter = subprocess.Popen([sys.executable, "-c", _STARTER, root, json.dumps(long)], stderr=subprocess.DEVNULL)
    try:
        found = []
        for _ in range(600):
            found = pathlib.Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
            if found and (tmp_path / "run" / "tensorboard").exists():
                break
            time.sleep(0.1)
        assert len(found) == 1
    finally:
        starter.kill()
        starter.wait()
    for _ in range(100):
        if not pathlib.Path(f"/proc/{found[0]}").exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"worker {found[0]} outlives its starter")
