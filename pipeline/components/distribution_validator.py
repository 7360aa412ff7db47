"""TFX's DistributionValidator, with two things mended that stop it from working in a real pipeline."""

from google.protobuf import json_format
from tfx.components.distribution_validator import component, executor
from tfx.dsl.components.base import executor_spec
from tfx.proto import distribution_validator_pb2
from tfx.types import artifact_utils, standard_component_specs

from pipeline.components import facts


class Executor(executor.Executor):
    """Parses the config, which arrives as text, and knows an explicit bootstrap."""

    def Do(self, input_dict, output_dict, exec_properties):
        """As TFX's; a baseline with `bootstrap` = 1 counts as none."""
        key = standard_component_specs.DISTRIBUTION_VALIDATOR_CONFIG_KEY
        config = exec_properties.get(key)
        if isinstance(config, str):
            parsed = json_format.Parse(config, distribution_validator_pb2.DistributionValidatorConfig())
            exec_properties = {**exec_properties, key: parsed}
        baseline_key = standard_component_specs.BASELINE_STATISTICS_KEY
        baseline = artifact_utils.get_single_instance(input_dict[baseline_key])
        if facts.number(baseline, "bootstrap"):
            input_dict = {**input_dict, baseline_key: []}
        return super().Do(input_dict, output_dict, exec_properties)


class DistributionValidator(component.DistributionValidator):
    """Compares this week's statistics with the last accepted ones."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)


def config_of(drift: dict[str, float]) -> distribution_validator_pb2.DistributionValidatorConfig:
    """The validator's configuration.

    Args:
        drift: Feature -> Jensen-Shannon divergence allowed.
    """
    config = distribution_validator_pb2.DistributionValidatorConfig()
    for name, threshold in sorted(drift.items()):
        feature = config.default_slice_config.feature.add()
        feature.path.step.append(name)
        feature.distribution_comparator.jensen_shannon_divergence.threshold = threshold
    return config
