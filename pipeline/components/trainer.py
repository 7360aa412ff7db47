"""TFX's Trainer, which knows its run's window; on this machine in this process, or in as many as `training.workers` says."""

import json

from tfx import v1 as tfx
from tfx.components.trainer import executor
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import artifact_utils, channel, component_spec, standard_artifacts, standard_component_specs
from tfx.utils import json_utils

from models.config import TrainingConfig
from pipeline import workers
from pipeline.artifacts import RunManifest
from pipeline.components import facts


def with_window(input_dict, exec_properties) -> dict:
    """The parameters, with the end of the run's window in `custom_config` as the training reads it.

    A search may take longer than the window: of a run that searched, the window's hours count from the end of that.
    """
    manifest = artifact_utils.get_single_instance(input_dict["manifest"])
    known = input_dict.get(standard_component_specs.HYPERPARAMETERS_KEY)
    hours = facts.real(manifest, "window_hours")
    searched_until = facts.real(artifact_utils.get_single_instance(known), "searched_until") if known else 0.0
    end = searched_until + 3600 * hours if hours and searched_until else facts.real(manifest, "window_end")
    key = standard_component_specs.CUSTOM_CONFIG_KEY
    custom = json.loads(exec_properties[key])
    return {**exec_properties, key: json.dumps({**custom, "window_end": end or None})}


class Executor(executor.GenericExecutor):
    """Trains in processes of their own where there are several workers.

    TensorFlow must join a cluster before it does anything else, which a process that runs a whole pipeline cannot.
    """

    def Do(self, input_dict, output_dict, exec_properties):  # noqa: N802
        """Trains; arguments and errors as TFX's."""
        exec_properties = with_window(input_dict, exec_properties)
        fn_args = self._GetFnArgs(input_dict, output_dict, exec_properties)
        count = fn_args.custom_config["training"].get("workers", TrainingConfig.workers)
        if count == 1:
            super().Do(input_dict, output_dict, exec_properties)
        else:
            workers.train(vars(fn_args), count)


class TrainerSpec(component_spec.ComponentSpec):
    """Trainer's, with the manifest as one more input."""

    PARAMETERS = standard_component_specs.TrainerSpec.PARAMETERS
    INPUTS = {
        **standard_component_specs.TrainerSpec.INPUTS,
        "manifest": component_spec.ChannelParameter(type=RunManifest),
    }
    OUTPUTS = standard_component_specs.TrainerSpec.OUTPUTS


class Trainer(tfx.components.Trainer):
    """The standard Trainer with this executor, or another.

    Args:
        manifest: Channel of `RunManifest`.
        examples: Channel of the label records.
        schema: Channel of the schema.
        hyperparameters: Channel of what the Tuner or the best-known configuration says.
        run_fn: The function that trains, `module.function`.
        train_args, eval_args: TFX's; they name the splits.
        custom_config: What the function is told, as plain data.
        custom_executor_spec: Where the training runs when not on this machine.
    """

    SPEC_CLASS = TrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self, manifest, examples, schema, hyperparameters, run_fn, train_args, eval_args, custom_config, custom_executor_spec=None
    ):
        spec = TrainerSpec(
            manifest=manifest,
            examples=examples,
            schema=schema,
            hyperparameters=hyperparameters,
            run_fn=run_fn,
            train_args=train_args,
            eval_args=eval_args,
            custom_config=json_utils.dumps(custom_config),
            model=channel.Channel(type=standard_artifacts.Model),
            model_run=channel.Channel(type=standard_artifacts.ModelRun),
        )
        # The Trainer's own constructor makes a specification without the manifest.
        base_component.BaseComponent.__init__(self, spec=spec, custom_executor_spec=custom_executor_spec)
