"""The profile: what decoding costs, how long is left, what TensorBoard is told."""

import doctest
import math
import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from models import input_pipeline, profile
from models.errors import TrainingError
from tests.models.conftest import measured, phases_of

SIZES = {"image_size": 32, "short_side": 48}


def split_of(week):
    return input_pipeline.read_split("train", week.labels("train"), classes=3)


def test_the_doctests_hold():
    found = doctest.testmod(profile)
    assert found.failed == 0 and found.attempted >= 3


# Decoding


@pytest.mark.parametrize("augmentation", [0.0, 0.5])
def test_decoding_is_measured_on_what_training_decodes(week, augmentation):
    split = split_of(week)
    found = profile.decode_seconds(split, augmentation=augmentation, seed=1, **SIZES)
    # A 48-pixel photograph takes some hundredths of a millisecond on most processors.
    assert 1e-6 < found < 1e-2
    larger = profile.decode_seconds(split, augmentation=augmentation, seed=1, image_size=512, short_side=768)
    assert larger > 2 * found


def test_labelled_examples_are_measured_too(week):
    split = input_pipeline.read_labelled_split("train", week.labelled("train"), classes=3)
    assert 1e-6 < profile.decode_seconds(split, augmentation=0.5, seed=1, **SIZES) < 1e-2


def test_no_more_photographs_are_read_than_are_measured(new_week, monkeypatch):
    split = split_of(new_week(shards=3, each=64))
    lengths = []
    stateless_uniform = tf.random.stateless_uniform

    def noted(shape, *arguments, **named):
        lengths.append(int(shape[0]))
        return stateless_uniform(shape, *arguments, **named)

    monkeypatch.setattr(tf.random, "stateless_uniform", noted)
    profile.decode_seconds(split, augmentation=0.5, seed=1, photographs=20, **SIZES)
    profile.decode_seconds(split, augmentation=0.5, seed=1, **SIZES)
    assert lengths == [20, split.examples]


def test_a_damaged_shard_is_named_as_training_names_it(new_week):
    week = new_week()
    path = pathlib.Path(week.shards[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=f"the train split cannot be read.*1 damaged.*{path}"):
        profile.decode_seconds(split_of(week), augmentation=0.5, seed=1, **SIZES)


def test_neither_measuring_nor_tensorboard_touches_what_is_random(week, tmp_path):
    def draw(act):
        tf_keras.utils.set_random_seed(3)
        act()
        return tf.random.uniform([4]).numpy().tolist(), np.random.random(4).tolist(), random.random()

    def act():
        profile.decode_seconds(split_of(week), augmentation=0.5, seed=1, **SIZES)
        board = profile.TensorBoard(str(tmp_path))
        board.epoch("frozen", measured(1))
        board.close()

    assert draw(act) == draw(lambda: None)


def test_the_share_of_decoding():
    # As much decoding as computing; none; and nothing but decoding.
    assert profile.decode_share(0.008, threads=8, images=1000, busy_seconds=1.0) == 0.5
    assert profile.decode_share(0.0, threads=8, images=1000, busy_seconds=1.0) == 0
    assert profile.decode_share(0.008, threads=8, images=1000, busy_seconds=0.0) == 1
    # The prototype's: 7.6 h of decoding in an epoch of 19 h.
    assert math.isclose(profile.decode_share(7.6, threads=1, images=1, busy_seconds=11.4), 0.4)


# Seconds left


@pytest.mark.parametrize(
    ("frozen", "unfrozen", "expected"),
    [
        # 8 of 10 s compute, which becomes 8 / 0.29.
        ([10.0], [], 2 * 10 + 4 * (8 / 0.29 + 2)),
        # One slow epoch does not spoil it: the median.
        ([90.0, 10.0, 10.0], [], 4 * (8 / 0.29 + 2)),
        # An unfrozen epoch was seen: no more guessing. The frozen phase is over, early or not.
        ([10.0, 10.0, 10.0], [33.0], 3 * 33),
        ([10.0], [33.0, 35.0], 2 * 34),
        ([10.0, 10.0, 10.0], [33.0] * 4, 0.0),
    ],
)
def test_seconds_left(frozen, unfrozen, expected):
    found = profile.seconds_left(phases_of(frozen, unfrozen), frozen_epochs=3, unfrozen_epochs=4)
    assert math.isclose(found, expected, abs_tol=1e-9)


def test_seconds_left_without_one_of_the_phases():
    assert profile.seconds_left(phases_of([], [5.0]), frozen_epochs=0, unfrozen_epochs=4) == 15
    assert profile.seconds_left(phases_of([5.0], []), frozen_epochs=4, unfrozen_epochs=0) == 15
    assert profile.seconds_left(phases_of([5.0], []), frozen_epochs=1, unfrozen_epochs=0) == 0


def test_seconds_left_when_the_unfrozen_phase_has_only_begun():
    begun = [*phases_of([10.0], []), {"name": "unfrozen", "epochs": []}]
    found = profile.seconds_left(begun, frozen_epochs=3, unfrozen_epochs=1)
    assert math.isclose(found, 8 / 0.29 + 2)


def test_validation_costs_the_same_in_both_phases():
    # Of 10 s, 500 images at 100 a second train for 5 s, and 4 of these compute.
    found = profile.seconds_left(phases_of([10.0], []), frozen_epochs=1, unfrozen_epochs=1, images=500)
    assert math.isclose(found, 4 / 0.29 + 1 + 5)


# TensorBoard


def scalars(folder):
    found, texts = {}, []
    (path,) = pathlib.Path(folder).glob("events*")
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            array = tf.make_ndarray(value.tensor)
            if value.tag == "phase":
                texts.append((event.step, array.item().decode()))
            else:
                found[value.tag, event.step] = array.item()
    return found, texts


def test_tensorboard_has_each_epoch_at_once(tmp_path):
    folder = str(tmp_path / "board")
    board = profile.TensorBoard(folder)
    board.epoch("frozen", measured(1))
    # Before it is closed: somebody watches while it trains.
    found, _ = scalars(folder)
    assert found == {
        ("loss/train", 1): 2.0,
        ("loss/val", 1): 1.5,
        ("accuracy/val", 1): pytest.approx(0.3),
        ("speed/images_per_second", 1): 100.0,
        ("speed/input_wait_share", 1): pytest.approx(0.2),
        ("learning_rate", 1): pytest.approx(0.001),
    }
    board.epoch("unfrozen", measured(2, loss=0.25))
    board.epoch("unfrozen", measured(3))
    board.close()
    found, texts = scalars(folder)
    assert len(found) == 18 and found["loss/train", 2] == 0.25
    assert texts == [(1, "frozen"), (2, "unfrozen")]


def test_what_cannot_be_written_for_tensorboard_ends_no_training(tmp_path, monkeypatch, caplog):
    board = profile.TensorBoard(str(tmp_path / "board"))
    board.epoch("frozen", measured(1))

    def fail():
        raise tf.errors.UnavailableError(None, None, "503 from storage")

    for act in ("flush", "close"):
        monkeypatch.setattr(board._writer, act, fail)
    board.epoch("frozen", measured(2))
    board.close()
    assert caplog.text.count("503 from storage") == 2


def test_a_folder_that_cannot_be_written_to_ends_no_training_either(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    board = profile.TensorBoard(str(tmp_path / "file" / "board"))
    board.epoch("frozen", measured(1))
    board.close()
    assert "lack an epoch" in caplog.text


def test_a_training_that_is_refused_leaves_no_folder(tmp_path):
    profile.TensorBoard(str(tmp_path / "board")).close()
    assert not (tmp_path / "board").exists()
