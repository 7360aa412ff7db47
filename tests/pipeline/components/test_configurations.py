"""What TFX's validators and its Evaluator are told."""

import pytest

from pipeline.components import distribution_validator, evaluator
from pipeline.settings import EvaluationSettings


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


def accuracy_thresholds(**settings):
    config = evaluator.config_of(EvaluationSettings(**settings))
    (spec,) = config.metrics_specs
    metrics = {metric.class_name: metric for metric in spec.metrics}
    assert set(metrics) == {"ExampleCount", "SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"}
    # Only accuracy decides.
    assert [name for name, metric in metrics.items() if metric.per_slice_thresholds or metric.HasField("threshold")] == [
        "SparseCategoricalAccuracy"
    ]
    (threshold,) = metrics["SparseCategoricalAccuracy"].per_slice_thresholds
    return config, threshold


@pytest.mark.parametrize(("lowest", "drop"), [(0.5, 0.15), (0.9, 0.0)])
def test_accuracy_must_reach_its_floor_and_stay_near_the_serving_models(lowest, drop):
    _, threshold = accuracy_thresholds(min_accuracy=lowest, max_accuracy_drop=drop)
    assert threshold.threshold.value_threshold.lower_bound.value == lowest
    change = threshold.threshold.change_threshold
    assert change.absolute.value == -drop
    assert change.direction == change.DESCRIPTOR.fields_by_name["direction"].enum_type.values_by_name["HIGHER_IS_BETTER"].number


def test_the_threshold_holds_overall_and_classes_are_only_reported():
    config, threshold = accuracy_thresholds()
    assert [list(spec.feature_keys) for spec in threshold.slicing_specs] == [[]]
    assert [list(spec.feature_keys) for spec in config.slicing_specs] == [[], ["label"]]


def test_the_signature_that_serves_is_the_one_that_is_judged():
    (model,) = evaluator.config_of(EvaluationSettings()).model_specs
    assert (model.signature_name, model.label_key, model.prediction_key) == ("serving_examples", "label_index", "probabilities")
    # TFX adds the serving model itself, as a copy that it marks.
    assert not model.is_baseline and model.name == ""
