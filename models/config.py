"""The settings of network, training and tuning: ranges, units and production's defaults, written once, here.

No TensorFlow: light commands read settings too.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

# Unknown keys are errors, and a value of another type is never converted in silence ("3" is not 3).
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True)


def _tuple(value):
    return tuple(value) if isinstance(value, list) else value


# YAML and JSON know lists only.
_FromList = pydantic.BeforeValidator(_tuple)


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class NetworkConfig:
    """A ResNet. The defaults are ResNet-50 at 224 pixels: 25.6 million parameters with 1,000 classes.

    Attributes:
        blocks: Residual blocks in each stage, 1 to 4 stages, each with half the resolution of the one before.
            (3, 4, 6, 3) is ResNet-50 with bottlenecks and ResNet-34 without.
        width: Channels of the stem and of the first stage, 4 to 256; each later stage has twice those of the one
            before, and a bottleneck's output four times its stage's.
        bottleneck: Whether a block is 1x1, 3x3, 1x1 convolutions, or two 3x3 convolutions.
        image_size: Pixels of the square that the network sees, 32 to 1024.
    """

    blocks: Annotated[
        tuple[Annotated[int, Field(ge=1, le=64)], ...], _FromList, Field(min_length=1, max_length=4)
    ] = (3, 4, 6, 3)
    width: int = Field(default=64, ge=4, le=256)
    bottleneck: bool = True
    image_size: int = Field(default=224, ge=32, le=1024)


MAX_WORKERS = 4
"""The budget: the most A100 workers that a training may use."""

MAX_TRIALS = 60
"""The most trials that a study may have."""

MAX_PARALLEL = 8
"""Trials at once. A suggestion learns from trials that ended; with all 60 at once nothing would be learnt."""

MIN_PARAMETERS, MAX_PARAMETERS = 6, 8
"""How many hyperparameters a study may search."""

FROZEN_COST = 0.29
"""Forward and backward pass with a frozen backbone, as a share of the full one: measured for ResNet-50 at 224 pixels."""

COMPUTE_BOUND = 0.05
"""Share of the training time that waits for input, below which more GPUs are the right lever."""


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class TrainingConfig:
    """How the network is trained: first the head on a frozen backbone, then everything.

    Attributes:
        backbone: What the backbone starts from: a checkpoint (.npz, see `models.network.save_backbone`), or the folder of a
            SavedModel that this pipeline exported, whose head is left out; "" for random weights. A path, or a URI that
            TensorFlow reads. Whether its shapes fit is only known in training.
        frozen_epochs: Epochs with a frozen backbone, 0 to 1000. 0 without a backbone: random features teach nothing.
        unfrozen_epochs: Epochs with everything trained, 0 to 1000.
        batch_size: Images a step, 1 to 65536. A train split with fewer images makes one step an epoch.
        frozen_learning_rate: Peak of AdamW's learning rate while the backbone is frozen, 1e-7 to 1.
        learning_rate: Peak of AdamW's learning rate after that, 1e-7 to 1.
        warmup_epochs: Epochs of linear warm-up at the start of the unfrozen phase, 0 to 100; may be a fraction. After
            it the learning rate falls to 0 as half a cosine.
        weight_decay: AdamW's decoupled weight decay of kernels, 0 to 1, a share of the learning rate.
        label_smoothing: Share of each target that is spread over all classes, 0 to 0.5.
        dropout: Share of the pooled features that is dropped before the head, 0 to 0.9.
        augmentation: Strength of random crop, flip and colours, 0 (none) to 1 (`models.pixels`).
        early_stopping_patience: Epochs without a better validation loss after which a phase ends, 1 to 1000. The best
            weights are restored in any case.
        seed: Seed of weights, order, augmentation and dropout, 0 to 2**31 - 1.
        intra_op_threads: Threads inside one operation, 1 to 1024. Other counts give other weights, so it is a setting
            and never the machine's number of cores.
        inter_op_threads: Operations that run at once, decoding included, 1 to 1024.
        workers: Processes that train together, 1 to 4 (`MAX_WORKERS`); each takes its share of a batch, so batch_size is a
            multiple of it. Other counts give other weights, whose losses follow each other.
        mixed_precision: Whether convolutions compute in bfloat16, which an A100 does several times faster; variables,
            normalisation of the input, logits and the exported model keep 32 bits.
        reserve_minutes: Of a window that ends at a given time, what is kept for export, evaluation and release, 0 to 1440.
        checkpoint_minutes: Least time between two checkpoints within an epoch, 0 (one a step) to 1440; one is made after each
            epoch in any case. No weight depends on it.
    """

    backbone: str = ""
    frozen_epochs: int = Field(default=0, ge=0, le=1000)
    unfrozen_epochs: int = Field(default=30, ge=0, le=1000)
    batch_size: int = Field(default=256, ge=1, le=65536)
    frozen_learning_rate: float = Field(default=1e-3, ge=1e-7, le=1)
    learning_rate: float = Field(default=1e-3, ge=1e-7, le=1)
    warmup_epochs: float = Field(default=1.0, ge=0, le=100)
    weight_decay: float = Field(default=0.05, ge=0, le=1)
    label_smoothing: float = Field(default=0.1, ge=0, le=0.5)
    dropout: float = Field(default=0.1, ge=0, le=0.9)
    augmentation: float = Field(default=0.5, ge=0, le=1)
    early_stopping_patience: int = Field(default=5, ge=1, le=1000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    intra_op_threads: int = Field(default=12, ge=1, le=1024)
    inter_op_threads: int = Field(default=12, ge=1, le=1024)
    workers: int = 1
    mixed_precision: bool = False
    reserve_minutes: float = Field(default=45.0, ge=0, le=1440)
    checkpoint_minutes: float = Field(default=10.0, ge=0, le=1440)

    def __post_init__(self):
        if self.frozen_epochs and not self.backbone:
            raise ValueError(
                f"training.frozen_epochs {self.frozen_epochs} needs training.backbone: name a checkpoint, or set it to 0"
            )
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ValueError(
                f"training.workers {self.workers} must be 1 to {MAX_WORKERS}: {MAX_WORKERS} A100 workers are the budget"
            )
        if self.batch_size % self.workers:
            raise ValueError(
                f"training.batch_size {self.batch_size} does not divide over training.workers {self.workers}: choose a "
                f"multiple, such as {-(-self.batch_size // self.workers) * self.workers}"
            )
        if self.epochs == 0:
            raise ValueError("training.frozen_epochs 0 and training.unfrozen_epochs 0 leave nothing to train")
        if self.backbone.endswith((".h5", ".keras", ".ckpt", ".index", ".pb", ".pt")):
            raise ValueError(
                f"training.backbone {self.backbone!r} must be an .npz file, as models.pretrain writes it, or the folder of "
                "a model that this pipeline exported, which holds saved_model.pb"
            )

    @property
    def epochs(self) -> int:
        """Epochs of both phases."""
        return self.frozen_epochs + self.unfrozen_epochs


def _range(value):
    if value[0] > value[1]:
        raise ValueError(f"the lower bound {value[0]} exceeds the upper bound {value[1]}")
    return value


_Ascending = pydantic.AfterValidator(_range)


def _bounds(minimum, maximum):
    bound = Annotated[float, Field(ge=minimum, le=maximum)]
    return Annotated[tuple[bound, bound], _FromList, _Ascending]


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class TuningConfig:
    """A search for hyperparameters on the tuning sample. A pair is (lower, upper), both included.

    Attributes:
        trials: Trials of a study, 1 to 60 (`MAX_TRIALS`).
        parallel: Trials at once, 1 to 8 (`MAX_PARALLEL`), no more than `trials`. On one machine as many as it bears.
        algorithm: Where suggestions of a new study come from on one machine: `gaussian_process`, which learns most from
            few trials and takes seconds for each, `eagle` or `quasi_random`. Vertex uses its own default.
        epochs: Epochs of a trial, 1 to 1000; divided into phases as the training's are.
        seed: Seed of what is tried, 0 to 2**31 - 1.
        learning_rate: Bounds, drawn on a logarithmic scale.
        weight_decay: Bounds above 0, drawn on a logarithmic scale.
        batch_size: The sizes to choose from.
        dropout: Bounds.
        augmentation: Bounds.
        label_smoothing: Bounds.
    """

    trials: int = MAX_TRIALS
    parallel: int = MAX_PARALLEL
    algorithm: Literal["gaussian_process", "eagle", "quasi_random"] = "gaussian_process"
    epochs: int = Field(default=8, ge=1, le=1000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    learning_rate: _bounds(1e-7, 1) = (1e-4, 1e-2)
    weight_decay: _bounds(1e-7, 1) = (1e-4, 0.3)
    batch_size: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65536)], ...], _FromList, Field(min_length=1)
    ] = (128, 256, 512)
    dropout: _bounds(0, 0.9) = (0.0, 0.5)
    augmentation: _bounds(0, 1) = (0.0, 1.0)
    label_smoothing: _bounds(0, 0.5) = (0.0, 0.2)

    def __post_init__(self):
        check_budget(self.trials, self.parallel)


def check_budget(trials: int, parallel: int) -> None:
    """Checks what a study may cost.

    Args:
        trials: Trials in all.
        parallel: Trials at once.

    Raises:
        ValueError: One of them is out of its range, or there are more at once than in all.
    """
    if not 1 <= trials <= MAX_TRIALS:
        raise ValueError(f"tuning: {trials} trials are not possible, 1 to {MAX_TRIALS} are")
    if not 1 <= parallel <= MAX_PARALLEL:
        raise ValueError(
            f"tuning: {parallel} trials at once are not possible, 1 to {MAX_PARALLEL} are: a suggestion learns only from "
            "trials that ended"
        )
    if parallel > trials:
        raise ValueError(f"tuning: {parallel} trials at once exceed the {trials} in all: lower tuning.parallel")


def check_parameters(names: Sequence[str]) -> None:
    """Checks how many hyperparameters are searched.

    Raises:
        ValueError: There are fewer than `MIN_PARAMETERS` or more than `MAX_PARAMETERS`.
    """
    space = f"the search space has {len(names)} parameters ({', '.join(names)})"
    if len(names) > MAX_PARAMETERS:
        raise ValueError(
            f"{space}, and {MAX_PARAMETERS} are the most that {MAX_TRIALS} trials can tell apart: take out those that "
            "matter least"
        )
    if len(names) < MIN_PARAMETERS:
        raise ValueError(
            f"{space}, and {MIN_PARAMETERS} are the least: what is left out keeps a value that was never compared with "
            "another. Equal bounds hold one on purpose"
        )


TUNED = ("learning_rate", "weight_decay", "batch_size", "dropout", "augmentation", "label_smoothing")
"""The fields of `TrainingConfig` that a study chooses, in the order of `TuningConfig`."""

LOGARITHMIC = ("learning_rate", "weight_decay")
"""Those of them that are drawn on a logarithmic scale."""


def with_hyperparameters(training: TrainingConfig, hyperparameters: Mapping[str, Any] | str | None) -> TrainingConfig:
    """Lets tuned values override settings.

    >>> with_hyperparameters(TrainingConfig(), {"dropout": 0.3, "batch_size": 64.0}).batch_size
    64

    Args:
        training: The settings.
        hyperparameters: Field name -> value; or the config of KerasTuner's HyperParameters, as a mapping or as JSON,
            whose `values` are meant; or None or an empty mapping for the settings as they are. Tuning services
            know floats only, so a whole float fills an integer field.

    Returns:
        The settings with the values put in.

    Raises:
        ValueError: A name is not a field of `TrainingConfig`, or a value is out of its range.
    """
    if isinstance(hyperparameters, str):
        hyperparameters = json.loads(hyperparameters)
    values = dict(hyperparameters or {})
    if isinstance(values.get("values"), Mapping):
        values = dict(values["values"])
    fields = {field.name: field.type for field in dataclasses.fields(TrainingConfig)}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"hyperparameter {name} = {value!r}: training has no such setting")
        if fields[name] is int and isinstance(value, float) and value.is_integer():
            values[name] = int(value)
    return dataclasses.replace(training, **values)
