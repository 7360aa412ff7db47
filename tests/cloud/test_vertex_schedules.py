"""Schedules on the fake Vertex AI, by Google's own clients: cron, time zones, limits, pause and resume, the fake's clock."""

import datetime
import json

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform, aiplatform_v1

from tests.cloud import google_apis
from tests.cloud.small_pipelines import spec, task
from tests.cloud.vertex import clock, names
from tests.cloud.vertex.cron import Cron
from tests.cloud.vertex.names import ENDPOINT, PARENT
from tests.cloud.vertex.refusals import Refused

WEEKLY = "TZ=Europe/Berlin 0 20 * * 1"


def utc(*numbers: int) -> datetime.datetime:
    return datetime.datetime(*numbers, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("text", "after", "due"),
    [
        ("TZ=Europe/Berlin 0 20 * * 1", utc(2026, 3, 1), utc(2026, 3, 2, 19)),
        ("TZ=Europe/Berlin 0 20 * * 1", utc(2026, 3, 2, 19), utc(2026, 3, 9, 19)),
        # Summer time begins on 29 March, and the 30th is an hour earlier in UTC.
        ("CRON_TZ=Europe/Berlin 0 20 * * MON", utc(2026, 3, 24), utc(2026, 3, 30, 18)),
        ("TZ=Europe/Berlin 30 2 * * *", utc(2026, 3, 28, 12), utc(2026, 3, 29, 1, 30)),
        ("0 3 1 * *", utc(2026, 3, 1, 12), utc(2026, 4, 1, 3)),
        ("0 3 1 * 1", utc(2026, 3, 1, 12), utc(2026, 3, 2, 3)),
        ("*/20 8-9 * jan-mar 1-5", utc(2026, 3, 2, 8, 20), utc(2026, 3, 2, 8, 40)),
        ("5/30 0 29 2 *", utc(2026, 3, 1), utc(2028, 2, 29, 0, 5)),
        ("0 0 * * 7", utc(2026, 3, 2), utc(2026, 3, 8)),
    ],
)
def test_cron(text, after, due):
    assert Cron(text).after(after) == due


@pytest.mark.parametrize(
    "text", ["0 20 * *", "60 * * * *", "x * * * *", "TZ=Berlin 0 20 * * 1", "*/0 * * * *", "5-1 * * * *", ""]
)
def test_what_is_no_cron_expression(text):
    with pytest.raises(Refused, match="cron"):
        Cron(text)
    with pytest.raises(Refused, match="no such day"):
        Cron("0 0 30 2 *").after(utc(2026, 3, 1))


@pytest.fixture
def client(vertex):
    return aiplatform_v1.ScheduleServiceClient(client_options=ENDPOINT)


@pytest.fixture
def create(client, google):
    """Creates a schedule of a pipeline with one task."""

    def create(script: str = "print(parameters)", cron: str = WEEKLY, parameters=None, labels=None, **fields):
        google.bucket("runs")
        given = {"due": "{{$.pipeline_job_schedule_time_utc}}", "limit": {"root": "limit"}}
        train = task(script, parameters=given, cache=True)
        pipeline = spec("weekly", {"Train": train}, {"limit": {"parameterType": "STRING"}})
        job = {
            "pipeline_spec": pipeline, "labels": labels or {},
            "runtime_config": {"gcs_output_directory": "gs://runs/root", "parameter_values": parameters or {"limit": "1"}},
        }  # fmt: skip
        schedule = {
            "display_name": "weekly", "cron": cron, "max_concurrent_run_count": 1, "max_concurrent_active_run_count": 1,
            "create_pipeline_job_request": {"parent": PARENT, "pipeline_job": job}, **fields,
        }  # fmt: skip
        return client.create_schedule(parent=PARENT, schedule=schedule)

    return create


def ids(vertex) -> list[str]:
    return [names.last(job.name) for job in vertex.pipelines.jobs()]


def test_a_weekly_schedule_starts_one_run_a_week_with_its_own_time(vertex, client, create):
    schedule = create(labels={"team": "retrain"})
    assert schedule.name.startswith(f"projects/{names.NUMBER}/") and schedule.state.name == "ACTIVE"
    assert schedule.next_run_time == utc(2026, 3, 2, 19) and not schedule.catch_up
    vertex.advance(utc(2026, 3, 17))
    assert ids(vertex) == ["weekly-20260302190000", "weekly-20260309190000", "weekly-20260316190000"]
    first = vertex.pipelines.jobs()[0]
    assert first.schedule_name == schedule.name and first.labels == {"team": "retrain"}
    assert first.create_time >= utc(2026, 3, 2, 19) and first.end_time < utc(2026, 3, 2, 19, 1)
    assert first.state.name == "PIPELINE_STATE_SUCCEEDED"
    # The schedule's time is in a parameter, so that no week is served from the cache of another.
    assert "'due': '2026-03-09T19:00:00Z'" in vertex.pipelines.log("weekly-20260309190000", "Train")
    schedule = client.get_schedule(name=schedule.name)
    assert schedule.started_run_count == 3 and schedule.next_run_time == utc(2026, 3, 23, 19)
    assert schedule.last_scheduled_run_response.run_response == "OK"


WAIT = "import time\nprint('up', flush=True)\nwhile not os.path.exists('../../go'): time.sleep(0.01)"


@pytest.mark.parametrize("queue", [False, True])
def test_a_run_that_is_still_active_keeps_the_next_one_out(vertex, client, create, queue):
    schedule = create(WAIT, allow_queueing=queue)
    vertex.advance(utc(2026, 3, 10), settle=False)
    assert ids(vertex) == ["weekly-20260302190000"]
    (vertex.state.folder / "pipelineJobs").mkdir(parents=True, exist_ok=True)
    (vertex.state.folder / "pipelineJobs" / "go").touch()
    vertex.settle()
    assert ids(vertex) == ["weekly-20260302190000"] + ["weekly-20260309190000"] * queue
    vertex.advance(utc(2026, 3, 17))
    assert ids(vertex)[-1] == "weekly-20260316190000"
    assert client.get_schedule(name=schedule.name).started_run_count == 2 + queue


@pytest.mark.parametrize("catch_up", [False, True])
def test_what_a_pause_left_out_is_caught_up_only_if_asked(vertex, client, create, catch_up):
    schedule = create()
    client.pause_schedule(name=schedule.name)
    with pytest.raises(exceptions.FailedPrecondition):
        client.pause_schedule(name=schedule.name)
    vertex.advance(utc(2026, 3, 10))
    assert ids(vertex) == []
    client.resume_schedule(name=schedule.name, catch_up=catch_up)
    vertex.settle()
    assert ids(vertex) == ["weekly-20260302190000", "weekly-20260309190000"] * catch_up
    vertex.advance(utc(2026, 3, 17))
    assert ids(vertex)[-1] == "weekly-20260316190000"
    resumed = client.get_schedule(name=schedule.name)
    assert resumed.last_resume_time > resumed.last_pause_time and resumed.catch_up == catch_up


def test_a_schedule_is_completed_by_its_end_or_its_number_of_runs(vertex, client, create):
    ended = create(start_time=utc(2026, 3, 5), end_time=utc(2026, 3, 20))
    counted = create(cron="0 4 * * *", max_run_count=2)
    vertex.advance(utc(2026, 4, 1))
    assert [name for name in ids(vertex) if name.endswith("190000")] == ["weekly-20260309190000", "weekly-20260316190000"]
    assert [name for name in ids(vertex) if name.endswith("040000")] == ["weekly-20260302040000", "weekly-20260303040000"]
    for schedule in (ended, counted):
        assert client.get_schedule(name=schedule.name).state.name == "COMPLETED"
        with pytest.raises(exceptions.FailedPrecondition):
            client.resume_schedule(name=schedule.name)


def test_the_high_level_client_creates_changes_and_deletes(vertex, google, client, tmp_path):
    google.bucket("runs")
    path = tmp_path / "weekly.json"
    path.write_text(json.dumps(spec("weekly", {"Train": task()})))
    aiplatform.init(project=google_apis.PROJECT, location="us-central1")
    job = aiplatform.PipelineJob("weekly", str(path), pipeline_root="gs://runs/root")
    schedule = job.create_schedule(
        cron=WEEKLY, display_name="weekly", max_concurrent_run_count=1, max_concurrent_active_run_count=1,
        service_account="retrain@acme-products.iam.gserviceaccount.com",
    )  # fmt: skip
    schedule.update(cron="TZ=Europe/Berlin 0 6 * * 2")
    vertex.advance(utc(2026, 3, 8))
    assert ids(vertex) == ["weekly-20260303050000"]
    assert [each.display_name for each in aiplatform.PipelineJobSchedule.list(filter='display_name="weekly"')] == ["weekly"]
    assert [each.name for each in schedule.list_jobs()] == ["weekly-20260303050000"]
    schedule.pause()
    assert schedule.state.name == "PAUSED"
    schedule.delete()
    vertex.advance(utc(2026, 4, 1))
    assert len(ids(vertex)) == 1


def test_what_vertex_would_refuse_is_refused_at_once(client, create):
    for fields, message in (
        ({"cron": "every Monday"}, "cron"),
        ({"max_concurrent_run_count": 0}, "max_concurrent_run_count"),
        ({"display_name": ""}, "display_name"),
        ({"parameters": {"unknown": "1"}}, "unknown"),
        ({"create_pipeline_job_request": {"parent": PARENT.replace("us-central1", "europe-west4")}}, "parent"),
    ):
        with pytest.raises(exceptions.InvalidArgument, match=message):
            create(**fields)
    assert list(client.list_schedules(parent=PARENT)) == []


def test_the_clock_moves_forward_alone(vertex):
    assert clock.START < vertex.now < vertex.now
    with pytest.raises(ValueError, match="already"):
        vertex.advance(clock.START)
    with pytest.raises(ValueError, match="time zone"):
        vertex.advance(datetime.datetime(2027, 1, 1))
