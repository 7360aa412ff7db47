"""What is read of an evaluation: figures, the weakest class, and the thresholds that were missed."""

import pytest
import tensorflow as tf
from google.protobuf import json_format, text_format
from tensorflow_model_analysis.proto import config_pb2, metrics_for_slice_pb2, validation_result_pb2

from pipeline.components.evaluator import config_of
from pipeline.settings import EvaluationSettings
from pipeline.validation import evaluation
from pipeline.validation.evaluation import Evaluation


def judged(**by_class) -> Evaluation:
    return Evaluation(accuracy=0.5, baseline_accuracy=None, log_loss=1.0, examples=9, by_class=by_class, failures=[])


@pytest.mark.parametrize(
    ("by_class", "at_least", "weakest"),
    [
        ({"cup": (0.9, 50), "hat": (0.4, 50)}, 50, "hat"),
        ({"cup": (0.9, 50), "hat": (0.4, 49)}, 50, "cup"),  # too few to be judged
        ({"cup": (0.9, 3), "hat": (0.4, 3)}, 4, None),
        ({"hat": (0.5, 9), "cup": (0.5, 9)}, 1, "cup"),  # a tie has one answer
        ({}, 1, None),
    ],
)
def test_the_weakest_class_is_the_least_accurate_of_those_with_enough_examples(by_class, at_least, weakest):
    assert judged(**by_class).weakest(at_least) == weakest


def metric(name, value, is_diff=False) -> metrics_for_slice_pb2.MetricsForSlice.MetricKeyAndValue:
    found = metrics_for_slice_pb2.MetricsForSlice.MetricKeyAndValue()
    found.key.name, found.key.is_diff = name, is_diff
    found.value.double_value.value = value
    return found


def slice_of(label, accuracy, examples, *more) -> metrics_for_slice_pb2.MetricsForSlice:
    found = metrics_for_slice_pb2.MetricsForSlice()
    if label is not None:
        found.slice_key.single_slice_keys.add(column="label", bytes_value=label.encode())
    figures = [
        metric("example_count", examples),
        metric("sparse_categorical_accuracy", accuracy),
        metric("log_loss", 2 - accuracy),
        *more,
    ]
    found.metric_keys_and_values.extend(figures)
    return found


@pytest.fixture
def write(tmp_path):
    """Writes an evaluation the way TFMA lays it out."""

    def write(slices, validation="validation_ok: true"):
        config = config_pb2.EvalRun(eval_config=config_of(EvaluationSettings()), version="0", model_locations={"": "m"})
        (tmp_path / "eval_config.json").write_text(json_format.MessageToJson(config))
        result = text_format.Parse(validation, validation_result_pb2.ValidationResult())
        contents = {"metrics": slices, "plots": [], "attributions": [], "validations": [result]}
        for name, messages in contents.items():
            suffix = "" if name == "validations" else "-00000-of-00001"
            with tf.io.TFRecordWriter(str(tmp_path / f"{name}{suffix}.tfrecord")) as writer:
                for message in messages:
                    writer.write(message.SerializeToString())
        return evaluation.read(str(tmp_path))

    return write


def test_figures_are_read_overall_and_by_class(write):
    found = write([slice_of(None, 0.75, 8), slice_of("cup", 0.5, 4), slice_of("it's ☃", 1.0, 4)])
    assert found == Evaluation(
        accuracy=0.75,
        baseline_accuracy=None,
        log_loss=1.25,
        examples=8,
        by_class={"cup": (0.5, 4), "it's ☃": (1.0, 4)},
        failures=[],
    )
    assert isinstance(found.examples, int)


@pytest.mark.parametrize("order", [1, -1])
def test_the_accuracy_of_the_serving_model_is_the_candidates_minus_the_difference(write, order):
    difference = metric("sparse_categorical_accuracy", -0.125, is_diff=True)
    elsewhere = metric("sparse_categorical_accuracy", 0.25, is_diff=True)
    overall = slice_of(None, 0.75, 8, difference)
    figures = list(overall.metric_keys_and_values)[::order]
    del overall.metric_keys_and_values[:]
    overall.metric_keys_and_values.extend(figures)
    found = write([slice_of("cup", 0.5, 4, elsewhere), overall])
    assert (found.accuracy, found.baseline_accuracy) == (0.75, 0.875)


FAILURE = """
metric_validations_per_slice {
  %s
  failures {
    metric_key { name: "sparse_categorical_accuracy" is_diff: %s }
    metric_threshold {
      value_threshold { lower_bound { value: 0.9 } }
      change_threshold { direction: HIGHER_IS_BETTER absolute { value: -0.1 } }
    }
    metric_value { double_value { value: %s } }
  }
}
"""


def test_a_missed_threshold_is_a_sentence_with_value_and_limit(write):
    label = 'slice_key { single_slice_keys { column: "label" bytes_value: "cup" } }'
    found = write([slice_of(None, 0.75, 8)], FAILURE % ("", "false", 0.75) + FAILURE % (label, "true", -0.25))
    assert found.failures == [
        "sparse_categorical_accuracy (overall) is +0.750, wanted: at least 0.900",
        "sparse_categorical_accuracy (label cup) is -0.250, wanted: at most 0.100 below the serving model",
    ]


def test_a_verdict_against_a_model_always_has_a_reason(write):
    assert write([slice_of(None, 0.75, 8)], "validation_ok: false").failures == ["a metric or slice was not evaluated"]


def test_a_slice_that_was_not_evaluated_is_a_reason(write):
    (failure,) = write([slice_of(None, 0.75, 8)], 'missing_slices { feature_keys: "label" }').failures
    assert failure.startswith("not evaluated: ") and "label" in failure
