"""Runs the pipeline on this machine, in one process: importing TFX costs more than most steps do."""

from tfx.dsl.compiler import constants
from tfx.orchestration import metadata
from tfx.orchestration.local import local_dag_runner, runner_utils
from tfx.orchestration.portable import launcher, runtime_parameter_utils

from pipeline.console import Progress


class ProgressDagRunner(local_dag_runner.LocalDagRunner):
    """TFX's LocalDagRunner with a run id that is given, and steps that are shown.

    TFX's own makes the run id itself and says nothing between steps but to its log.

    Args:
        run_id: Id of the run.
        progress: Where steps are shown.
    """

    def __init__(self, run_id: str, progress: Progress):
        super().__init__()
        self._run_id = run_id
        self._progress = progress

    def run_with_ir(self, pipeline, run_options=None):
        """Runs each node in topological order; the first failure ends the run."""
        if run_options:
            raise ValueError("partial runs are not supported: a run is a whole week")
        runtime_parameter_utils.substitute_runtime_parameter(
            pipeline, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: self._run_id}
        )
        deployment = runner_utils.extract_local_deployment_config(pipeline)
        connection = deployment.metadata_connection_config
        connection = getattr(connection, connection.WhichOneof("connection_config"))
        for position, node in enumerate(pipeline.nodes, start=1):
            step = node.pipeline_node.node_info.id
            self._progress.begin(f"[{position:2d}/{len(pipeline.nodes)}] {step}")
            launcher.Launcher(
                pipeline_node=node.pipeline_node,
                mlmd_connection=metadata.Metadata(connection),
                pipeline_info=pipeline.pipeline_info,
                pipeline_runtime_spec=pipeline.runtime_spec,
                executor_spec=runner_utils.extract_executor_spec(deployment, step),
                custom_driver_spec=runner_utils.extract_custom_driver_spec(deployment, step),
            ).launch()
            self._progress.end()
