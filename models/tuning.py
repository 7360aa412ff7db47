"""Searches for hyperparameters on the tuning sample: the `tuner_fn` of a Tuner.

A study is a number of short trainings with values in the bounds of `TuningConfig`; the one with the best validation accuracy
wins. Which values come next, what each trial came to and when to stop one is the study's matter (`models.study`); here is
what one worker does with a trial. The Trainer reads the winner's values as its `hyperparameters`.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras_tuner
import pydantic
import tensorflow as tf

from models import input_pipeline, loop, training
from models.config import LOGARITHMIC, TUNED, TrainingConfig, TuningConfig
from models.errors import TrainingError
from models.study import OBJECTIVE, Study, Trial, best, fits, leave, progress

_log = logging.getLogger(__name__)


class TunerFnResult(NamedTuple):
    """What TFX's Tuner wants of a tuner_fn: its `TunerFnResult`, which takes ten seconds to import in every worker."""

    tuner: keras_tuner.engine.base_tuner.BaseTuner
    fit_kwargs: dict[str, Any]


def tuner_fn(fn_args) -> TunerFnResult:
    """Prepares one worker of a study.

    Args:
        fn_args: TFX's FnArgs, as for `models.training.run_fn`, but train_files and eval_files match labelled examples
            and custom_config has as well
            `tuning`: the fields of `TuningConfig`;
            `study`: a `models.study.Study`;
            `client_id`: who asks it for trials; the same when this worker starts again;
            and if wanted `workers`, how many share the study at this moment, for the time that it still takes,
            `finish`, true for a worker that ends the trial which its client had, and begins none, and
            `until`, the Unix time at which no trial may go on.

    Returns:
        The tuner, and no arguments of its search.

    Raises:
        TrainingError: Settings or data cannot be used; the text says which and why.
    """
    network, config, short_side = training.settings_of(fn_args)
    custom = fn_args.custom_config
    tuning = read_tuning(custom.get("tuning"))
    for name in ("study", "client_id"):
        if not custom.get(name):
            raise TrainingError(f"the Tuner's custom_config lacks {name!r}; it has {sorted(custom)}")
    classes = training.read_classes(fn_args.schema_path)
    training.prepare_tensorflow(config)
    train = input_pipeline.read_labelled_split("train", fn_args.train_files, len(classes))
    _require_every_class(train, classes)
    val = input_pipeline.read_labelled_split("val", fn_args.eval_files, len(classes))

    def run(values, on_epoch):
        trial_config = trial_training(config, tuning.epochs, values)
        training.prepare_tensorflow(trial_config)
        model, _ = training.make_network(network, trial_config, len(classes))
        return loop.fit(
            model, train, val, network.image_size, short_side, trial_config, on_epoch, deadline=custom.get("until")
        )

    tuner = Tuner(
        custom["study"], custom["client_id"], tuning, run, fn_args.working_dir,
        workers=custom.get("workers", tuning.parallel), finish=bool(custom.get("finish")), until=custom.get("until"),
    )  # fmt: skip
    return TunerFnResult(tuner, {})


def _require_every_class(sample, classes) -> None:
    counts = input_pipeline.class_counts(sample)
    absent = [repr(name) for name, count in zip(classes, counts, strict=True) if not count]
    if absent:
        more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
        raise TrainingError(
            f"the {sample.name} split of the tuning sample has no photograph of {', '.join(absent[:10])}{more}, so no trial "
            "could learn what that is: raise splits.tuning_share, or label more of it"
        )


def read_tuning(fields: Mapping | None) -> TuningConfig:
    """The settings of a search. Raises TrainingError."""
    try:
        return TuningConfig(**(fields or {}))
    except (pydantic.ValidationError, TypeError) as error:
        raise TrainingError(f"the settings of the tuning cannot be used: {error}") from error


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


def best_hyperparameters(trials: Sequence[Trial], tuning: TuningConfig) -> keras_tuner.HyperParameters:
    """The best trial's values, as TFX's Tuner writes them and its Trainer reads them.

    Raises:
        TrainingError: No trial was feasible.
    """
    winner = best(trials)
    if winner is None:
        reasons = list(dict.fromkeys(trial.reason for trial in trials if trial.reason))[:3]
        raise TrainingError(
            f"not one of {len(trials)} trials was feasible ({'; '.join(reasons) or 'none came to an end'}): lower the upper "
            "bound of tuning.learning_rate or, if memory ran out, tuning.batch_size and tuning.parallel"
        )
    return _as_hyperparameters(winner, tuning)


def _as_hyperparameters(trial: Trial, tuning: TuningConfig) -> keras_tuner.HyperParameters:
    found = search_space(tuning)
    # Vizier knows floats only.
    found.values = {name: int(value) if name == "batch_size" else value for name, value in trial.values.items()}
    return found


def trial_training(config: TrainingConfig, epochs: int, values: Mapping[str, float]) -> TrainingConfig:
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
        The trial's settings: one worker trains it. A phase that the training has keeps at least one epoch if `epochs` is 2
        or more.
    """
    frozen = round(epochs * config.frozen_epochs / config.epochs)
    if config.frozen_epochs and config.unfrozen_epochs and epochs > 1:
        frozen = min(max(frozen, 1), epochs - 1)
    trial = dataclasses.replace(config, frozen_epochs=frozen, unfrozen_epochs=epochs - frozen, workers=1)
    return training.with_hyperparameters(trial, values)


class _Stopped(Exception):
    """The study does not want more of this trial."""


class _Oracle(keras_tuner.Oracle):
    """Shows the study to KerasTuner and TFX; nothing is chosen or kept here."""

    def __init__(self, study: Study, tuning: TuningConfig):
        self._study, self._tuning = study, tuning
        super().__init__(
            objective=keras_tuner.Objective(OBJECTIVE, "max"),
            max_trials=tuning.trials,
            hyperparameters=search_space(tuning),
            allow_new_entries=False,
            tune_new_entries=False,
        )

    def get_best_trials(self, num_trials=1):
        """The best trials that succeeded, best first."""
        valued = [trial for trial in self._study.trials() if trial.state == "SUCCEEDED" and trial.value is not None]
        ordered = sorted(valued, key=lambda trial: (-trial.value, trial.number))
        return [self._shown(trial) for trial in ordered[:num_trials]]

    def _shown(self, trial: Trial):
        status = keras_tuner.engine.trial.TrialStatus.COMPLETED
        shown = keras_tuner.engine.trial.Trial(
            _as_hyperparameters(trial, self._tuning), trial_id=str(trial.number), status=status
        )
        shown.score, shown.best_step = trial.value, trial.step
        return shown

    def populate_space(self, trial_id):
        """Never: the study suggests."""
        raise NotImplementedError("values come from the study")

    def save(self):
        """Nothing: the study is the only state."""

    def reload(self):
        """Nothing: the study is the only state."""


class Tuner(keras_tuner.engine.base_tuner.BaseTuner):
    """One worker of a study: takes trials one after the other until there are no more.

    `keras_tuner.Tuner` takes Keras 3 models only; this one takes any function.

    Args:
        study: Where trials come from and report to.
        client_id: Who asks; a client that starts again gets the trial that it had.
        tuning: The settings of the search.
        run: Trains once: (values, on_epoch) -> `models.loop.Result`; on_epoch as `models.loop.fit` takes it.
        directory: KerasTuner's, of this worker alone; what it has there is removed.
        workers: How many work at the study at this moment.
        finish: Whether to end the trial that the client has, and to begin none.
        until: Unix time at which no trial may go on, as `run` knows too; None for any.
    """

    def __init__(
        self, study: Study, client_id: str, tuning: TuningConfig, run: Callable, directory: str, workers: int = 1,
        finish: bool = False, until: float | None = None,
    ):  # fmt: skip
        self._study, self._tuning, self._run, self._workers, self._finish = study, tuning, run, workers, finish
        self._until = until
        super().__init__(oracle=_Oracle(study, tuning), directory=directory, project_name=client_id, overwrite=True)
        self.tuner_id = client_id

    def search(self, *args, **kwargs):
        """Runs trials until the study has no more, and logs after each how it stands."""
        while trial := self._next():
            self.run_trial(trial)
            now = time.time()
            _log.info("%s", progress(self._study.trials(), self._tuning.trials, self._workers, self._tuning.epochs, now))

    def _next(self):
        trials = self._study.trials()
        own = next((one for one in trials if one.under_way and one.client_id == self.tuner_id), None)
        if self._until is not None:
            now = time.time()
            if own and now >= self._until:
                leave(self._study, own)
                own = None
            if not own and not fits(trials, self._until, now):
                _log.info("the window leaves no time for another trial")
                return None
        return own if self._finish else self._study.suggest(self.tuner_id)

    def run_trial(self, trial, *args, **kwargs):
        """Trains once and completes the trial.

        Its value is the accuracy after the epoch with the least validation loss, whose weights a training keeps.

        Args:
            trial: A trial of the study, new or one that a worker was killed in, which is trained from its beginning.

        Returns:
            The trial as it ended.

        Raises:
            TrainingError: The data cannot be read, or the training does not report the objective; the trial stays as it is.
        """
        if trial.state == "STOPPING" and trial.curve:
            # Its worker was told to stop and then killed.
            return self._told(self._study.complete(trial, *trial.curve[-1]))
        reported = max((step for step, _ in trial.curve), default=0)
        kept: dict = {}

        def on_epoch(phase, measured):
            if OBJECTIVE not in measured:
                raise TrainingError(
                    f"the training reports no {OBJECTIVE}, by which trials are compared, only {', '.join(sorted(measured))}"
                )
            if not kept or measured["val_loss"] < kept["val_loss"]:
                kept.update(measured)
            self._study.measure(trial, measured["epoch"], measured[OBJECTIVE])
            if measured["epoch"] >= reported and self._study.should_stop(trial):
                raise _Stopped

        _log.info("trial %d: %s", trial.number, _readable(trial.values))
        try:
            if self._run(trial.values, on_epoch).stopped_by_window:
                _log.info("trial %d ends where it is: the window leaves no more time", trial.number)
        except loop.NoTime:
            return leave(self._study, trial)
        except _Stopped:
            _log.info("trial %d is stopped: it falls behind the others", trial.number)
        except loop.Diverged as error:
            return self._told(self._study.infeasible(trial, str(error)))
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            said = " ".join(str(error).split())[:300]
            return self._told(self._study.infeasible(trial, f"memory ran out: {said or type(error).__name__}"))
        return self._told(self._study.complete(trial, kept["epoch"], kept[OBJECTIVE]))

    def _told(self, trial):
        if trial.state == "INFEASIBLE":
            _log.info("trial %d is infeasible: %s", trial.number, trial.reason)
        else:
            _log.info("trial %d: %s %.3f after %d epochs", trial.number, OBJECTIVE, trial.value, len(trial.curve))
        return trial

    def get_best_hyperparameters(self, num_trials=1):
        """The values of the best trials. Raises TrainingError when no trial was feasible."""
        found = [trial.hyperparameters for trial in self.oracle.get_best_trials(num_trials)]
        # Without any, this says why.
        return found or [best_hyperparameters(self._study.trials(), self._tuning)]

    def search_space_summary(self, extended=False):
        """Nothing: TFX calls it, and KerasTuner prints a table that the settings say already."""

    def results_summary(self, num_trials=10):
        """Logs the winner in one line; KerasTuner prints a page."""
        winner = best(self._study.trials())
        if winner:
            _log.info("best: %s %.3f with %s", OBJECTIVE, winner.value, _readable(winner.values))

    def save_model(self, trial_id, model, step=0):
        """Nothing: a trial's weights are of no use, the Trainer trains the best values on everything."""

    def load_model(self, trial):
        """There are no models to load; see `save_model`."""
        raise NotImplementedError("a study keeps values, not models")


def _readable(values):
    return ", ".join(f"{name} {value:.3g}" for name, value in values.items())
