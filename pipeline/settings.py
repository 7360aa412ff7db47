"""The settings of a pipeline: one frozen dataclass per concern, filled by `configs/*.yaml`.

Defaults are production's and are written here or in `models/config.py`, once. The limits that stop
a bad week and a bad model are not here but in `schema/gate.yaml` and `schema/release.yaml`, because people edit those.
"""

import dataclasses
import pathlib
from typing import Annotated, Literal

import pydantic

from models.config import MAX_WORKERS, NetworkConfig, TrainingConfig, TuningConfig
from pipeline import typed
from pipeline.tuning.machine import batch_bytes
from pipeline.vertex.settings import A100, VertexSettings
from pipeline.warehouse.base import MAX_QUERY_BYTES

_PROJECT = pathlib.Path(__file__).resolve().parent.parent

CONFIGS = pathlib.Path(__file__).parent / "configs"

BEAM_HERE = (
    "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",
    "--sdk_container_image=this-process",
)
"""Beam's options on this machine: in this process. Later versions of its DirectRunner first try to download another.

No container is started and the image is no name of one: without it TFX packs its own source for workers that there are not, for
two seconds in every step.
"""

_LONGEST_MONTH = 31
"""Days between two firsts of a month, at most."""

_IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]*$"

# A project id, after the domain of an older kind of account: https://cloud.google.com/resource-manager/docs.
_PROJECT_ID = r"^(([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9])?$"

# https://cloud.google.com/bigquery/docs/labels-intro, without letters beyond ASCII.
_LabelKey = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
_LabelValue = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9_-]{0,63}$")]


@typed.frozen
class WarehouseSettings:
    """Where the labels live.

    Attributes:
        kind: `duckdb` reads the label edits from a file and keeps snapshots in the store;
            `bigquery` reads and keeps them in a data set.
        project: Google Cloud project, for `bigquery`.
        dataset: BigQuery data set that holds the label table and receives the snapshots.
        labels: Name of the label table or view.
        expiry_days: `bigquery`: days after which a snapshot is deleted; 0 keeps it, because auditors may ask.
        table_labels: `bigquery`: labels of the tables that the pipeline makes, for costs and clean-up.
        max_query_bytes: `bigquery`: bytes that one query may read; estimated before it runs. At least 10 MiB, the
            least that BigQuery bills.
    """

    kind: Literal["duckdb", "bigquery"] = "bigquery"
    project: str = pydantic.Field(default="", pattern=_PROJECT_ID)
    dataset: str = pydantic.Field(default="", pattern=r"^[A-Za-z0-9_]*$")
    labels: str = pydantic.Field(default="labels", pattern=_IDENTIFIER)
    expiry_days: int = pydantic.Field(default=0, ge=0)
    table_labels: dict[_LabelKey, _LabelValue] = pydantic.Field(default_factory=dict)
    max_query_bytes: int = pydantic.Field(default=MAX_QUERY_BYTES, ge=10 * 2**20)

    def __post_init__(self):
        if self.kind == "bigquery" and not (self.project and self.dataset):
            raise ValueError("warehouse.kind bigquery needs warehouse.project and warehouse.dataset")


def _short_side(value) -> int | str:
    if value == "original" or type(value) is int and 16 <= value <= 2048:
        return value
    raise ValueError("should be a whole number of pixels from 16 to 2048, or original")


@typed.frozen
class ShardSettings:
    """How photographs become image shards.

    Attributes:
        short_side: Pixels of the shorter side as stored; 256 serves a 224-pixel network. `original` keeps
            the bytes of the files: for an archive, or a network that wants every pixel.
        quality: JPEG quality of what is stored, 50 to 100.
        target_bytes: Size of a shard; the last digits vary, because photographs are spread by hash.
        readers: Photographs that are read and resized at once while a shard is written, to hide the time that
            Cloud Storage takes to answer; no byte depends on it.
        min_side: Pixels; a photograph whose shorter side is less goes to quarantine.
        max_pixels: Width times height above which a file counts as a decompression bomb.
        max_quarantine_share: Share of photographs, 0 to 1, above which the run fails.
    """

    short_side: Annotated[int | str, pydantic.PlainValidator(_short_side)] = 256
    quality: int = pydantic.Field(default=90, ge=50, le=100)
    target_bytes: int = pydantic.Field(default=128 * 2**20, ge=2**10)
    readers: int = pydantic.Field(default=8, ge=1, le=256)
    min_side: int = pydantic.Field(default=64, ge=1)
    max_pixels: int = pydantic.Field(default=100_000_000, ge=1)
    max_quarantine_share: float = pydantic.Field(default=0.01, ge=0, le=1)


@typed.frozen
class SplitSettings:
    """Which share of the photographs trains, steers and judges.

    The split is a function of the group key alone, so a photograph never moves, and two photographs
    of one product never straddle two splits.

    Attributes:
        train: Share that trains, 0 to 1.
        val: Share for early stopping and tuning. What remains is `eval`, for the Evaluator alone.
        group_by: Column whose value decides.
        salt: Text mixed into the hash; another salt gives another division.
        tuning_share: Share of train and val, stratified by class, that the tuning sample takes.
    """

    train: float = pydantic.Field(default=0.8, gt=0, lt=1)
    val: float = pydantic.Field(default=0.1, gt=0, lt=1)
    group_by: Literal["product_id", "image_id"] = "product_id"
    salt: str = pydantic.Field(default="", pattern=r"^[A-Za-z0-9_-]*$")
    tuning_share: float = pydantic.Field(default=0.12, gt=0, le=1)

    def __post_init__(self):
        if self.train + self.val >= 1:
            raise ValueError(
                f"splits.train + splits.val must leave a share for eval: {self.train} + {self.val} is not below 1"
            )


@typed.frozen
class GateSettings:
    """How the gate starts.

    Attributes:
        bootstrap: Whether a snapshot may be accepted although none was accepted before it, so that
            drift cannot be judged. Set it for the first run of a pipeline; the run records it.
    """

    bootstrap: bool = False


@typed.frozen
class EvaluationSettings:
    """How the eval split goes through the models. What a candidate must reach is in `schema/release.yaml`.

    Attributes:
        batch_size: Photographs a batch.
        max_batch_bytes: Bytes of the photographs of a batch, as stored: a few large ones must not fill the memory. One that
            alone has more is a batch of its own.
    """

    batch_size: int = pydantic.Field(default=64, ge=1)
    max_batch_bytes: int = pydantic.Field(default=8 * 2**20, ge=2**10)


@typed.frozen
class ReleaseSettings:
    """Where a blessed model goes.

    Attributes:
        endpoint: Name of the endpoint in the serving ledger; with `vertex.release`, its id on Vertex AI and that of the Model.
        bootstrap: Whether a model may be released although nothing serves, so that it cannot be compared and absolute
            thresholds alone decide. Set it for the first release; the run records it.
    """

    endpoint: str = pydantic.Field(default="default", pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")
    bootstrap: bool = False


@typed.frozen
class LineageSettings:
    """What is told of a run beside the lineage store.

    Attributes:
        openlineage: Whether each run ends by writing its OpenLineage events into `openlineage/RUN_ID.ndjson` of the store.
            Of a run on Vertex AI, `audit export` writes them when it is asked.
    """

    openlineage: bool = False


@typed.frozen
class RetuneSettings:
    """When a week searches for hyperparameters without being asked. The first search is always a person's (`--tune`).

    Attributes:
        every_weeks: Weeks after the last search at which another is due, by the dates of their snapshots, 1 to 52; 0: never.
            Beside a monthly schedule at least 5: two firsts of a month lie up to 31 days apart.
        max_drop: How far the validation accuracy of the newest week may lie below what the best-known configuration
            reached when it was found, 0 to 1, before a search is made; 1: never.
        warn_after_weeks: Age of the best-known configuration, 1 to 520 weeks, above which each run warns.
    """

    every_weeks: int = pydantic.Field(default=5, ge=0, le=52)
    max_drop: float = pydantic.Field(default=0.02, ge=0, le=1)
    warn_after_weeks: int = pydantic.Field(default=5, ge=1, le=520)

    @property
    def by_itself(self) -> bool:
        """Whether a week may search that was not asked to."""
        return self.every_weeks > 0 or self.max_drop < 1

    def __post_init__(self):
        if self.every_weeks > self.warn_after_weeks:
            raise ValueError(
                f"retune.every_weeks {self.every_weeks} exceeds retune.warn_after_weeks {self.warn_after_weeks}: runs would "
                "warn before a search is due; raise the latter"
            )


@typed.frozen
class Settings:
    """All settings of one pipeline.

    Attributes:
        name: Name of the pipeline; Vertex takes lower-case letters, digits and hyphens.
        vertex: The pipeline on Vertex AI; null for one that runs on this machine only.
    """

    name: str = pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]{0,127}$")
    warehouse: WarehouseSettings
    shards: ShardSettings = pydantic.Field(default_factory=ShardSettings)
    splits: SplitSettings = pydantic.Field(default_factory=SplitSettings)
    gate: GateSettings = pydantic.Field(default_factory=GateSettings)
    network: NetworkConfig = pydantic.Field(default_factory=NetworkConfig)
    training: TrainingConfig = pydantic.Field(default_factory=TrainingConfig)
    tuning: TuningConfig = pydantic.Field(default_factory=TuningConfig)
    retune: RetuneSettings = pydantic.Field(default_factory=RetuneSettings)
    evaluation: EvaluationSettings = pydantic.Field(default_factory=EvaluationSettings)
    release: ReleaseSettings = pydantic.Field(default_factory=ReleaseSettings)
    lineage: LineageSettings = pydantic.Field(default_factory=LineageSettings)
    vertex: VertexSettings | None = None

    @property
    def short_side(self) -> int:
        """Pixels of the shorter side that the network's centre is cropped from.

        With photographs of every size (`shards.short_side: original`), the customary 8/7 of the network's size.
        """
        side = self.shards.short_side
        return round(self.network.image_size * 8 / 7) if side == "original" else side

    def __post_init__(self):
        if self.shards.short_side != "original" and self.network.image_size > self.shards.short_side:
            raise ValueError(
                f"network.image_size {self.network.image_size} exceeds shards.short_side "
                f"{self.shards.short_side}: the network would only see enlarged pixels"
            )
        if self.lineage.openlineage and self.vertex is not None:
            raise ValueError(
                "lineage.openlineage is for runs on this machine, and vertex is set: leave it out, and take the events of a run "
                "from `python -m pipeline audit export`"
            )
        uneven = [size for size in self.tuning.batch_size if size % self.training.workers]
        if uneven:
            raise ValueError(
                f"tuning.batch_size {uneven[0]} does not divide over training.workers {self.training.workers}: the values "
                "that win are trained with; choose multiples"
            )
        if self.vertex:
            self._check_schedule(self.vertex.schedule.monthly)
            self._check_vertex(self.vertex.training)
            self._check_search(self.vertex.tuning)

    def _check_schedule(self, monthly: str) -> None:
        weeks = self.retune.every_weeks
        if monthly and 0 < 7 * weeks <= _LONGEST_MONTH:
            raise ValueError(
                f"retune.every_weeks {weeks} is no more than a month, and vertex.schedule.monthly {monthly!r} searches each month "
                f"anyway: a week would search a few days before the schedule does; set it to {_LONGEST_MONTH // 7 + 1} or more, "
                "which makes up for a month that failed, to 0, or set vertex.schedule.monthly to ''"
            )

    def _check_vertex(self, job) -> None:
        workers, gpus = self.training.workers, self.training.workers * job.gpus
        if gpus > MAX_WORKERS:
            raise ValueError(
                f"vertex.training.machine {job.machine} times training.workers {workers} are {gpus} A100s: {MAX_WORKERS} are "
                "the budget; take fewer workers or a smaller machine"
            )
        for field, sizes in (("training", [self.training.batch_size]), ("tuning", self.tuning.batch_size)):
            uneven = [size for size in sizes if gpus and size % gpus]
            if uneven:
                raise ValueError(f"{field}.batch_size {uneven[0]} does not divide over {gpus} A100s: choose a multiple")
        if job.reduction_server and workers == 1:
            raise ValueError(
                "vertex.training.reduction_server is for several machines, and training.workers is 1: within one machine it "
                "has nothing to do; set it to null"
            )

    def _check_search(self, job) -> None:
        parallel, largest = self.tuning.parallel, max(self.tuning.batch_size)
        if job.gpu == A100 and parallel > MAX_WORKERS:
            raise ValueError(
                f"vertex.tuning.machine {job.machine} times tuning.parallel {parallel} are {parallel} A100s: {MAX_WORKERS} "
                f"are the budget; set tuning.parallel to {MAX_WORKERS} or take a g2-standard-8"
            )
        needed = batch_bytes(self.network, largest) / (2 if self.training.mixed_precision else 1)
        if needed > job.gpu_bytes:
            raise ValueError(
                f"a trial with tuning.batch_size {largest} takes about {needed / 2**30:.0f} GiB, and of the GPU of "
                f"vertex.tuning.machine {job.machine} it may take {job.gpu_bytes / 2**30:.0f} GiB: leave that size out, or "
                "take a larger GPU"
            )


def load(path: str | pathlib.Path) -> Settings:
    """Reads the settings of a pipeline from a YAML file.

    Args:
        path: The file. A relative `training.backbone` in it is meant from the project's folder.

    Raises:
        SettingsError: The file cannot be used as it is.
    """
    settings = typed.load(Settings, path)
    backbone = settings.training.backbone
    if backbone and "://" not in backbone:
        training = dataclasses.replace(settings.training, backbone=str(_PROJECT / backbone))
        settings = dataclasses.replace(settings, training=training)
    return settings


def with_workers(settings: Settings, workers: int) -> Settings:
    """The same settings for another number of workers.

    Raises:
        SettingsError: It exceeds the budget, or a batch does not divide over so many.
    """
    content = typed.to_dict(settings)
    content["training"]["workers"] = workers
    return typed.from_dict(Settings, content, f"--workers {workers}")
