"""Tuning: what is searched, that a study repeats, and which failures are a bad choice of values and which are not."""

import dataclasses
import doctest
import json
import logging
import shutil

import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from tfx.components.tuner import executor
from tfx.dsl.components.base import base_executor
from tfx.types import standard_artifacts

from models import loop, records, training, tuning
from models.config import TUNED, TrainingConfig, TuningConfig, with_hyperparameters
from models.errors import TrainingError

SMALL = {"blocks": [1], "width": 4}
STUDY = {
    "trials": 3,
    "epochs": 1,
    "seed": 5,
    "learning_rate": [0.001, 0.1],
    "weight_decay": [0.0001, 0.3],
    "batch_size": [4, 8, 12],
    "dropout": [0.0, 0.5],
    "augmentation": [0.25, 0.25],
    "label_smoothing": [0.0, 0.2],
}
# Nothing but the learning rate differs between trials.
RATE_ALONE = {
    "epochs": 1,
    "batch_size": [64],
    **{name: [0.1, 0.1] for name in ("weight_decay", "dropout", "augmentation", "label_smoothing")},
}


def artifact(kind, folder):
    made = kind()
    made.uri = str(folder)
    return made


def execute(week, out, fn_args):
    """Runs TFX's Tuner on labelled examples; train validates too, for more than six steps between the scores."""
    examples = artifact(standard_artifacts.Examples, out / "examples")
    schema = artifact(standard_artifacts.Schema, out / "schema")
    examples.split_names = json.dumps(["train", "val"])
    for split in ("train", "val"):
        (out / "examples" / f"Split-{split}").mkdir(parents=True)
        (file,) = tf.io.gfile.glob(week.labelled("train")[0])
        shutil.copy(file, out / "examples" / f"Split-{split}")
    (out / "schema").mkdir()
    shutil.copy(week.schema, out / "schema")
    (out / "best").mkdir()
    (out / "results").mkdir()
    executor.Executor(base_executor.BaseExecutor.Context(tmp_dir=str(out / "tmp"), unique_id="1")).Do(
        {"examples": [examples], "schema": [schema]},
        {
            "best_hyperparameters": [artifact(standard_artifacts.HyperParameters, out / "best")],
            "tuner_results": [artifact(standard_artifacts.TunerResults, out / "results")],
        },
        {
            "tuner_fn": "models.tuning.tuner_fn",
            "train_args": json.dumps({"splits": ["train"]}),
            "eval_args": json.dumps({"splits": ["val"]}),
            "custom_config": json.dumps(fn_args.custom_config),
        },
    )
    (best,) = (out / "best").iterdir()
    (results,) = (out / "results").iterdir()
    return json.loads(best.read_text()), json.loads(results.read_text())


@pytest.fixture(scope="module")
def study(week, tmp_path_factory):
    """What TFX's Tuner wrote: (best hyperparameters, results)."""
    out = tmp_path_factory.mktemp("study")
    return execute(week, out, week.fn_args(out, network=SMALL, tuning=STUDY))


def prepared(week, out, settings=STUDY, **changes):
    """A study that did not run yet, and the arguments of its search."""
    fn_args = week.fn_args(out, tuning=settings, labelled=True, **{"network": SMALL, **changes})
    fn_args.eval_files = fn_args.train_files
    made = tuning.tuner_fn(fn_args)
    return made.tuner, made.fit_kwargs


def first_values(week, out, seed, training_seed=0):
    study, _ = prepared(week, out, {**STUDY, "seed": seed}, training={"seed": training_seed})
    return study.oracle.create_trial("a worker").hyperparameters.values


def test_each_tuned_setting_is_searched_in_its_bounds():
    bounds = TuningConfig(**STUDY)
    space = tuning.search_space(bounds)
    assert [parameter.name for parameter in space.space] == list(TUNED)
    draws = {parameter.name: [parameter.random_sample(seed) for seed in range(300)] for parameter in space.space}
    for name in set(TUNED) - {"batch_size"}:
        lower, upper = getattr(bounds, name)
        assert lower <= min(draws[name]) <= max(draws[name]) <= upper
    assert set(draws["batch_size"]) == {4, 8, 12}
    assert set(draws["augmentation"]) == {0.25}
    assert isinstance(space.space[TUNED.index("augmentation")], keras_tuner.engine.hyperparameters.Fixed)


def test_rates_are_drawn_on_a_logarithmic_scale_and_shares_are_not():
    space = tuning.search_space(TuningConfig(learning_rate=(1e-6, 1e-2), weight_decay=(1e-6, 1e-2), dropout=(0.0, 0.8)))
    medians = {parameter.name: np.median([parameter.random_sample(seed) for seed in range(300)]) for parameter in space.space}
    for name in ("learning_rate", "weight_decay"):
        assert 3e-5 < medians[name] < 3e-4, "the middle of the exponents is 1e-4, that of the values 5e-3"
    assert 0.3 < medians["dropout"] < 0.5 and 0.4 < medians["augmentation"] < 0.6


def test_production_s_bounds_make_a_search_space():
    assert len(tuning.search_space(TuningConfig()).space) == len(TUNED)


@pytest.mark.parametrize(
    "frozen, unfrozen, epochs, expected",
    [
        (0, 30, 8, (0, 8)),
        (20, 2, 5, (4, 1)),
        (2, 20, 5, (1, 4)),
        (10, 10, 8, (4, 4)),
        (10, 0, 3, (3, 0)),
        (1, 1000, 2, (1, 1)),
        (1000, 1, 2, (1, 1)),
        (20, 2, 1, (1, 0)),
        (2, 20, 1, (0, 1)),
        (3, 5, 16, (6, 10)),
    ],
)
def test_a_trial_has_the_phases_of_the_training(frozen, unfrozen, epochs, expected):
    config = TrainingConfig(backbone="b.npz", frozen_epochs=frozen, unfrozen_epochs=unfrozen)
    trial = tuning.trial_training(config, epochs, {})
    assert (trial.frozen_epochs, trial.unfrozen_epochs) == expected
    assert dataclasses.replace(trial, frozen_epochs=frozen, unfrozen_epochs=unfrozen) == config


def test_a_trial_has_its_values():
    trial = tuning.trial_training(TrainingConfig(), 3, {"dropout": 0.25, "batch_size": 16.0})
    assert trial == TrainingConfig(unfrozen_epochs=3, dropout=0.25, batch_size=16)


def test_examples_in_docstrings():
    found = doctest.testmod(tuning)
    assert found.attempted and not found.failed


def test_the_trainer_takes_the_best_values(study, week, tmp_path):
    best, results = study
    assert len(results) == STUDY["trials"]
    assert set(best["values"]) == set(TUNED)
    for row in results:
        for name in set(TUNED) - {"batch_size"}:
            assert STUDY[name][0] <= row[name] <= STUDY[name][1]
        assert row["batch_size"] in STUDY["batch_size"] and 0 <= row["score"] <= 1
    assert best["values"] in [
        {name: row[name] for name in TUNED} for row in results if row["score"] == max(row["score"] for row in results)
    ]
    config = TrainingConfig(batch_size=8, unfrozen_epochs=2, intra_op_threads=2, inter_op_threads=2)
    assert with_hyperparameters(config, best) == dataclasses.replace(config, **best["values"])
    assert training.settings_of(week.fn_args(tmp_path, hyperparameters=best))[1] == with_hyperparameters(config, best)


def test_a_score_is_the_accuracy_of_a_training_with_these_values(study, week, tmp_path):
    _, results = study
    row = min(results, key=lambda row: row["score"])
    fn_args = week.fn_args(tmp_path, network=SMALL, training={"unfrozen_epochs": 1})
    network, config, short_side = training.settings_of(fn_args)
    config = with_hyperparameters(config, {name: row[name] for name in TUNED})
    training.prepare_tensorflow(config)
    split = training.input_pipeline.read_labelled_split("train", week.labelled("train"), 3)
    classifier, _ = training.make_network(network, config, 3)
    result = loop.fit(classifier, split, split, network.image_size, short_side, config)
    assert result.val_accuracy == row["score"]


def test_a_second_study_gives_the_same_values_and_scores(study, week, tmp_path):
    again, arguments = prepared(week, tmp_path)
    again.search(**arguments)
    found = {trial.trial_id: (trial.hyperparameters.values, trial.score) for trial in again.oracle.trials.values()}
    assert found == {row["trial_id"]: ({name: row[name] for name in TUNED}, row["score"]) for row in study[1]}
    assert again.get_best_hyperparameters()[0].values == study[0]["values"]
    assert len({row["learning_rate"] for row in study[1]}) == STUDY["trials"]


def test_the_seed_decides_what_is_tried(week, tmp_path):
    values = first_values(week, tmp_path / "1", seed=1)
    assert first_values(week, tmp_path / "2", seed=1) == values
    assert first_values(week, tmp_path / "3", seed=2) != values


@pytest.mark.parametrize("seed", [0, 1])  # 0: KerasTuner takes it for none and draws one
def test_what_is_tried_does_not_depend_on_the_training_s_seed(week, tmp_path, seed):
    values = first_values(week, tmp_path / "1", seed)
    assert first_values(week, tmp_path / "2", seed, training_seed=3) == values


def test_a_trial_that_diverges_is_infeasible_and_the_study_goes_on(week, tmp_path, unstable_backbone, caplog, capsys):
    settings, path = unstable_backbone
    tried = {**RATE_ALONE, "trials": 2, "learning_rate": [1e-6, 1.0]}
    changes = {"network": settings, "training": {"backbone": path, "warmup_epochs": 0}}

    def rates(seed):
        oracle = prepared(week, tmp_path, {**tried, "seed": seed}, **changes)[0].oracle
        return sorted(oracle.populate_space("")["values"]["learning_rate"] for _ in range(2))

    seed = next(seed for seed in range(1, 100) if rates(seed)[0] < 1e-3 and rates(seed)[1] > 0.3)
    study, arguments = prepared(week, tmp_path, {**tried, "seed": seed}, **changes)
    with caplog.at_level(logging.INFO, logger="models.tuning"):
        study.search_space_summary()
        study.search(**arguments)
        study.results_summary()
    found = [(trial.hyperparameters.get("learning_rate") > 0.2, trial.status) for trial in study.oracle.trials.values()]
    assert sorted(found) == [(False, "COMPLETED"), (True, "FAILED")]
    assert study.get_best_hyperparameters()[0].get("learning_rate") < 1e-3
    assert "is infeasible: the loss is no number any more" in caplog.text
    assert caplog.messages[-1].startswith("best: val_accuracy ") and "learning_rate" in caplog.messages[-1]
    assert capsys.readouterr().out == ""


def test_a_study_without_a_feasible_trial_says_what_to_lower(week, tmp_path, unstable_backbone):
    settings, path = unstable_backbone
    # Three, after which KerasTuner would give up with an error of its own.
    fn_args = week.fn_args(
        tmp_path, network=settings, training={"backbone": path, "warmup_epochs": 0},
        tuning={**RATE_ALONE, "trials": 3, "seed": 1, "learning_rate": [0.5, 1.0]},
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"not one of 3 trials was feasible.*tuning\.learning_rate"):
        execute(week, tmp_path, fn_args)


def test_a_photograph_that_cannot_be_read_ends_the_study(new_week, tmp_path):
    week = new_week(shards=2)
    (file,) = tf.io.gfile.glob(week.labelled("train")[0])
    content = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    broken = records.encode_labelled(
        image_id="broken", product_id="", source="", label="amber", label_index=0, encoded=b"no jpeg", width=1, height=1
    )
    with tf.io.TFRecordWriter(file) as writer:
        for record in [broken, *content[1:]]:
            writer.write(record)
    study, arguments = prepared(week, tmp_path)
    with pytest.raises(keras_tuner.errors.FatalError, match="trial 1 of 3 failed: .*photograph broken") as error:
        study.search(**arguments)
    assert isinstance(error.value.__cause__, TrainingError) and not isinstance(error.value.__cause__, loop.Diverged)
    assert len(study.oracle.trials) == 1


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"trials": 0}, ["trials", "0"]),
        ({"dropout": [0.4, 0.1]}, ["dropout", "0.4", "0.1"]),
        ({"momentum": [0.8, 0.9]}, ["momentum"]),
    ],
)
def test_settings_that_cannot_be_used_are_named(week, tmp_path, settings, words):
    with pytest.raises(TrainingError, match="the settings of the tuning") as error:
        prepared(week, tmp_path, {**STUDY, **settings})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_settings_that_are_no_mapping(week, tmp_path):
    fn_args = week.fn_args(tmp_path)
    fn_args.custom_config["tuning"] = ["trials"]
    with pytest.raises(TrainingError, match="the settings of the tuning cannot be used: .*mapping, not list"):
        tuning.tuner_fn(fn_args)


def test_examples_that_are_nowhere(week, tmp_path):
    fn_args = week.fn_args(tmp_path, tuning=STUDY, labelled=True)
    fn_args.train_files = [str(tmp_path / "nowhere*")]
    with pytest.raises(TrainingError, match="the train split has no files.*nowhere"):
        tuning.tuner_fn(fn_args)
