"""The window planner, `python -m pipeline plan`: which hardware trains in time, for how much, and what to mend first.

Its figures are the case's, a file's, or those of a training that was recorded (`training.json`); its prices and the
efficiencies that it assumes are in `prices.yaml`. The arithmetic is pure; only the last part reads and prints.
"""

import argparse
import dataclasses
import datetime
import json
import pathlib
import statistics
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
import yaml

from models.config import COMPUTE_BOUND, FROZEN_COST, MAX_WORKERS, TrainingConfig
from pipeline import storage, typed
from pipeline.errors import PipelineError, SettingsError

PRICES = pathlib.Path(__file__).parent / "prices.yaml"

PRICES_LAST = datetime.timedelta(days=180)

_WIDTH = 124


def _number(fits: Callable[[float], bool], remedy: str, kind: type = float):
    def check(value):
        if not fits(value):  # NaN fits nothing
            raise ValueError(remedy)
        return value

    return Annotated[kind, pydantic.AfterValidator(check)]


_Share = _number(lambda value: 0 <= value <= 1, "a share lies between 0 and 1 (40 % is 0.4)")
_Part = _number(lambda value: 0 < value <= 1, "a share above 0 and at most 1 (75 % is 0.75)")
_Hours = _number(lambda value: 0 < value <= 100_000, "hours lie above 0 and up to 100,000: give what was measured")
_Epochs = _number(lambda value: 0 <= value <= 10_000, "epochs are whole and lie between 0 and 10,000", int)
_Price = _number(lambda value: 0 <= value <= 100_000, "dollars an hour lie between 0 and 100,000")


@typed.frozen
class Figures:
    """What the plan starts from. The defaults are the case's, measured on one V100, and the planned training budget.

    Attributes:
        epoch_hours: Hours of an epoch on the one GPU that was measured.
        decode_share: Share of a step that decodes JPEGs, or waits for input, 0 to 1; the rest is forward and backward pass.
        epochs: Epochs when all train everything.
        frozen_epochs: Epochs with a frozen backbone, of the budget that is compared with it.
        unfrozen_epochs: Epochs that train everything, of that budget.
        frozen_cost: Forward and backward pass with a frozen backbone, as a share of the full one; 0.29 was measured for
            ResNet-50 at 224 pixels.
        window_hours: Hours within which the weekly run ends.
        reserve_hours: Hours of the window that everything but training takes; no less than `training.reserve_minutes`.
        max_workers: A100s that may be used, 1 to `MAX_WORKERS`.
        decode_speedup: How many times faster image shards (256-pixel JPEGs, cropped and mirrored) are decoded than the
            photographs are; 5.0 was measured (bench/training.json), 8.1 without augmentation (1: the figures already are those
            of shards).
        gpu_ratio: How many times faster an A100 computes than the GPU that was measured.
        efficiency: Scaling efficiency between machines, 0 to 1; none: `between_nodes` of `prices.yaml`.
        overlap: Whether the next batch is decoded while the GPU computes, once the input is fixed.
    """

    epoch_hours: _Hours = 19.0
    decode_share: _Share = 0.40
    epochs: _number(lambda value: 1 <= value <= 10_000, "epochs are whole and lie between 1 and 10,000", int) = 30
    frozen_epochs: _Epochs = 20
    unfrozen_epochs: _Epochs = 2
    frozen_cost: _Part = FROZEN_COST
    window_hours: _Hours = 12.0
    reserve_hours: _number(lambda value: 0 <= value <= 100_000, "hours lie between 0 and 100,000") = (
        TrainingConfig().reserve_minutes / 60
    )
    max_workers: _number(
        lambda value: 1 <= value <= MAX_WORKERS,
        f"the budget is 1 to {MAX_WORKERS} A100 workers: plan with at most {MAX_WORKERS}",
        int,
    ) = MAX_WORKERS
    decode_speedup: _number(
        lambda value: 1 <= value <= 1000, "lies between 1 (nothing gained) and 1,000: give the ratio that was measured"
    ) = 5.0
    gpu_ratio: _number(
        lambda value: 0 < value <= 1000, "lies above 0 and up to 1,000: 1 if an A100 was measured, about 3 for a V100"
    ) = 3.0
    efficiency: _Part | None = None
    overlap: bool = True

    def __post_init__(self):
        if self.frozen_epochs == self.unfrozen_epochs == 0:
            raise SettingsError("frozen_epochs 0 and unfrozen_epochs 0 train nothing: give one of them at least 1")
        if self.reserve_hours >= self.window_hours:
            raise SettingsError(
                f"reserve_hours {self.reserve_hours:g} leaves nothing of window_hours {self.window_hours:g} to train in: "
                "give a longer window or a smaller reserve"
            )

    @property
    def hours_to_train(self) -> float:
        """What the window leaves for training."""
        return self.window_hours - self.reserve_hours


@typed.frozen
class Machine:
    """A machine type: its A100s, and dollars an hour on demand and on spot."""

    gpus: _number(lambda value: 0 <= value <= 16, "a machine has 0 to 16 A100s", int)
    on_demand: _Price
    spot: _Price


@typed.frozen
class Assumed:
    """A value from 0 to 1 and where it comes from."""

    value: _Part
    source: str


@typed.frozen
class Efficiencies:
    """Share of n single GPUs' speed that n reach together, by what connects them."""

    hardware_alone: Assumed
    between_nodes: Assumed
    reduction_server: Assumed
    nvlink: Assumed


@typed.frozen
class ReductionServer:
    """The machines that sum up gradients for machines that are connected by a network alone."""

    machine: str
    per_worker: _number(lambda value: 1 <= value <= 16, "a reduction server has 1 to 16 machines a worker", int)
    source: str


@typed.frozen
class Prices:
    """`prices.yaml`: see there."""

    prices_of: datetime.date
    read: datetime.date
    region: str
    source: str
    excludes: str
    machines: dict[str, Machine]
    single: str
    nvlink: str
    reduction_server: ReductionServer
    efficiencies: Efficiencies

    def __post_init__(self):
        for field, name in (
            ("single", self.single), ("nvlink", self.nvlink), ("reduction_server.machine", self.reduction_server.machine)
        ):  # fmt: skip
            if name not in self.machines:
                raise ValueError(f"{field} {name!r} has no price: add it to machines, which has {sorted(self.machines)}")
        if self.machines[self.single].gpus != 1 or self.machines[self.nvlink].gpus < 2:
            raise ValueError(f"single {self.single!r} must have one A100, nvlink {self.nvlink!r} more: name other machines")


def epoch_hours(
    compute: float, decode: float, *, speedup: float = 1, gpu_ratio: float = 1, workers: int = 1, efficiency: float = 1,
    cost: float = 1, overlap: bool = False,
) -> float:  # fmt: skip
    """Hours of an epoch: max(C r / (g n e), D / (s n)) when input overlaps compute, their sum when it does not.

    Each worker brings its own CPUs, so decoding scales with the workers, but neither with the GPU nor with what connects
    them. The case, 19 h of which 40 % decode, on four A100s with the input fixed:

    >>> round(epoch_hours(11.4, 7.6, speedup=8.1, gpu_ratio=3, workers=4, efficiency=0.75, overlap=True), 2)
    1.27

    Args:
        compute: C, hours of forward and backward pass on one GPU of those measured.
        decode: D, hours of decoding on its machine.
        speedup: s, how many times faster the input became.
        gpu_ratio: g, how many times faster the GPU is than the one measured.
        workers: n, GPUs.
        efficiency: e, scaling efficiency, above 0 to 1; for one worker 1.
        cost: r, the forward and backward pass as a share of the full one: 1, or what a frozen backbone leaves.
        overlap: Whether a batch is decoded while the one before is computed.

    Returns:
        Hours.
    """
    computing, decoding = compute * cost / (gpu_ratio * workers * efficiency), decode / (speedup * workers)
    return max(computing, decoding) if overlap else computing + decoding


def hardware_alone(hours: float, *, workers: int = 1, efficiency: float = 1, gpu_ratio: float = 1) -> float:
    """Hours of an epoch if hardware sped up all of it, decoding too: the rule of thumb that flatters hardware most.

    >>> [round(hours, 1) for hours in (hardware_alone(19, workers=4, efficiency=0.78), hardware_alone(19, gpu_ratio=3))]
    [6.1, 6.3]
    """
    return hours / (gpu_ratio * workers * efficiency)


@dataclasses.dataclass(frozen=True)
class Budget:
    """Epochs to train."""

    frozen: int
    full: int

    def __str__(self):
        if not self.frozen:
            return f"{self.full} full epochs"
        return f"{self.frozen} frozen + {self.full} full epochs" if self.full else f"{self.frozen} frozen epochs"


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to train.

    Attributes:
        input: `as it is` or `fixed`: read from image shards.
        machines: Number and type of the machines.
        workers: A100s.
        efficiency: Scaling efficiency that was assumed, 0 to 1.
        full_hours: Hours of an epoch that trains everything.
        frozen_hours: Hours of an epoch with a frozen backbone.
        budget: Epochs to train.
        hours: Hours of all of them.
        on_demand: Dollars.
        spot: Dollars, if nothing is preempted.
        input_share: Share of the hours in which GPUs wait for input, 0 to 1.
        in_window: Whether the hours fit what the window leaves for training.
        in_budget: Whether so many workers may be used.
    """

    input: str
    machines: str
    workers: int
    efficiency: float
    full_hours: float
    frozen_hours: float
    budget: Budget
    hours: float
    on_demand: float
    spot: float
    input_share: float
    in_window: bool
    in_budget: bool

    @property
    def fits(self) -> bool:
        """Whether it can be chosen."""
        return self.in_window and self.in_budget


def options(figures: Figures, prices: Prices) -> list[Option]:
    """Every way to train, in the order of the case: input, training budget, hardware.

    With `max_workers` below `MAX_WORKERS`, what all of the budget's workers would do is shown too, as out of reach. Decoding as
    it is does not overlap: shares that add up to a step were measured one after the other.
    """
    inputs = [_Input("as it is", 1.0, False)]
    if figures.decode_speedup > 1:
        inputs.append(_Input("fixed", figures.decode_speedup, figures.overlap))
    budgets = dict.fromkeys((Budget(0, figures.epochs), Budget(figures.frozen_epochs, figures.unfrozen_epochs)))
    hardware = _hardware(figures, prices)
    return [_option(figures, source, budget, one) for source in inputs for budget in budgets for one in hardware]


@dataclasses.dataclass(frozen=True)
class _Input:
    name: str
    speedup: float
    overlap: bool


@dataclasses.dataclass(frozen=True)
class _Hardware:
    machines: str
    workers: int
    efficiency: float
    on_demand: float
    spot: float


def _hardware(figures, prices):
    single, nvlink = prices.machines[prices.single], prices.machines[prices.nvlink]
    reducers, reducer = prices.reduction_server, prices.machines[prices.reduction_server.machine]
    known = prices.efficiencies
    between = known.between_nodes.value if figures.efficiency is None else figures.efficiency

    found = [_Hardware(f"1 x {prices.single}", 1, 1.0, single.on_demand, single.spot)]
    for workers in sorted({figures.max_workers, MAX_WORKERS} - {1}):
        machines, count = f"{workers} x {prices.single}", workers * reducers.per_worker
        on_demand, spot = workers * single.on_demand, workers * single.spot
        found.append(_Hardware(machines, workers, between, on_demand, spot))
        found.append(
            _Hardware(
                f"{machines} + {count} x {reducers.machine}", workers, max(between, known.reduction_server.value),
                on_demand + count * reducer.on_demand, spot + count * reducer.spot,
            )  # fmt: skip
        )
    found.append(_Hardware(f"1 x {prices.nvlink}", nvlink.gpus, known.nvlink.value, nvlink.on_demand, nvlink.spot))
    return found


def _option(figures, source, budget, hardware):
    decode = figures.decode_share * figures.epoch_hours
    compute = figures.epoch_hours - decode

    def hours(decode, cost):
        return epoch_hours(
            compute, decode, speedup=source.speedup, gpu_ratio=figures.gpu_ratio, workers=hardware.workers,
            efficiency=hardware.efficiency, cost=cost, overlap=source.overlap,
        )  # fmt: skip

    full, frozen = hours(decode, 1), hours(decode, figures.frozen_cost)
    total = budget.full * full + budget.frozen * frozen
    computing = budget.full * hours(0, 1) + budget.frozen * hours(0, figures.frozen_cost)
    return Option(
        input=source.name, machines=hardware.machines, workers=hardware.workers, efficiency=hardware.efficiency,
        full_hours=full, frozen_hours=frozen, budget=budget, hours=total, on_demand=total * hardware.on_demand,
        spot=total * hardware.spot, input_share=max(0.0, 1 - computing / total),
        in_window=total <= figures.hours_to_train, in_budget=hardware.workers <= figures.max_workers,
    )  # fmt: skip


def best(found: list[Option]) -> Option | None:
    """The cheapest option that fits, on demand, because a preemption may cost the window; the faster of two as cheap."""
    return min((one for one in found if one.fits), key=lambda one: (one.on_demand, one.hours), default=None)


def advice(found: list[Option], figures: Figures) -> str:
    """What to do and why, or, if nothing fits, what came nearest and what would help."""
    chosen = best(found)
    if chosen is None:
        return _nothing_fits(found, figures)
    count = sum(one.fits for one in found)
    rank = f"the cheapest of {count} that fit" if count > 1 else "the only one that fits"
    as_is = [one for one in found if one.input == "as it is" and one.in_budget]
    if chosen.input == "fixed" and not any(one.fits for one in as_is):
        waits, workers = _percent(as_is[0].input_share), _workers(figures.max_workers)
        text = (
            f"Fix the input first, then take {chosen.machines} for {chosen.budget}: {_costs(chosen)}, {rank}; as it is, "
            f"{as_is[0].machines} waits for decoding {waits} of each step, and nothing up to {workers} fits"
        )
    else:
        text = f"Take {_described(chosen)}: {_costs(chosen)}, {rank}"
    uncut = best([one for one in found if one.budget == Budget(0, figures.epochs)])
    if uncut and uncut.budget != chosen.budget:
        text += f"; {_described(uncut)} would fit too: {_costs(uncut)}"
    return f"{text}. {_lever(chosen)}."


def _nothing_fits(found, figures):
    nearest = min((one for one in found if one.in_budget), key=lambda one: one.hours)
    text = (
        f"nothing up to {_workers(figures.max_workers)} trains within {figures.hours_to_train:g} h; the fastest, "
        f"{_described(nearest)}, takes {_hours(nearest.hours)} h."
    )
    more = best([dataclasses.replace(one, in_budget=True) for one in found])
    if more:
        return (
            f"{text} {_described(more)} would take {_hours(more.hours)} h: allow {_workers(more.workers)} by "
            "--max-workers, or plan fewer epochs"
        )
    return f"{text} {_lever(nearest)}. Plan fewer epochs (--unfrozen-epochs, --frozen-epochs) or a longer window"


def _lever(option):
    share, limit = _percent(option.input_share), _percent(COMPUTE_BOUND)
    if option.input_share < COMPUTE_BOUND:
        return (
            f"Its GPUs then wait for input {share} of the time, less than {limit}: the job is compute-bound, and if it "
            "must be faster, more A100s are the right lever"
        )
    return (
        f"Its GPUs then still wait for input {share} of the time: faster input is the right lever, and more A100s only "
        f"once it is less than {limit}"
    )


def stale(prices: Prices, today: datetime.date) -> str:
    """Says that the prices are too old to trust, or nothing."""
    age = today - prices.prices_of
    if age <= PRICES_LAST:
        return ""
    return f"these prices are {age.days} days old (limit {PRICES_LAST.days}): refresh pipeline/prices.yaml, which says how"


def as_text(found: list[Option], figures: Figures, prices: Prices, origin: list[str], today: datetime.date) -> str:
    """The plan for people, without its advice."""
    lines = [*origin, *_alone(figures, prices)]
    lines += [
        f"Of a window of {figures.window_hours:g} h, {figures.reserve_hours:g} h are for all but training: "
        f"{figures.hours_to_train:g} h remain.",
        "",
        f"{'':44}{'hours an epoch':>16}{'':10}{'dollars':>20}{'waits for':>12}",
        f"{'':44}{'full':>8}{'frozen':>8}{'hours':>10}{'on demand':>12}{'spot':>8}{'input':>12}{'fits':>8}",
    ]
    block = None
    for one in found:
        if block != (block := (one.input, one.budget)):
            lines.append(f"input {one.input}, {one.budget}")
        frozen = _epoch(one.frozen_hours) if one.budget.frozen else "-"
        fits = ("yes" if one.in_window else "no") if one.in_budget else f"over {figures.max_workers}"
        lines.append(
            f"  {one.machines:42}{_epoch(one.full_hours):>8}{frozen:>8}{_hours(one.hours):>10}"
            f"{_dollars(one.on_demand):>12}{_dollars(one.spot):>8}{_percent(one.input_share):>12}{fits:>8}"
        )
    known = prices.efficiencies
    between = f"{known.between_nodes.value:g}" if figures.efficiency is None else f"{figures.efficiency:g} (given)"
    lines += [
        "",
        f"Prices: {prices.region}, list of {prices.prices_of}, read {prices.read}; no Vertex AI fee, disks or network.",
        f"Scaling efficiency: {between} between machines, {known.reduction_server.value:g} with a reduction server, "
        f"{known.nvlink.value:g} over NVLink (pipeline/prices.yaml).",
    ]
    if old := stale(prices, today):
        lines.append(f"{old[0].upper()}{old[1:]}.")
    return "\n".join(lines)


def _alone(figures, prices):
    if figures.decode_speedup == 1:
        return []  # The input is fixed already; more hardware is no temptation to skip that.
    lines, efficiency = [], prices.efficiencies.hardware_alone.value
    for what, workers, share, ratio in (
        (f"{MAX_WORKERS} such GPUs, {_percent(efficiency)} efficient", MAX_WORKERS, efficiency, 1.0),
        ("one A100", 1, 1.0, figures.gpu_ratio),
    ):
        hours = hardware_alone(figures.epoch_hours, workers=workers, efficiency=share, gpu_ratio=ratio)
        total = figures.epochs * hours
        lines.append(
            f"  {what}: {_hours(hours)} h an epoch, {_hours(total)} h for {Budget(0, figures.epochs)}: "
            f"{'fits' if total <= figures.hours_to_train else 'does not fit'}"
        )
    return ["Hardware alone, if it sped up decoding as much as computing (nothing does):", *lines]


def as_json(
    found: list[Option], figures: Figures, prices: Prices, origin: list[str], today: datetime.date
) -> dict[str, Any]:
    """The plan for machines; hours, dollars, and shares from 0 to 1."""

    def plain(one):
        return dataclasses.asdict(one) | {"fits": one.fits}

    chosen = best(found)
    return {
        "figures": typed.to_dict(figures),
        "origin": origin,
        "prices": json.loads(json.dumps(typed.to_dict(prices), default=str)) | {"stale": stale(prices, today)},
        "options": [plain(one) for one in found],
        "best": chosen and plain(chosen),
        "advice": advice(found, figures),
    }


def _hours(hours):
    return f"{hours:,.1f}" if hours >= 0.95 else f"{hours:.2g}"


def _epoch(hours):
    return f"{hours:,.2f}" if hours >= 0.095 else f"{hours:.2g}"


def _dollars(dollars):
    return f"${dollars:,.0f}" if dollars >= 10 else f"${dollars:.2f}"


def _percent(share):
    text = f"{100 * share:.1f}" if share < 0.095 else f"{100 * share:.0f}"
    return f"{text.removesuffix('.0')} %"


def _workers(count):
    return f"{count} worker" + "s" * (count != 1)


def _costs(option):
    return f"{_hours(option.hours)} h, {_dollars(option.on_demand)}"


def _described(option):
    return f"{option.machines}, input {option.input}, {option.budget}"


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a recorded training says of the next one.

    Attributes:
        figures: The fields of `Figures` that it measured, or that follow from it.
        origin: How, for people.
    """

    figures: dict[str, Any]
    origin: list[str]


def read_profile(uri: str, images: int | None = None) -> Profile:
    """Reads the record of a training, `training.json` of `models.training.run_fn`.

    Of several replicas each counts with its share of their speed, so what scaling lost is in the hours of one. An epoch takes
    as long as its images at the median speed of the unfrozen epochs. What waited for input is what overlap had left, so it is
    added and never hidden; the shards were read already, so there is nothing to gain from them. Where both phases ran, they
    give the cost of a frozen step.

    Args:
        uri: The file, here or in Cloud Storage.
        images: Images of an epoch; None for as many as trained then.

    Returns:
        What it says.

    Raises:
        PipelineError: It is not there, or is no such record; the text names the field.
    """
    record = _record(uri)

    def field(path, fits, wanted):
        value = record
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not fits(value):
            raise PipelineError(
                f"{uri} is no record of a training: {path} must be {wanted}, not {value!r}. {_WHERE_PROFILES_ARE}"
            )
        return value

    def count(value):
        return isinstance(value, int) and value >= 0

    def share(value):
        return isinstance(value, (int, float)) and 0 <= value <= 1

    waiting = field("input_wait_share", share, "a share from 0 to 1")
    trained = field("examples.train", lambda value: count(value) and value > 0, "a whole number above 0")
    frozen_epochs = field("training.frozen_epochs", count, "a whole number")
    unfrozen_epochs = field("training.unfrozen_epochs", count, "a whole number")
    phases = field("phases", lambda value: isinstance(value, list) and value, "a list of phases")
    speeds = {}
    for phase in phases:
        try:
            speeds[phase["name"]] = statistics.median(epoch["images_per_second"] for epoch in phase["epochs"])
            usable = 0 < speeds[phase["name"]] < float("inf")
        except (KeyError, TypeError, statistics.StatisticsError):
            usable = False
        if not usable:
            raise PipelineError(
                f"{uri} is no record of a training: each of phases must have a name and epochs with images_per_second "
                f"above 0. {_WHERE_PROFILES_ARE}"
            )
    if "unfrozen" not in speeds:
        raise PipelineError(
            f"{uri} has no unfrozen phase, only {sorted(speeds)}: nothing says what a full epoch costs; take the record of "
            "a training with training.unfrozen_epochs above 0"
        )

    replicas = field("replicas", lambda value: value is None or count(value) and value > 0, "a whole number above 0") or 1
    speeds = {name: speed / replicas for name, speed in speeds.items()}
    images = trained if images is None else images
    hours = images / speeds["unfrozen"] / 3600
    figures = {
        "epoch_hours": hours, "decode_share": waiting, "epochs": frozen_epochs + unfrozen_epochs,
        "frozen_epochs": frozen_epochs, "unfrozen_epochs": unfrozen_epochs, "decode_speedup": 1.0, "gpu_ratio": 1.0,
        "overlap": False,
    }  # fmt: skip
    origin = [
        f"Recorded in {uri}: {images:,} images at {speeds['unfrozen']:,.0f} a second, {_epoch(hours)} h a full epoch on "
        f"one worker, {_percent(waiting)} waiting for input."
    ]
    if replicas > 1:
        origin.append(f"{replicas} replicas trained together; one is taken to have had its share of their speed.")
    if "frozen" in speeds and waiting < 1:
        cost = (speeds["unfrozen"] / speeds["frozen"] - waiting) / (1 - waiting)
        if 0 < cost <= 1:
            figures["frozen_cost"] = cost
            origin.append(f"A frozen step took {_percent(cost)} of a full one's compute.")
    devices = record.get("tensorflow", {}).get("devices") if isinstance(record.get("tensorflow"), dict) else None
    if isinstance(devices, list) and "GPU" not in devices:
        origin.append("It trained without a GPU: say by --gpu-ratio how much faster an A100 is, or these are CPUs' hours.")
    return Profile(figures, origin)


_WHERE_PROFILES_ARE = "Name the training.json that a Trainer left, in store/artifacts/Trainer/model_run/"


def _record(uri):
    try:
        record = json.loads(storage.read(uri))
    except OSError as error:
        raise PipelineError(f"cannot read the profile {uri}: {error.strerror or error}. {_WHERE_PROFILES_ARE}") from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{uri} is no record of a training: {error}. {_WHERE_PROFILES_ARE}") from error
    if not isinstance(record, dict):
        raise PipelineError(f"{uri} is no record of a training: it holds no fields. {_WHERE_PROFILES_ARE}")
    return record


_FLAGS = {
    "epoch_hours": (float, "hours of an epoch on the one GPU that was measured"),
    "decode_share": (float, "share of a step that decodes, 0 to 1"),
    "epochs": (int, "epochs when all train everything"),
    "frozen_epochs": (int, "of the other budget: epochs with a frozen backbone"),
    "unfrozen_epochs": (int, "of the other budget: epochs that train everything"),
    "frozen_cost": (float, "compute of a frozen step as a share of a full one"),
    "window_hours": (float, "hours within which the weekly run ends"),
    "reserve_hours": (float, "hours of the window for all but training"),
    "max_workers": (int, f"A100s that may be used, 1 to {MAX_WORKERS}"),
    "decode_speedup": (float, "how many times faster shards decode; 1: they are what was measured"),
    "gpu_ratio": (float, "how many times faster an A100 is than the GPU that was measured"),
    "efficiency": (float, "scaling efficiency between machines, 0 to 1"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.add_argument("--profile", metavar="FILE", help="training.json of a Trainer, instead of the case's figures")
    parser.add_argument(
        "--images", type=int, metavar="N", help="with --profile: images of an epoch (default: as many as trained then)"
    )
    parser.add_argument("--figures", metavar="FILE", help="YAML or JSON file of figures, named as below with _ for -")
    the_case = typed.to_dict(Figures())
    for name, (kind, text) in _FLAGS.items():
        default = "that of the prices file" if the_case[name] is None else f"{the_case[name]:g}"
        flag, metavar = f"--{name.replace('_', '-')}", "X" if kind is float else "N"
        parser.add_argument(flag, type=kind, metavar=metavar, help=f"{text} (default: {default})")
    parser.add_argument(
        "--no-overlap", dest="overlap", action="store_const", const=False,
        help="decoding and computing take turns, even once the input is fixed",
    )  # fmt: skip
    parser.add_argument("--prices", default=PRICES, metavar="FILE", help="default: pipeline/prices.yaml")
    parser.add_argument("--json", action="store_true", help="for machines")


def plan(arguments: argparse.Namespace, today: datetime.date | None = None) -> int:
    """Answers the command; returns the exit status.

    Raises:
        SettingsError: A figure or the price list cannot be used.
        PipelineError: The profile cannot be used, or, after the plan was printed, nothing fits.
    """
    today = today or datetime.datetime.now(datetime.UTC).date()
    figures, origin = _figures(arguments)
    prices = typed.load(Prices, arguments.prices)
    found = options(figures, prices)
    if arguments.json:
        print(json.dumps(as_json(found, figures, prices, origin, today), indent=2, ensure_ascii=False))
    else:
        print(as_text(found, figures, prices, origin, today))
    if best(found) is None:
        raise PipelineError(advice(found, figures))
    if not arguments.json:
        print(f"\n{textwrap.fill(advice(found, figures), _WIDTH)}")
    return 0


def _figures(arguments) -> tuple[Figures, list[str]]:
    given = {name: value for name in (*_FLAGS, "overlap") if (value := getattr(arguments, name)) is not None}
    in_file = {}
    if arguments.figures:
        typed.load(Figures, arguments.figures)  # so that what is wrong in the file is said of the file
        in_file = yaml.safe_load(pathlib.Path(arguments.figures).read_text(encoding="utf-8")) or {}
    if arguments.images is not None and not arguments.profile:
        raise SettingsError(
            f"--images {arguments.images} needs --profile: without one, an epoch is --epoch-hours, whatever is in it"
        )
    if arguments.images is not None and arguments.images < 1:
        raise SettingsError(f"--images {arguments.images} must be at least 1: the photographs that an epoch reads")
    if not arguments.profile:
        figures = typed.from_dict(Figures, in_file | given, "the command line")
        return figures, [
            f"An epoch takes {figures.epoch_hours:g} h on the one GPU that was measured, decoding "
            f"{_percent(figures.decode_share)} of it; an A100 is {figures.gpu_ratio:g} times as fast."
        ]
    profile = read_profile(arguments.profile, arguments.images)
    figures = typed.from_dict(Figures, profile.figures | in_file | given, f"{arguments.profile} and the command line")
    if figures.overlap:
        raise SettingsError(
            f"{arguments.figures}: overlap true does not go with --profile, whose input wait is what overlap left: drop it"
        )
    return figures, profile.origin
