"""A forked container is what a fresh one is; and a TFX pipeline, compiled by TFX, runs in such containers."""

import json

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1

from tests.cloud.vertex.containers import IMAGE, IMAGES, Image
from tests.cloud.vertex.custom_jobs import JobState
from tests.cloud.vertex.names import ENDPOINT, PARENT

FRESH = f"{IMAGE}-fresh"


@pytest.fixture
def start(vertex, tmp_path):
    """Starts a module in a container, fresh or forked; returns its exit status and what it wrote."""
    about = IMAGES[IMAGE]
    vertex.containers.images[IMAGE] = Image(environment=about.environment, forks=("tfx", "tests"))
    vertex.containers.images[FRESH] = Image(environment=about.environment)

    def start(image: str, *words: str, **environment: str) -> tuple[int, str]:
        log = tmp_path / f"{len(list(tmp_path.iterdir()))}.log"
        container = vertex.containers.start(image, ["python", "-m"], list(words), environment, log)
        return container.wait(200), log.read_text()

    return start


def test_a_forked_container_sees_what_a_fresh_one_sees(start):
    for how, status in (("return", 0), ("exit", 5), ("say", 1), ("raise", 1), ("die", 137)):
        answers = [start(image, "tests.cloud.vertex.probe", how, "{}", TF_CONFIG="{}", A="b") for image in (FRESH, IMAGE)]
        assert [answer[0] for answer in answers] == [status, status]
        fresh, forked = ([_parsed(line) for line in answer[1].splitlines()] for answer in answers)
        # What imports leave behind in any process: the null device open, and more at the path's end.
        files = [each[0].pop("files") for each in (fresh, forked)]
        assert len(set(files[0])) == 2 and files[1][0] == files[0][0] == "/dev/null" and files[1][1] == files[1][2]
        assert set(files[1][3:]) <= {"/dev/null"}
        assert [each[0].pop("tensorflow") for each in (fresh, forked)] == [False, True]
        forked[0]["path"] = forked[0]["path"][: len(fresh[0]["path"])]
        folders = [each[0].pop("folder") for each in (fresh, forked)]
        # Each has a folder of its own, which comes first in its path.
        assert [each[0]["path"].pop(0) for each in (fresh, forked)] == folders and folders[0] != folders[1]
        assert forked[0] == fresh[0]
        assert ("the end" in forked) == ("the end" in fresh) == (how != "die")
        # Python's own frames stand first in a traceback; the last line is what was raised.
        assert forked[-1] == fresh[-1]


def test_an_environment_that_imports_would_read_is_given_to_a_fresh_one_alone(start):
    for level, is_forked in (("2", True), ("0", False)):
        fresh, this = (
            _parsed(start(image, "tests.cloud.vertex.probe", "return", TF_CPP_MIN_LOG_LEVEL=level)[1].splitlines()[0])
            for image in (FRESH, IMAGE)
        )
        assert this["environment"]["TF_CPP_MIN_LOG_LEVEL"] == level
        assert (fresh["tensorflow"], this["tensorflow"]) == (False, is_forked)


def test_a_pipeline_that_tfx_compiled_runs_as_it_is(vertex, google, start, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows.csv").write_text("image_id,label\na,fruit\nb,tool\nc,fruit\n" * 20)
    google.bucket("runs")
    path = tmp_path / "small.json"
    status, said = start(IMAGE, "tests.cloud.small_tfx_pipeline", str(data), "gs://runs/small", IMAGE, str(path))
    assert status == 0, said
    compiled = json.loads(path.read_text())
    client = aiplatform_v1.PipelineServiceClient(client_options=ENDPOINT)

    def run(job_id: str, **parameters):
        config = {"gcs_output_directory": compiled["runtimeConfig"]["gcsOutputDirectory"], "parameter_values": parameters}
        job = {"pipeline_spec": compiled["pipelineSpec"], "runtime_config": config}
        made = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id=job_id)
        vertex.settle()
        return client.get_pipeline_job(name=made.name)

    # TFX wraps the tasks in a DAG for the exit handler and does not hand the parameters through.
    with pytest.raises(exceptions.InvalidArgument, match="tfx-dag.*does not define"):
        run("as-compiled", date="20260302", worst=1)
    _hand_through(compiled["pipelineSpec"])
    good = run("good", date="20260302", worst=1)
    assert good.state.name == "PIPELINE_STATE_SUCCEEDED", vertex.pipelines.failures("good")
    [model] = [each.outputs["model"].artifacts[0] for each in good.job_detail.task_details if each.task_name == "Count"]
    assert dict(model.metadata)["date"] == "20260302" and model.schema_title == "tfx.Model"
    folder = google.bucket("runs") / model.uri.removeprefix("gs://runs/")
    assert (folder / "said").read_text() == "20260302 good ['Split-eval', 'Split-train']"
    assert "alert good" in vertex.pipelines.log("good", "Alert") and '"SUCCEEDED"' in vertex.pipelines.log("good", "Alert")

    bad = run("bad", date="20260309", worst=-1)
    assert bad.state.name == "PIPELINE_STATE_FAILED"
    assert vertex.pipelines.tasks("bad") == {
        "Alert": "SUCCEEDED", "tfx-dag": "FAILED", "tfx-dag.CsvExampleGen": "SKIPPED", "tfx-dag.StatisticsGen": "SKIPPED",
        "tfx-dag.Count": "FAILED",
    }  # fmt: skip
    assert "worse than the worst" in vertex.pipelines.log("bad", "tfx-dag.Count")
    assert '"FAILED"' in vertex.pipelines.log("bad", "Alert")


def test_a_replica_that_runs_tfx_is_forked_too(vertex, start):
    pool = {
        "machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1,
        "container_spec": {
            "image_uri": IMAGE, "command": ["python", "-m", "tfx.scripts.run_executor"], "args": ["--helpshort"],
        },
    }  # fmt: skip
    client = aiplatform_v1.JobServiceClient(client_options=ENDPOINT)
    job = client.create_custom_job(
        parent=PARENT, custom_job={"display_name": "help", "job_spec": {"worker_pool_specs": [pool]}}
    )  # fmt: skip
    vertex.settle()
    assert client.get_custom_job(name=job.name).state in (JobState.JOB_STATE_SUCCEEDED, JobState.JOB_STATE_FAILED)
    assert "--executor_class_path" in vertex.jobs.log(job.name)


def _parsed(line: str):
    return json.loads(line) if line.startswith("{") else line


def _hand_through(spec: dict) -> None:
    """Gives the DAG around the tasks the parameters of the pipeline."""
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    spec["components"]["tfx-dag"]["inputDefinitions"] = {"parameters": parameters}
    passed = {name: {"componentInputParameter": name} for name in parameters}
    spec["root"]["dag"]["tasks"]["tfx-dag"]["inputs"] = {"parameters": passed}
