"""TFX's DistributionValidator, with three things mended that stop it from working in a real pipeline."""

import copy
import pathlib
import tempfile

from google.protobuf import json_format
from tfx.components.distribution_validator import component, executor
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.dsl.components.base import executor_spec
from tfx.proto import distribution_validator_pb2
from tfx.types import artifact_utils, standard_component_specs

from pipeline.components import facts
from pipeline.validation import histograms


class Executor(executor.Executor):
    """Parses the config, which arrives as text, knows an explicit bootstrap, and compares numbers on common buckets."""

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
            return super().Do({**input_dict, baseline_key: []}, output_dict, exec_properties)
        statistics_key = standard_component_specs.STATISTICS_KEY
        statistics = artifact_utils.get_single_instance(input_dict[statistics_key])
        with tempfile.TemporaryDirectory() as folder:
            pair = _comparable(statistics, baseline, pathlib.Path(folder))
            inputs = {**input_dict, statistics_key: [pair[0]], baseline_key: [pair[1]]}
            return super().Do(inputs, output_dict, exec_properties)


def _comparable(statistics, baseline, folder: pathlib.Path):
    """Copies of both artifacts in `folder`, after `histograms.on_common_buckets`."""
    copies = []
    for name, artifact in (("statistics", statistics), ("baseline", baseline)):
        copied = copy.deepcopy(artifact)
        copied.uri = str(folder / name)
        copies.append(copied)
    names = [set(artifact_utils.decode_split_names(artifact.split_names)) for artifact in (statistics, baseline)]
    # A split that only one side has cannot be compared, and TFX says so.
    for split in names[0] & names[1]:
        pair = [stats_artifact_utils.load_statistics(artifact, split).proto() for artifact in (statistics, baseline)]
        histograms.on_common_buckets(*pair)
        for copied, content in zip(copies, pair, strict=True):
            path = pathlib.Path(copied.uri, f"Split-{split}", "FeatureStats.pb")
            path.parent.mkdir(parents=True)
            path.write_bytes(content.SerializeToString())
    return copies


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
