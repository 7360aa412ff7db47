"""Where suggestions come from: open-source Vizier's algorithms, each asked anew for every suggestion.

Nothing is kept in this process between two suggestions: whatever a suggestion depends on (the trials, the seed, how many
were drawn, what the algorithm wrote down) comes from the database. A service that was killed therefore suggests what it
would have suggested, and the same seed with the same history of trials gives the same values, bit for bit, on the same
machine and versions. On another processor the Gaussian process may round otherwise; the other algorithms do not.
"""

import dataclasses
import datetime
import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from google.cloud import aiplatform_v1 as v1

from pipeline.vizier.checks import Specs, kind_of
from pipeline.vizier.database import Trial

_log = logging.getLogger(__name__)

_GP_ATTEMPTS = 3

_HALTON_SKIPPED = 1000
"""The first points of a Halton sequence are correlated; open-source Vizier leaves out as many."""


@dataclasses.dataclass(frozen=True)
class Question:
    """All that a suggestion depends on.

    Attributes:
        spec: The study's space and metrics.
        seed: The study's seed.
        drawn: Suggestions that were made before, deleted trials included.
        memory: What the algorithm wrote down the last time, or "".
        completed: Trials that ended, in the order in which they did.
        active: Trials under way, in the order in which they began.
        count: How many suggestions are wanted.
    """

    spec: v1.StudySpec
    seed: int
    drawn: int
    memory: str
    completed: Sequence[Trial]
    active: Sequence[Trial]
    count: int

    def stream(self, attempt: int = 0) -> int:
        """A seed for just this suggestion, below 2**31."""
        digest = hashlib.sha256(f"{self.seed} {self.drawn} {attempt}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A point of the space.

    Attributes:
        values: Value of each parameter, in the order of the study.
        memory: What the algorithm wants to find with the trial.
    """

    values: Mapping[str, float | str]
    memory: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """Suggestions, fewer than wanted when the space is exhausted, and what the algorithm writes down."""

    suggestions: Sequence[Suggestion]
    memory: str = ""


def suggest(algorithm: str, question: Question) -> Answer:
    """Asks an algorithm.

    Args:
        algorithm: A name of `ALGORITHMS`.
        question: What it is asked.

    Returns:
        Values inside the space, every parameter's.
    """
    return ALGORITHMS[algorithm](question)


def _gaussian_process(question: Question) -> Answer:
    """GP-UCB-PE, open-source Vizier's default: looks for the best and, while others try, where little is known."""
    import jax
    from vizier._src.algorithms.designers import gp_ucb_pe

    # In single precision the fit stalls early and, on some histories, every prediction is NaN.
    jax.config.update("jax_enable_x64", True)
    for attempt in range(_GP_ATTEMPTS):
        problem = _problem(question.spec)
        designer = gp_ucb_pe.VizierGPUCBPEBandit(problem, rng=jax.random.PRNGKey(question.stream(attempt)))
        found = [each.parameters for each in _asked(designer, problem, question, question.completed)]
        # A prediction that is not a number comes back as a suggestion without values.
        if all(len(parameters) == len(question.spec.parameters) for parameters in found):
            return Answer([Suggestion(_values(question.spec, parameters)) for parameters in found])
        _log.warning("the Gaussian process predicted no number (attempt %d of %d)", attempt + 1, _GP_ATTEMPTS)
    return _quasi_random(question)


def _quasi_random(question: Question) -> Answer:
    """The next points of a scrambled Halton sequence: spread evenly, whatever the trials came to."""
    from vizier._src.algorithms.designers import quasi_random

    problem = _problem(question.spec)
    designer = quasi_random.QuasiRandomDesigner(
        problem.search_space, skip_points=_HALTON_SKIPPED + question.drawn, seed=question.seed
    )
    return _answer(question, designer.suggest(question.count))


def _random(question: Question) -> Answer:
    """Independent points."""
    from vizier._src.algorithms.designers import random

    designer = random.RandomDesigner(_problem(question.spec).search_space, seed=question.stream())
    return _answer(question, designer.suggest(question.count))


def _grid(question: Question) -> Answer:
    """The points of the grid in order, each once."""
    from vizier._src.algorithms.designers import grid

    problem = _problem(question.spec)
    designer = grid.GridSearchDesigner(problem.search_space)
    state = type(problem.metadata)()
    state.ns("grid").update({"current_index": str(question.drawn), "shuffle_seed": "None"})
    designer.load(state)
    left = max(_points(question.spec) - question.drawn, 0)  # it would begin again
    return _answer(question, designer.suggest(min(question.count, left)) if left else [])


def _points(spec: v1.StudySpec) -> int:
    def count(parameter):
        values = getattr(parameter, kind_of(parameter))
        is_range = kind_of(parameter) == "integer_value_spec"
        return values.max_value - values.min_value + 1 if is_range else len(values.values)

    return math.prod(count(parameter) for parameter in spec.parameters)


def _eagle(question: Question) -> Answer:
    """Eagle strategy: fireflies that pull each other; learns from trials, and needs no more time than a random point."""
    from vizier._src.algorithms.designers.eagle_strategy import eagle_strategy

    problem = _problem(question.spec)
    designer = eagle_strategy.EagleStrategyDesigner(problem, seed=question.seed)
    memory = json.loads(question.memory or '{"told": [], "state": []}')
    designer.load(_read_metadata(memory["state"]))
    news = [trial for trial in question.completed if trial.name.number not in memory["told"]]
    found = _asked(designer, problem, question, news)
    told = sorted([*memory["told"], *(trial.name.number for trial in news)])
    suggestions = [
        Suggestion(_values(question.spec, each.parameters), json.dumps(_write_metadata(each.metadata))) for each in found
    ]
    return Answer(suggestions, json.dumps({"told": told, "state": _write_metadata(designer.dump())}))


ALGORITHMS: Mapping[str, Callable[[Question], Answer]] = {
    "gaussian_process": _gaussian_process,
    "eagle": _eagle,
    "quasi_random": _quasi_random,
    "random": _random,
    "grid": _grid,
}
"""All algorithms by name."""

DEFAULTS = ("gaussian_process", "eagle", "quasi_random")
"""Those which may stand for Vertex's default, the first unless another is chosen."""


def algorithm_of(spec: v1.StudySpec, default: str) -> str:
    """The name of the algorithm that a study asks for; `default` where it leaves the choice to the service."""
    chosen = v1.StudySpec.Algorithm
    return {chosen.GRID_SEARCH: "grid", chosen.RANDOM_SEARCH: "random"}.get(spec.algorithm, default)


# --- Between Vertex's messages and open-source Vizier's objects ---


def _problem(spec: v1.StudySpec):
    from vizier import pyvizier as vz

    scales = {
        Specs.ScaleType.UNIT_LOG_SCALE: vz.ScaleType.LOG,
        Specs.ScaleType.UNIT_REVERSE_LOG_SCALE: vz.ScaleType.REVERSE_LOG,
    }
    problem = vz.ProblemStatement()
    root = problem.search_space.root
    for parameter in spec.parameters:
        name, kind = parameter.parameter_id, kind_of(parameter)
        values, scale = getattr(parameter, kind), scales.get(parameter.scale_type, vz.ScaleType.LINEAR)
        if kind == "double_value_spec":
            root.add_float_param(name, values.min_value, values.max_value, scale_type=scale)
        elif kind == "integer_value_spec":
            root.add_int_param(name, values.min_value, values.max_value, scale_type=scale)
        elif kind == "discrete_value_spec":
            root.add_discrete_param(name, list(values.values), scale_type=scale)
        else:
            root.add_categorical_param(name, list(values.values))
    for metric in spec.metrics:
        minimize = metric.goal == v1.StudySpec.MetricSpec.GoalType.MINIMIZE
        goal = vz.ObjectiveMetricGoal.MINIMIZE if minimize else vz.ObjectiveMetricGoal.MAXIMIZE
        problem.metric_information.append(vz.MetricInformation(metric.metric_id, goal=goal))
    return problem


def _asked(designer, problem, question: Question, news: Sequence[Trial]):
    from vizier import algorithms as vza

    completed = [_trial(problem, trial) for trial in news]
    active = [_trial(problem, trial) for trial in question.active]
    designer.update(vza.CompletedTrials(completed), vza.ActiveTrials(active))
    return designer.suggest(question.count)


def _trial(problem, trial: Trial):
    from vizier import pyvizier as vz

    integers = {each.name for each in problem.search_space.parameters if each.type == vz.ParameterType.INTEGER}
    values = {
        each.parameter_id: int(each.value) if each.parameter_id in integers else each.value
        for each in trial.message.parameters
    }
    made = vz.Trial(id=trial.name.number, parameters=values, metadata=_read_metadata(json.loads(trial.memory or "[]")))
    made.creation_time = _instant(trial.created)
    if trial.completed is not None:
        infeasible = trial.message.state == v1.Trial.State.INFEASIBLE
        metrics = {} if infeasible else {each.metric_id: each.value for each in trial.message.final_measurement.metrics}
        reason = (trial.message.infeasible_reason or "infeasible") if infeasible else None
        made.complete(vz.Measurement(metrics), infeasibility_reason=reason)
        made.completion_time = _instant(trial.completed)
    return made


def _instant(event: int) -> datetime.datetime:
    """The Gaussian process asks what came first; the clock on the wall would make that depend on how fast trials are."""
    return datetime.datetime.fromtimestamp(event, datetime.timezone.utc)


def _answer(question: Question, found) -> Answer:
    return Answer([Suggestion(_values(question.spec, each.parameters)) for each in found])


def _values(spec: v1.StudySpec, parameters) -> dict[str, float | str]:
    values = {}
    for parameter in spec.parameters:
        value, kind = parameters[parameter.parameter_id].value, kind_of(parameter)
        bounds = getattr(parameter, kind)
        if kind == "discrete_value_spec":
            value = min(bounds.values, key=lambda each: abs(each - float(value)))
        elif kind != "categorical_value_spec":
            # The way to the unit interval and back may leave the range by a rounding.
            value = float(min(max(value, bounds.min_value), bounds.max_value))
        values[parameter.parameter_id] = value
    return values


def _write_metadata(metadata) -> list[list[str]]:
    return [[namespace.encode(), key, value] for namespace, key, value in metadata.all_items()]


def _read_metadata(items: Sequence[Sequence[str]]):
    from vizier import pyvizier as vz

    metadata = vz.Metadata()
    for namespace, key, value in items:
        metadata.abs_ns(vz.Namespace.decode(namespace))[key] = value
    return metadata
