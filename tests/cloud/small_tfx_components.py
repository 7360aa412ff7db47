"""The components of the small TFX pipeline: in a module of their own, by whose name containers find them."""

from tfx import v1 as tfx
from tfx.orchestration.kubeflow import decorators


@tfx.dsl.components.component
def Count(
    statistics: tfx.dsl.components.InputArtifact[tfx.types.standard_artifacts.ExampleStatistics],
    model: tfx.dsl.components.OutputArtifact[tfx.types.standard_artifacts.Model],
    date: tfx.dsl.components.Parameter[str],
    run: tfx.dsl.components.Parameter[str],
    worst: tfx.dsl.components.Parameter[int] = 100,
):
    """Writes what it was given where a model would be, and fails when a limit is exceeded."""
    with tfx.dsl.io.fileio.open(f"{model.uri}/said", "w") as file:
        file.write(f"{date} {run} {sorted(tfx.dsl.io.fileio.listdir(statistics.uri))}")
    model.set_string_custom_property("date", date)
    if worst < 0:
        raise ValueError("worse than the worst")


@decorators.exit_handler
def Alert(final_status: tfx.dsl.components.Parameter[str], run: tfx.dsl.components.Parameter[str]):
    """Prints how the run ended."""
    print("alert", run, final_status.replace("\n", " "), flush=True)
