"""The step that trains in a custom job: what it asks of Vertex, spot first, and how it ends."""

import json
import signal

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1
from google.protobuf import empty_pb2
from tfx.types import artifact_utils, standard_artifacts

from pipeline import typed
from pipeline.artifacts import RunManifest
from pipeline.components import facts
from pipeline.errors import PipelineError
from pipeline.vertex import launch, trainer
from tests.pipeline.vertex.answers import Refused
from tests.pipeline.vertex.conftest import IMAGE, loaded

NAME = "projects/1/locations/europe-west4/customJobs/{}"

REDUCTION = f"us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver@sha256:{'b' * 64}"


@pytest.fixture
def step(vertex, monkeypatch):
    """Runs the step while Vertex's jobs go through the states given; the last one stays."""
    monkeypatch.setattr(launch, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(launch.JobClient, "create_client", lambda self: setattr(self, "_client", vertex.jobs))
    made: list[list] = []

    def run(*lives: list | Refused, **changes) -> list[v1.CustomJob]:
        lives = list(lives)

        def create(request):
            life = lives.pop(0)
            if isinstance(life, Refused):
                raise life
            made.append(list(life))
            return v1.CustomJob(request.custom_job, name=NAME.format(len(made)))

        def get(request):
            states = made[int(request.name.rpartition("/")[2]) - 1]
            state, *error = states.pop(0) if len(states) > 1 else states[0]
            code, message = error or (0, "")
            return v1.CustomJob(name=request.name, state=f"JOB_STATE_{state}", error={"code": code, "message": message})

        def cancel(request):
            made[int(request.name.rpartition("/")[2]) - 1][:] = [("CANCELLED",)]
            return empty_pb2.Empty()

        vertex.answers |= {"CreateCustomJob": create, "GetCustomJob": get, "CancelCustomJob": cancel}
        trainer.Executor().Do(*task(**changes))
        return [request.custom_job for request in vertex.requests("CreateCustomJob")]

    return run


def task(workers=4, **changes):
    settings = loaded(**changes).vertex
    manifest, examples, schema = RunManifest(), standard_artifacts.Examples(), standard_artifacts.Schema()
    facts.record(manifest, {"run_id": "run-1", "snapshot_date": "2026-03-02", "window_end": 1772524800.0})
    model, model_run = standard_artifacts.Model(), standard_artifacts.ModelRun()
    for artifact in (manifest, examples, schema, model, model_run):
        artifact.uri = f"gs://acme-retrain/{type(artifact).__name__}"
    custom = {
        "checkpoints": "gs://acme-retrain/checkpoints",
        "vertex": {"settings": typed.to_dict(settings), "pipeline": "product-photographs", "image": IMAGE, "workers": workers},
    }
    parameters = {"run_fn": "models.training.run_fn", "train_args": "{}", "eval_args": "{}", "custom_config": json.dumps(custom)}
    inputs = {"examples": [examples], "schema": [schema], "manifest": [manifest]}
    return inputs, {"model": [model], "model_run": [model_run]}, parameters


def test_a_job_that_succeeds_ends_the_step(step):
    (job,) = step([("QUEUED",), ("PENDING",), ("RUNNING",), ("SUCCEEDED",)], training__reduction_server={"image": REDUCTION})
    assert job.display_name == "product-photographs-train-run-1" and job.job_spec.scheduling.strategy.name == "SPOT"
    assert dict(job.labels) == {"team": "retail", "pipeline": "product-photographs", "snapshot": "2026-03-02"}
    assert job.job_spec.base_output_directory.output_uri_prefix == "gs://acme-retrain/ModelRun"
    chief, workers, servers = job.job_spec.worker_pool_specs
    assert workers.replica_count == 3 and servers.container_spec.image_uri == REDUCTION
    assert not servers.container_spec.command  # TFX's extension would start the training there

    command = list(chief.container_spec.command)
    assert command == list(workers.container_spec.command) and command[:3] == ["python", "-m", "tfx.scripts.run_executor"]
    given = dict(zip(command[3::2], command[4::2], strict=True))
    # Not this step's own executor, which would start a job that starts a job.
    assert given["--executor_class_path"] == "tfx.components.trainer.executor.GenericExecutor"
    custom = json.loads(json.loads(given["--exec-properties"])["custom_config"])
    assert custom == {"checkpoints": "gs://acme-retrain/checkpoints", "window_end": 1772524800.0}
    inputs = artifact_utils.parse_artifact_dict(given["--inputs"])
    assert inputs["examples"][0].uri == "gs://acme-retrain/Examples"


@pytest.mark.parametrize(
    "end",
    [
        ("FAILED", 8, "Resources are insufficient in region"),
        ("FAILED", 14, "the machine was preempted"),
        ("EXPIRED",),
    ],
)
def test_without_spot_machines_it_trains_on_demand(step, end):
    first, second = step([("PENDING",), end], [("RUNNING",), ("SUCCEEDED",)])
    assert [job.job_spec.scheduling.strategy.name for job in (first, second)] == ["SPOT", "STANDARD"]
    assert first.job_spec.worker_pool_specs == second.job_spec.worker_pool_specs


def test_spot_machines_are_waited_for_no_longer_than_the_settings_say(step, vertex, monkeypatch):
    clock = iter(range(0, 100_000, 600))
    monkeypatch.setattr(launch.time, "monotonic", lambda: next(clock))
    jobs = step([("PENDING",)], [("SUCCEEDED",)], training__spot_wait_minutes=30.0)
    assert len(jobs) == 2 and len(vertex.requests("CancelCustomJob")) == 1
    assert 3 <= sum(request.name == NAME.format(1) for request in vertex.requests("GetCustomJob")) <= 6


@pytest.mark.parametrize(
    ("lives", "changes", "words"),
    [
        ([[("FAILED", 3, "The replica workerpool0-0 exited with a non-zero status of 1.")]], {}, "ended as failed: The replica"),
        ([[("CANCELLED",)]], {}, "ended as cancelled: Vertex gave no reason"),  # by a person
        ([[("EXPIRED",)]], {"training__spot": False}, "ended as expired"),
        ([[("FAILED", 8, "no spot")], [("FAILED", 8, "no machines at all")]], {}, "ended as failed: no machines at all"),
    ],
)
def test_a_job_that_does_not_succeed_fails_the_step_and_is_named(step, vertex, lives, changes, words):
    with pytest.raises(PipelineError) as raised:
        step(*lives, **changes)
    assert words in str(raised.value) and NAME.format(len(lives)) in str(raised.value)
    assert len(vertex.requests("CreateCustomJob")) == len(lives)


def test_a_job_that_may_not_be_started_is_told_in_one_line(step):
    denied = Refused(grpc.StatusCode.PERMISSION_DENIED, "aiplatform.customJobs.create denied")
    with pytest.raises(PipelineError, match="Vertex AI refuses .*customJobs.create denied. Whoever starts runs needs"):
        step(denied)


@pytest.fixture
def heard():
    """SIGINT interrupts, as it does in a terminal: a shell starts what runs in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_step_that_is_ended_takes_its_job_along(step, vertex, monkeypatch, number, raised):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(launch.time, "sleep", lambda seconds: signal.raise_signal(number))
    with pytest.raises(raised):
        step([("RUNNING",)])
    assert [request.name for request in vertex.requests("CancelCustomJob")] == [NAME.format(1)]
    assert signal.getsignal(signal.SIGTERM) == before
