"""TFX's Evaluator, against the model that serves, through the signature that serves."""

from google.protobuf import wrappers_pb2
# The protos' own module: TFMA 0.47 and 0.52 put different ones of them into its top level.
from tensorflow_model_analysis.proto import config_pb2
from tfx.components.evaluator import component, executor
from tfx.dsl.components.base import executor_spec
from tfx.types import artifact_utils, standard_component_specs

from pipeline.components import facts


class Executor(executor.Executor):
    """Knows that there is no baseline before the first release."""

    def Do(self, input_dict, output_dict, exec_properties):
        """As TFX's; a baseline with `bootstrap` = 1 counts as none, so absolute thresholds alone decide."""
        key = standard_component_specs.BASELINE_MODEL_KEY
        baseline = artifact_utils.get_single_instance(input_dict[key])
        if facts.number(baseline, "bootstrap"):
            input_dict = {name: value for name, value in input_dict.items() if name != key}
        super().Do(input_dict, output_dict, exec_properties)


class Evaluator(component.Evaluator):
    """Judges the candidate on this week's eval split."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)


def config_of(settings) -> config_pb2.EvalConfig:
    """What is measured, on which slices, and what the candidate must reach.

    Args:
        settings: `EvaluationSettings`.

    Returns:
        TFMA's configuration: accuracy decides, overall; it is reported for each class too. The
        thresholds name their slice, because a plain MetricThreshold applies to every slice. TFMA's
        own `min_slice_size` is not used: it turns each slice below it into a failed threshold.
    """
    threshold = config_pb2.MetricThreshold(
        value_threshold=config_pb2.GenericValueThreshold(lower_bound=wrappers_pb2.DoubleValue(value=settings.min_accuracy)),
        change_threshold=config_pb2.GenericChangeThreshold(
            direction=config_pb2.MetricDirection.HIGHER_IS_BETTER,
            absolute=wrappers_pb2.DoubleValue(value=-settings.max_accuracy_drop),
        ),
    )
    overall = config_pb2.SlicingSpec()
    return config_pb2.EvalConfig(
        model_specs=[
            config_pb2.ModelSpec(
                signature_name="serving_examples", label_key="label_index", prediction_key="probabilities"
            )
        ],
        slicing_specs=[overall, config_pb2.SlicingSpec(feature_keys=["label"])],
        metrics_specs=[
            config_pb2.MetricsSpec(
                metrics=[
                    config_pb2.MetricConfig(class_name="ExampleCount"),
                    config_pb2.MetricConfig(
                        class_name="SparseCategoricalAccuracy",
                        per_slice_thresholds=[
                            config_pb2.PerSliceMetricThreshold(slicing_specs=[overall], threshold=threshold)
                        ],
                    ),
                    config_pb2.MetricConfig(class_name="SparseCategoricalCrossentropy", config='"name": "log_loss"'),
                ]
            )
        ],
    )
