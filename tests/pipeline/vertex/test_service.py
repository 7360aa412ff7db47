"""Starting and scheduling runs: what Google's clients send, and what people are told when Google refuses."""

import datetime
import json

import grpc
import pytest
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import PipelineError, SettingsError
from pipeline.vertex import service, status
from tests.pipeline.vertex.answers import Refused
from tests.pipeline.vertex.conftest import IMAGE, filled, loaded

PARENT = "projects/acme-products/locations/europe-west4"

NOW = datetime.datetime(2026, 3, 2, 20, 0, 5, tzinfo=datetime.timezone.utc)


def named(name: str, **fields):
    """Gives a resource back as Vertex does: with a name."""
    return lambda request: type(getattr(request, name))(getattr(request, name), name=f"{PARENT}/{name}s/77", **fields)


@pytest.fixture
def compiled(job_file):
    def compiled(name="weekly"):
        return service.read_compiled(job_file(name), loaded())

    return compiled


def test_a_compiled_pipeline_is_known_by_its_content(compiled):
    weekly, monthly = compiled("weekly"), compiled("monthly")
    assert (weekly.name, weekly.image, weekly.tunes) == ("product-photographs", IMAGE, False)
    assert weekly.root == "gs://acme-retrain/retrain/artifacts" and monthly.tunes


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pipelineSpec": 7}', "[" * 100_000])
def test_what_is_no_compiled_pipeline_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(PipelineError, match="x.json is no compiled pipeline of this project .*compile` writes one"):
        service.read_compiled(str(tmp_path / "x.json"), loaded())
    with pytest.raises(PipelineError, match="cannot read the compiled pipeline .*nowhere.json"):
        service.read_compiled(str(tmp_path / "nowhere.json"), loaded())


def test_a_pipeline_of_other_settings_is_refused(job_file):
    with pytest.raises(PipelineError, match="compiled with other settings: vertex differ"):
        service.read_compiled(job_file(), loaded(window_hours=10.0))


def test_an_image_by_tag_never_starts(job_file, compiled_jobs, tmp_path):
    path = tmp_path / "tag.json"
    path.write_text(json.dumps(compiled_jobs["weekly"]).replace(IMAGE, "eu.pkg.dev/p/retrain:latest"))
    with pytest.raises(SettingsError, match="names no digest"):
        service.read_compiled(str(path), loaded())


def test_a_run_gets_every_parameter_its_labels_and_its_id(there, vertex, compiled):
    vertex.answers["CreatePipelineJob"] = named("pipeline_job")
    run_id = service.job_id("product-photographs", "2026-03-02", NOW)
    job = service.pipeline_job(compiled(), loaded().vertex, "2026-03-02", '{"rules": []}', "2026-03-03T06:00:00+01:00")
    assert service.submit(there(), job, run_id).name == f"{PARENT}/pipeline_jobs/77"
    (request,) = vertex.requests("CreatePipelineJob")
    assert (request.parent, request.pipeline_job_id) == (PARENT, "product-photographs-20260302-20260302t200005z")
    sent = request.pipeline_job
    assert dict(sent.runtime_config.parameter_values) == {
        "snapshot_date": "2026-03-02", "override": '{"rules": []}', "window_end": "2026-03-03T06:00:00+01:00",
    }  # fmt: skip
    labels = dict(sent.labels)
    assert labels.items() >= {"team": "retail", "pipeline": "product-photographs", "snapshot": "2026-03-02"}.items()
    assert sent.runtime_config.gcs_output_directory == "gs://acme-retrain/retrain/artifacts"
    assert sent.runtime_config.failure_policy.name.endswith("FAIL_FAST")
    assert sent.service_account == "retrain@acme-products.iam.gserviceaccount.com"
    assert sent.pipeline_spec["pipelineInfo"]["name"] == "product-photographs"


@pytest.mark.parametrize(
    ("name", "cron"), [("weekly", "TZ=Europe/Berlin 0 20 * * 1"), ("monthly", "TZ=Europe/Berlin 0 20 1 * *")]
)
def test_a_new_schedule_runs_one_at_a_time_and_never_catches_up(there, vertex, compiled, name, cron):
    vertex.answers["ListSchedules"] = lambda request: v1.ListSchedulesResponse()
    vertex.answers["CreateSchedule"] = named("schedule")
    place = there()
    _, new = service.put_schedule(place, service.schedule_of(compiled(name), place))
    (request,) = vertex.requests("CreateSchedule")
    sent = request.schedule
    assert new and (request.parent, sent.display_name, sent.cron) == (PARENT, f"product-photographs-{name}", cron)
    assert (sent.max_concurrent_run_count, sent.max_concurrent_active_run_count) == (1, 1)
    assert not sent.catch_up and not sent.allow_queueing
    run = sent.create_pipeline_job_request
    assert run.parent == PARENT and not run.pipeline_job_id  # each run gets one from Vertex
    assert dict(run.pipeline_job.runtime_config.parameter_values) == {
        "snapshot_date": "scheduled", "override": "", "window_end": "",
    }  # fmt: skip
    assert run.pipeline_job.labels["snapshot"] == "scheduled"


def test_a_schedule_that_is_there_is_brought_up_to_date(there, vertex, compiled):
    old = v1.Schedule(name=f"{PARENT}/schedules/5", display_name="product-photographs-weekly", cron="TZ=UTC 0 1 * * 1")
    vertex.answers["ListSchedules"] = lambda request: v1.ListSchedulesResponse(schedules=[old])
    vertex.answers["UpdateSchedule"] = lambda request: request.schedule
    place = there()
    schedule, new = service.put_schedule(place, service.schedule_of(compiled(), place))
    (request,) = vertex.requests("UpdateSchedule")
    assert not new and schedule.name == f"{PARENT}/schedules/5" and not vertex.requests("CreateSchedule")
    assert {"cron", "create_pipeline_job_request"} <= set(request.update_mask.paths)
    assert vertex.requests("ListSchedules")[0].filter == 'display_name="product-photographs-weekly"'


def test_two_schedules_of_one_name_are_a_persons_to_mend(there, vertex, compiled):
    two = [v1.Schedule(name=f"{PARENT}/schedules/{number}") for number in (5, 6)]
    vertex.answers["ListSchedules"] = lambda request: v1.ListSchedulesResponse(schedules=two)
    place = there()
    with pytest.raises(PipelineError, match="2 schedules 'product-photographs-weekly'.*schedules/5, .*schedules/6"):
        service.put_schedule(place, service.schedule_of(compiled(), place))


def test_a_time_zone_or_a_month_that_is_not_there_is_refused(there, compiled):
    with pytest.raises(SettingsError, match="there is no time zone 'Europe/Atlantis'"):
        service.schedule_of(compiled(), there(schedule__time_zone="Europe/Atlantis"))
    with pytest.raises(SettingsError, match="monthly is empty"):
        service.schedule_of(compiled("monthly"), there(schedule__monthly=""))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("PERMISSION_DENIED", "refuses (project acme-products, region europe-west4): Google's reason. Whoever starts runs needs roles/"),
        ("NOT_FOUND", "finds nothing there (project acme-products, region europe-west4): Google's reason. See vertex.project"),
        ("UNAUTHENTICATED", "no credentials for Vertex AI (Google's reason): `gcloud auth"),
        ("RESOURCE_EXHAUSTED", "a quota of Vertex AI is exhausted"),
        ("INVALID_ARGUMENT", "Vertex AI failed (project acme-products, region europe-west4): Google's reason"),
        ("ALREADY_EXISTS", "there is a run run-1 already"),
        ("UNAVAILABLE", "cannot be reached at europe-west4-aiplatform.googleapis.com (Google's reason): see vertex.region"),
    ],
)
def test_what_google_refuses_is_one_line_that_says_what_to_do(there, vertex, compiled, code, words):
    def refuse(request):
        raise Refused(grpc.StatusCode[code], "Google's\nreason")

    vertex.answers["CreatePipelineJob"] = refuse
    with pytest.raises(PipelineError) as raised:
        service.submit(there(), service.pipeline_job(compiled(), loaded().vertex, "2026-03-02"), "run-1")
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_listing_and_scheduling_refuse_as_clearly(there, vertex, compiled):
    def refuse(request):
        raise Refused(grpc.StatusCode.PERMISSION_DENIED, "no")

    vertex.answers["ListSchedules"] = refuse
    place = there()
    with pytest.raises(PipelineError, match="Vertex AI refuses"):
        status.read(place, "product-photographs", 2)
    with pytest.raises(PipelineError, match="Vertex AI refuses"):
        service.put_schedule(place, service.schedule_of(compiled(), place))


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


def test_without_credentials_it_says_how_to_get_them(no_credentials):
    with pytest.raises(PipelineError, match="no credentials for Vertex AI .*gcloud auth application-default login"):
        service.connect(loaded().vertex)


def test_credentials_that_ran_out_while_asking_are_told_too():
    told = str(service.refusal(auth.RefreshError("invalid_grant: Bad Request"), loaded().vertex))
    assert told.startswith("no credentials for Vertex AI (invalid_grant: Bad Request)")


def test_the_blanks_of_productions_settings_are_all_that_is_to_be_filled_in():
    assert "your-" not in json.dumps(filled())
