"""Starts custom jobs on Vertex AI and waits for them, on spot machines first and on demand after."""

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from tfx.extensions.google_cloud_ai_platform import training_clients

from pipeline.errors import PipelineError
from pipeline.vertex.jobs import JobSettings
from pipeline.vertex.service import endpoint_of
from pipeline.vertex.settings import VertexSettings

_log = logging.getLogger(__name__)

_POLL_SECONDS = 30.0
"""The longest time between two questions whether a job has ended; soon after its start they follow each other faster."""

_State = v1.JobState

_ENDED = (_State.JOB_STATE_SUCCEEDED, _State.JOB_STATE_FAILED, _State.JOB_STATE_CANCELLED, _State.JOB_STATE_EXPIRED)

_WAITING = (_State.JOB_STATE_QUEUED, _State.JOB_STATE_PENDING)

# google.rpc.Code: what a job ends with whose machines were not to be had, or went. 3 is a replica that failed by itself.
_NO_MACHINES = (8, 10, 14)


class JobClient(training_clients.VertexJobClient):
    """TFX's client of custom jobs, with pools of ours and all states in which a job has ended."""

    JOB_STATES_COMPLETED = _ENDED
    JOB_STATES_FAILED = _ENDED[1:]

    def create_client(self) -> None:
        """Connects to the region."""
        self._client = v1.JobServiceClient(client_options={"api_endpoint": endpoint_of(self._region)})

    def under_way(self, project: str, label: str, value: str) -> list[v1.CustomJob]:
        """The jobs with a label that have not ended, the newest first."""
        request = v1.ListCustomJobsRequest(
            parent=f"projects/{project}/locations/{self._region}", filter=f'labels.{label}="{value}"'
        )
        found = [job for job in self._client.list_custom_jobs(request) if job.state not in _ENDED]
        return sorted(found, key=lambda job: job.create_time, reverse=True)

    def follow(self, name: str) -> None:
        """Takes a job that runs for the one that this client is about."""
        self._job_name = name

    def cancel(self) -> None:
        """Asks Vertex to end the job; one that has ended is left alone."""
        with contextlib.suppress(exceptions.FailedPrecondition, exceptions.NotFound):
            self._client.cancel_custom_job(name=self._job_name)


def run(
    client: JobClient, settings: VertexSettings, machines: JobSettings, made: Callable[[bool], v1.CustomJob], what: str
) -> v1.CustomJob:
    """Starts a job and waits for its end; where spot machines were not to be had, or went, starts it again on demand.

    Args:
        client: The region's.
        settings: Vertex's settings.
        machines: Those of the job, one of them.
        made: Makes the job; takes whether it is on spot machines.
        what: What it does, as in `training runs in ...`.

    Returns:
        The job as it ended, well or not.

    Raises:
        google.api_core.exceptions.GoogleAPIError: Vertex refuses it or does not answer.
    """

    def start(spot: bool) -> tuple[v1.CustomJob, bool]:
        client.launch_job(settings.project, v1.CustomJob.to_dict(made(spot)))
        _log.info("%s runs in %s, %s", what, client.get_job_name(), "on spot machines" if spot else "on demand")
        return ended(client, machines if spot else None)

    job, gave_up = start(machines.spot)
    if machines.spot and _lacked_machines(job, gave_up):
        _log.warning("%s: spot machines were not to be had, or went (%s); now on demand", job.name, _reason(job))
        job, _ = start(spot=False)
    return job


def ended(client: JobClient, spot: JobSettings | None = None) -> tuple[v1.CustomJob, bool]:
    """Waits for the job's end. Whoever ends this process meanwhile, by SIGTERM as Vertex does, ends the job too.

    Args:
        client: The client of the job.
        spot: For a job on spot machines, which is cancelled if it has none after `spot_wait_minutes`.

    Returns:
        The job as it ended, and whether it was cancelled for want of machines.

    Raises:
        google.api_core.exceptions.GoogleAPIError: Vertex does not answer.
    """
    began, gave_up = time.monotonic(), False
    try:
        with _sigterm_raises():
            while True:
                job = client.get_job()
                if job.state in _ENDED:
                    return job, gave_up
                waits = spot and job.state in _WAITING and not gave_up
                if waits and time.monotonic() - began > 60 * spot.spot_wait_minutes:
                    client.cancel()
                    gave_up = True
                time.sleep(min(_POLL_SECONDS, 1 + (time.monotonic() - began) / 20))
    except BaseException:
        # Whoever ends this step wants no machines that work for nobody.
        with contextlib.suppress(exceptions.GoogleAPIError):
            client.cancel()
        raise


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Lets SIGTERM raise SystemExit, so that what is under way is cleaned up; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def require_success(job: v1.CustomJob, settings: VertexSettings, what: str, remedy: str) -> None:
    """Makes sure that a job ended well.

    Args:
        job: The job as it ended.
        settings: Vertex's settings.
        what: What it did, as in `the training job ... ended as failed`.
        remedy: What to do next.

    Raises:
        PipelineError: It did not; the text has its name and Vertex's reason.
    """
    if job.state == _State.JOB_STATE_SUCCEEDED:
        return
    state = _State(job.state).name.removeprefix("JOB_STATE_").lower()
    raise PipelineError(
        f"the {what} job {job.name} ended as {state}: {_reason(job)}. Its log: "
        f"https://console.cloud.google.com/vertex-ai/training/custom-jobs?project={settings.project}. {remedy}"
    )


def _lacked_machines(job: v1.CustomJob, gave_up: bool) -> bool:
    if job.state == _State.JOB_STATE_FAILED:
        return job.error.code in _NO_MACHINES
    return job.state == _State.JOB_STATE_EXPIRED or job.state == _State.JOB_STATE_CANCELLED and gave_up


def _reason(job: v1.CustomJob) -> str:
    return job.error.message or "Vertex gave no reason"
