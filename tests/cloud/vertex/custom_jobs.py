"""Custom jobs: pools of replicas, each a process, with the environment that Vertex gives them."""

import contextlib
import datetime
import json
import queue
import re
import signal
import socket
import time
from collections.abc import Iterator

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format

from tests.cloud.vertex import listing, names
from tests.cloud.vertex.containers import Container, Containers
from tests.cloud.vertex.refusals import Code, Refused, invalid, unsupported, untimely
from tests.cloud.vertex.state import State

JobState = types.JobState

FINAL = (JobState.JOB_STATE_SUCCEEDED, JobState.JOB_STATE_FAILED, JobState.JOB_STATE_CANCELLED)

_ROLES = ("chief", "worker", "ps", "evaluator")
"""What TF_CONFIG calls the replicas of each pool."""

_DEFAULT_TIMEOUT = datetime.timedelta(days=7)

_TRANSIENT = (6, 11, 134, 139)
"""Exit statuses after which the whole job is tried again."""

_RETRIES, _SPOT_RETRIES = 3, 6

_GRACE_SECONDS = 5.0
"""What a replica gets to end in after SIGTERM; Vertex grants 30 and more."""

_A100 = {"a2-highgpu-1g": 1, "a2-highgpu-2g": 2, "a2-highgpu-4g": 4, "a2-highgpu-8g": 8, "a2-megagpu-16g": 16}
"""Machine types whose number of A100s is fixed."""


class CustomJobs:
    """The calls of JobService that are about custom jobs.

    Args:
        state: What the fake shares.
        containers: What runs the replicas.
    """

    def __init__(self, state: State, containers: Containers):
        self._state = state
        self._containers = containers
        self._jobs: dict[str, types.CustomJob] = {}
        self._runs: dict[str, _Run] = {}
        self._quota: dict[str, int] = {}

    # --- What a test does ---

    def set_quota(self, accelerator: str, count: int) -> None:
        """Grants so many of an accelerator, such as `NVIDIA_TESLA_A100`; without a word there is no limit."""
        with self._state.changed:
            self._quota[accelerator] = count
            self._start_queued()

    def lose(self, name: str, pool: int, replica: int = 0) -> None:
        """Takes the machine of a replica away, as for maintenance."""
        self._run_of(name).events.put(("lost", (pool, replica), None))

    def preempt(self, name: str) -> None:
        """Takes the spot machines of a job away.

        Raises:
            ValueError: It has none.
        """
        run = self._run_of(name)
        if run.job.job_spec.scheduling.strategy != types.Scheduling.Strategy.SPOT:
            raise ValueError(f"{name} does not run on spot machines")
        run.events.put(("preempted", None, None))

    def wait_until(self, name: str, state: JobState, starts: int = 1, seconds: float = 60) -> types.CustomJob:
        """Waits until a job is in a state and was started so often; returns it."""
        name = names.numbered(name)

        def is_so():
            is_started = state != JobState.JOB_STATE_RUNNING or self._runs[name].starts >= starts
            return _copy(self._jobs[name]) if self._jobs[name].state == state and is_started else None

        return self._state.wait_for(is_so, f"{name} is {state.name}", seconds)

    def starts(self, name: str) -> int:
        """How often a job was started as a whole."""
        with self._state.changed:
            return self._run_of(name).starts

    def wait_for_log(self, name: str, text: str, times: int = 1, pool: int = 0, replica: int = 0, seconds: float = 60) -> None:
        """Waits until a replica has written a text so often."""
        deadline = time.monotonic() + seconds
        while self.log(name, pool, replica).count(text) < times:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s: {text!r} in the log of {name}")
            time.sleep(0.01)  # a file tells nobody that it grows

    def log(self, name: str, pool: int = 0, replica: int = 0) -> str:
        """What a replica wrote, from all its starts."""
        return self._run_of(name).log_file(pool, replica).read_text(errors="replace")

    def close(self) -> None:
        """Ends all jobs."""
        with self._state.changed:
            for run in self._runs.values():
                run.events.put(("cancelled", None, None))

    # --- JobService ---

    def create_custom_job(self, request: types.CreateCustomJobRequest) -> types.CustomJob:
        job = _copy(request.custom_job)
        _check(job)
        job.name = f"{request.parent}/customJobs/{names.new_number()}"
        job.state = JobState.JOB_STATE_QUEUED
        job.create_time = job.update_time = self._state.clock.now()
        with self._state.changed:
            self._jobs[job.name] = job
            self._runs[job.name] = _Run(job, self._state, self._containers, self._ended)
            self._start_queued()
            return _copy(job)

    def get_custom_job(self, request: types.GetCustomJobRequest) -> types.CustomJob:
        with self._state.changed:
            return _copy(self._find(request.name))

    def list_custom_jobs(self, request: types.ListCustomJobsRequest) -> types.ListCustomJobsResponse:
        with self._state.changed:
            jobs = [job for job in self._jobs.values() if job.name.startswith(f"{request.parent}/")]
            found, token = listing.page(jobs, request)
            return types.ListCustomJobsResponse(custom_jobs=found, next_page_token=token)

    def cancel_custom_job(self, request: types.CancelCustomJobRequest) -> None:
        with self._state.changed:
            job = self._find(request.name)
            if job.state in FINAL:
                raise untimely(f"CustomJob {job.name} is {job.state.name} and cannot be cancelled")
            if job.state == JobState.JOB_STATE_QUEUED:
                self._runs[job.name].finish(JobState.JOB_STATE_CANCELLED, Code.CANCELLED, "CANCELED")
            else:
                job.state = JobState.JOB_STATE_CANCELLING
                self._runs[job.name].events.put(("cancelled", None, None))

    def delete_custom_job(self, request: types.DeleteCustomJobRequest):
        with self._state.changed:
            if self._find(request.name).state not in FINAL:
                raise untimely(f"CustomJob {request.name} is not done: cancel it first")
            return self._state.operations.start(
                "DeleteCustomJob", request.name, lambda: self._jobs.pop(request.name, None) and None
            )

    # --- Inside ---

    def _find(self, name: str) -> types.CustomJob:
        if name not in self._jobs:
            raise Refused(Code.NOT_FOUND, f"The CustomJob {name!r} does not exist.")
        return self._jobs[name]

    def _run_of(self, name: str) -> "_Run":
        with self._state.changed:
            return self._runs[names.numbered(name)]

    def _start_queued(self) -> None:
        """Starts, in their order, the jobs for which there is quota."""
        running = [job for job in self._jobs.values() if job.state not in (*FINAL, JobState.JOB_STATE_QUEUED)]
        used = _sum(map(_demand, running))
        for job in self._jobs.values():
            if job.state != JobState.JOB_STATE_QUEUED:
                continue
            wanted = _sum([used, _demand(job)])
            if all(wanted[kind] <= self._quota.get(kind, wanted[kind]) for kind in _demand(job)):
                used = wanted
                job.state = JobState.JOB_STATE_PENDING
                self._state.in_thread(job.name, self._runs[job.name].run)

    def _ended(self) -> None:
        with self._state.changed:
            self._start_queued()


class _Run:
    """The replicas of one job.

    Attributes:
        events: What happens to them: kind, (pool, replica), container.
        starts: How often the job was started.
    """

    def __init__(self, job: types.CustomJob, state: State, containers: Containers, ended):
        self.job, self._state, self._containers, self._ended = job, state, containers, ended
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.starts = 0
        self._replicas: dict[tuple[int, int], Container] = {}
        self._addresses: dict[str, list[str]] = {}

    def log_file(self, pool: int, replica: int):
        return self._state.folder / "customJobs" / names.last(self.job.name) / f"workerpool{pool}-{replica}.log"

    def finish(self, state: JobState, code: Code | None = None, message: str = "") -> None:
        """Ends the job."""
        with self._state.changed:
            self.job.state = state
            self.job.end_time = self.job.update_time = self._state.clock.now()
            if code:
                self.job.error = {"code": code.value[0], "message": message}
            self._state.changed.notify_all()
        self._ended()

    def run(self) -> None:
        try:
            outcome = self._outcome()
        finally:
            self._stop_all()
        self.finish(*outcome)

    def _outcome(self) -> tuple:
        """Runs the job, from start to start, until it is over; returns what it ends with."""
        images = [pool.container_spec.image_uri for _, pool in self._pools()]
        if missing := [image for image in images if not self._containers.has(image)]:
            return JobState.JOB_STATE_FAILED, Code.INVALID_ARGUMENT, f"Failed to pull the image {missing[0]!r}: not found."
        timeout = self.job.job_spec.scheduling.timeout or _DEFAULT_TIMEOUT
        self._state.clock.at(self._state.clock.now() + timeout, lambda: self.events.put(("expired", None, None)))
        retries, preemptions = 0, 0
        while True:
            self._start_all()
            kind, message, status = self._watch()
            if kind == "succeeded":
                return (JobState.JOB_STATE_SUCCEEDED,)
            if kind in ("cancelled", "expired"):
                return JobState.JOB_STATE_CANCELLED, Code.CANCELLED, message
            may_retry = not self.job.job_spec.scheduling.disable_retries
            if kind == "preempted":
                preemptions += 1
                if not may_retry or preemptions > _SPOT_RETRIES:
                    return JobState.JOB_STATE_FAILED, Code.RESOURCE_EXHAUSTED, message
            elif kind == "failed":
                retries += 1
                if not may_retry or status not in _TRANSIENT or retries > _RETRIES:
                    return JobState.JOB_STATE_FAILED, Code.INVALID_ARGUMENT, message
            self._stop_all()

    def _watch(self) -> tuple[str, str, int]:
        """Waits for what ends this start of the job."""
        while True:
            kind, replica, container = self.events.get()
            if kind == "cancelled":
                return kind, "CANCELED", 0
            if kind == "expired":
                return kind, "The job was cancelled: it ran longer than scheduling.timeout.", 0
            if kind == "preempted":
                region = names.location(self.job.name)
                advice = "Try a different region or use a different accelerator."
                return kind, f"Resources are insufficient in region: {region}. {advice}", 0
            if kind == "lost":
                scheduling = self.job.job_spec.scheduling
                self._replicas[replica].signal(signal.SIGKILL)
                if scheduling.restart_job_on_worker_restart and not scheduling.disable_retries:
                    return kind, "", 0
                self._replicas[replica].wait()
                self._start(*replica)
            if kind != "ended" or self._replicas[replica] is not container:
                continue
            if container.status:
                return "failed", _failure(replica, container.status), container.status
            if replica == (0, 0):
                return "succeeded", "", 0

    def _pools(self) -> Iterator[tuple[int, types.WorkerPoolSpec]]:
        pools = enumerate(self.job.job_spec.worker_pool_specs)
        return ((number, pool) for number, pool in pools if pool.container_spec.image_uri)

    def _start_all(self) -> None:
        if not self._addresses:
            with contextlib.ExitStack() as stack:
                # All are open at once, so that no port comes twice.
                for number, pool in self._pools():
                    sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(pool.replica_count)]
                    ports = [each.getsockname()[1] for each in sockets]
                    self._addresses[f"workerpool{number}"] = [f"127.0.0.1:{port}" for port in ports]
        for number, pool in self._pools():
            for index in range(pool.replica_count):
                self._start(number, index)
        with self._state.changed:
            self.starts += 1
            if self.job.state != JobState.JOB_STATE_CANCELLING:
                self.job.state = JobState.JOB_STATE_RUNNING
                self.job.start_time = self.job.start_time or self._state.clock.now()
            self._state.changed.notify_all()

    def _start(self, number: int, index: int) -> None:
        spec = self.job.job_spec.worker_pool_specs[number].container_spec
        environment = {each.name: each.value for each in spec.env}
        container = self._containers.start(
            spec.image_uri, list(spec.command), list(spec.args),
            {**environment, **self._environment(number, index)}, self.log_file(number, index),
        )  # fmt: skip
        self._replicas[number, index] = container
        container.when_ended(lambda: self.events.put(("ended", (number, index), container)))

    def _environment(self, number: int, index: int) -> dict[str, str]:
        job = json_format.MessageToJson(types.CustomJobSpec.pb(self.job.job_spec), indent=None)
        if len(self._addresses) == 1:
            # With one pool the two look alike, which TFX's Tuner relies on.
            cluster, task = {"chief": self._addresses["workerpool0"]}, {"type": "chief", "index": index}
            spec = {"cluster": cluster, "environment": "cloud", "task": {**task, "trial": ""}, "job": job}
        else:
            task = {"type": f"workerpool{number}", "index": index, "trial": ""}
            spec = {"cluster": self._addresses, "environment": "cloud", "task": task, "job": job}
        tf_cluster = {_ROLES[int(pool[-1])]: addresses for pool, addresses in self._addresses.items()}
        config = {"cluster": tf_cluster, "environment": "cloud", "task": {"type": _ROLES[number], "index": index}, "job": job}
        variables = {
            "CLUSTER_SPEC": json.dumps(spec),
            "TF_CONFIG": json.dumps(config),
            "CLOUD_ML_PROJECT_ID": names.NUMBER,
            "CLOUD_ML_JOB_ID": names.last(self.job.name),
        }
        base = self.job.job_spec.base_output_directory.output_uri_prefix.rstrip("/")
        if base:
            for name, folder in (("MODEL", "model"), ("CHECKPOINT", "checkpoints"), ("TENSORBOARD_LOG", "logs")):
                variables[f"AIP_{name}_DIR"] = f"{base}/{folder}/"
        return variables

    def _stop_all(self) -> None:
        running = [container for container in self._replicas.values() if container.status is None]
        for container in running:
            container.signal(signal.SIGTERM)
        for container in running:
            container.stop(_GRACE_SECONDS)


def _failure(replica: tuple[int, int], status: int) -> str:
    who = f"workerpool{replica[0]}-{replica[1]}"
    if status == 128 + signal.SIGKILL:
        return f"The replica {who} ran out of memory and exited with a non-zero status of {status}."
    return f"The replica {who} exited with a non-zero status of {status}. Termination reason: Error."


def _check(job: types.CustomJob) -> None:
    names.check_display_name(job.display_name)
    names.check_labels(job.labels)
    spec = job.job_spec
    for field in ("experiment", "experiment_run", "tensorboard", "persistent_resource_id", "models"):
        if getattr(spec, field):
            raise unsupported(f"CustomJobSpec.{field}")
    if spec.base_output_directory.output_uri_prefix:
        names.check_folder(spec.base_output_directory.output_uri_prefix, "base_output_directory.output_uri_prefix")
    if spec.network and not re.fullmatch(r"projects/\d+/global/networks/[a-z][a-z0-9-]*", spec.network):
        raise invalid(f"network must be projects/NUMBER/global/networks/NAME and is {spec.network!r}")
    if not 1 <= len(spec.worker_pool_specs) <= 4:
        raise invalid(f"worker_pool_specs must be 1 to 4 and are {len(spec.worker_pool_specs)}")
    for number, pool in enumerate(spec.worker_pool_specs):
        _check_pool(number, pool)


def _check_pool(number: int, pool: types.WorkerPoolSpec) -> None:
    where = f"worker_pool_specs[{number}]"
    if pool.python_package_spec:
        raise unsupported("python_package_spec: only containers run here")
    if number and not pool.container_spec.image_uri and not pool.replica_count:
        return  # an empty pool keeps the place of one
    if not pool.container_spec.image_uri:
        raise invalid(f"{where}.container_spec.image_uri is missing")
    if not number and pool.replica_count != 1:
        raise invalid(f"{where}.replica_count must be 1, the primary replica, and is {pool.replica_count}")
    if pool.replica_count < 1:
        raise invalid(f"{where}.replica_count must be at least 1 and is {pool.replica_count}")
    machine = pool.machine_spec
    if not machine.machine_type:
        raise invalid(f"{where}.machine_spec.machine_type is missing")
    if bool(machine.accelerator_type) != bool(machine.accelerator_count):
        raise invalid(f"{where}.machine_spec: accelerator_type and accelerator_count go together")
    fixed = _A100.get(machine.machine_type)
    if fixed and (machine.accelerator_type.name, machine.accelerator_count) != ("NVIDIA_TESLA_A100", fixed):
        raise invalid(
            f"{where}.machine_spec: {machine.machine_type} has {fixed} NVIDIA_TESLA_A100, not "
            f"{machine.accelerator_count} {machine.accelerator_type.name}"
        )


def _demand(job: types.CustomJob) -> dict[str, int]:
    """How many of each accelerator a job takes."""
    pools = job.job_spec.worker_pool_specs
    return _sum({pool.machine_spec.accelerator_type.name: pool.machine_spec.accelerator_count * pool.replica_count}
                for pool in pools if pool.machine_spec.accelerator_count)  # fmt: skip


def _sum(demands) -> dict[str, int]:
    total: dict[str, int] = {}
    for demand in demands:
        for kind, count in demand.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _copy(job: types.CustomJob) -> types.CustomJob:
    return types.CustomJob(job)
