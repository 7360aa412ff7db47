"""Reads what TFMA found: its figures, and why it did not bless a model."""

import dataclasses

import tensorflow_model_analysis as tfma


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The figures of one evaluation, over all of the eval split.

    Attributes:
        accuracy: Accuracy of the candidate, 0 to 1.
        log_loss: Mean of -log p(true class), nats.
        examples: Number of eval examples.
        failures: Each broken threshold as a sentence; empty when the model was blessed.
    """

    accuracy: float
    log_loss: float
    examples: int
    failures: list[str]


def read(folder: str) -> Evaluation:
    """Reads the outputs of TFMA in `folder`."""
    metrics = tfma.load_eval_result(folder).get_metrics_for_all_slices()[()]
    overall = {name: _value(value) for name, value in metrics.items()}
    return Evaluation(
        accuracy=overall["sparse_categorical_accuracy"],
        log_loss=overall["log_loss"],
        examples=int(overall["example_count"]),
        failures=_failures(tfma.load_validation_result(folder)),
    )


def _failures(validation) -> list[str]:
    found = []
    for item in validation.metric_validations_per_slice:
        where = ", ".join(f"{key.column} {_text(key)}" for key in item.slice_key.single_slice_keys) or "overall"
        for failure in item.failures:
            lowest = failure.metric_threshold.value_threshold.lower_bound.value
            value = failure.metric_value.double_value.value
            found.append(f"{failure.metric_key.name} ({where}) is {value:.3f}, wanted: at least {lowest:.3f}")
    for missing in validation.missing_slices:
        found.append(f"not evaluated: {missing}")
    if not validation.validation_ok and not found:
        found.append("a metric or slice was not evaluated")
    return found


def _text(key) -> str:
    return key.bytes_value.decode() if key.HasField("bytes_value") else str(key.int64_value)


def _value(value) -> float:
    return next(iter(value.values())) if isinstance(value, dict) else value
