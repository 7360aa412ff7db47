"""Settings: what is refused, and that the message names field and value; hyperparameters on top."""

import dataclasses
import doctest
import subprocess
import sys

import pydantic
import pytest

from models import config
from models.config import NetworkConfig, TrainingConfig, TuningConfig, with_hyperparameters


@pytest.mark.parametrize(
    "make, field, value",
    [
        (lambda: NetworkConfig(blocks=(3, 0)), "blocks.1", "0"),
        (lambda: NetworkConfig(blocks=()), "blocks", "()"),
        (lambda: NetworkConfig(width=2), "width", "2"),
        (lambda: NetworkConfig(image_size="224"), "image_size", "'224'"),
        (lambda: NetworkConfig(depth=50), "depth", "50"),
        (lambda: TrainingConfig(dropout=0.95), "dropout", "0.95"),
        (lambda: TrainingConfig(learning_rate=float("nan")), "learning_rate", "nan"),
        (lambda: TrainingConfig(batch_size=8.5), "batch_size", "8.5"),
        (lambda: TrainingConfig(seed=-1), "seed", "-1"),
        (lambda: TrainingConfig(frozen_epochs=3), "training.frozen_epochs", "3"),
        (lambda: TrainingConfig(unfrozen_epochs=0), "training.unfrozen_epochs", "0"),
        (lambda: TrainingConfig(backbone="weights.h5"), "training.backbone", "weights.h5"),
        (lambda: TrainingConfig(workers=5), "training.workers 5 must be 1 to 4", "the budget"),
        (lambda: TrainingConfig(workers=0), "training.workers", "0"),
        (lambda: TrainingConfig(workers=3, batch_size=16), "training.batch_size 16 does not divide", "such as 18"),
        (lambda: TuningConfig(dropout=(0.4, 0.1)), "dropout", "0.4"),
        (lambda: TuningConfig(learning_rate=(0, 0.1)), "learning_rate.0", "0"),
        (lambda: TuningConfig(trials=0), "trials", "0"),
        (lambda: TuningConfig(trials=61), "61 trials are not possible, 1 to 60 are", "61"),
        (lambda: TuningConfig(parallel=9), "9 trials at once are not possible, 1 to 8 are", "learns"),
        (lambda: TuningConfig(trials=3), "8 trials at once exceed the 3 in all", "tuning.parallel"),
        (lambda: TuningConfig(algorithm="grid"), "algorithm", "'grid'"),
        (lambda: TuningConfig(batch_size=("16",)), "batch_size.0", "'16'"),
    ],
)
def test_error_names_field_and_value(make, field, value):
    with pytest.raises(pydantic.ValidationError) as error:
        make()
    assert field in str(error.value)
    assert value in str(error.value)


def test_takes_what_yaml_and_json_have():
    assert NetworkConfig(blocks=[1, 2]).blocks == (1, 2)
    assert TrainingConfig(warmup_epochs=2).warmup_epochs == 2
    assert TuningConfig(learning_rate=[1e-4, 1], batch_size=[8]).batch_size == (8,)


def test_comes_back_from_its_own_dict():
    for settings in (NetworkConfig(), TrainingConfig(backbone="b.npz", frozen_epochs=1), TuningConfig()):
        assert type(settings)(**dataclasses.asdict(settings)) == settings


def test_hyperparameters_override():
    training = TrainingConfig()
    for given in ({"dropout": 0.3, "batch_size": 64.0}, {"values": {"dropout": 0.3, "batch_size": 64}, "space": []}):
        tuned = with_hyperparameters(training, given)
        assert tuned == dataclasses.replace(training, dropout=0.3, batch_size=64)
    assert type(tuned.batch_size) is int


@pytest.mark.parametrize("nothing", [None, {}, {"space": [], "values": {}}])
def test_no_hyperparameters_leave_the_settings(nothing):
    assert with_hyperparameters(TrainingConfig(), nothing) == TrainingConfig()


def test_wrong_hyperparameters():
    with pytest.raises(ValueError, match="droput = 0.3"):
        with_hyperparameters(TrainingConfig(), {"droput": 0.3})
    with pytest.raises(ValueError, match="1.5"):
        with_hyperparameters(TrainingConfig(), {"dropout": 1.5})


@pytest.mark.parametrize("count, says", [(5, "6 are the least"), (9, "8 are the most that 60 trials can tell apart")])
def test_a_search_has_six_to_eight_parameters(count, says):
    config.check_parameters(config.TUNED)
    with pytest.raises(ValueError, match=f"has {count} parameters .*{says}"):
        config.check_parameters([f"p{number}" for number in range(count)])


def test_every_tuned_name_is_a_training_setting():
    training = {field.name for field in dataclasses.fields(TrainingConfig)}
    tuning = {field.name for field in dataclasses.fields(TuningConfig)}
    assert set(config.TUNED) <= training & tuning


def test_needs_no_tensorflow():
    check = "import sys, models.config; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_examples_in_docstrings():
    assert doctest.testmod(config).failed == 0
