"""Tuning: what is searched, what a worker does with a trial, and which failures are a bad choice of values."""

import dataclasses
import doctest
import logging
import re
import time

import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from tfx.components.tuner import executor

from models import loop, records, training, tuning
from models.config import TUNED, TrainingConfig, TuningConfig, with_hyperparameters
from models.errors import TrainingError
from models.study import best
from tests.models.studies import MemoryStudy, trial

SMALL = {"blocks": [1], "width": 4}
STUDY = {
    "trials": 3,
    "parallel": 1,
    "epochs": 2,
    "learning_rate": [0.001, 0.1],
    "weight_decay": [0.0001, 0.3],
    "batch_size": [4, 8, 12],
    "dropout": [0.0, 0.5],
    "augmentation": [0.25, 0.25],
    "label_smoothing": [0.0, 0.2],
}


def values(learning_rate, dropout=0.1, batch_size=8.0):
    """Of a trial, as Vizier has them: floats alone."""
    return {
        "learning_rate": learning_rate, "weight_decay": 0.1, "batch_size": batch_size, "dropout": dropout,
        "augmentation": 0.25, "label_smoothing": 0.1,
    }  # fmt: skip


GIVEN = [values(0.002), values(0.01, dropout=0.3, batch_size=4.0), values(0.05)]


def prepared(week, out, study, settings=STUDY, client_id="w0", finish=False, until=None, **changes):
    """A worker that did not run yet."""
    fn_args = week.fn_args(out, tuning=settings, labelled=True, **{"network": SMALL, **changes})
    fn_args.eval_files = fn_args.train_files  # for more than six steps between the scores
    fn_args.custom_config |= {"study": study, "client_id": client_id, "finish": finish, "until": until}
    made = tuning.tuner_fn(fn_args)
    assert made.fit_kwargs == {}
    return made.tuner


@pytest.fixture(scope="module")
def searched(week, tmp_path_factory):
    """A study that ended, and its worker."""
    study = MemoryStudy(GIVEN)
    tuner = prepared(week, tmp_path_factory.mktemp("study"), study)
    tuner.search()
    return study, tuner


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


def test_a_study_is_searched_to_its_end(searched):
    study, tuner = searched
    assert [one.state for one in study.trials()] == ["SUCCEEDED"] * 3
    assert study.reports == [(number, step) for number in (1, 2, 3) for step in (1, 2)]
    for one in study.trials():
        assert one.value == dict(one.curve)[one.step] and one.client_id == "w0"
    assert len({one.curve for one in study.trials()}) > 1


def test_the_trainer_takes_the_best_values(searched, week, tmp_path):
    study, tuner = searched
    winner = best(study.trials())
    found = tuning.best_hyperparameters(study.trials(), TuningConfig(**STUDY))
    assert found.values == winner.values and type(found.values["batch_size"]) is int
    assert tuner.get_best_hyperparameters()[0].values == found.values
    config = TrainingConfig(batch_size=8, unfrozen_epochs=2, intra_op_threads=2, inter_op_threads=2)
    told = found.get_config()
    wanted = {**winner.values, "batch_size": int(winner.values["batch_size"])}
    assert with_hyperparameters(config, told) == dataclasses.replace(config, **wanted)
    assert training.settings_of(week.fn_args(tmp_path, hyperparameters=told))[1] == with_hyperparameters(config, told)


def test_tfx_shows_the_trials_best_first(searched):
    study, tuner = searched
    shown = tuner.oracle.get_best_trials(tuner.oracle.max_trials)
    assert [one.score for one in shown] == sorted((one.value for one in study.trials()), reverse=True)
    assert {one.trial_id for one in shown} == {"1", "2", "3"} and all(one.status == "COMPLETED" for one in shown)


def test_tfx_s_own_executor_takes_what_tuner_fn_gives(searched, tmp_path):
    """It writes the winner through the tuner alone."""
    from tfx.types import standard_artifacts

    best_hyperparameters, results = standard_artifacts.HyperParameters(), standard_artifacts.TunerResults()
    outputs = {"best_hyperparameters": [best_hyperparameters], "tuner_results": [results]}
    for name, (artifact,) in outputs.items():
        artifact.uri = str(tmp_path / name)
    executor.write_best_hyperparameters(searched[1], outputs)
    assert (tmp_path / "best_hyperparameters" / "best_hyperparameters.txt").is_file()


def test_a_score_is_the_accuracy_of_a_training_with_these_values(searched, week, tmp_path):
    one = searched[0].trials()[1]
    fn_args = week.fn_args(tmp_path, network=SMALL, training={"unfrozen_epochs": 2})
    network, config, short_side = training.settings_of(fn_args)
    config = with_hyperparameters(config, one.values)
    training.prepare_tensorflow(config)
    split = training.input_pipeline.read_labelled_split("train", week.labelled("train"), 3)
    classifier, _ = training.make_network(network, config, 3)
    result = loop.fit(classifier, split, split, network.image_size, short_side, config)
    assert (result.val_accuracy, result.best_epoch) == (one.value, one.step)


def test_a_worker_killed_in_a_trial_gets_it_back_and_reports_each_step_once(searched, week, tmp_path):
    study = MemoryStudy(GIVEN[:1])
    killed = prepared(week, tmp_path, study)
    run = killed._run

    def until_killed(given, on_epoch):
        def first(phase, measured):
            on_epoch(phase, measured)
            raise KeyboardInterrupt

        return run(given, first)

    killed._run = until_killed
    with pytest.raises(KeyboardInterrupt):
        killed.search()
    assert study.reports == [(1, 1)] and study.trials()[0].under_way
    prepared(week, tmp_path, study).search()
    assert study.reports == [(1, 1), (1, 2)]
    assert [(one.curve, one.value, one.step) for one in study.trials()] == [
        (one.curve, one.value, one.step) for one in searched[0].trials()[:1]
    ], "as if nobody had been killed"


def test_a_trial_that_falls_behind_is_completed_as_it_stands(week, tmp_path, searched, caplog):
    study = MemoryStudy(GIVEN, stops={(2, 1)})
    with caplog.at_level(logging.INFO, logger="models.tuning"):
        prepared(week, tmp_path, study).search()
    second, whole = study.trials()[1], searched[0].trials()[1]
    assert (second.state, second.curve, second.step) == ("SUCCEEDED", whole.curve[:1], 1) and second.value == whole.curve[0][1]
    assert study.trials()[2] == dataclasses.replace(
        searched[0].trials()[2], begun=study.trials()[2].begun, seconds=study.trials()[2].seconds
    ), "the next one is as ever"
    assert "trial 2 is stopped" in caplog.text
    assert "3 of 3 trials" in caplog.messages[-1] and "1 stopped early" in caplog.messages[-1]


def test_a_worker_killed_between_the_stop_and_the_end_only_completes_the_trial(week, tmp_path):
    study = MemoryStudy(GIVEN[:1])
    given = study.suggest("w0")
    study.measure(given, 1, 0.25)
    study._trials[1] = dataclasses.replace(study.trials()[0], state="STOPPING")
    prepared(week, tmp_path, study).search()
    (one,) = study.trials()
    assert (one.state, one.value, one.step) == ("SUCCEEDED", 0.25, 1) and study.reports == [(1, 1)]


def test_a_worker_that_only_finishes_begins_nothing(week, tmp_path):
    study = MemoryStudy(GIVEN)
    study.suggest("gone")
    prepared(week, tmp_path, study, client_id="gone", finish=True).search()
    assert [one.state for one in study.trials()] == ["SUCCEEDED"]


@pytest.fixture
def clock(monkeypatch):
    """A clock that jumps by an hour when `late` is called."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    def late():
        ahead[0] = 3600.0

    late.until = real() + 1800
    return late


def test_a_trial_that_the_window_ends_counts_as_it_stands_and_no_other_begins(week, tmp_path, caplog, clock):
    study = MemoryStudy(GIVEN)
    tuner = prepared(week, tmp_path, study, {**STUDY, "epochs": 5}, until=clock.until)
    measure = study.measure

    def second_is_the_last(given, step, value):
        measure(given, step, value)
        if step == 2:
            clock()

    study.measure = second_is_the_last
    with caplog.at_level(logging.INFO, logger="models.tuning"):
        tuner.search()
    (one,) = study.trials()
    assert one.state == "SUCCEEDED" and [step for step, _ in one.curve] == [1, 2] and one.value == dict(one.curve)[one.step]
    assert "trial 1 ends where it is: the window leaves no more time" in caplog.text
    assert caplog.messages[-1] == "the window leaves no time for another trial"


def test_a_trial_that_has_no_time_for_a_step_is_taken_back(week, tmp_path, clock):
    study = MemoryStudy(GIVEN)
    tuner = prepared(week, tmp_path, study, until=clock.until)
    suggest = study.suggest
    study.suggest = lambda client: (suggest(client), clock())[0]
    tuner.search()
    assert study.trials() == [] and study.reports == []


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("reports", [0, 1])
def test_a_worker_that_comes_back_too_late_ends_its_trial_without_training(week, tmp_path, clock, finish, reports):
    study = MemoryStudy(GIVEN)
    given = study.suggest("w0")
    for step in range(reports):
        study.measure(given, step + 1, 0.25)
    tuner = prepared(week, tmp_path, study, finish=finish, until=clock.until)
    tuner._run = None
    clock()
    tuner.search()
    assert [(one.state, one.value) for one in study.trials()] == [("SUCCEEDED", 0.25)] * reports


def test_keras_tuner_finds_nothing_of_an_earlier_worker(week, tmp_path):
    folders = [prepared(week, tmp_path, MemoryStudy([]), client_id=name).project_dir for name in ("a", "b")]
    assert folders[0] != folders[1]
    left = tmp_path / "working" / "a" / "tuner0.json"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("{}")
    prepared(week, tmp_path, MemoryStudy([]), client_id="a")
    assert not left.exists()


def test_a_trial_that_diverges_is_infeasible_and_the_study_goes_on(week, tmp_path, unstable_backbone, caplog, capsys):
    settings, path = unstable_backbone
    rate_alone = {"batch_size": 64.0, "augmentation": 0.1}
    study = MemoryStudy([values(0.5) | rate_alone, values(1e-5) | rate_alone])
    tuner = prepared(
        week, tmp_path, study, {**STUDY, "learning_rate": [1e-6, 1.0], "epochs": 1}, network=settings,
        training={"backbone": path, "warmup_epochs": 0},
    )  # fmt: skip
    with caplog.at_level(logging.INFO, logger="models.tuning"):
        tuner.search_space_summary()
        tuner.search()
        tuner.results_summary()
    first, second = study.trials()
    assert first.state == "INFEASIBLE" and first.reason.startswith("the loss is no number any more") and first.curve == ()
    assert second.state == "SUCCEEDED" and tuner.get_best_hyperparameters()[0].get("learning_rate") == 1e-5
    assert "trial 1 is infeasible: the loss is no number any more" in caplog.text
    assert caplog.messages[-1].startswith("best: val_accuracy ") and "learning_rate" in caplog.messages[-1]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "error, words",
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when\n allocating"), "memory ran out: .*OOM when allocating"),
        (MemoryError(), "memory ran out: MemoryError"),
    ],
)
def test_a_trial_without_memory_is_infeasible_and_the_study_goes_on(week, tmp_path, error, words):
    study = MemoryStudy(GIVEN[:2])
    tuner = prepared(week, tmp_path, study)
    run = tuner._run

    def first_fails(given, on_epoch):
        if given is GIVEN[0]:
            raise error
        return run(given, on_epoch)

    tuner._run = first_fails
    tuner.search()
    assert [one.state for one in study.trials()] == ["INFEASIBLE", "SUCCEEDED"]
    assert re.match(words, study.trials()[0].reason)


def test_a_study_without_a_feasible_trial_says_why_and_what_to_lower():
    trials = [trial(1, "INFEASIBLE", reason="the loss is no number"), trial(2, "INFEASIBLE", reason="memory ran out")]
    said = r"not one of 2 trials was feasible \(the loss is no number; memory ran out\).*tuning\.learning_rate"
    with pytest.raises(TrainingError, match=said):
        tuning.best_hyperparameters(trials, TuningConfig())


def test_a_photograph_that_cannot_be_read_ends_the_worker_and_leaves_the_trial(new_week, tmp_path):
    week = new_week(shards=2)
    (file,) = tf.io.gfile.glob(week.labelled("train")[0])
    content = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    broken = records.encode_labelled(
        image_id="broken", product_id="", source="", label="amber", label_index=0, encoded=b"no jpeg", width=1, height=1
    )
    with tf.io.TFRecordWriter(file) as writer:
        for record in [broken, *content[1:]]:
            writer.write(record)
    study = MemoryStudy(GIVEN)
    with pytest.raises(TrainingError, match="photograph broken"):
        prepared(week, tmp_path, study).search()
    assert [one.state for one in study.trials()] == ["ACTIVE"]


def test_a_sample_without_one_class_is_named(new_week, tmp_path):
    week = new_week(shards=2)
    (file,) = tf.io.gfile.glob(week.labelled("train")[0])
    content = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    with tf.io.TFRecordWriter(file) as writer:
        for record in content:
            if b"chalk" not in record:
                writer.write(record)
    said = r"train split of the tuning sample has no photograph of 'chalk'.*splits\.tuning_share"
    with pytest.raises(TrainingError, match=said):
        prepared(week, tmp_path, MemoryStudy(GIVEN))


def test_a_training_that_does_not_report_the_objective_is_named_and_the_trial_stays(week, tmp_path):
    study = MemoryStudy(GIVEN)
    tuner = prepared(week, tmp_path, study)
    tuner._run = lambda given, on_epoch: on_epoch("unfrozen", {"epoch": 1, "val_loss": 0.5, "val_auc": 0.7})
    with pytest.raises(TrainingError, match="reports no val_accuracy, by which .*, only epoch, val_auc, val_loss"):
        tuner.search()
    assert [one.state for one in study.trials()] == ["ACTIVE"] and study.reports == []


@pytest.mark.parametrize("name", ["study", "client_id"])
def test_a_worker_without_a_study_is_refused(week, tmp_path, name):
    fn_args = week.fn_args(tmp_path, tuning=STUDY, labelled=True)
    fn_args.custom_config |= {"study": MemoryStudy([]), "client_id": "w0"}
    del fn_args.custom_config[name]
    with pytest.raises(TrainingError, match=f"custom_config lacks '{name}'"):
        tuning.tuner_fn(fn_args)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"trials": 0}, ["trials", "0"]),
        ({"dropout": [0.4, 0.1]}, ["dropout", "0.4", "0.1"]),
        ({"momentum": [0.8, 0.9]}, ["momentum"]),
        ({"parallel": 4}, ["4 trials at once exceed the 3 in all"]),
        ({"trials": 61}, ["61 trials are not possible, 1 to 60 are"]),
        ({"algorithm": "grid"}, ["algorithm", "grid", "quasi_random"]),
    ],
)
def test_settings_that_cannot_be_used_are_named(week, tmp_path, settings, words):
    with pytest.raises(TrainingError, match="the settings of the tuning") as error:
        prepared(week, tmp_path, MemoryStudy([]), {**STUDY, **settings})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_settings_that_are_no_mapping(week, tmp_path):
    fn_args = week.fn_args(tmp_path)
    fn_args.custom_config["tuning"] = ["trials"]
    with pytest.raises(TrainingError, match="the settings of the tuning cannot be used: .*mapping, not list"):
        tuning.tuner_fn(fn_args)


def test_examples_that_are_nowhere(week, tmp_path):
    fn_args = week.fn_args(tmp_path, tuning=STUDY, labelled=True)
    fn_args.custom_config |= {"study": MemoryStudy([]), "client_id": "w0"}
    fn_args.train_files = [str(tmp_path / "nowhere*")]
    with pytest.raises(TrainingError, match="the train split has no files.*nowhere"):
        tuning.tuner_fn(fn_args)
