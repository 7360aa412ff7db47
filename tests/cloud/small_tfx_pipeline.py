"""A small TFX pipeline and its compilation, as a process with TFX does it.

    python -m tests.cloud.small_tfx_pipeline DATA ROOT IMAGE FILE
"""

import sys

from tfx import v1 as tfx
from tfx.orchestration.kubeflow import decorators

from tests.cloud.small_tfx_components import Alert, Count


def main(data: str, root: str, image: str, path: str) -> None:
    """Compiles it."""
    date = tfx.dsl.experimental.RuntimeParameter(name="date", ptype=str)
    worst = tfx.dsl.experimental.RuntimeParameter(name="worst", ptype=int)
    examples = tfx.components.CsvExampleGen(input_base=data)
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    count = Count(
        statistics=statistics.outputs["statistics"], date=date, run="{{$.pipeline_job_name}}", worst=worst
    )  # fmt: skip
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(default_image=image, use_pipeline_spec_2_1=True),
        output_filename=path,
    )
    runner.set_exit_handler(Alert(final_status=decorators.FinalStatusStr(), run="{{$.pipeline_job_name}}"))
    pipeline = tfx.dsl.Pipeline(
        "small", root, components=[examples, statistics, count], enable_cache=True,
        # Without it TFX packs itself for each step that uses Beam.
        beam_pipeline_args=["--runner=DirectRunner", f"--sdk_container_image={image}"],
    )  # fmt: skip
    runner.run(pipeline, write_out=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
