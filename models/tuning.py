"""Searches for hyperparameters on the tuning sample: the `tuner_fn` of TFX's Tuner.

A study is a number of short trainings with random, seeded values in the bounds of `TuningConfig`; the one with the
best validation accuracy wins. The Trainer reads the winner's values as its `hyperparameters`.
"""

import dataclasses
import logging

import keras_tuner
import pydantic
from tfx import v1 as tfx

from models import input_pipeline, loop, training
from models.config import LOGARITHMIC, TUNED, TrainingConfig, TuningConfig
from models.errors import TrainingError

_log = logging.getLogger(__name__)

OBJECTIVE = "val_accuracy"


def tuner_fn(fn_args) -> tfx.components.TunerFnResult:
    """Prepares a study on this machine.

    Args:
        fn_args: TFX's FnArgs, as for `models.training.run_fn`, but train_files and eval_files match labelled examples
            and custom_config has `tuning` as well, the fields of `TuningConfig`.

    Returns:
        The tuner, and the one argument of its search: KerasTuner prints no tables, the log has a line a trial.

    Raises:
        TrainingError: Settings or data cannot be used; the text says which and why.
    """
    network, config, short_side = training.settings_of(fn_args)
    try:
        tuning = TuningConfig(**(fn_args.custom_config.get("tuning") or {}))
    except (pydantic.ValidationError, TypeError) as error:
        raise TrainingError(f"the settings of the tuning cannot be used: {error}") from error
    classes = training.read_classes(fn_args.schema_path)
    training.prepare_tensorflow(config)
    train = input_pipeline.read_labelled_split("train", fn_args.train_files, len(classes))
    val = input_pipeline.read_labelled_split("val", fn_args.eval_files, len(classes))

    def run(values, on_epoch):
        trial_config = trial_training(config, tuning.epochs, values)
        training.prepare_tensorflow(trial_config)
        model, _ = training.make_network(network, trial_config, len(classes))
        return loop.fit(model, train, val, network.image_size, short_side, trial_config, on_epoch)

    oracle = keras_tuner.oracles.RandomSearchOracle(
        objective=keras_tuner.Objective(OBJECTIVE, "max"),
        max_trials=tuning.trials,
        # KerasTuner takes 0 for no seed and draws one.
        seed=tuning.seed + 1,
        hyperparameters=search_space(tuning),
        # A value that makes the training diverge is a result, not a reason to stop.
        max_consecutive_failed_trials=tuning.trials + 1,
    )
    return tfx.components.TunerFnResult(tuner=Study(oracle, run, fn_args.working_dir), fit_kwargs={"verbose": 0})


def search_space(tuning: TuningConfig) -> keras_tuner.HyperParameters:
    """The bounds, in KerasTuner's words."""
    space = keras_tuner.HyperParameters()
    for name in TUNED:
        bounds = getattr(tuning, name)
        if name == "batch_size":
            space.Choice(name, list(bounds), ordered=True)
        elif bounds[0] == bounds[1]:
            space.Fixed(name, bounds[0])
        else:
            sampling = "log" if name in LOGARITHMIC else "linear"
            space.Float(name, min_value=bounds[0], max_value=bounds[1], sampling=sampling)
    return space


def trial_training(config: TrainingConfig, epochs: int, values: dict) -> TrainingConfig:
    """The settings of one trial: its values, and `epochs` divided between the phases as those of the training are.

    >>> config = TrainingConfig(backbone="b.npz", frozen_epochs=20, unfrozen_epochs=2)
    >>> trial = trial_training(config, epochs=5, values={"dropout": 0.2})
    >>> trial.frozen_epochs, trial.unfrozen_epochs, trial.dropout
    (4, 1, 0.2)

    Args:
        config: The settings of the training.
        epochs: Epochs of a trial, 1 or more.
        values: Hyperparameters by name.

    Returns:
        The trial's settings. A phase that the training has keeps at least one epoch if `epochs` is 2 or more.
    """
    frozen = round(epochs * config.frozen_epochs / config.epochs)
    if config.frozen_epochs and config.unfrozen_epochs and epochs > 1:
        frozen = min(max(frozen, 1), epochs - 1)
    trial = dataclasses.replace(config, frozen_epochs=frozen, unfrozen_epochs=epochs - frozen)
    return training.with_hyperparameters(trial, values)


class Study(keras_tuner.engine.base_tuner.BaseTuner):
    """Runs trials one after the other. `keras_tuner.Tuner` takes Keras 3 models only; this one takes any function."""

    def __init__(self, oracle, run, directory):
        """Makes a study.

        Args:
            oracle: Chooses the values.
            run: (values, on_epoch) -> `models.loop.Result`.
            directory: Where KerasTuner keeps its state.
        """
        self._run = run
        super().__init__(oracle=oracle, directory=directory, project_name="study", overwrite=True)

    def run_trial(self, trial, *args, **kwargs):
        """Trains once. Returns the objective's value."""
        values = {name: trial.hyperparameters.get(name) for name in TUNED}
        number = len(self.oracle.trials)
        _log.info("trial %d of %d: %s", number, self.oracle.max_trials, _readable(values))
        try:
            result = self._run(values, lambda epoch, measured: None)
        except loop.Diverged as error:
            _log.info("trial %d is infeasible: %s", number, error)
            raise keras_tuner.errors.FailedTrialError(str(error)) from error
        except Exception as error:
            # KerasTuner would count any error as a bad choice of values and go on.
            raise keras_tuner.errors.FatalError(f"trial {number} of {self.oracle.max_trials} failed: {error}") from error
        _log.info("trial %d: %s %.3f", number, OBJECTIVE, result.val_accuracy)
        return {OBJECTIVE: result.val_accuracy}

    def get_best_hyperparameters(self, num_trials=1):
        """The values of the best trials. Raises TrainingError when no trial was feasible."""
        # KerasTuner fills up with trials that failed when there are too few others.
        trials = [trial for trial in self.oracle.get_best_trials(num_trials) if trial.status == "COMPLETED"]
        best = [trial.hyperparameters for trial in trials]
        if not best:
            raise TrainingError(
                f"not one of {len(self.oracle.trials)} trials was feasible: lower the upper bound of "
                "tuning.learning_rate"
            )
        return best

    def search_space_summary(self, extended=False):
        """Nothing: TFX calls it, and KerasTuner prints a table that the settings say already."""

    def results_summary(self, num_trials=10):
        """Logs the winner in one line; KerasTuner prints a page."""
        best = self.oracle.get_best_trials(1)
        if best and best[0].status == "COMPLETED":
            values = {name: best[0].hyperparameters.get(name) for name in TUNED}
            _log.info("best: %s %.3f with %s", OBJECTIVE, best[0].score, _readable(values))

    def save_model(self, trial_id, model, step=0):
        """Nothing: a trial's weights are of no use, the Trainer trains the best values on everything."""

    def load_model(self, trial):
        """There are no models to load; see `save_model`."""
        raise NotImplementedError("a study keeps values, not models")


def _readable(values):
    return ", ".join(f"{name} {value:.3g}" for name, value in values.items())
