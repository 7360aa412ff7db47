"""Custom jobs on the fake Vertex AI, by Google's own clients: replicas, restarts, quota, preemption, time limits, faults."""

import datetime
import json

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform, aiplatform_v1
from google.cloud.aiplatform_v1 import types

from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex.containers import REDUCTION_SERVER
from tests.cloud.vertex.names import ENDPOINT, PARENT
from tests.cloud.vertex.server import IMAGE

State = types.JobState

# Waits until it is told to end, and says so.
WAIT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told to end") or 0))
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def client(vertex):
    return aiplatform_v1.JobServiceClient(client_options=ENDPOINT)


def pool(script: str, count: int = 1, image: str = IMAGE, accelerators: int = 0, **container) -> dict:
    machine = {"machine_type": "n1-standard-4"}
    if accelerators:
        kind = "NVIDIA_TESLA_A100"
        machine = {"machine_type": "a2-highgpu-1g", "accelerator_type": kind, "accelerator_count": accelerators}
    command = ["python", "-c", script] if script else []
    return {
        "machine_spec": machine, "replica_count": count,
        "container_spec": {"image_uri": image, "command": command, **container},
    }  # fmt: skip


def job(*pools: dict, **spec) -> dict:
    return {"display_name": "training", "job_spec": {"worker_pool_specs": list(pools), **spec}}


def create(client, *pools: dict, **spec) -> str:
    return client.create_custom_job(parent=PARENT, custom_job=job(*pools, **spec)).name


def test_every_replica_gets_what_vertex_gives_it(vertex, client, tmp_path):
    script = (
        "import json, os, sys, time\n"
        f"names = {['CLUSTER_SPEC', 'TF_CONFIG', 'AIP_MODEL_DIR', 'AIP_CHECKPOINT_DIR', 'SEED']}\n"
        "print(json.dumps([{name: os.environ.get(name) for name in names}, sys.argv[1:]]), flush=True)\n"
        # The job is over when the primary replica is: nobody leaves before all three have met.
        f"open({str(tmp_path)!r} + '/replica-' + str(os.getpid()), 'w').close()\n"
        f"while sum(name.startswith('replica') for name in os.listdir({str(tmp_path)!r})) < 3: time.sleep(0.01)\n"
    )
    # The reduction server keeps its own command, and runs until the primary replica is done.
    name = create(
        client,
        pool(script, args=["--epochs=3"], env=[{"name": "SEED", "value": "7"}]), pool(script, 2),
        pool("", 1, REDUCTION_SERVER),
        base_output_directory={"output_uri_prefix": "gs://runs/week"},
    )  # fmt: skip
    vertex.settle()
    done = client.get_custom_job(name=name)
    assert done.state == State.JOB_STATE_SUCCEEDED
    assert name.startswith(f"projects/{names.NUMBER}/locations/us-central1/customJobs/")
    assert done.create_time < done.start_time < done.end_time

    environment, arguments = json.loads(vertex.jobs.log(name))
    assert arguments == ["--epochs=3"] and environment["SEED"] == "7"
    assert environment["AIP_MODEL_DIR"] == "gs://runs/week/model/"
    assert environment["AIP_CHECKPOINT_DIR"] == "gs://runs/week/checkpoints/"
    spec, config = json.loads(environment["CLUSTER_SPEC"]), json.loads(environment["TF_CONFIG"])
    assert {name: len(addresses) for name, addresses in spec["cluster"].items()} == {
        "workerpool0": 1, "workerpool1": 2, "workerpool2": 1,
    }  # fmt: skip
    assert config["cluster"]["worker"] == spec["cluster"]["workerpool1"]
    assert len({address for addresses in spec["cluster"].values() for address in addresses}) == 4
    assert spec["task"] == {"type": "workerpool0", "index": 0, "trial": ""} and config["task"] == {"type": "chief", "index": 0}
    environment = json.loads(vertex.jobs.log(name, 1, 1))[0]
    assert json.loads(environment["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    assert json.loads(environment["CLUSTER_SPEC"])["task"]["type"] == "workerpool1"


def test_a_job_of_the_high_level_client_says_how_it_ended(vertex):
    aiplatform.init(project=google_apis.PROJECT, location="us-central1", staging_bucket="gs://runs")
    good = aiplatform.CustomJob("good", [pool("print('trained')")])
    good.submit()
    bad = aiplatform.CustomJob("bad", [pool("raise SystemExit(3)")])
    bad.submit()
    vertex.settle()
    assert good.state == State.JOB_STATE_SUCCEEDED and vertex.jobs.log(good.resource_name) == "trained\n"
    assert bad.state == State.JOB_STATE_FAILED
    assert bad.error.message == (
        "The replica workerpool0-0 exited with a non-zero status of 3. Termination reason: Error."
    )  # fmt: skip
    assert [each.custom_job.display_name for each in vertex.called("CreateCustomJob")] == ["good", "bad"]


def test_the_primary_replica_decides_when_a_job_is_done(vertex, client):
    name = create(client, pool("print('done')"), pool(WAIT))
    vertex.settle()
    assert client.get_custom_job(name=name).state == State.JOB_STATE_SUCCEEDED
    # A worker that fails takes the job with it.
    name = create(client, pool(WAIT), pool("raise SystemExit(1)"))
    vertex.settle()
    failed = client.get_custom_job(name=name)
    assert failed.state == State.JOB_STATE_FAILED and "workerpool1-0" in failed.error.message


@pytest.mark.parametrize(("status", "starts"), [(1, 1), (139, 4)])
def test_only_statuses_that_may_pass_are_tried_again(vertex, client, status, starts):
    name = create(client, pool(f"import sys; print('start'); sys.exit({status})"))
    vertex.settle()
    assert client.get_custom_job(name=name).state == State.JOB_STATE_FAILED
    assert vertex.jobs.log(name).count("start") == starts


# The first time it waits; later it ends.
ONCE = """
import os, signal
path = os.environ["AIP_MODEL_DIR"] + "seen"
if os.path.exists(path):
    print("again", os.environ["TF_CONFIG"])
else:
    os.makedirs(os.path.dirname(path))
    open(path, "w").close()
    print("first", os.environ["TF_CONFIG"], flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("whole", [False, True])
def test_a_lost_replica_starts_again_at_its_address(vertex, client, tmp_path, whole):
    name = create(
        client, pool(ONCE), pool(WAIT), base_output_directory={"output_uri_prefix": str(tmp_path)},
        scheduling={"restart_job_on_worker_restart": whole},
    )  # fmt: skip
    vertex.jobs.wait_until(name, State.JOB_STATE_RUNNING)
    vertex.jobs.wait_for_log(name, "first")
    vertex.jobs.lose(name, 0)
    vertex.settle()
    assert client.get_custom_job(name=name).state == State.JOB_STATE_SUCCEEDED
    first, again = vertex.jobs.log(name).splitlines()
    assert first.split(" ", 1)[1] == again.split(" ", 1)[1] and again.startswith("again")
    assert vertex.jobs.starts(name) == (2 if whole else 1)


def test_a_preempted_job_starts_again_six_times_and_no_more(vertex, client):
    spot = {"strategy": "SPOT"}
    name = create(client, pool(WAIT, accelerators=1), scheduling=spot)
    for starts in range(1, 8):
        vertex.jobs.wait_until(name, State.JOB_STATE_RUNNING, starts=starts)
        vertex.jobs.wait_for_log(name, "up", starts)
        vertex.jobs.preempt(name)
    vertex.settle()
    done = client.get_custom_job(name=name)
    assert done.state == State.JOB_STATE_FAILED and done.error.message.startswith("Resources are insufficient in region")
    assert vertex.jobs.log(name).count("told to end") == 7
    on_demand = create(client, pool(WAIT))
    with pytest.raises(ValueError, match="spot"):
        vertex.jobs.preempt(on_demand)


def test_a_job_waits_for_its_quota(vertex, client):
    vertex.jobs.set_quota("NVIDIA_TESLA_A100", 3)
    first = create(client, pool(WAIT, accelerators=1), pool(WAIT, 2, accelerators=1))
    second = create(client, pool("print('ran')", accelerators=1))
    vertex.jobs.wait_until(first, State.JOB_STATE_RUNNING)
    assert client.get_custom_job(name=second).state == State.JOB_STATE_QUEUED
    client.cancel_custom_job(name=first)
    vertex.settle()
    states = [client.get_custom_job(name=name).state for name in (first, second)]
    assert states == [State.JOB_STATE_CANCELLED, State.JOB_STATE_SUCCEEDED]
    # One that wants more than there is waits for ever, and can be cancelled.
    greedy = create(client, pool("", accelerators=1), pool("", 3, accelerators=1))
    vertex.settle()
    assert client.get_custom_job(name=greedy).state == State.JOB_STATE_QUEUED
    client.cancel_custom_job(name=greedy)
    assert client.get_custom_job(name=greedy).state == State.JOB_STATE_CANCELLED


def test_a_job_that_runs_longer_than_its_timeout_is_cancelled(vertex, client):
    name = create(client, pool(WAIT), scheduling={"timeout": datetime.timedelta(hours=12)})
    vertex.jobs.wait_until(name, State.JOB_STATE_RUNNING)
    vertex.advance(vertex.now + datetime.timedelta(hours=11), settle=False)
    assert client.get_custom_job(name=name).state == State.JOB_STATE_RUNNING
    vertex.advance(vertex.now + datetime.timedelta(hours=2), settle=False)
    vertex.settle()
    done = client.get_custom_job(name=name)
    assert done.state == State.JOB_STATE_CANCELLED and "timeout" in done.error.message


def test_an_image_that_is_not_there_fails_the_job(vertex, client):
    name = create(client, pool("", image=f"{IMAGE[:-4]}0000"))
    vertex.settle()
    done = client.get_custom_job(name=name)
    assert done.state == State.JOB_STATE_FAILED and "pull the image" in done.error.message
    # The reduction server's image has no Python.
    name = create(client, pool("print()", image=REDUCTION_SERVER))
    vertex.settle()
    assert "status of 127" in client.get_custom_job(name=name).error.message


BAD = {
    "no pool": (job(), "worker_pool_specs"),
    "two primary replicas": (job(pool("", 2)), r"worker_pool_specs\[0\].replica_count must be 1"),
    "no machine": (job({"replica_count": 1, "container_spec": {"image_uri": IMAGE}}), "machine_type"),
    "wrong count": (job(pool("", accelerators=4)), "a2-highgpu-1g has 1"),
    "no name": ({**job(pool("")), "display_name": ""}, "display_name"),
    "label": ({**job(pool("")), "labels": {"Team": "x"}}, "labels"),
    "folder": (job(pool(""), base_output_directory={"output_uri_prefix": "s3://x"}), "gs://"),
    "network": (job(pool(""), network="projects/acme/global/networks/x"), "network"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_job_that_vertex_would_refuse_is_refused(client, case):
    bad, message = BAD[case]
    with pytest.raises(exceptions.InvalidArgument, match=message):
        client.create_custom_job(parent=PARENT, custom_job=bad)


def test_the_same_calls_over_http(vertex):
    client = aiplatform_v1.JobServiceClient(client_options=ENDPOINT, transport="rest")
    names_ = [
        client.create_custom_job(
            parent=PARENT, custom_job={**job(pool("print('ran')")), "display_name": name, "labels": {"team": "retrain"}}
        ).name
        for name in ("one", "two", "three")
    ]
    vertex.settle()
    assert client.get_custom_job(name=names_[0]).state == State.JOB_STATE_SUCCEEDED
    found = client.list_custom_jobs(request={"parent": PARENT, "filter": 'labels.team="retrain"', "page_size": 2})
    assert [each.display_name for each in found] == ["three", "two", "one"]
    assert len(vertex.called("ListCustomJobs")) == 2
    client.delete_custom_job(name=names_[0]).result()
    with pytest.raises(exceptions.NotFound):
        client.get_custom_job(name=names_[0])
    with pytest.raises(exceptions.BadRequest, match="worker_pool_specs"):
        client.create_custom_job(parent=PARENT, custom_job=job())


def test_others_projects_regions_and_callers_are_refused(vertex, google, client):
    with pytest.raises(exceptions.PermissionDenied, match="other"):
        client.create_custom_job(parent="projects/other/locations/us-central1", custom_job=job(pool("")))
    with pytest.raises(exceptions.InvalidArgument, match="mars-north1"):
        client.create_custom_job(parent=f"projects/{google_apis.PROJECT}/locations/mars-north1", custom_job=job(pool("")))
    far = aiplatform_v1.JobServiceClient(client_options={"api_endpoint": "mars-north1-aiplatform.googleapis.com"})
    with pytest.raises(exceptions.ServiceUnavailable):
        far.get_custom_job(name=f"{PARENT}/customJobs/1", retry=None, timeout=20)
    assert "mars-north1-aiplatform.googleapis.com:443" in google.refused
    with pytest.raises(exceptions.MethodNotImplemented, match="CreateNasJob"):
        client.create_nas_job(parent=PARENT, nas_job={"display_name": "x"})


def test_faults_on_demand(vertex, client):
    vertex.answer(429, "CreateCustomJob", times=1)
    with pytest.raises(exceptions.ResourceExhausted):
        create(client, pool(""))
    vertex.answer(503, lambda method, request: method == "CreateCustomJob", times=1, late=True)
    with pytest.raises(exceptions.ServiceUnavailable):
        create(client, pool("print('ran')"))
    seen = []
    vertex.before("ListCustomJobs", lambda: seen.append("before"))
    jobs = list(client.list_custom_jobs(parent=PARENT))
    # The answer was lost, the work was done.
    assert len(jobs) == 1 and seen == ["before"]
    with vertex.slow("DeleteCustomJob"):
        vertex.settle()
        operation = client.delete_custom_job(name=jobs[0].name)
        assert not operation.done()
        assert client.get_custom_job(name=jobs[0].name)
    operation.result(timeout=20)
    with pytest.raises(exceptions.NotFound):
        client.get_custom_job(name=jobs[0].name)
