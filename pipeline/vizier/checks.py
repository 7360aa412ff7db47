"""What a request must be: studies, parameters and measurements, as Vertex's API reference describes them."""

import math

from google.cloud import aiplatform_v1 as v1

from pipeline.vizier.refusals import invalid, unsupported

MAX_DISPLAY_NAME = 128
"""Characters of a display name; Vertex's limit for its resources."""

MAX_DISCRETE_VALUES = 1000
MIN_DISCRETE_GAP = 1e-10
"""Both from the reference of `DiscreteValueSpec`."""

Specs = v1.StudySpec.ParameterSpec
_Algorithm = v1.StudySpec.Algorithm
_LOGARITHMIC = (Specs.ScaleType.UNIT_LOG_SCALE, Specs.ScaleType.UNIT_REVERSE_LOG_SCALE)


def kind_of(parameter: Specs) -> str:
    """`double_value_spec`, `integer_value_spec`, `discrete_value_spec`, `categorical_value_spec`, or "" for none."""
    return Specs.pb(parameter).WhichOneof("parameter_value_spec") or ""


def check_study(study: v1.Study) -> None:
    """Checks a study that is to be made.

    Raises:
        Refused: A field is wrong (INVALID_ARGUMENT), or asks for what only Vertex does (UNIMPLEMENTED).
    """
    if not study.display_name or len(study.display_name) > MAX_DISPLAY_NAME:
        raise invalid(f"study.display_name {study.display_name!r} must have 1 to {MAX_DISPLAY_NAME} characters")
    spec = study.study_spec
    _check_ids("study_spec.metrics", [metric.metric_id for metric in spec.metrics])
    _check_ids("study_spec.parameters", [parameter.parameter_id for parameter in spec.parameters])
    for parameter in spec.parameters:
        _check_parameter(parameter)
    if spec.algorithm not in list(_Algorithm):
        raise invalid(f"study_spec.algorithm {int(spec.algorithm)} is none of Vertex's")
    if spec.algorithm == _Algorithm.GRID_SEARCH:
        continuous = [each.parameter_id for each in spec.parameters if kind_of(each) == "double_value_spec"]
        if continuous:
            raise invalid(f"GRID_SEARCH needs discrete parameters, and of type DOUBLE there is {', '.join(continuous)}")
    _check_supported(spec)


def _check_ids(where: str, ids: list[str]) -> None:
    if not ids:
        raise invalid(f"{where} is empty: one is needed at least")
    for each in ids:
        if not each or any(letter.isspace() for letter in each):
            raise invalid(f"{where}: the id {each!r} must not be empty and not contain white space")
        if ids.count(each) > 1:
            raise invalid(f"{where}: the id {each!r} occurs {ids.count(each)} times")


def _check_parameter(parameter: Specs) -> None:
    name, kind = f"parameter {parameter.parameter_id}", kind_of(parameter)
    if not kind:
        raise invalid(f"{name} has neither bounds nor values")
    if kind in ("double_value_spec", "integer_value_spec"):
        bounds = getattr(parameter, kind)
        numbers = [bounds.min_value, bounds.max_value]
        if not bounds.min_value <= bounds.max_value:  # so that NaN is refused too
            raise invalid(f"{name}: min_value {bounds.min_value} exceeds max_value {bounds.max_value}")
    elif kind == "discrete_value_spec":
        numbers = list(parameter.discrete_value_spec.values)
        if not 1 <= len(numbers) <= MAX_DISCRETE_VALUES:
            raise invalid(f"{name} has {len(numbers)} values: 1 to {MAX_DISCRETE_VALUES} are possible")
        for before, after in zip(numbers, numbers[1:]):
            if not after - before >= MIN_DISCRETE_GAP:
                raise invalid(f"{name}: values must increase by {MIN_DISCRETE_GAP} at least, and {after} follows {before}")
    else:
        values = list(parameter.categorical_value_spec.values)
        if not values or len(set(values)) < len(values):
            raise invalid(f"{name}: the categories {values} must be different ones, and one at least")
        return
    if not all(map(math.isfinite, numbers)):
        raise invalid(f"{name}: {numbers} are not all finite")
    if parameter.scale_type in _LOGARITHMIC and min(numbers) <= 0:
        raise invalid(f"{name}: {parameter.scale_type.name} needs values above 0, and one is {min(numbers)}")


def _check_supported(spec: v1.StudySpec) -> None:
    for parameter in spec.parameters:
        if parameter.conditional_parameter_specs:
            raise unsupported(f"parameter {parameter.parameter_id} has conditional_parameter_specs")
    for metric in spec.metrics:
        if "safety_config" in metric:
            raise unsupported(f"metric {metric.metric_id} has a safety_config")
    if "study_stopping_config" in spec:
        raise unsupported("study_spec.study_stopping_config")
    rule = v1.StudySpec.pb(spec).WhichOneof("automated_stopping_spec")
    if rule not in (None, "median_automated_stopping_spec"):
        raise unsupported(f"study_spec.{rule}")
    if rule and spec.median_automated_stopping_spec.use_elapsed_duration:
        raise unsupported("study_spec.median_automated_stopping_spec.use_elapsed_duration")
    if rule and len(spec.metrics) > 1:
        raise unsupported(f"study_spec.median_automated_stopping_spec with {len(spec.metrics)} metrics")


def check_values(spec: v1.StudySpec, trial: v1.Trial) -> None:
    """Checks that a trial of the user's own gives every parameter a value inside the space.

    Raises:
        Refused: A parameter is missing, unknown, twice there, or has a value outside its range (INVALID_ARGUMENT).
    """
    given = {parameter.parameter_id: parameter.value for parameter in trial.parameters}
    known = {parameter.parameter_id: parameter for parameter in spec.parameters}
    if len(given) < len(trial.parameters) or given.keys() != known.keys():
        named = ", ".join(parameter.parameter_id for parameter in trial.parameters) or "none"
        raise invalid(f"the trial must give {', '.join(known)} a value each, and gives {named}")
    for name, value in given.items():
        if not _contains(known[name], value):
            raise invalid(f"parameter {name} = {value!r} is outside the study's space")


def _contains(parameter: Specs, value) -> bool:
    kind = kind_of(parameter)
    if kind == "categorical_value_spec":
        return value in list(parameter.categorical_value_spec.values)
    if type(value) not in (int, float):
        return False
    if kind == "discrete_value_spec":
        return value in list(parameter.discrete_value_spec.values)
    bounds = getattr(parameter, kind)
    whole = kind == "double_value_spec" or float(value).is_integer()
    return whole and bounds.min_value <= value <= bounds.max_value


def check_measurement(spec: v1.StudySpec, measurement: v1.Measurement) -> None:
    """Checks a measurement.

    Raises:
        Refused: Its step is negative, it lacks one of the study's metrics or has one that the study does not, or a value
            is not finite (INVALID_ARGUMENT). A trial whose metric is not finite is to be completed as infeasible.
    """
    if measurement.step_count < 0:
        raise invalid(f"measurement.step_count {measurement.step_count} is below 0")
    wanted = sorted(metric.metric_id for metric in spec.metrics)
    given = sorted(metric.metric_id for metric in measurement.metrics)
    if wanted != given:
        raise invalid(f"the study's metrics are {', '.join(wanted)}, and the measurement has {', '.join(given) or 'none'}")
    for metric in measurement.metrics:
        if not math.isfinite(metric.value):
            raise invalid(f"metric {metric.metric_id} is {metric.value}: complete the trial as infeasible instead")
