"""What TFX's validators and its Evaluator are told."""

import pytest

from pipeline import typed
from pipeline.components import distribution_validator, evaluator
from pipeline.evaluation.thresholds import Thresholds
from tests.pipeline.conftest import ROOT


def test_each_feature_gets_its_own_drift_limit():
    config = distribution_validator.config_of({"width": 0.05, "label": 0.02})
    limits = [
        (list(feature.path.step), feature.distribution_comparator.jensen_shannon_divergence.threshold)
        for feature in config.default_slice_config.feature
    ]
    assert limits == [(["label"], 0.02), (["width"], 0.05)]


def test_a_drift_limit_of_nought_is_a_limit():
    (feature,) = distribution_validator.config_of({"label": 0.0}).default_slice_config.feature
    assert feature.distribution_comparator.HasField("jensen_shannon_divergence")


def test_no_drift_limits():
    assert not distribution_validator.config_of({}).default_slice_config.feature


@pytest.fixture(scope="module")
def config():
    return evaluator.config_of(typed.load(Thresholds, ROOT / "schema" / "release.yaml"))


def test_accuracy_must_reach_its_floor_overall_and_nothing_else_decides_in_tfma(config):
    (spec,) = config.metrics_specs
    metrics = {metric.class_name: metric for metric in spec.metrics}
    assert set(metrics) == {"ExampleCount", "SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"}
    assert [name for name, metric in metrics.items() if metric.per_slice_thresholds or metric.HasField("threshold")] == [
        "SparseCategoricalAccuracy"
    ]
    (threshold,) = metrics["SparseCategoricalAccuracy"].per_slice_thresholds
    assert [list(spec.feature_keys) for spec in threshold.slicing_specs] == [[]]
    assert threshold.threshold.value_threshold.lower_bound.value == 0.5
    # Noise would decide: the comparison is ReleaseGate's, with confidence intervals.
    assert not threshold.threshold.HasField("change_threshold")
    assert [list(spec.feature_keys) for spec in config.slicing_specs] == [[], ["label"], ["source"]]


def test_the_signature_that_serves_is_the_one_that_is_judged(config):
    (model,) = config.model_specs
    assert (model.signature_name, model.label_key, model.prediction_key) == ("serving_examples", "label_index", "probabilities")
    # TFX adds the serving model itself, as a copy that it marks.
    assert not model.is_baseline and model.name == ""
