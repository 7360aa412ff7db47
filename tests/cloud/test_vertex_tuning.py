"""The Tuner step on the fake Vertex AI: a study of its Vizier, real replicas in a custom job, one of them lost."""

import json
import os
import pathlib
import threading
import time

import pytest
from google.cloud import aiplatform_v1 as v1

from models.config import TUNED
from pipeline import typed
from pipeline.components import facts
from pipeline.settings import Settings
from pipeline.tuning import results
from pipeline.vertex import launch, tuner
from tests.cloud import google_apis
from tests.cloud.vertex.server import IMAGE
from tests.models.conftest import make_week
from tests.pipeline.components.tuner_step import Step
from tests.pipeline.vertex.conftest import filled

REGION = "europe-west4"
ENDPOINT = {"api_endpoint": f"{REGION}-aiplatform.googleapis.com"}
PARENT = f"projects/{google_apis.PROJECT}/locations/{REGION}"


@pytest.fixture
def step(tmp_path):
    week = make_week(tmp_path / "week", shards=3)
    step = Step(week, tmp_path, tuning={"trials": 3, "parallel": 2, "epochs": 2, "batch_size": [8]})
    settings = typed.from_dict(Settings, filled(), "test").vertex
    step.custom["platform"] = {"vertex": {"settings": typed.to_dict(settings), "image": IMAGE}}
    return step


def studied(client: v1.VizierServiceClient) -> list[v1.Trial]:
    """The trials of the only study, none before there is one."""
    return [trial for study in client.list_studies(parent=PARENT) for trial in client.list_trials(parent=study.name)]


def wait_for(condition, seconds=300.0):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.1)
    return found


@pytest.mark.usefixtures("vizier_environment")
def test_a_study_ends_with_its_budget_although_a_replica_is_lost(vertex, step, monkeypatch):
    monkeypatch.setattr(launch, "_POLL_SECONDS", 0.2)
    # What passes within a night: a call that fails, and answers that are lost after the work is done.
    vertex.answer(500, "AddTrialMeasurement", times=1)
    vertex.answer(503, "SuggestTrials", times=1, late=True)
    vertex.answer(503, "CompleteTrial", times=1, late=True)
    vizier = v1.VizierServiceClient(client_options=ENDPOINT)
    ended: list[BaseException | None] = []

    def do():
        try:
            step.do(tuner.Executor)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    searching = threading.Thread(target=do, daemon=True)
    searching.start()
    lost = wait_for(lambda: ended or [each for each in studied(vizier) if each.client_id == "workerpool1-0"])[0]
    assert not isinstance(lost, BaseException), lost
    (job,) = v1.JobServiceClient(client_options=ENDPOINT).list_custom_jobs(parent=PARENT)
    vertex.jobs.lose(job.name, 1, 0)
    searching.join(300)
    assert ended == [None], vertex.jobs.log(job.name)[-3000:] + vertex.jobs.log(job.name, 1)[-3000:]

    study = results.read(step.found.uri)
    assert [one.number for one in study.trials] == [1, 2, 3] and {one.state for one in study.trials} == {"SUCCEEDED"}
    assert {one.client_id for one in study.trials} <= {"workerpool0-0", "workerpool1-0"}
    again = next(one for one in study.trials if one.number == int(lost.id))
    assert (again.client_id, dict(again.values)) == (
        "workerpool1-0", {each.parameter_id: each.value for each in lost.parameters},
    )  # fmt: skip
    for one in study.trials:
        assert [epoch for epoch, _ in one.curve] == [1, 2] and one.value == dict(one.curve)[one.step]
    assert study.name.startswith(f"projects/{google_apis.PROJECT_NUMBER}/locations/{REGION}/studies/")
    assert set(step.written()["values"]) == set(TUNED) and facts.text(step.best, "reason") == "a month is over"
    assert "tuning.html" in os.listdir(step.places.reports("run-1"))
    (record,) = pathlib.Path(step.places.study_records).glob("*.json")
    assert json.loads(record.read_text())["endpoint"] == ENDPOINT["api_endpoint"]

    assert job.labels["study"] == study.display_name[-16:] and job.display_name == "photographs-tune-run-1"
    assert [(pool.machine_spec.accelerator_type.name, pool.replica_count) for pool in job.job_spec.worker_pool_specs] == [
        ("NVIDIA_L4", 1), ("NVIDIA_L4", 1),
    ]  # fmt: skip
    # A study that is complete costs nothing more.
    step.do(tuner.Executor)
    assert len(vertex.called("CreateCustomJob")) == 1 and results.read(step.found.uri) == study

    # And where somebody named an end of the window that leaves no time, a study that is not begun.
    step.custom["training"]["seed"] = 7
    facts.record(step.inputs["manifest"][0], {"window_end": time.time() + 60})
    step.do(tuner.Executor)
    assert len(vertex.called("CreateCustomJob")) == 1 and results.read(step.found.uri).trials == ()
    assert facts.number(step.best, "tune") == 0 and "the window left time for 0 of 3 trials" in facts.text(step.best, "warning")
