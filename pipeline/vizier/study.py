"""The pipeline's side of a study: its name, its space, its budget, and the life of a trial.

It speaks to Google's `VizierServiceClient` alone, so the same code tunes on Vertex, with the client of a regional
endpoint, and on one machine, with `local.client_of`. Nothing about a study is kept here: every answer is asked for, so
that workers share a study and one that is killed goes on with the trial that it had.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from google.api_core import exceptions, retry, timeout
from google.api_core.future import polling
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from models.config import LOGARITHMIC, MAX_PARALLEL, MAX_TRIALS, TUNED, TuningConfig, check_budget, check_parameters
from models.study import Trial, best
from pipeline.errors import PipelineError, SettingsError

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 120.0
_SUGGESTION_SECONDS = 900.0

_EACH = timeout.ConstantTimeout(60.0)
"""Of each attempt of a call; Google's client has none of its own for Vizier, and waits for ever for a service that hangs."""
_MAX_NAME = 128
_MAX_REASON = 1000

# A service that starts again is waited for, and so is Vertex where one call failed: each of these may be sent twice.
_PASSING = (exceptions.ServiceUnavailable, exceptions.InternalServerError, exceptions.GatewayTimeout)
_RETRY = retry.Retry(
    predicate=retry.if_exception_type(*_PASSING), initial=0.1, maximum=2.0, timeout=_PATIENCE_SECONDS
)
# Google's default asks after a second first, longer than most suggestions take.
_POLLING = polling.DEFAULT_POLLING.with_delay(initial=0.1, maximum=2.0, multiplier=1.5)

_Parameter = v1.StudySpec.ParameterSpec
_State = v1.Trial.State


# --- What is searched ---


def study_spec(tuning: TuningConfig, objective: str, maximize: bool = True) -> v1.StudySpec:
    """A search for hyperparameters, in Vertex's words: its default algorithm, stopping by the median, noisy results.

    >>> spec = study_spec(TuningConfig(), "val_accuracy")
    >>> [parameter.parameter_id for parameter in spec.parameters][:3]
    ['learning_rate', 'weight_decay', 'batch_size']

    Args:
        tuning: The bounds. A pair of equal ones holds the parameter at that value.
        objective: Name of the metric that trials report.
        maximize: Whether more of it is better.

    Raises:
        SettingsError: `check_space` refuses it, or a batch size occurs twice.
    """
    goal = v1.StudySpec.MetricSpec.GoalType
    spec = v1.StudySpec(
        metrics=[v1.StudySpec.MetricSpec(metric_id=objective, goal=goal.MAXIMIZE if maximize else goal.MINIMIZE)],
        parameters=[_parameter(name, getattr(tuning, name)) for name in TUNED],
        observation_noise=v1.StudySpec.ObservationNoise.HIGH,
        median_automated_stopping_spec=v1.StudySpec.MedianAutomatedStoppingSpec(use_elapsed_duration=False),
    )
    check_space(spec)
    return spec


def _parameter(name: str, bounds: tuple) -> _Parameter:
    if name == "batch_size" or bounds[0] == bounds[1]:
        values = sorted(bounds) if name == "batch_size" else bounds[:1]
        if len(set(values)) < len(values):
            raise SettingsError(f"tuning.{name}: {list(bounds)} has a value twice: name each once")
        return _Parameter(parameter_id=name, discrete_value_spec=_Parameter.DiscreteValueSpec(values=values))
    scale = _Parameter.ScaleType
    return _Parameter(
        parameter_id=name,
        double_value_spec=_Parameter.DoubleValueSpec(min_value=bounds[0], max_value=bounds[1]),
        scale_type=scale.UNIT_LOG_SCALE if name in LOGARITHMIC else scale.UNIT_LINEAR_SCALE,
    )


def check_space(spec: v1.StudySpec) -> None:
    """Checks the number of parameters.

    Raises:
        SettingsError: There are fewer or more than `models.config.check_parameters` admits.
    """
    try:
        check_parameters([parameter.parameter_id for parameter in spec.parameters])
    except ValueError as error:
        raise SettingsError(str(error)) from error


def study_name(pipeline: str, snapshot: str, spec: v1.StudySpec, settings: Mapping[str, Any] | None = None) -> str:
    """The display name of a study: the same for a rerun, which thereby goes on with it, and another for another space.

    Args:
        pipeline: Name of the pipeline.
        snapshot: Name of the snapshot, such as `labels_20260302`.
        spec: What is searched.
        settings: What else a trial's value depends on, as JSON knows it: trials of 4 and of 8 epochs are not compared.

    Returns:
        The beginning of both names, lower-case letters, digits and hyphens, and a digest of everything.
    """
    content = [pipeline, snapshot, json_format.MessageToDict(v1.StudySpec.pb(spec)), *([settings] if settings else [])]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    words = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in f"{pipeline}-{snapshot}".lower())
    return f"{words[: _MAX_NAME - len(digest) - 1]}-{digest}"


def differences(wanted: v1.StudySpec, found: v1.StudySpec) -> list[str]:
    """What tells two searches apart, one line each; what Vertex fills in by itself does not count."""
    before, after = _facts(found), _facts(wanted)
    return [
        f"{name}: was {before.get(name, 'not there')}, is {after.get(name, 'not there')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _facts(spec: v1.StudySpec) -> dict[str, str]:
    message = v1.StudySpec.pb(spec)
    facts = {"algorithm": spec.algorithm.name, "stopping": message.WhichOneof("automated_stopping_spec") or "none"}
    for metric in spec.metrics:
        # Vertex maximizes unless told otherwise.
        minimize = metric.goal == v1.StudySpec.MetricSpec.GoalType.MINIMIZE
        facts[f"metric {metric.metric_id}"] = "minimized" if minimize else "maximized"
    for parameter in spec.parameters:
        kind = _Parameter.pb(parameter).WhichOneof("parameter_value_spec")
        values = getattr(parameter, kind)
        span = list(values.values) if hasattr(values, "values") else [values.min_value, values.max_value]
        logarithmic = parameter.scale_type == _Parameter.ScaleType.UNIT_LOG_SCALE
        facts[f"parameter {parameter.parameter_id}"] = f"{kind.split('_')[0]} {span}{' log' if logarithmic else ''}"
    return facts


# --- What it may cost ---


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a study may cost.

    Attributes:
        trials: Trials in all, infeasible and stopped ones included, 1 to `MAX_TRIALS`.
        parallel: Trials at once, 1 to `MAX_PARALLEL`, and no more than `trials`.

    Raises:
        SettingsError: One of them is out of its range.
    """

    trials: int = MAX_TRIALS
    parallel: int = MAX_PARALLEL

    def __post_init__(self):
        try:
            check_budget(self.trials, self.parallel)
        except ValueError as error:
            raise SettingsError(str(error)) from error


# --- The life of a trial ---


class Study:
    """A study of Vertex's Vizier, or of the service on this machine.

    Args:
        client: Google's client.
        name: Full name of the study.
        objective: Name of its metric.
        maximize: Whether more of it is better.
        budget: What it may cost.
    """

    def __init__(self, client: v1.VizierServiceClient, name: str, objective: str, maximize: bool, budget: Budget):
        self._client = client
        self._objective = objective
        self._maximize = maximize
        self.name = name
        self.budget = budget

    def trials(self) -> list[Trial]:
        """The trials that count, in order: the first ones of the study, as many as the budget has.

        Raises:
            PipelineError: Vizier does not answer.
        """
        return self._all()[: self.budget.trials]

    def remaining(self) -> int:
        """How many more may begin. Raises PipelineError."""
        return self.budget.trials - len(self.trials())

    def is_complete(self) -> bool:
        """Whether the budget is spent and no trial is under way. Raises PipelineError."""
        trials = self.trials()
        return len(trials) == self.budget.trials and not any(trial.under_way for trial in trials)

    def best(self) -> Trial | None:
        """The trial with the best final value, of equals the first; None if none has one. Raises PipelineError."""
        return best(self.trials(), self._maximize)

    def suggest(self, client_id: str) -> Trial | None:
        """Begins a trial, or gives a client that starts again the one that it had.

        Args:
            client_id: Who asks; the same after a restart. A client has one trial at a time.

        Returns:
            The trial, or None if the budget is spent or the space exhausted.

        Raises:
            PipelineError: As many trials as may be are under way, or Vizier does not answer.
        """
        trials = self._all()
        # Also one that is STOPPING, which no service promises to suggest again.
        own = [trial for trial in trials[: self.budget.trials] if trial.under_way and trial.client_id == client_id]
        if own:
            return own[0]
        if len(trials) >= self.budget.trials:
            self.trim()
            return None
        self._check_parallel(trials)
        with _told("suggest a trial"):
            request = v1.SuggestTrialsRequest(parent=self.name, suggestion_count=1, client_id=client_id)
            operation = self._client.suggest_trials(request, retry=_RETRY, timeout=_EACH)
            found = operation.result(timeout=_SUGGESTION_SECONDS, retry=_RETRY, polling=_POLLING).trials
        if not found:
            return None
        made = self._read(found[0])
        # Others asked at the same moment: of too many, the last ones give way.
        trials = self._all()
        if made.number not in [trial.number for trial in trials[: self.budget.trials]]:
            self._delete(made)
            return None
        try:
            self._check_parallel([trial for trial in trials if trial.number < made.number])
        except PipelineError:
            self._delete(made)
            raise
        return made

    def _check_parallel(self, trials: list[Trial]) -> None:
        busy = [trial for trial in trials if trial.under_way]
        if len(busy) >= self.budget.parallel:
            clients = ", ".join(f"{trial.number} of {trial.client_id}" for trial in busy)
            raise PipelineError(
                f"{self.name} may have {self.budget.parallel} trials at once, and has {len(busy)} (trial {clients}): start "
                "no more workers than that; a worker that died gives its trial back when it starts under the same id"
            )

    def measure(self, trial: Trial, step: int, value: float) -> None:
        """Reports the objective after a step; does nothing for a step that the trial had reported before a restart.

        Raises:
            ValueError: `value` is not finite: the trial is infeasible.
            PipelineError: Vizier refuses it or does not answer.
        """
        if not math.isfinite(value):
            raise ValueError(f"{self._objective} is {value} at step {step} of trial {trial.number}: it is infeasible")
        if step in dict(trial.curve):
            return
        with _told(f"take step {step} of trial {trial.number}"):
            request = v1.AddTrialMeasurementRequest(trial_name=trial.name, measurement=self._measurement(step, value))
            self._client.add_trial_measurement(request, retry=_RETRY, timeout=_EACH)

    def should_stop(self, trial: Trial) -> bool:
        """Whether the trial is not worth going on with; it is then completed as it stands. Raises PipelineError."""
        with _told(f"judge trial {trial.number}"):
            request = v1.CheckTrialEarlyStoppingStateRequest(trial_name=trial.name)
            operation = self._client.check_trial_early_stopping_state(request, retry=_RETRY, timeout=_EACH)
            return operation.result(timeout=_PATIENCE_SECONDS, retry=_RETRY, polling=_POLLING).should_stop

    def complete(self, trial: Trial, step: int, value: float) -> Trial:
        """Ends a trial with its final value; one that is not finite makes it infeasible.

        Returns:
            The trial as it ended.

        Raises:
            PipelineError: Vizier refuses it or does not answer.
        """
        if not math.isfinite(value):
            return self.infeasible(trial, f"{self._objective} was {value} at step {step}")
        return self._complete(trial, final_measurement=self._measurement(step, value))

    def infeasible(self, trial: Trial, reason: str) -> Trial:
        """Ends a trial that cannot be run; it counts, and the study goes on. Raises PipelineError."""
        return self._complete(trial, trial_infeasible=True, infeasible_reason=reason[:_MAX_REASON])

    def discard(self, trial: Trial) -> None:
        """Deletes a trial that has reported nothing; it does not count, and the study can have another. Raises PipelineError."""
        self._delete(trial)

    def trim(self) -> list[int]:
        """Deletes trials beyond the budget, which a worker left that was killed between asking and looking.

        Returns:
            Their numbers.

        Raises:
            PipelineError: Vizier does not answer.
        """
        beyond = self._all()[self.budget.trials :]
        for trial in beyond:
            self._delete(trial)
        return [trial.number for trial in beyond]

    def _complete(self, trial: Trial, **fields) -> Trial:
        with _told(f"complete trial {trial.number}"):
            request = v1.CompleteTrialRequest(name=trial.name, **fields)
            try:
                done = self._client.complete_trial(request, retry=_RETRY, timeout=_EACH)
            except exceptions.FailedPrecondition:
                # Sent twice, because the first answer was lost?
                done = self._client.get_trial(v1.GetTrialRequest(name=trial.name), retry=_RETRY, timeout=_EACH)
                if done.state not in (_State.SUCCEEDED, _State.INFEASIBLE):
                    raise
                _log.info("trial %d had been completed", trial.number)
        return self._read(done)

    def _delete(self, trial: Trial) -> None:
        with _told(f"delete trial {trial.number}"), contextlib.suppress(exceptions.NotFound):
            self._client.delete_trial(v1.DeleteTrialRequest(name=trial.name), retry=_RETRY, timeout=_EACH)

    def _all(self) -> list[Trial]:
        with _told("list the trials"):
            found = self._client.list_trials(v1.ListTrialsRequest(parent=self.name, page_size=100), retry=_RETRY, timeout=_EACH)
            trials = [self._read(trial) for trial in found]
        return sorted(trials, key=lambda trial: trial.number)

    def _measurement(self, step: int, value: float) -> v1.Measurement:
        return v1.Measurement(step_count=step, metrics=[v1.Measurement.Metric(metric_id=self._objective, value=value)])

    def _read(self, message: v1.Trial) -> Trial:
        return read_trial(message, self._objective)


def read_trial(message: v1.Trial, objective: str) -> Trial:
    """A trial of Google's client in this project's words; of its metrics, the objective alone."""

    def value(measurement: v1.Measurement) -> float | None:
        return next((each.value for each in measurement.metrics if each.metric_id == objective), None)

    final = message.final_measurement if "final_measurement" in message else None
    curve = tuple((each.step_count, value(each)) for each in message.measurements)
    begun = message.start_time if "start_time" in message else None
    return Trial(
        name=message.name,
        number=int(message.id or message.name.rpartition("/")[2]),
        state=message.state.name,
        client_id=message.client_id,
        values={each.parameter_id: each.value for each in message.parameters},
        curve=tuple(point for point in curve if point[1] is not None),
        value=value(final) if final else None,
        step=final.step_count if final else None,
        reason=message.infeasible_reason,
        begun=begun.timestamp() if begun else None,
        seconds=(message.end_time - begun).total_seconds() if begun and "end_time" in message else None,
    )


def open_study(client: v1.VizierServiceClient, parent: str, display_name: str, spec: v1.StudySpec, budget: Budget) -> Study:
    """Makes a study, or finds the one that is there.

    Args:
        client: Google's client.
        parent: `projects/PROJECT/locations/REGION`; on one machine `local.PARENT`.
        display_name: As `study_name` makes it.
        spec: What is searched; one metric.
        budget: What it may cost.

    Raises:
        SettingsError: `check_space` refuses the space, or a study of that name searches another.
        PipelineError: Vizier refuses it or does not answer.
    """
    check_space(spec)
    with _told(f"open the study {display_name}"):
        try:
            made = v1.Study(display_name=display_name, study_spec=spec)
            study = client.create_study(v1.CreateStudyRequest(parent=parent, study=made), retry=_RETRY, timeout=_EACH)
        except exceptions.AlreadyExists:
            request = v1.LookupStudyRequest(parent=parent, display_name=display_name)
            study = client.lookup_study(request, retry=_RETRY, timeout=_EACH)
    changed = differences(wanted=spec, found=study.study_spec)
    if changed:
        lines = "".join(f"\n  {line}" for line in changed)
        raise SettingsError(f"the study {display_name} exists with another search:{lines}\nUndo that, or take another name")
    metric = spec.metrics[0]
    maximize = metric.goal != v1.StudySpec.MetricSpec.GoalType.MINIMIZE
    return Study(client, study.name, metric.metric_id, maximize, budget)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns what Google's client raises into an error that says what could not be done."""
    try:
        yield
    except exceptions.GoogleAPICallError as error:
        raise PipelineError(f"Vizier could not {what}: {error.message or error}") from error
    except (exceptions.RetryError, exceptions.GoogleAPIError) as error:
        raise PipelineError(
            f"Vizier did not answer within {_PATIENCE_SECONDS:.0f} s when it was to {what} ({error}): is its service "
            "running, and is the network there?"
        ) from error
