"""Starts compiled pipelines on Vertex AI, once or on schedules. No TensorFlow, no TFX.

Google's client and application default credentials. What Google refuses is told in one line that names the remedy.
"""

import dataclasses
import datetime
import json
import zoneinfo
from collections.abc import Mapping

from google.api_core import exceptions
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline import storage
from pipeline.errors import PipelineError, SettingsError
from pipeline.settings import Settings
from pipeline.start import SCHEDULED
from pipeline.vertex import images, jobs
from pipeline.vertex.settings import VertexSettings

PARAMETERS = ("snapshot_date", "override", "window_end")
"""What a run is given. The compiler drops defaults, so each is always passed."""

_TIMEOUT = 60.0

_ROLES = "roles/aiplatform.user on the project, and roles/iam.serviceAccountUser on vertex.service_account"


@dataclasses.dataclass(frozen=True)
class Service:
    """Vertex AI of one project and region.

    Attributes:
        settings: Vertex's settings.
        pipelines: Google's client of pipeline jobs.
        schedules: Google's client of schedules.
    """

    settings: VertexSettings
    pipelines: v1.PipelineServiceClient
    schedules: v1.ScheduleServiceClient

    @property
    def parent(self) -> str:
        """Where everything lives, as Vertex names it."""
        return f"projects/{self.settings.project}/locations/{self.settings.region}"


def endpoint_of(region: str) -> str:
    """Address of Vertex AI in a region."""
    return f"{region}-aiplatform.googleapis.com"


def connect(settings: VertexSettings) -> Service:
    """Google's clients for the project and region of the settings.

    Raises:
        PipelineError: There are no credentials.
    """
    options = {"api_endpoint": endpoint_of(settings.region)}
    try:
        return Service(
            settings,
            v1.PipelineServiceClient(client_options=options),
            v1.ScheduleServiceClient(client_options=options),
        )
    except auth.GoogleAuthError as error:
        raise refusal(error, settings) from error


def refusal(error: Exception, settings: VertexSettings) -> PipelineError:
    """What Google said, in one line, with what to do about it.

    Args:
        error: An exception of Google's clients.
        settings: Vertex's settings, which it may be about.
    """
    where = f"project {settings.project}, region {settings.region}"
    said = " ".join(str(getattr(error, "message", None) or error).split())[:400]
    if isinstance(error, (auth.GoogleAuthError, exceptions.Unauthenticated)):
        return PipelineError(
            f"no credentials for Vertex AI ({said}): `gcloud auth application-default login` makes some, or "
            "GOOGLE_APPLICATION_CREDENTIALS names a key file"
        )
    if isinstance(error, exceptions.PermissionDenied):
        return PipelineError(f"Vertex AI refuses ({where}): {said}. Whoever starts runs needs {_ROLES}")
    if isinstance(error, exceptions.NotFound):
        return PipelineError(f"Vertex AI finds nothing there ({where}): {said}. See vertex.project and vertex.region")
    if isinstance(error, exceptions.ResourceExhausted):
        return PipelineError(f"a quota of Vertex AI is exhausted ({where}): {said}. Ask for more, or wait for what runs to end")
    if isinstance(error, (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.RetryError)):
        return PipelineError(
            f"Vertex AI cannot be reached at {endpoint_of(settings.region)} ({said}): see vertex.region and the network"
        )
    return PipelineError(f"Vertex AI failed ({where}): {said}")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled pipeline, as `kubeflow_runner.py compile` wrote it.

    Attributes:
        content: The pipeline job.
        name: Name of the pipeline.
        image: The image of its steps, by digest.
        root: Folder of its artifacts.
        tunes: Whether it searches for hyperparameters.
    """

    content: Mapping
    name: str
    image: str
    root: str
    tunes: bool


def steps_of(content: Mapping) -> Mapping:
    """The tasks of a compiled pipeline by name; with an exit handler they lie in a DAG within the root's.

    Args:
        content: The pipeline job.
    """
    spec = content["pipelineSpec"]
    inner = spec["components"].get("tfx-dag")
    return (inner or spec["root"])["dag"]["tasks"]


def read_compiled(uri: str, settings: Settings) -> Compiled:
    """Reads a compiled pipeline and checks that it is one of these settings.

    Args:
        uri: The file, here or in Cloud Storage.
        settings: The settings that it must have been compiled with.

    Raises:
        PipelineError: It is not there, is no compiled pipeline, or is of other settings; the text names what differs.
    """
    remedy = "`kubeflow_runner.py compile` writes one"
    try:
        content = json.loads(storage.read(uri))
        spec = content["pipelineSpec"]
        name, root = spec["pipelineInfo"]["name"], content["runtimeConfig"]["gcsOutputDirectory"]
        parameters = spec["root"]["inputDefinitions"]["parameters"]
        tasks = steps_of(content)
        executors = spec["deploymentSpec"]["executors"].values()
        found = sorted({executor["container"]["image"] for executor in executors if "container" in executor})
        tunes = tasks["TuningDecision"]["inputs"]["parameters"]["asked"]["runtimeValue"]["constant"] == 1
        given = json.loads(tasks["RunManifest"]["inputs"]["parameters"]["settings"]["runtimeValue"]["constant"])
        json_format.ParseDict(content, v1.PipelineJob.pb(v1.PipelineJob()))
    except OSError as error:
        raise PipelineError(f"cannot read the compiled pipeline {uri}: {error.strerror or error}; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, json_format.ParseError) as error:
        raise PipelineError(f"{uri} is no compiled pipeline of this project ({error}); {remedy}") from error
    if sorted(parameters) != sorted(PARAMETERS) or len(found) != 1:
        raise PipelineError(
            f"{uri} was compiled by another version of this project: it takes {', '.join(sorted(parameters))} and has "
            f"{len(found)} images; {remedy}"
        )
    images.require_digest(found[0])
    now = json.loads(json.dumps(dataclasses.asdict(settings)))
    # The backbone is a path of the image there.
    for side in (given, now):
        side.get("training", {}).pop("backbone", None)
    differs = sorted(field for field in now if now[field] != given.get(field))
    if differs:
        raise PipelineError(
            f"{uri} was compiled with other settings: {', '.join(differs)} differ. Compile it again, or name its settings"
        )
    return Compiled(content, name, found[0], root, tunes)


def pipeline_job(
    compiled: Compiled, settings: VertexSettings, snapshot_date: str, override: str = "", window_end: str = ""
) -> v1.PipelineJob:
    """A run of a compiled pipeline, with every parameter passed.

    Args:
        compiled: The pipeline.
        settings: Vertex's settings.
        snapshot_date: YYYY-MM-DD, or `SCHEDULED`.
        override: JSON of an `Override`; '' for none.
        window_end: Instant, ISO 8601; '' for `window_hours` after the start.
    """
    job = v1.PipelineJob()
    json_format.ParseDict(dict(compiled.content), v1.PipelineJob.pb(job))
    job.display_name = f"{compiled.name}{'-tune' if compiled.tunes else ''}-{snapshot_date}"
    job.labels = {**dict(job.labels), **jobs.labels_of(settings, compiled.name, snapshot_date)}
    values = {"snapshot_date": snapshot_date, "override": override, "window_end": window_end}
    job.runtime_config.parameter_values = values
    # One step that failed ends the run: what does not depend on it would only cost.
    job.runtime_config.failure_policy = v1.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST
    job.service_account, job.network = settings.service_account, settings.network
    return job


def job_id(name: str, snapshot_date: str, now: datetime.datetime) -> str:
    """An id that sorts by snapshot and by start, and is the run's: `product-photographs-20260302-20261201t053000z`.

    Vertex takes lower-case letters, digits and hyphens.
    """
    return f"{name[:80].rstrip('-')}-{snapshot_date.replace('-', '')}-{now:%Y%m%dt%H%M%Sz}"


def submit(service: Service, job: v1.PipelineJob, run_id: str) -> v1.PipelineJob:
    """Starts a run; returns it as Vertex has it. Raises PipelineError."""
    request = v1.CreatePipelineJobRequest(parent=service.parent, pipeline_job=job, pipeline_job_id=run_id)
    try:
        return service.pipelines.create_pipeline_job(request, timeout=_TIMEOUT)
    except exceptions.AlreadyExists as error:
        raise PipelineError(f"there is a run {run_id} already: `kubeflow_runner.py status` shows it") from error
    except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
        raise refusal(error, service.settings) from error


def schedule_of(compiled: Compiled, service: Service) -> v1.Schedule:
    """The schedule of a compiled pipeline: the monthly one when it tunes, else the weekly; one run at a time, no catching up.

    Raises:
        SettingsError: There is no such time zone, or no cron expression for it.
    """
    schedule = service.settings.schedule
    cron = schedule.monthly if compiled.tunes else schedule.weekly
    if not cron:
        raise SettingsError("vertex.schedule.monthly is empty, and this pipeline tunes: give its cron expression")
    try:
        zoneinfo.ZoneInfo(schedule.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SettingsError(
            f"vertex.schedule.time_zone: there is no time zone {schedule.time_zone!r}; an example is Europe/Berlin"
        ) from error
    job = pipeline_job(compiled, service.settings, SCHEDULED)
    return v1.Schedule(
        display_name=f"{compiled.name}-{'monthly' if compiled.tunes else 'weekly'}",
        cron=f"TZ={schedule.time_zone} {cron}",
        max_concurrent_run_count=1,
        max_concurrent_active_run_count=1,
        allow_queueing=False,
        catch_up=False,
        create_pipeline_job_request=v1.CreatePipelineJobRequest(parent=service.parent, pipeline_job=job),
    )


def put_schedule(service: Service, wanted: v1.Schedule) -> tuple[v1.Schedule, bool]:
    """Makes the schedule, or brings the one of that name up to date: there is never a second.

    Returns:
        The schedule as Vertex has it, and whether it is new.

    Raises:
        PipelineError: Vertex refuses, or there are several of that name.
    """
    try:
        named = f'display_name="{wanted.display_name}"'
        found = list(service.schedules.list_schedules(v1.ListSchedulesRequest(parent=service.parent, filter=named)))
        if len(found) > 1:
            raise PipelineError(
                f"there are {len(found)} schedules {wanted.display_name!r}, so a week would run more than once: delete all "
                f"but one of {', '.join(sorted(schedule.name for schedule in found))}"
            )
        if not found:
            request = v1.CreateScheduleRequest(parent=service.parent, schedule=wanted)
            return service.schedules.create_schedule(request, timeout=_TIMEOUT), True
        wanted.name = found[0].name
        fields = ["cron", "max_concurrent_run_count", "max_concurrent_active_run_count", "allow_queueing",
                  "create_pipeline_job_request"]  # fmt: skip
        request = v1.UpdateScheduleRequest(schedule=wanted, update_mask={"paths": fields})
        return service.schedules.update_schedule(request, timeout=_TIMEOUT), False
    except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
        raise refusal(error, service.settings) from error
