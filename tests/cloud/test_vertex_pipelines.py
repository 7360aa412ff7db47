"""Pipeline jobs on the fake Vertex AI, by Google's own clients: tasks as processes, cache, conditions, exit handler."""

import json

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform, aiplatform_v1
from google.cloud.aiplatform_v1 import types

from tests.cloud import google_apis
from tests.cloud.small_pipelines import spec, task
from tests.cloud.vertex import names
from tests.cloud.vertex.names import ENDPOINT, PARENT
from tests.cloud.vertex.server import IMAGE

State = types.PipelineState


@pytest.fixture
def client(vertex):
    return aiplatform_v1.PipelineServiceClient(client_options=ENDPOINT)


@pytest.fixture
def root(google):
    google.bucket("runs")
    return "gs://runs/root"


@pytest.fixture
def run(vertex, client, root):
    """Submits a pipeline and waits for its end; returns its job."""

    def run(pipeline: dict, job_id: str = "", wait: bool = True, policy: int = 0, labels=None, **parameters):
        config = {"gcs_output_directory": root, "parameter_values": parameters, "failure_policy": policy}
        job = {"display_name": "weekly", "pipeline_spec": pipeline, "runtime_config": config, "labels": labels or {}}
        made = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id=job_id)
        if wait:
            vertex.settle()
        return client.get_pipeline_job(name=made.name)

    return run


def test_tasks_pass_on_parameters_and_artifacts(vertex, google, run):
    pipeline = spec(
        "weekly",
        {
            "Snapshot": task(
                "path = outputs['artifacts']['snapshot']['artifacts'][0]['uri']\n"
                "open(path, 'w').write('rows of ' + parameters['date'])\n"
                "give({'snapshot': {'rows': 151, 'share': 0.5}}, rows=151, good=True, name='labels')",
                parameters={"date": {"root": "date"}, "table": "t"}, outputs={"snapshot": "pipeline.LabelSnapshot"},
                values={"rows": int, "good": bool, "name": str},
            ),
            "Train": task(
                "artifact = inputs['artifacts']['snapshot']['artifacts'][0]\n"
                "print(json.dumps([open(artifact['uri']).read(), artifact, parameters, os.environ['RUN'], os.getcwd()]))",
                artifacts={"snapshot": ("Snapshot", "snapshot")}, environment={"RUN": "{{$.pipeline_job_name}}"},
                parameters={"rows": {"from": ("Snapshot", "rows"), "type": "NUMBER_INTEGER"}, "run": "{{$.pipeline_job_name}}",
                            "made": "at {{$.pipeline_job_create_time_utc}}", "which": "{{$.pipeline_task_name}}"},
            ),
        },
        parameters={"date": {"parameterType": "STRING"}, "tune": {"parameterType": "BOOLEAN", "defaultValue": False}},
    )  # fmt: skip
    job = run(pipeline, "week-1", date="20260302")
    assert job.state == State.PIPELINE_STATE_SUCCEEDED, vertex.pipelines.log("week-1", "Snapshot")
    assert job.name == f"projects/{names.NUMBER}/locations/us-central1/pipelineJobs/week-1"
    content, artifact, parameters, run_name, _ = json.loads(vertex.pipelines.log("week-1", "Train"))
    assert content == "rows of 20260302" and run_name == "week-1"
    assert artifact["metadata"] == {"rows": 151, "share": 0.5}
    assert artifact["name"].startswith(f"projects/{names.NUMBER}/locations/us-central1/metadataStores/default/artifacts/")
    assert parameters == {"rows": 151, "run": "week-1", "made": "at 2026-03-01T12:00:00Z", "which": "Train"}
    snapshot, train = job.job_detail.task_details
    assert (snapshot.task_name, snapshot.state.name, train.state.name) == ("Snapshot", "SUCCEEDED", "SUCCEEDED")
    made = snapshot.outputs["snapshot"].artifacts[0]
    # The run sees Cloud Storage; the container saw the bucket's folder.
    assert made.uri.startswith(f"gs://runs/root/{names.NUMBER}/week-1/Snapshot_") and made.uri.endswith("/snapshot")
    assert artifact["uri"] == made.uri.replace("gs://runs", str(google.bucket("runs")))
    assert made.schema_title == "pipeline.LabelSnapshot"
    assert job.create_time < job.start_time < snapshot.start_time < snapshot.end_time < train.start_time < job.end_time


def test_a_failed_task_fails_the_job_and_what_needs_it_does_not_start(vertex, run):
    tasks = {
        "Gate": task("sys.exit(3)"),
        "Train": task(after=("Gate",)),
        "Push": task(after=("Train",)),
        "Other": task(),
        "Later": task(after=("Other",)),
    }
    job = run(spec("weekly", tasks))
    assert job.state == State.PIPELINE_STATE_FAILED
    assert vertex.pipelines.tasks(job.name) == {
        "Gate": "FAILED", "Train": "NOT_TRIGGERED", "Push": "NOT_TRIGGERED", "Other": "SUCCEEDED", "Later": "SUCCEEDED",
    }  # fmt: skip
    assert job.error.message.startswith("The DAG failed because some tasks failed. The failed tasks are: [Gate].")
    failed = next(each for each in job.job_detail.task_details if each.task_name == "Gate")
    assert "exited with a non-zero status of 3" in failed.error.message

    tasks["Other"] = task("import time\nwhile not os.path.exists('../go'): time.sleep(0.01)", after=())
    fast = run(spec("weekly", tasks), "fast", policy=2, wait=False)
    vertex.pipelines.wait_for_task("fast", "Gate", "FAILED")
    (vertex.state.folder / "pipelineJobs" / "fast" / "go").touch()
    vertex.settle()
    assert vertex.pipelines.tasks(fast.name)["Later"] == "NOT_TRIGGERED"


def test_the_exit_handler_runs_whatever_happened_and_knows_it(vertex, run):
    handler = task(
        "print(parameters['status'])", parameters={"status": {"status": "tfx-dag"}}, after=("tfx-dag",), always=True
    )  # fmt: skip
    inner = {"Train": task("sys.exit(parameters['code'])", parameters={"code": {"root": "code", "type": "NUMBER_INTEGER"}})}
    pipeline = spec("weekly", {"Alert": handler}, {"code": {"parameterType": "NUMBER_INTEGER"}}, inner=inner)
    run(pipeline, "good", code=0)
    bad = run(pipeline, "bad", code=1)
    assert vertex.pipelines.tasks("good") == {"Alert": "SUCCEEDED", "tfx-dag": "SUCCEEDED", "tfx-dag.Train": "SUCCEEDED"}
    assert vertex.pipelines.tasks("bad") == {"Alert": "SUCCEEDED", "tfx-dag": "FAILED", "tfx-dag.Train": "FAILED"}
    assert json.loads(vertex.pipelines.log("good", "Alert"))["state"] == "SUCCEEDED"
    said = json.loads(vertex.pipelines.log("bad", "Alert"))
    assert said["state"] == "FAILED" and "[Train]" in said["error"]["message"]
    assert said["pipelineJobResourceName"] == bad.name
    assert bad.state == State.PIPELINE_STATE_FAILED


def test_cancelling_ends_what_runs_and_leaves_the_exit_handler(vertex, client, run):
    wait = "import signal\nprint('up', flush=True)\nsignal.pause()"
    handler = task(parameters={"status": {"status": "tfx-dag"}}, after=("tfx-dag",), always=True)
    inner = {"Train": task(wait), "Push": task(after=("Train",))}
    job = run(spec("weekly", {"Alert": handler}, inner=inner), "one", wait=False)
    vertex.pipelines.wait_for_task("one", "tfx-dag.Train")
    client.cancel_pipeline_job(name=job.name)
    vertex.settle()
    done = client.get_pipeline_job(name=job.name)
    assert done.state == State.PIPELINE_STATE_CANCELLED
    assert vertex.pipelines.tasks("one") == {
        "Alert": "SUCCEEDED", "tfx-dag": "CANCELLED", "tfx-dag.Train": "CANCELLED", "tfx-dag.Push": "CANCELLED",
    }  # fmt: skip
    with pytest.raises(exceptions.FailedPrecondition):
        client.cancel_pipeline_job(name=job.name)


def test_what_did_not_change_is_served_from_the_cache(vertex, run):
    def pipeline(name="weekly", script="give({'rows': {}}, count=7)", made="x", cache=True):
        return spec(
            name,
            {
                "Make": task(script, parameters={"made": made}, outputs={"rows": "x.Rows"}, values={"count": int},
                             cache=cache),
                "Use": task("print(parameters)", parameters={"n": {"from": ("Make", "count"), "type": "NUMBER_INTEGER"}},
                            artifacts={"rows": ("Make", "rows")}, cache=True),
            },
        )  # fmt: skip

    def states(job_id, *arguments, **named):
        run(pipeline(*arguments, **named), job_id)
        return list(vertex.pipelines.tasks(job_id).values())

    ran, cached = ["SUCCEEDED"] * 2, ["SKIPPED"] * 2
    assert states("first") == ran
    assert states("again") == cached
    # Another name, command or parameter, or a step that does not want the cache, is something else, and so is what uses it.
    assert states("other-name", "other") == ran
    assert states("other-command", script="give({'rows': {}}, count=8)") == ran
    assert states("other-parameter", made="y") == ran
    assert states("no-cache", cache=False) == ran
    # A run's own name in a parameter keeps each apart.
    assert states("named", made="{{$.pipeline_job_name}}") == states("named-too", made="{{$.pipeline_job_name}}") == ran


def test_a_failed_task_is_retried_as_often_as_its_policy_says(vertex, run):
    script = (
        "print('try', flush=True)\nos.makedirs('../tries', exist_ok=True)\nopen(f'../tries/{os.getpid()}', 'w').close()\n"
        "sys.exit(len(os.listdir('../tries')) < 3)"
    )
    job = run(spec("weekly", {"Flaky": task(script, retries=2)}), "retried")
    assert job.state == State.PIPELINE_STATE_SUCCEEDED and vertex.pipelines.log("retried", "Flaky").count("try") == 3
    job = run(spec("weekly", {"Broken": task("print('try')\nsys.exit(1)", retries=1)}), "given-up")
    assert job.state == State.PIPELINE_STATE_FAILED and vertex.pipelines.log("given-up", "Broken").count("try") == 2


@pytest.mark.parametrize(
    ("condition", "runs"),
    [
        ("inputs.parameter_values['n'] == 7", True),
        ("inputs.parameter_values['n'] > 7 || inputs.parameter_values['name'] == 'x'", False),
        ("!(inputs.parameter_values['n'] >= 8) && inputs.artifacts['rows'].artifacts[0].metadata['good'] == 1.0", True),
        ("string(inputs.parameter_values['n']) != '7'", False),
    ],
)
def test_conditions(vertex, run, condition, runs):
    tasks = {
        "Make": task("give({'rows': {'good': 1}}, n=7)", outputs={"rows": "x.Rows"}, values={"n": int}),
        "If": task(
            parameters={"n": {"from": ("Make", "n"), "type": "NUMBER_INTEGER"}, "name": "labels"},
            artifacts={"rows": ("Make", "rows")}, condition=condition,
        ),
        "Then": task(after=("If",)),
    }  # fmt: skip
    job = run(spec("weekly", tasks))
    assert job.state == State.PIPELINE_STATE_SUCCEEDED
    assert set(list(vertex.pipelines.tasks(job.name).values())[1:]) == {"SUCCEEDED" if runs else "NOT_TRIGGERED"}


def test_importers_and_resolvers_find_what_is_there(vertex, run, root):
    schema = {"schemaTitle": "tfx.Schema"}
    source = {"artifactUri": {"constant": "gs://runs/schema"}}
    importer = {"importer": {**source, "typeSchema": schema, "metadata": {"by": "people"}}}
    again = {"importer": {**importer["importer"], "reimport": True}}
    query = {"model": {"filter": 'schema_title="tfx.Model" AND state=LIVE'}}
    tasks = {
        "Schema": task(outputs={"schema": "tfx.Schema"}, executor=importer),
        # Later, because what it imports is what an importer that finds takes from then on.
        "Again": task(after=("Schema",), outputs={"schema": "tfx.Schema"}, executor=again),
        "Latest": task(outputs={"model": "tfx.Model"}, executor={"resolver": {"outputArtifactQueries": query}}),
        "Train": task(
            "found = inputs['artifacts']\n"
            "print(len(found['model'].get('artifacts', [])), found['schema']['artifacts'][0]['uri'])\n"
            "give({'model': {'n': 1}})",
            artifacts={"schema": ("Schema", "schema"), "model": ("Latest", "model")}, outputs={"model": "tfx.Model"},
        ),
    }  # fmt: skip

    def artifacts(job, name, key):
        [detail] = [each for each in job.job_detail.task_details if each.task_name == name]
        return [artifact.name for artifact in detail.outputs[key].artifacts]

    first, second = run(spec("weekly", tasks), "first"), run(spec("weekly", tasks), "second")
    assert (first.state, second.state) == (State.PIPELINE_STATE_SUCCEEDED,) * 2, vertex.pipelines.log("first", "Train")
    assert vertex.pipelines.log("first", "Train").startswith("0 ") and vertex.pipelines.log("second", "Train").startswith("1 ")
    assert artifacts(second, "Latest", "model") == artifacts(first, "Train", "model")
    known = artifacts(first, "Schema", "schema") + artifacts(first, "Again", "schema")
    assert artifacts(second, "Schema", "schema")[0] in known
    assert artifacts(second, "Again", "schema")[0] not in known


def _without(pipeline: dict, *path: str) -> dict:
    inner = pipeline
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return pipeline


def _handled() -> dict:
    inner = {"Train": task(parameters={"date": {"root": "date"}})}
    return spec("weekly", {"Alert": task(after=("tfx-dag",), always=True)}, {"date": {"parameterType": "STRING"}}, inner=inner)


BAD = {
    "unknown field": (spec("weekly", {"A": task()}) | {"pipelineInfos": {}}, {}, "pipelineInfos"),
    "old spec": (spec("weekly", {"A": task()}) | {"schemaVersion": "2.0.0"}, {}, "2.0.0"),
    "name": (spec("Weekly", {"A": task()}), {}, "pipeline_info.name"),
    "unknown task": (spec("weekly", {"A": task(after=("B",))}), {}, "'B'"),
    "circle": (spec("weekly", {"A": task(after=("B",)), "B": task(after=("A",))}), {}, "circle"),
    "no executor": (_without(spec("weekly", {"A": task()}), "deploymentSpec", "executors", "A"), {}, "executor 'A'"),
    "parameter missing": (_handled(), {}, "'date' has no value"),
    "parameter unknown": (_handled(), {"date": "20260302", "when": "now"}, "no parameter 'when'"),
    "parameter of another type": (_handled(), {"date": 20260302}, "must be STRING"),
    "inner DAG without definition": (
        _without(_handled(), "components", "tfx-dag", "inputDefinitions"), {"date": "20260302"}, "'date'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_pipeline_that_vertex_would_refuse_is_refused(run, case):
    pipeline, parameters, message = BAD[case]
    with pytest.raises((exceptions.InvalidArgument, exceptions.MethodNotImplemented), match=message):
        run(pipeline, **parameters)


def test_what_else_is_refused(vertex, client, run):
    good = spec("weekly", {"A": task()})
    run(good, "one")
    with pytest.raises(exceptions.AlreadyExists):
        run(good, "one")
    with pytest.raises(exceptions.InvalidArgument, match="pipeline_job_id"):
        run(good, "One")
    with pytest.raises(exceptions.InvalidArgument, match="labels"):
        run(good, "two", labels={"team": "A B"})
    with pytest.raises(exceptions.InvalidArgument, match="gcs_output_directory"):
        client.create_pipeline_job(parent=PARENT, pipeline_job={"pipeline_spec": good})
    missing = run(spec("weekly", {"A": task(image=IMAGE.split("@")[0])}), "untagged")
    assert "pull the image" in missing.job_detail.task_details[0].error.message


def test_the_high_level_client_submits_waits_lists_and_deletes(vertex, client, root, tmp_path):
    template = tmp_path / "weekly.json"
    tasks = {"Make": task("give({'rows': {}})", parameters={"date": {"root": "date"}}, outputs={"rows": "x.Rows"})}
    pipeline = spec("weekly", tasks, {"date": {"parameterType": "STRING"}})
    template.write_text(json.dumps(pipeline))
    aiplatform.init(project=google_apis.PROJECT, location="us-central1")
    for date in ("20260302", "20260309"):
        job = aiplatform.PipelineJob(
            "weekly", str(template), job_id=f"weekly-{date}", pipeline_root=root, parameter_values={"date": date},
            enable_caching=True, labels={"snapshot": date}, failure_policy="fast",
        )  # fmt: skip
        job.submit(service_account="retrain@acme-products.iam.gserviceaccount.com")
    vertex.settle()
    job.wait()
    assert job.state == State.PIPELINE_STATE_SUCCEEDED and job.task_details[0].task_name == "Make"
    text = 'labels.snapshot="20260309" AND pipeline_name="weekly"'
    found = aiplatform.PipelineJob.list(filter=text, order_by="create_time desc")
    assert [each.name for each in found] == ["weekly-20260309"]
    newest = client.list_pipeline_jobs(request={"parent": PARENT, "filter": "state=PIPELINE_STATE_SUCCEEDED", "page_size": 1})
    assert [names.last(each.name) for each in newest] == ["weekly-20260309", "weekly-20260302"]
    with pytest.raises(exceptions.InvalidArgument, match="colour"):
        list(client.list_pipeline_jobs(request={"parent": PARENT, "filter": 'colour="red"'}))
    job.delete()
    with pytest.raises(exceptions.NotFound):
        client.get_pipeline_job(name=job.resource_name)
