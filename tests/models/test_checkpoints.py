"""A training that was killed goes on from its checkpoint, and ends with the weights of an unbroken one."""

import json
import logging
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline, network, training
from models.checkpoints import Checkpoint
from models.config import NetworkConfig

SMALL = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)

# Two epochs a phase of four steps each: sixteen checkpoints, three within and one after each epoch.
PHASES = {"frozen_epochs": 2, "unfrozen_epochs": 2, "batch_size": 8, "checkpoint_minutes": 0.0, "dropout": 0.5}


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(str(tmp_path / "checkpoints"), {"seed": 1}, minutes=10)


def test_what_was_saved_last_is_found_and_nothing_else_is_left(checkpoint, tmp_path):
    assert checkpoint.load() is None
    checkpoint.save({"step": 1}, {"network": [np.zeros(3)]})
    arrays = {"network": [np.arange(3.0), np.float32(2)], "best": [np.full([2, 2], 7, np.int64)] * 12}
    checkpoint.save({"step": 2, "best": {"val_loss": 0.1}}, arrays)
    state, found = checkpoint.load()
    assert state == {"step": 2, "best": {"val_loss": 0.1}} and found.keys() == arrays.keys()
    for name, values in arrays.items():
        assert len(found[name]) == len(values)
        for value, again in zip(values, found[name]):
            assert np.array_equal(value, again) and np.asarray(value).dtype == again.dtype
    assert [path.name for path in (tmp_path / "checkpoints").glob("*/*")] == ["checkpoint.npz"]
    checkpoint.remove()
    checkpoint.remove()
    assert list((tmp_path / "checkpoints").iterdir()) == [] and checkpoint.load() is None


def test_a_checkpoint_belongs_to_what_the_weights_depend_on(checkpoint, tmp_path):
    checkpoint.save({}, {})
    root = str(tmp_path / "checkpoints")
    assert Checkpoint(root, {"seed": 1}, minutes=1).load() is not None
    assert Checkpoint(root, {"seed": 2}, minutes=10).load() is None


def test_another_is_due_when_the_time_has_come(tmp_path):
    assert not Checkpoint(str(tmp_path), {}, minutes=10).due()
    assert Checkpoint(str(tmp_path), {}, minutes=0).due()


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"no zip"])
def test_one_that_was_damaged_is_told_and_not_used(checkpoint, tmp_path, caplog, damage):
    checkpoint.save({"step": 1}, {"network": [np.arange(1000.0)]})
    (path,) = (tmp_path / "checkpoints").glob("*/*")
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert checkpoint.load() is None
    assert str(path) in caplog.text and "the training starts anew" in caplog.text


def test_one_flipped_byte_is_noticed(checkpoint, tmp_path):
    checkpoint.save({"step": 1}, {"network": [np.arange(1000.0)]})
    (path,) = (tmp_path / "checkpoints").glob("*/*")
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    assert checkpoint.load() is None


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("backbone") / "backbone.npz")
    network.save_backbone(network.resnet(SMALL, seed=7), path, {"made": "for a test"})
    return {"backbone": path, **PHASES}


@pytest.fixture(scope="module")
def unbroken(week, settings, tmp_path_factory):
    """training.json of a training that nothing stopped and that saved nothing."""
    return trained(week, tmp_path_factory.mktemp("unbroken"), settings, checkpoints=None)


def trained(week, out, settings, checkpoints):
    arguments = week.fn_args(out, training=settings)
    arguments.custom_config["checkpoints"] = str(checkpoints or "")
    training.run_fn(arguments)
    return json.loads((out / "run" / "training.json").read_text())


def measured(record):
    """What the training measured, without the clock's part."""
    clock = {"seconds", "seconds_left", "images_per_second", "input_wait_share"}
    return [
        [{name: value for name, value in epoch.items() if name not in clock} for epoch in phase["epochs"]]
        for phase in record["phases"]
    ]


# Within an epoch of the frozen phase, at its end, within the unfrozen phase, and at the very end.
@pytest.mark.parametrize("last", [2, 8, 10, 16])
def test_a_killed_training_ends_with_the_weights_of_an_unbroken_one(week, settings, unbroken, tmp_path, monkeypatch, caplog, last):
    state = killed_after(week, tmp_path / "killed", settings, tmp_path / "checkpoints", monkeypatch, saves=last)
    # What validation took is known to the deadline of the training that goes on.
    assert (state["validation_seconds"] > 0) == bool(state["phases"][0]["epochs"])
    assert not (tmp_path / "killed" / "run" / "training.json").exists()
    with caplog.at_level(logging.INFO):
        record = trained(week, tmp_path / "again", settings, tmp_path / "checkpoints")
    assert "going on where a training was left" in caplog.text
    assert record["weights_sha256"] == unbroken["weights_sha256"]
    assert measured(record) == measured(unbroken) and record["best_epoch"] == unbroken["best_epoch"]
    (events,) = (tmp_path / "again" / "run" / "tensorboard").iterdir()
    steps = [event.step for event in tf.compat.v1.train.summary_iterator(str(events)) if event.summary.value]
    assert sorted(set(steps)) == [1, 2, 3, 4]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_an_early_end_of_a_phase_is_remembered(week, settings, tmp_path, monkeypatch):
    harmful = {**settings, "frozen_epochs": 1, "unfrozen_epochs": 6, "learning_rate": 1.0, "early_stopping_patience": 2}
    unbroken = trained(week, tmp_path / "unbroken", harmful, checkpoints=None)
    assert unbroken["epochs_run"] < 7
    with monkeypatch.context() as patch, pytest.raises(Killed):
        # The whole training is over, and its model not yet written.
        patch.setattr(training.serving, "export", lambda *arguments: (_ for _ in ()).throw(Killed()))
        trained(week, tmp_path / "killed", harmful, tmp_path / "checkpoints")
    record = trained(week, tmp_path / "again", harmful, tmp_path / "checkpoints")
    assert record["weights_sha256"] == unbroken["weights_sha256"] and record["epochs_run"] == unbroken["epochs_run"]


def killed_after(week, out, settings, checkpoints, monkeypatch, saves):
    """Trains until so many checkpoints were saved."""
    save, saved = Checkpoint.save, []

    def save_and_die(self, state, arrays):
        save(self, state, arrays)
        saved.append(state)
        if len(saved) == saves:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoint, "save", save_and_die)
        trained(week, out, settings, checkpoints)
    return saved[-1]


def test_a_window_that_is_over_when_it_goes_on_keeps_what_was_learnt(week, settings, tmp_path, monkeypatch):
    killed_after(week, tmp_path / "killed", settings, tmp_path / "checkpoints", monkeypatch, saves=2)
    arguments = week.fn_args(tmp_path / "again", training=settings)
    arguments.custom_config |= {"checkpoints": str(tmp_path / "checkpoints"), "window_end": 1.0}
    training.run_fn(arguments)
    record = json.loads((tmp_path / "again" / "run" / "training.json").read_text())
    assert record["stopped_by_window"] and (record["epochs_run"], record["steps"]) == (1, 2)


@pytest.mark.parametrize("steps", [3, 11])
def test_a_training_that_a_window_stopped_can_be_repeated(week, settings, tmp_path, monkeypatch, steps):
    killed_after(week, tmp_path / "killed", settings, tmp_path / "checkpoints", monkeypatch, saves=steps)
    records = []
    for out, given in (("again", {"checkpoints": str(tmp_path / "checkpoints"), "window_end": 1.0}), ("replay", {})):
        arguments = week.fn_args(tmp_path / out, training=settings)
        arguments.custom_config |= given or {"stop_after": records[0]["steps"]}
        training.run_fn(arguments)
        records.append(json.loads((tmp_path / out / "run" / "training.json").read_text()))
    assert records[0]["weights_sha256"] == records[1]["weights_sha256"] and measured(records[0]) == measured(records[1])


def test_other_labels_start_anew(week, new_week, settings, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training.serving, "export", lambda *arguments: (_ for _ in ()).throw(Killed()))
        trained(week, tmp_path / "killed", settings, tmp_path / "checkpoints")
    split = input_pipeline.read_split("train", week.labels("train"), 3)
    assert input_pipeline.digest(split) == input_pipeline.digest(input_pipeline.read_split("train", week.labels("train"), 3))
    with caplog.at_level(logging.INFO):
        trained(week, tmp_path / "again", {**settings, "seed": 3}, tmp_path / "checkpoints")
    assert "going on where" not in caplog.text


_TRAIN = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import json, types
from models import checkpoints, training
arguments = json.loads(sys.argv[2])
saves, writing = 0, checkpoints.tf.io.gfile.rename
def rename(*words, **names):
    global saves
    saves += 1
    if saves == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    writing(*words, **names)
checkpoints.tf.io.gfile.rename = rename
training.run_fn(types.SimpleNamespace(**arguments))
"""


def test_killed_in_the_middle_of_a_checkpoint(week, settings, unbroken, tmp_path):
    """The checkpoint before is the one that counts."""
    arguments = week.fn_args(tmp_path / "out", training=settings)
    arguments.custom_config["checkpoints"] = str(tmp_path / "checkpoints")
    root = str(pathlib.Path(training.__file__).parents[1])
    codes = []
    for kill in (7, 10_000):
        command = [sys.executable, "-c", _TRAIN, root, json.dumps(vars(arguments)), str(kill)]
        codes.append(subprocess.run(command, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True).returncode)
    assert codes == [-signal.SIGKILL, 0]
    record = json.loads((tmp_path / "out" / "run" / "training.json").read_text())
    assert record["weights_sha256"] == unbroken["weights_sha256"]


def test_batches_that_were_had_are_left_out(week):
    split = input_pipeline.read_split("train", week.labels("train"), 3)
    arguments = {"image_size": 32, "short_side": 48, "batch_size": 8, "epochs": range(1, 3), "augmentation": 0.7, "seed": 5}
    whole = list(input_pipeline.training_dataset(split, **arguments).as_numpy_iterator())
    rest = list(input_pipeline.training_dataset(split, **arguments, skip_steps=3).as_numpy_iterator())
    assert len(whole) == 8 and len(rest) == 5
    for batch, again in zip(whole[3:], rest):
        assert all(np.array_equal(part, same) for part, same in zip(batch, again, strict=True))
