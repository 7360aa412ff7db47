"""Reads what the Evaluator found: figures overall and by class, and why it did not bless a model."""

import dataclasses

import tensorflow_model_analysis as tfma


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The figures of one evaluation.

    Attributes:
        accuracy: Overall accuracy of the candidate, 0 to 1.
        baseline_accuracy: That of the serving model on the same examples; None without one.
        log_loss: Overall mean of -log p(true class), nats.
        examples: Number of eval examples.
        by_class: Class -> (accuracy, number of examples).
        failures: Each broken threshold as a sentence; empty when the model was blessed.
    """

    accuracy: float
    baseline_accuracy: float | None
    log_loss: float
    examples: int
    by_class: dict[str, tuple[float, int]]
    failures: list[str]

    def weakest(self, min_examples: int) -> str | None:
        """The class with the lowest accuracy among those with `min_examples`; None when there is none."""
        judged = [label for label, (_, examples) in self.by_class.items() if examples >= min_examples]
        return min(judged, key=lambda label: (self.by_class[label][0], label), default=None)


def read(folder: str) -> Evaluation:
    """Reads the outputs of TFMA in `folder`."""
    result = tfma.load_eval_result(folder)
    by_slice = {
        key: {name: _value(value) for name, value in metrics.items()}
        for key, metrics in result.get_metrics_for_all_slices().items()
    }
    overall = by_slice[()]
    by_class = {
        str(key[0][1]): (metrics["sparse_categorical_accuracy"], int(metrics["example_count"]))
        for key, metrics in by_slice.items()
        if key and key[0][0] == "label"
    }
    validation = tfma.load_validation_result(folder)
    return Evaluation(
        accuracy=overall["sparse_categorical_accuracy"],
        baseline_accuracy=_baseline(folder),
        log_loss=overall["log_loss"],
        examples=int(overall["example_count"]),
        by_class=by_class,
        failures=_failures(validation),
    )


def _baseline(folder: str) -> float | None:
    """Accuracy of the baseline: candidate minus difference, as TFMA writes them."""
    for metrics in tfma.load_metrics(folder):
        if metrics.slice_key.single_slice_keys:
            continue
        figures = [item for item in metrics.metric_keys_and_values if item.key.name == "sparse_categorical_accuracy"]
        differences = [item.value.double_value.value for item in figures if item.key.is_diff]
        if differences:
            candidate = next(item.value.double_value.value for item in figures if not item.key.is_diff)
            return candidate - differences[0]
    return None


def _failures(validation) -> list[str]:
    found = []
    for item in validation.metric_validations_per_slice:
        where = ", ".join(f"{key.column} {_text(key)}" for key in item.slice_key.single_slice_keys) or "overall"
        for failure in item.failures:
            limits = failure.metric_threshold
            if failure.metric_key.is_diff:
                wanted = f"at most {-limits.change_threshold.absolute.value:.3f} below the serving model"
            else:
                wanted = f"at least {limits.value_threshold.lower_bound.value:.3f}"
            value = failure.metric_value.double_value.value
            found.append(f"{failure.metric_key.name} ({where}) is {value:+.3f}, wanted: {wanted}")
    for missing in validation.missing_slices:
        found.append(f"not evaluated: {missing}")
    if not validation.validation_ok and not found:
        found.append("a metric or slice was not evaluated")
    return found


def _text(key) -> str:
    return key.bytes_value.decode() if key.HasField("bytes_value") else str(key.int64_value)


def _value(value) -> float:
    return next(iter(value.values())) if isinstance(value, dict) else value
