"""TFX's Trainer on this machine: in this process, or in as many as `training.workers` says."""

from tfx import v1 as tfx
from tfx.components.trainer import executor
from tfx.dsl.components.base import executor_spec

from models.config import TrainingConfig
from pipeline import workers


class Executor(executor.GenericExecutor):
    """Trains in processes of their own where there are several workers.

    TensorFlow must join a cluster before it does anything else, which a process that runs a whole pipeline cannot.
    """

    def Do(self, input_dict, output_dict, exec_properties):  # noqa: N802
        """Trains; arguments and errors as TFX's."""
        fn_args = self._GetFnArgs(input_dict, output_dict, exec_properties)
        count = fn_args.custom_config["training"].get("workers", TrainingConfig.workers)
        if count == 1:
            super().Do(input_dict, output_dict, exec_properties)
        else:
            workers.train(vars(fn_args), count)


class Trainer(tfx.components.Trainer):
    """The standard Trainer with this executor."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)
