"""What is read of TFMA's evaluation: its figures, and the thresholds that were missed."""

import pytest
import tensorflow as tf
from google.protobuf import json_format, text_format
from tensorflow_model_analysis.proto import config_pb2, metrics_for_slice_pb2, validation_result_pb2

from pipeline import typed
from pipeline.components.evaluator import config_of
from pipeline.evaluation.thresholds import Thresholds
from pipeline.validation import evaluation
from pipeline.validation.evaluation import Evaluation
from tests.pipeline.conftest import ROOT


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
        config = config_pb2.EvalRun(eval_config=config_of(typed.load(Thresholds, ROOT / "schema" / "release.yaml")), version="0", model_locations={"": "m"})
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


def test_figures_are_those_of_the_whole_split(write):
    found = write([slice_of("cup", 0.5, 4), slice_of(None, 0.75, 8), slice_of("it's ☃", 1.0, 4)])
    assert found == Evaluation(accuracy=0.75, log_loss=1.25, examples=8, failures=[])
    assert isinstance(found.examples, int)


FAILURE = """
metric_validations_per_slice {
  %s
  failures {
    metric_key { name: "sparse_categorical_accuracy" }
    metric_threshold { value_threshold { lower_bound { value: 0.9 } } }
    metric_value { double_value { value: %s } }
  }
}
"""


def test_a_missed_threshold_is_a_sentence_with_value_and_limit(write):
    label = 'slice_key { single_slice_keys { column: "label" bytes_value: "cup" } }'
    found = write([slice_of(None, 0.75, 8)], FAILURE % ("", 0.75) + FAILURE % (label, 0.25))
    assert found.failures == [
        "sparse_categorical_accuracy (overall) is 0.750, wanted: at least 0.900",
        "sparse_categorical_accuracy (label cup) is 0.250, wanted: at least 0.900",
    ]


def test_a_verdict_against_a_model_always_has_a_reason(write):
    assert write([slice_of(None, 0.75, 8)], "validation_ok: false").failures == ["a metric or slice was not evaluated"]


def test_a_slice_that_was_not_evaluated_is_a_reason(write):
    (failure,) = write([slice_of(None, 0.75, 8)], 'missing_slices { feature_keys: "label" }').failures
    assert failure.startswith("not evaluated: ") and "label" in failure
