"""TFX's Evaluator, against the model that serves, through the signature that serves, with every prediction kept."""

import contextlib
import json
import logging
from collections.abc import Iterator

from google.protobuf import wrappers_pb2
# The protos' own module: TFMA 0.47 and 0.52 put different ones of them into its top level.
from tensorflow_model_analysis.proto import config_pb2
from tfx.components.evaluator import component, executor
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import artifact, artifact_utils, channel, component_spec, standard_artifacts, standard_component_specs
from tfx.utils import json_utils, path_utils

from models import serving
from models.errors import TrainingError
from pipeline import storage
from pipeline.components import facts
from pipeline.errors import PipelineError
from pipeline.evaluation import extractors
from pipeline.evaluation.thresholds import Thresholds
from pipeline.release.smoke import read_classes

log = logging.getLogger(__name__)

SMOKE_TEST_KEY = "smoke_test"


class Executor(executor.Executor):
    """Knows that there may be no baseline yet, that its classes may be others, and what the smoke test said."""

    def Do(self, input_dict, output_dict, exec_properties):
        """As TFX's, and keeps the predictions (`pipeline.evaluation.extractors`).

        A baseline with `bootstrap` = 1 counts as none. What the smoke test refused is not loaded: not blessed, and no more.

        Raises:
            PipelineError: The model that serves cannot be asked.
        """
        evaluation = artifact_utils.get_single_instance(output_dict[standard_component_specs.EVALUATION_KEY])
        if not facts.number(artifact_utils.get_single_instance(input_dict[SMOKE_TEST_KEY]), "blessed"):
            blessing = artifact_utils.get_single_instance(output_dict[standard_component_specs.BLESSING_KEY])
            storage.write(storage.join(blessing.uri, "NOT_BLESSED"), b"")
            facts.record(blessing, {"blessed": False})
            facts.record(evaluation, {"evaluated": False})
            log.info("not evaluated: the smoke test refused the export")
            return
        candidate = artifact_utils.get_single_instance(input_dict[standard_component_specs.MODEL_KEY])
        classes = read_classes(path_utils.serving_model_path(candidate.uri))
        baseline = artifact_utils.get_single_instance(input_dict[standard_component_specs.BASELINE_MODEL_KEY])
        tap = extractors.Tap(evaluation.uri, exec_properties["batch_size"], exec_properties["max_batch_bytes"])
        with _comparable(baseline, classes, evaluation) as known, extractors.tapped(tap) as custom_extractors:
            inputs = {name: value for name, value in input_dict.items() if name != SMOKE_TEST_KEY}
            inputs[standard_component_specs.BASELINE_MODEL_KEY] = [known] if known else []
            super().Do(inputs, output_dict, {**exec_properties, "custom_extractors": custom_extractors})
        facts.record(evaluation, {"evaluated": True})


@contextlib.contextmanager
def _comparable(
    baseline: artifact.Artifact, classes: tuple[str, ...], evaluation: artifact.Artifact
) -> Iterator[artifact.Artifact | None]:
    """The model that serves as one that answers in the candidate's classes; None when nothing serves."""
    if facts.number(baseline, "bootstrap"):
        yield None
        return
    path = path_utils.serving_model_path(baseline.uri)
    try:
        own = serving.classes_of(path)
    except TrainingError as error:
        raise PipelineError(
            f"the model that serves, version {facts.text(baseline, 'version')} of run {facts.text(baseline, 'run_id')}, cannot "
            f"be compared with: {error}. Restore its folder from a backup, or return to an older version: "
            "python -m pipeline release rollback --reason TEXT"
        ) from error
    facts.record(evaluation, {"serving_classes": json.dumps(own, ensure_ascii=False)})
    if own == classes:
        yield baseline
        return
    log.info("the model that serves knows %d classes, the candidate %d: compared in the candidate's", len(own), len(classes))
    aligned = standard_artifacts.Model()
    aligned.id = baseline.id
    aligned.uri = storage.join(evaluation.uri, "serving_model_aligned")
    try:
        serving.align(path, own, classes, path_utils.serving_model_path(aligned.uri))
        yield aligned
    finally:
        storage.remove_folder(aligned.uri)


class EvaluatorSpec(component_spec.ComponentSpec):
    """Evaluator's, with the smoke test as one more input, and what bounds a batch."""

    PARAMETERS = {
        **standard_component_specs.EvaluatorSpec.PARAMETERS,
        "batch_size": component_spec.ExecutionParameter(type=int),
        "max_batch_bytes": component_spec.ExecutionParameter(type=int),
    }
    INPUTS = {
        **standard_component_specs.EvaluatorSpec.INPUTS,
        SMOKE_TEST_KEY: component_spec.ChannelParameter(type=standard_artifacts.InfraBlessing),
    }
    OUTPUTS = standard_component_specs.EvaluatorSpec.OUTPUTS
    TYPE_ANNOTATION = standard_component_specs.EvaluatorSpec.TYPE_ANNOTATION


class Evaluator(component.Evaluator):
    """Asks the candidate and the model that serves about this week's eval split.

    Args:
        examples: Channel of the labelled examples.
        model: Channel of the candidate.
        baseline_model: Channel of the model that serves (`ServingModel`).
        smoke_test: Channel of `SmokeTest`'s verdict.
        eval_config: What TFMA measures (`config_of`).
        batch_size: Photographs a batch.
        max_batch_bytes: Bytes of a batch's records.
    """

    SPEC_CLASS = EvaluatorSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(self, examples, model, baseline_model, smoke_test, eval_config, batch_size, max_batch_bytes):
        spec = EvaluatorSpec(
            examples=examples,
            model=model,
            baseline_model=baseline_model,
            smoke_test=smoke_test,
            eval_config=eval_config,
            example_splits=json_utils.dumps(["eval"]),
            fairness_indicator_thresholds=json_utils.dumps(None),
            batch_size=batch_size,
            max_batch_bytes=max_batch_bytes,
            evaluation=channel.Channel(type=standard_artifacts.ModelEvaluation),
            blessing=channel.Channel(type=standard_artifacts.ModelBlessing),
        )
        base_component.BaseComponent.__init__(self, spec=spec)


def config_of(thresholds: Thresholds) -> config_pb2.EvalConfig:
    """What TFMA measures.

    Args:
        thresholds: The thresholds of a release.

    Returns:
        TFMA's configuration: count, accuracy and log loss, overall, by class and by source; the absolute accuracy decides
        here too, because TFX blesses nothing without a threshold. It names its slice, because a plain MetricThreshold
        applies to every slice. TFMA's own `min_slice_size` is not used: it turns each slice below it into a failed
        threshold. All other thresholds are ReleaseGate's.
    """
    threshold = config_pb2.MetricThreshold(
        value_threshold=config_pb2.GenericValueThreshold(
            lower_bound=wrappers_pb2.DoubleValue(value=thresholds.absolute.min_accuracy)
        )
    )
    overall = config_pb2.SlicingSpec()
    return config_pb2.EvalConfig(
        model_specs=[
            config_pb2.ModelSpec(
                signature_name="serving_examples", label_key="label_index", prediction_key="probabilities"
            )
        ],
        slicing_specs=[overall, *(config_pb2.SlicingSpec(feature_keys=[name]) for name in ("label", "source"))],
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
