"""The Trainer on Vertex AI: a custom job on machines of its own, waited for, spot first and on demand after.

TFX's own extension overwrites the command of every pool, the reduction servers' too, waits for ever for a job that
expired, and cannot change from spot to on demand. What the replicas run is TFX's: `tfx.scripts.run_executor`.
"""

import contextlib
import json
import logging
import time

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from tfx.components.trainer import executor as trainer_executor
from tfx.dsl.components.base import base_executor
from tfx.extensions.google_cloud_ai_platform import training_clients
from tfx.types import artifact_utils, standard_component_specs
from tfx.utils import name_utils

from pipeline import typed
from pipeline.components import facts
from pipeline.components.trainer import with_window
from pipeline.errors import PipelineError
from pipeline.vertex import jobs
from pipeline.vertex.service import endpoint_of, refusal
from pipeline.vertex.settings import VertexSettings

_log = logging.getLogger(__name__)

_POLL_SECONDS = 30.0

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

    def command(self, input_dict, output_dict, exec_properties) -> list[str]:
        """What the chief and the workers run: TFX's Trainer in their own process."""
        path = name_utils.get_full_name(trainer_executor.GenericExecutor)
        return self.generate_container_command(input_dict, output_dict, exec_properties, path)

    def cancel(self) -> None:
        """Asks Vertex to end the job; one that has ended is left alone."""
        with contextlib.suppress(exceptions.FailedPrecondition, exceptions.NotFound):
            self._client.cancel_custom_job(name=self._job_name)


class Executor(base_executor.BaseExecutor):
    """Trains in a custom job, and ends with it."""

    def Do(self, input_dict, output_dict, exec_properties):  # noqa: N802
        """Trains; arguments as TFX's.

        Raises:
            PipelineError: The job could not be started, or did not succeed; the text has its name and Vertex's reason.
        """
        exec_properties = with_window(input_dict, exec_properties)
        key = standard_component_specs.CUSTOM_CONFIG_KEY
        custom = json.loads(exec_properties[key])
        known = custom.pop("vertex")
        exec_properties[key] = json.dumps(custom)
        settings = typed.from_dict(VertexSettings, known["settings"], "vertex")
        manifest = artifact_utils.get_single_instance(input_dict["manifest"])
        run_id, date = facts.text(manifest, "run_id"), facts.text(manifest, "snapshot_date")
        model_run = artifact_utils.get_single_instance(output_dict[standard_component_specs.MODEL_RUN_KEY])
        try:
            client = JobClient(settings.region)

            def run(spot: bool) -> tuple[v1.CustomJob, bool]:
                job = jobs.custom_job(
                    settings,
                    name=f"{known['pipeline']}-train-{run_id}",
                    workers=known["workers"],
                    image=known["image"],
                    command=client.command(input_dict, output_dict, exec_properties),
                    environment={"TF_USE_LEGACY_KERAS": "1"},
                    labels=jobs.labels_of(settings, known["pipeline"], date),
                    output=model_run.uri,
                    spot=spot,
                )
                client.launch_job(settings.project, v1.CustomJob.to_dict(job))
                _log.info("training runs in %s, %s", client.get_job_name(), "on spot machines" if spot else "on demand")
                patience = 60 * settings.training.spot_wait_minutes if spot else None
                return _ended(client, patience)

            job, gave_up = run(settings.training.spot)
            if settings.training.spot and _lacked_machines(job, gave_up):
                _log.warning("%s: spot machines were not to be had, or went (%s); now on demand", job.name, _reason(job))
                job, _ = run(spot=False)
        except exceptions.GoogleAPIError as error:
            raise refusal(error, settings) from error
        if job.state != _State.JOB_STATE_SUCCEEDED:
            raise PipelineError(
                f"the training job {job.name} ended as {_state(job)}: {_reason(job)}. Its log: "
                f"https://console.cloud.google.com/vertex-ai/training/custom-jobs?project={settings.project}. What it learnt is "
                "in its checkpoints: the same run, started again, goes on from there"
            )


def _ended(client: JobClient, patience: float | None) -> tuple[v1.CustomJob, bool]:
    """Waits for the job's end, or cancels one that has no machines after `patience` seconds.

    Returns:
        The job as it ended, and whether it was cancelled for want of machines.
    """
    began, gave_up = time.monotonic(), False
    try:
        while True:
            job = client.get_job()
            if job.state in _ENDED:
                return job, gave_up
            if not gave_up and patience is not None and job.state in _WAITING and time.monotonic() - began > patience:
                client.cancel()
                gave_up = True
            time.sleep(_POLL_SECONDS)
    except BaseException:
        # Whoever ends this step wants no machines that train for nobody.
        with contextlib.suppress(exceptions.GoogleAPIError):
            client.cancel()
        raise


def _lacked_machines(job: v1.CustomJob, gave_up: bool) -> bool:
    if job.state == _State.JOB_STATE_FAILED:
        return job.error.code in _NO_MACHINES
    return job.state == _State.JOB_STATE_EXPIRED or job.state == _State.JOB_STATE_CANCELLED and gave_up


def _state(job: v1.CustomJob) -> str:
    return _State(job.state).name.removeprefix("JOB_STATE_").lower()


def _reason(job: v1.CustomJob) -> str:
    return job.error.message or "Vertex gave no reason"
