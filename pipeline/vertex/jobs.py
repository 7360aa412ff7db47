"""The custom jobs that train and tune on Vertex AI, as Google's own messages: who waits for whom, on which machines.

Vertex gives each pool a role by its place: the chief, the workers, then the reduction servers
(https://cloud.google.com/vertex-ai/docs/training/distributed-training).
"""

import datetime
from collections.abc import Mapping, Sequence

from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.settings import ReductionServerSettings, TrainingJobSettings, TuningJobSettings, VertexSettings

JobSettings = TrainingJobSettings | TuningJobSettings
"""What machines a job has."""

_Strategy = v1.Scheduling.Strategy


def label_value(text: str) -> str:
    """A text as the value of a label: lower-case letters, digits, _ and -, 63 of them at most.

    >>> label_value("Labels of 2026-03-02")
    'labels-of-2026-03-02'
    """
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in text.lower())[:63]


def labels_of(settings: VertexSettings, pipeline: str, snapshot: str) -> dict[str, str]:
    """Labels of a resource: the team's own, the pipeline's name, and the snapshot's date or `scheduled`."""
    return {**settings.labels, "pipeline": label_value(pipeline), "snapshot": label_value(snapshot)}


def machine_spec(machine: str, gpu: str = "", gpus: int = 0) -> v1.MachineSpec:
    """A machine and its GPUs, which Vertex wants named although some types have them.

    Args:
        machine: Its type.
        gpu: The GPUs' kind, such as NVIDIA_TESLA_A100; '' for none.
        gpus: How many.
    """
    if not gpu:
        return v1.MachineSpec(machine_type=machine)
    return v1.MachineSpec(machine_type=machine, accelerator_type=v1.AcceleratorType[gpu], accelerator_count=gpus)


def worker_pools(
    job: JobSettings, workers: int, image: str, command: Sequence[str], environment: Mapping[str, str]
) -> list[v1.WorkerPoolSpec]:
    """The pools of a job: the chief, the other workers, the reduction servers.

    Args:
        job: Machines.
        workers: Machines that work, the chief included.
        image: The pipeline's image, by digest.
        command: What the chief and each worker run.
        environment: Environment variables of these.
    """
    variables = [v1.EnvVar(name=name, value=value) for name, value in environment.items()]

    def pool(replicas: int) -> v1.WorkerPoolSpec:
        return v1.WorkerPoolSpec(
            machine_spec=machine_spec(job.machine, job.gpu, job.gpus),
            replica_count=replicas,
            disk_spec=v1.DiskSpec(boot_disk_type="pd-ssd", boot_disk_size_gb=job.boot_disk_gb),
            container_spec=v1.ContainerSpec(image_uri=image, command=list(command), env=variables),
        )

    pools = [pool(1)]
    if workers > 1:
        pools.append(pool(workers - 1))
    if job.reduction_server:
        pools.append(_reduction_servers(job.reduction_server))
    return pools


def _reduction_servers(settings: ReductionServerSettings) -> v1.WorkerPoolSpec:
    return v1.WorkerPoolSpec(
        machine_spec=machine_spec(settings.machine),
        replica_count=settings.replicas,
        # No command: the image's own starts it.
        container_spec=v1.ContainerSpec(image_uri=settings.image),
    )


def custom_job(
    settings: VertexSettings,
    job: JobSettings,
    *,
    name: str,
    workers: int,
    image: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    output: str,
    spot: bool,
) -> v1.CustomJob:
    """The job.

    Args:
        settings: Vertex's settings.
        job: Those of this job, one of them.
        name: Name that people see.
        workers, image, command, environment: As in `worker_pools`.
        labels: Labels of the job.
        output: Folder in Cloud Storage that Vertex names to the replicas; '' for none.
        spot: Whether on spot machines.
    """
    scheduling = v1.Scheduling(
        timeout=datetime.timedelta(hours=job.timeout_hours),
        restart_job_on_worker_restart=job.restart,
        strategy=_Strategy.SPOT if spot else _Strategy.STANDARD,
    )
    spec = v1.CustomJobSpec(
        worker_pool_specs=worker_pools(job, workers, image, command, environment),
        scheduling=scheduling,
        service_account=settings.service_account,
        network=settings.network,
    )
    if output.startswith("gs://"):
        spec.base_output_directory = v1.GcsDestination(output_uri_prefix=output)
    return v1.CustomJob(display_name=name[:128], job_spec=spec, labels=dict(labels))
