"""Pipeline jobs."""

import datetime
import re
from collections.abc import Callable

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format

from tests.cloud.vertex import listing, names
from tests.cloud.vertex.containers import Containers
from tests.cloud.vertex.metadata import Metadata
from tests.cloud.vertex.pipeline_runs import PipelineState, Run, given_parameters, time_text
from tests.cloud.vertex.pipeline_specs import Spec
from tests.cloud.vertex.pipeline_tasks import Leaves
from tests.cloud.vertex.refusals import Code, Refused, invalid, unsupported, untimely
from tests.cloud.vertex.state import State

FINAL = (
    PipelineState.PIPELINE_STATE_SUCCEEDED, PipelineState.PIPELINE_STATE_FAILED, PipelineState.PIPELINE_STATE_CANCELLED,
)  # fmt: skip

_MOST_IN_BATCH = 32


class Pipelines:
    """The calls of PipelineService that are about pipeline jobs.

    Args:
        state: What the fake shares.
        metadata: Where runs are recorded.
        containers: What runs tasks.
    """

    def __init__(self, state: State, metadata: Metadata, containers: Containers):
        self._state, self._metadata = state, metadata
        self._leaves = Leaves(state, metadata, containers)
        self._jobs: dict[str, types.PipelineJob] = {}
        self._runs: dict[str, Run] = {}

    # --- What a test does ---

    def jobs(self) -> list[types.PipelineJob]:
        """All jobs, oldest first."""
        with self._state.changed:
            return [types.PipelineJob(job) for job in self._jobs.values()]

    def log(self, job: str, task: str) -> str:
        """What the containers of a task wrote.

        Args:
            job: The job's name or id.
            task: The task's unique name, such as `tfx-dag.Trainer`.
        """
        return self._leaves.log_file(names.last(job), task).read_text(errors="replace")

    def tasks(self, job: str) -> dict[str, str]:
        """The state of each task of a job, by its unique name."""
        with self._state.changed:
            found = next(each for name, each in self._jobs.items() if names.last(name) == names.last(job))
            return {each.task_unique_name: each.state.name for each in found.job_detail.task_details}

    def failures(self, job: str) -> str:
        """What a test wants to read when a job has failed: the end of the log of each task that did."""
        tasks = [name for name, state in self.tasks(job).items() if state == "FAILED"]
        logs = {name: self._leaves.log_file(names.last(job), name) for name in tasks}
        return "\n".join(f"== {name}\n{log.read_text(errors='replace')[-3000:]}" for name, log in logs.items() if log.exists())

    def wait_for_task(self, job: str, task: str, state: str = "RUNNING", seconds: float = 120) -> None:
        """Waits until a task of a job is in a state."""
        self._state.wait_for(lambda: self.tasks(job).get(task) == state, f"{task} of {job} is {state}", seconds)

    def close(self) -> None:
        """Ends all runs."""
        with self._state.changed:
            runs = [run for run in self._runs.values() if run.job.state not in FINAL]
        for run in runs:
            run.cancel()

    # --- PipelineService ---

    def create_pipeline_job(
        self,
        request: types.CreatePipelineJobRequest,
        schedule: str = "",
        due: datetime.datetime | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> types.PipelineJob:
        spec = self.check(request)
        job = types.PipelineJob(request.pipeline_job)
        now = self._state.clock.now()
        job_id = request.pipeline_job_id or f"{spec.name}-{now:%Y%m%d%H%M%S}"
        job.name = f"{request.parent}/pipelineJobs/{job_id}"
        job.display_name = job.display_name or job_id
        job.state = PipelineState.PIPELINE_STATE_PENDING
        job.create_time = job.update_time = now
        job.schedule_name = schedule
        with self._state.changed:
            if job.name in self._jobs:
                raise Refused(Code.ALREADY_EXISTS, f"PipelineJob {job.name} is there already")
            run = Run(job, spec, self._state, self._metadata, self._leaves, time_text(due or now))
            self._jobs[job.name], self._runs[job.name] = job, run
            answer = types.PipelineJob(job)
            self._state.in_thread(job.name, lambda: (run.run(), ended()))
        return answer

    def check(self, request: types.CreatePipelineJobRequest) -> Spec:
        """The pipeline that a request submits.

        Raises:
            Refused: It cannot run.
        """
        job = request.pipeline_job
        content = json_format.MessageToDict(types.PipelineJob.pb(job).pipeline_spec)
        if job.template_uri and not content:
            raise unsupported("template_uri without pipeline_spec")
        spec = Spec(content)
        _check(job)
        spec.parameters(given_parameters(job))
        if request.pipeline_job_id and not re.fullmatch(r"[a-z][-a-z0-9]{0,127}", request.pipeline_job_id):
            wanted = "lower-case letters, digits and -, at most 128, a letter first"
            raise invalid(f"pipeline_job_id {request.pipeline_job_id!r} is not {wanted}")
        return spec

    def get_pipeline_job(self, request: types.GetPipelineJobRequest) -> types.PipelineJob:
        with self._state.changed:
            return types.PipelineJob(self._find(request.name))

    def list_pipeline_jobs(self, request: types.ListPipelineJobsRequest) -> types.ListPipelineJobsResponse:
        with self._state.changed:
            jobs = [types.PipelineJob(job) for job in self._jobs.values() if job.name.startswith(f"{request.parent}/")]
            derived = {"pipeline_name": self._pipeline_name, "pipeline_job_user_id": lambda job: names.last(job.name)}
            found, token = listing.page(jobs, request, derived=derived)
            return types.ListPipelineJobsResponse(pipeline_jobs=found, next_page_token=token)

    def cancel_pipeline_job(self, request: types.CancelPipelineJobRequest) -> None:
        with self._state.changed:
            job = self._find(request.name)
            if job.state in FINAL:
                raise untimely(f"PipelineJob {job.name} is {job.state.name} and cannot be cancelled")
            job.state = PipelineState.PIPELINE_STATE_CANCELLING
        self._runs[request.name].cancel()

    def delete_pipeline_job(self, request: types.DeletePipelineJobRequest):
        with self._state.changed:
            self._check_ended([request.name])
            return self._state.operations.start("DeletePipelineJob", request.name, lambda: self._delete([request.name]))

    def batch_delete_pipeline_jobs(self, request: types.BatchDeletePipelineJobsRequest):
        if not 1 <= len(request.names) <= _MOST_IN_BATCH:
            raise invalid(f"names must be 1 to {_MOST_IN_BATCH} and are {len(request.names)}")
        with self._state.changed:
            self._check_ended(request.names)

            def delete():
                deleted = [types.PipelineJob(self._jobs[name]) for name in request.names]
                self._delete(request.names)
                return types.BatchDeletePipelineJobsResponse(pipeline_jobs=deleted)

            return self._state.operations.start("BatchDeletePipelineJobs", request.parent, delete)

    # --- Inside ---

    def is_active(self, name: str) -> bool:
        """Whether a job has not ended."""
        with self._state.changed:
            return name in self._jobs and self._jobs[name].state not in FINAL

    def _find(self, name: str) -> types.PipelineJob:
        if name not in self._jobs:
            raise Refused(Code.NOT_FOUND, f"The PipelineJob {name!r} does not exist.")
        return self._jobs[name]

    def _check_ended(self, wanted) -> None:
        for name in wanted:
            if self._find(name).state not in FINAL:
                raise untimely(f"PipelineJob {name} has not ended: cancel it first")

    def _delete(self, wanted) -> None:
        for name in wanted:
            self._jobs.pop(name, None)

    def _pipeline_name(self, job: types.PipelineJob) -> str:
        return self._runs[job.name].spec.name


def _check(job: types.PipelineJob) -> None:
    names.check_labels(job.labels)
    if not job.runtime_config.gcs_output_directory:
        raise invalid("runtime_config.gcs_output_directory is missing")
    names.check_folder(job.runtime_config.gcs_output_directory, "runtime_config.gcs_output_directory")
    if job.runtime_config.parameters:
        raise invalid("runtime_config.parameters are of pipeline spec 2.0: use parameter_values")
    if job.runtime_config.input_artifacts:
        raise unsupported("runtime_config.input_artifacts")
    if job.network and not re.fullmatch(r"projects/\d+/global/networks/[a-z][a-z0-9-]*", job.network):
        raise invalid(f"network must be projects/NUMBER/global/networks/NAME and is {job.network!r}")
