"""The settings of the pipeline on Vertex AI: project, machines, schedules. `configs/vertex.yaml` fills them."""

from typing import Annotated, Literal

import pydantic

from pipeline import typed

# https://cloud.google.com/vertex-ai/docs/pipelines/run-pipeline: labels take what resource labels take.
_LabelKey = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
_LabelValue = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9_-]{0,63}$")]

_MACHINE = r"^(a2-highgpu-[124]g|[cen][1-4][a-z]?-(standard|highmem|highcpu)-[0-9]{1,3})$"

_FOLDER = r"^(gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^/*?\[\]#]+)*|(/[^/*?\[\]#]+)+)$"

_NETWORK = r"^(projects/[0-9]+/global/networks/[a-z]([a-z0-9-]{0,61}[a-z0-9])?)?$"

_TOPIC = r"^(projects/[^/\s]+/topics/[A-Za-z][A-Za-z0-9._~+%-]{2,254})?$"

_ACCOUNT = r"^([^@\s]+@[^@\s]+\.[^@\s]+)?$"

_CRON = r"^\S+( \S+){4}$"

# Letters first, as an id that a person chooses; digits alone, as one that Vertex gave to an endpoint that is there.
_ENDPOINT = r"^([a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,19})?$"

# What configs/vertex.yaml has in the place of a digest that nobody filled in; `require_digest` refuses it when it is needed.
_SERVING_IMAGE = r"^[^\s@]+@sha256:([0-9a-f]{64}|your-digest)$"

_SERVING_MACHINE = r"^[cen][1-4][a-z]?-(standard|highmem|highcpu)-[0-9]{1,3}$"

GPUS = {"a2-highgpu-1g": 1, "a2-highgpu-2g": 2, "a2-highgpu-4g": 4}
"""A100s of a machine type; every other type that is taken has none."""

A100 = "NVIDIA_TESLA_A100"

# https://cloud.google.com/compute/docs/accelerator-optimized-machines: the types of G2 with one L4.
_TUNING_MACHINE = r"^(a2-highgpu-1g|g2-standard-(4|8|12|16|32)|[cen][1-4][a-z]?-(standard|highmem|highcpu)-[0-9]{1,3})$"

# https://cloud.google.com/compute/docs/gpus: GiB of one, of which the driver keeps some.
_GPU_GIB = {A100: 40, "NVIDIA_L4": 24, "NVIDIA_TESLA_T4": 16, "NVIDIA_TESLA_V100": 16}

RESERVED_LABELS = ("pipeline", "snapshot", "study", "run", "weights", "verdict")


@typed.frozen
class ReductionServerSettings:
    """The machines that sum up gradients for workers that only a network connects.

    Attributes:
        image: Google's image, by digest; its own command starts it.
        machine: Machine type, without a GPU.
        replicas: How many machines.
    """

    image: str = pydantic.Field(pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}$")
    machine: str = pydantic.Field(default="n1-highcpu-16", pattern=_MACHINE)
    replicas: int = pydantic.Field(default=4, ge=1, le=16)


@typed.frozen
class TrainingJobSettings:
    """The custom job that trains. The number of its machines is `training.workers`.

    Attributes:
        machine: Type of each machine: a2-highgpu-1g, -2g or -4g have so many A100s, others none.
        spot: Whether spot machines are tried first. When they are not to be had, or go, the job is started on demand, and
            training goes on from its checkpoint.
        spot_wait_minutes: How long spot machines are waited for.
        timeout_hours: Vertex ends the job after so long.
        restart: Whether Vertex starts all replicas again when one went; training goes on from its checkpoint.
        boot_disk_gb: Size of each boot disk, GB.
        reduction_server: Machines that sum up gradients; null for none.
    """

    machine: str = pydantic.Field(default="a2-highgpu-1g", pattern=_MACHINE)
    spot: bool = True
    spot_wait_minutes: float = pydantic.Field(default=30.0, ge=1, le=1440)
    timeout_hours: float = pydantic.Field(default=11.0, gt=0, le=168)
    restart: bool = True
    boot_disk_gb: int = pydantic.Field(default=200, ge=100, le=64000)
    reduction_server: ReductionServerSettings | None = None

    @property
    def gpu(self) -> str:
        """The kind of its GPUs, as Vertex calls it; '' for none."""
        return A100 if self.gpus else ""

    @property
    def gpus(self) -> int:
        """A100s of each machine."""
        return GPUS.get(self.machine, 0)


@typed.frozen
class TuningJobSettings:
    """The custom job that searches for hyperparameters. The number of its machines is `tuning.parallel`: a trial each.

    Attributes:
        machine: Type of each machine: a2-highgpu-1g has an A100, g2-standard-4, -8, -12, -16 and -32 an L4, others none.
        accelerator: The GPU of an n1 machine, which has none of its own: NVIDIA_TESLA_T4 or NVIDIA_TESLA_V100; '' for what
            the machine type has.
        spot: Whether spot machines are tried first. When they are not to be had, or go, the job is started on demand, and
            the study goes on.
        spot_wait_minutes: How long spot machines are waited for.
        timeout_hours: Vertex ends the job after so long; a run that tunes the same snapshot goes on with its study.
        boot_disk_gb: Size of each boot disk, GB.
    """

    machine: str = pydantic.Field(default="g2-standard-8", pattern=_TUNING_MACHINE)
    accelerator: Literal["", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_V100"] = ""
    spot: bool = True
    spot_wait_minutes: float = pydantic.Field(default=30.0, ge=1, le=1440)
    timeout_hours: float = pydantic.Field(default=96.0, gt=0, le=168)
    boot_disk_gb: int = pydantic.Field(default=200, ge=100, le=64000)

    def __post_init__(self):
        if self.accelerator and not self.machine.startswith("n1-"):
            raise ValueError(
                f"vertex.tuning.accelerator {self.accelerator} goes with an n1 machine only, and vertex.tuning.machine is "
                f"{self.machine}: set it to '', or take n1-standard-8"
            )

    # Vertex starts one that went; its trial begins anew, and no other trial minds.
    restart = False

    reduction_server = None

    @property
    def gpu(self) -> str:
        """The kind of its GPU, as Vertex calls it; '' for none."""
        if self.machine in GPUS:
            return A100
        return "NVIDIA_L4" if self.machine.startswith("g2-") else self.accelerator

    @property
    def gpus(self) -> int:
        """GPUs of each machine."""
        return int(bool(self.gpu))

    @property
    def gpu_bytes(self) -> float:
        """Memory of its GPU that a trial may take; infinite without a GPU."""
        return 0.9 * 2**30 * _GPU_GIB[self.gpu] if self.gpu else float("inf")


@typed.frozen
class DataflowSettings:
    """Where Beam runs when not in the step's own container.

    Attributes:
        machine: Machine type of its workers.
        max_workers: How many there may be.
        public_ips: Whether they have addresses of their own; without, the subnetwork needs Private Google Access.
        subnetwork: `regions/REGION/subnetworks/NAME`, or the whole URL for a shared network; '' for the default.
        service_account: The account of its workers, which need less than a run; '' for the run's.
    """

    machine: str = pydantic.Field(default="n1-standard-8", pattern=_MACHINE)
    max_workers: int = pydantic.Field(default=32, ge=1, le=1000)
    public_ips: bool = False
    subnetwork: str = ""
    service_account: str = pydantic.Field(default="", pattern=_ACCOUNT)


@typed.frozen
class ScheduleSettings:
    """When runs start by themselves.

    Attributes:
        time_zone: Name in the IANA database, such as Europe/Berlin; cron times are its.
        weekly: Cron expression, five fields, of the weekly run.
        monthly: Cron expression of the run that tunes; '' for none.
    """

    time_zone: str = pydantic.Field(default="Etc/UTC", pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}$")
    weekly: str = pydantic.Field(default="0 20 * * 1", pattern=_CRON)
    monthly: str = pydantic.Field(default="0 20 1 * *", pattern=rf"({_CRON})|^$")


@typed.frozen
class EndpointSettings:
    """Where models serve on Vertex AI, and how a new one takes over (docs/release.md).

    Attributes:
        image: Image of the container that serves, by digest: a prebuilt one of TensorFlow, such as tf2-cpu.2-15.
        endpoint: Id of the endpoint; '' for the name in `release.endpoint`. One that is only digits must be there already.
        machine: Type of the machines that serve; without a GPU.
        min_replicas: How many there are at least, for each version that is deployed.
        max_replicas: How many there may be.
        canary_percent: Share of the traffic that a new version takes while it is watched, percent, 1 to 50.
        watch_minutes: How long it is watched.
        watch_answers: Answers of the canary that the watch wants at least; fewer are a failure.
        max_error_share: Share of the watch's requests to the canary that may fail or be answered wrongly, 0 to 1.
        max_latency_ms: Milliseconds, 95th percentile of the watch, from the request to the answer.
        max_probability_difference: How far a probability may lie from the trainer's own, 0 to 1: the serving container has
            another processor and another TensorFlow than the smoke test.
        grace_minutes: How long the version that served before stays deployed, so that a rollback takes seconds. After that, the
            next release or `release tidy` undeploys it; 0: at once.
        service_account: The account that models serve as, which need less than a run; '' for the run's.
    """

    image: str = pydantic.Field(pattern=_SERVING_IMAGE)
    endpoint: str = pydantic.Field(default="", pattern=_ENDPOINT)
    machine: str = pydantic.Field(default="n1-standard-2", pattern=_SERVING_MACHINE)
    min_replicas: int = pydantic.Field(default=1, ge=1, le=100)
    max_replicas: int = pydantic.Field(default=2, ge=1, le=100)
    canary_percent: int = pydantic.Field(default=10, ge=1, le=50)
    watch_minutes: float = pydantic.Field(default=10.0, gt=0, le=240)
    watch_answers: int = pydantic.Field(default=200, ge=1, le=100_000)
    max_error_share: float = pydantic.Field(default=0.01, ge=0, lt=1)
    max_latency_ms: float = pydantic.Field(default=2000.0, gt=0)
    max_probability_difference: float = pydantic.Field(default=0.005, gt=0, le=0.1)
    grace_minutes: float = pydantic.Field(default=1440.0, ge=0, le=525_600)
    service_account: str = pydantic.Field(default="", pattern=_ACCOUNT)

    def __post_init__(self):
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"vertex.release.max_replicas {self.max_replicas} is below vertex.release.min_replicas {self.min_replicas}: "
                "raise it, or lower the other"
            )


@typed.frozen
class VertexSettings:
    """The pipeline on Vertex AI.

    Attributes:
        project: Google Cloud project.
        region: Region of everything, such as europe-west4: pipeline, training, Dataflow; the bucket should be there too.
        store: Where runs leave their things: gs://BUCKET/FOLDER, or a folder that every container has.
        images: Photographs: a prefix in Cloud Storage, or a folder that every container has.
        code: Folder of the project in the image.
        service_account: The account that runs do everything as; '' for the project's default one.
        network: `projects/NUMBER/global/networks/NAME` that jobs are peered with; '' for none.
        labels: Labels of every resource, such as team.
        window_hours: Hours from the start of a run, on a schedule its time, to the end of its window; 0 for no window.
        alert_topic: Pub/Sub topic, `projects/PROJECT/topics/NAME`, that hears of each run that failed; '' for none.
        training: The job that trains.
        tuning: The job that searches for hyperparameters.
        dataflow: Where Beam runs; null for the container of each step.
        schedule: When runs start by themselves.
        release: The endpoint that a blessed model is released to; null for a folder of the store only.
    """

    project: str = pydantic.Field(pattern=r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")
    region: str = pydantic.Field(pattern=r"^[a-z]+-[a-z]+[0-9]{1,2}$")
    store: str = pydantic.Field(pattern=_FOLDER)
    images: str = pydantic.Field(pattern=_FOLDER)
    code: str = pydantic.Field(default="/app", pattern=r"^(/[^/\s]+)+$")
    service_account: str = pydantic.Field(default="", pattern=_ACCOUNT)
    network: str = pydantic.Field(default="", pattern=_NETWORK)
    labels: dict[_LabelKey, _LabelValue] = pydantic.Field(default_factory=dict)
    window_hours: float = pydantic.Field(default=12.0, ge=0, le=168)
    alert_topic: str = pydantic.Field(default="", pattern=_TOPIC)
    training: TrainingJobSettings = pydantic.Field(default_factory=TrainingJobSettings)
    tuning: TuningJobSettings = pydantic.Field(default_factory=TuningJobSettings)
    dataflow: DataflowSettings | None = None
    schedule: ScheduleSettings = pydantic.Field(default_factory=ScheduleSettings)
    release: EndpointSettings | None = None

    def __post_init__(self):
        taken = [name for name in RESERVED_LABELS if name in self.labels]
        if taken:
            raise ValueError(f"vertex.labels has {taken[0]!r}, which the pipeline sets itself: choose another name")
        if len(self.labels) > 60:
            raise ValueError(f"vertex.labels has {len(self.labels)} labels; a resource takes 64, and the pipeline adds its own")


