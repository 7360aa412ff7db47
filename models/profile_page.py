"""The page of a training: where its time went, how it learnt, and what to mend or buy."""

import dataclasses
import datetime
import itertools
import math
import posixpath
from collections.abc import Callable, Mapping, Sequence

from models import files
from models.charts import duration as _duration
from models.charts import escaped as _e
from models.charts import tick as _tick
from models.charts import ticks as _ticks
from models.config import COMPUTE_BOUND


def write(record: Mapping, folder: str) -> None:
    """Writes `profile.html`, all of it or nothing.

    Args:
        record: The record of a training that ended now.
        folder: Where: a path, or a URI that TensorFlow writes to; it is there.
    """
    files.write(posixpath.join(folder, "profile.html"), page(record, datetime.datetime.now(datetime.UTC)))


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #4a4f57; --line: #d9dce0; --axis: #9aa1ab; --main: #4a70aa; --second: #1c1e21; --rest: #c3cddc; --good: #e2f3e5; --good-ink: #12602a; --bad: #fbe4e2; --bad-ink: #8c1b12; --best: #2e8b57; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e5e8; --soft: #b1b7c0; --line: #3b4048; --axis: #7b838f; --main: #8fb3ea; --second: #e3e5e8; --rest: #4a566b; --good: #143d22; --good-ink: #b5e6c3; --bad: #55201b; --bad-ink: #fac9c4; --best: #5fce92; } body { background: #17191c; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--ink); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } p, li { overflow-wrap: anywhere; } ul { padding-left: 1.2rem; } li { margin: .3rem 0; }
.verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600; } .compute { background: var(--good); color: var(--good-ink); } .input { background: var(--bad); color: var(--bad-ink); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem 2rem; }
figure { margin: .6rem 0; } figcaption { font-size: .9rem; color: var(--soft); } figcaption b { color: var(--ink); }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; display: block; } svg text { fill: var(--soft); }
svg .axis { stroke: var(--axis); } svg .grid { stroke: var(--line); } svg .phase { stroke: var(--axis); stroke-dasharray: 2 3; }
svg .main, svg .second { fill: none; stroke-width: 2; stroke-linejoin: round; stroke: var(--main); } svg .second { stroke: var(--second); stroke-width: 1.3; stroke-dasharray: 5 3; }
svg circle.main { fill: var(--main); stroke: none; } svg circle.second { fill: var(--second); stroke: none; } svg .best { fill: none; stroke: var(--best); stroke-width: 2; }
svg .part { fill: var(--main); } svg .rest { fill: var(--rest); }
.scroll { overflow-x: auto; white-space: nowrap; } table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .9rem; } th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
.facts th { white-space: nowrap; } .facts td { overflow-wrap: anywhere; } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } tr.best td { font-weight: 600; } tr.best td:first-child { box-shadow: inset .3rem 0 var(--best); }
"""

# Classes that the page names.
_NAMED = 20

# Longest setting or name that the page shows whole, in characters.
_LONGEST = 200


def page(record: Mapping, ended: datetime.datetime | None = None) -> str:
    """Draws one HTML page; nothing is fetched from elsewhere.

    Args:
        record: The record of a training, `training.json`. Its figures are finite: a training whose loss is not ends.
        ended: When the training ended; None if nobody knows.

    Returns:
        HTML.
    """
    name = _e(record["weights_sha256"][:16])
    kind = "compute" if record["input_wait_share"] < COMPUTE_BOUND else "input"
    said = "".join(f"<li>{_e(sentence)}</li>" for sentence in _sentences(record))
    facts = "".join(f"<tr><th>{_e(title)}</th><td>{_e(value)}</td></tr>" for title, value in _facts(record))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Training of {name}</title><style>{_STYLE}</style><h1>Profile of the training of {name}</h1>"
        f'<p class="verdict {kind}">{_e(verdict(record))}</p><p>{_e(_headline(record, ended))}</p><ul>{said}</ul>'
        f"<h2>Where the time of an epoch goes, validation left out</h2>"
        f'<div class="figures">{_shares(record)}</div>'
        f"<h2>Epoch by epoch</h2><p>{_e(_legend(record))}</p>"
        f'<div class="figures">{_figures(record)}</div>{_table(record)}'
        f'<h2>What was trained</h2><table class="facts">{facts}</table></html>\n'
    )


def verdict(record: Mapping) -> str:
    """What to do about the speed of a training, in one sentence."""
    waited = f"The step waited for its input {_percent(record['input_wait_share'])} of the time"
    if record["input_wait_share"] >= COMPUTE_BOUND:
        return f"{waited}: the input is the bottleneck, mend it before adding GPUs"
    if "GPU" not in record.get("tensorflow", {}).get("devices", ["GPU"]):
        return f"{waited}: computing is what takes it. There was no GPU; one computes faster, and may wait more"
    return f"{waited}: more GPUs are the right lever"


def _legend(record) -> str:
    told = f"Ring: epoch {record['best_epoch']}, the best, whose weights were kept; it has the least val loss."
    boundary = _boundary(record)
    return told if boundary is None else f"{told} Dotted: after epoch {boundary} the backbone is trained too."


def _boundary(record) -> int | None:
    """Epochs of the first of two phases."""
    return len(record["phases"][0]["epochs"]) if len(record["phases"]) > 1 else None


def _headline(record, ended) -> str:
    settings, examples = record["training"], record["examples"]
    planned = settings["frozen_epochs"] + settings["unfrozen_epochs"]
    parts = [
        *([f"Ended {ended:%Y-%m-%d %H:%M} {ended.tzname() or ''}".strip()] if ended else []),
        f"{examples['train']:,} photographs, {examples['val']:,} for validation, "
        f"{_count(len(record['classes']), 'class', 'es')}",
        f"{_count(record['epochs_run'], 'epoch')} of {planned} in {_duration(record['seconds'])}",
        f"{_figure(record['images_per_second'])} images/s",
        f"val accuracy {record['val_accuracy']:.3f}",
    ]
    if record["workers"] > 1 or record["replicas"] > 1:
        parts.append(f"{_count(record['workers'], 'worker')}, {_count(record['replicas'], 'replica')}")
    return " · ".join(parts)


def _sentences(record) -> list[str]:
    waited, decoding = record["input_wait_share"], record["decode_share"]
    milliseconds = 1000 * record["decode_seconds_per_image"]
    if waited > decoding and waited >= COMPUTE_BOUND:
        hidden = "It waited for more than that: look at reading too, and at what else needs the processors."
    else:
        hidden = "What overlap does not hide of it is what waits."
    return [
        f"Waiting: {_percent(waited)} of the time that it trained, validation left out. Below {_percent(COMPUTE_BOUND)} a "
        "faster input gains nothing that is worth the work; above, what computes stands idle.",
        f"Decoding: a photograph takes {_figure(milliseconds)} ms of one processor. If nothing overlapped, that would be "
        f"{_percent(decoding)} of an epoch. {hidden}",
        f"Predicted and actual: {_prediction(record)}.",
        *_early_ends(record),
    ]


def _prediction(record) -> str:
    epochs = _epochs(record)
    actual = sum(epoch["seconds"] for epoch in epochs)
    told = f"all epochs took {_duration(actual)}"
    if len(epochs) == 1:
        return told
    predicted = epochs[0]["seconds"] + epochs[0]["seconds_left"]
    told += f"; after the first, which also warms up, {_duration(predicted)} were predicted"
    off = predicted / actual - 1
    if abs(off) >= 0.005:
        told += f", {_percent(abs(off))} {'more' if off > 0 else 'less'}"
    planned = record["training"]["frozen_epochs"] + record["training"]["unfrozen_epochs"]
    return told if len(epochs) == planned else f"{told}, but for {planned} epochs"


def _early_ends(record) -> list[str]:
    ended = []
    for phase in record["phases"]:
        ran, planned = len(phase["epochs"]), record["training"][f"{phase['name']}_epochs"]
        by_window = record["stopped_by_window"] and phase is record["phases"][-1]
        if ran < planned and not by_window:
            ended.append(f"The {phase['name']} phase ended after {ran} of {planned} epochs: validation loss fell no more.")
    if record["stopped_by_window"]:
        ended.append("The window's end stopped it; its last epoch may be shorter than the others.")
    return ended


def _facts(record) -> list[tuple[str, str]]:
    classes = [_shortened(name, 40) for name in record["classes"][:_NAMED]]
    if len(record["classes"]) > _NAMED:
        classes.append(f"and {len(record['classes']) - _NAMED:,} more")
    return [
        ("Weights, SHA-256", record["weights_sha256"]),
        ("Classes", ", ".join(classes)),
        ("Network", _settings(record["network"])),
        ("Training", _settings(record["training"])),
        ("Workers, replicas", f"{record['workers']}, {record['replicas']}"),
    ]


def _settings(values) -> str:
    return ", ".join(f"{name} {_shortened(str(value), _LONGEST)}" for name, value in values.items() if value != "")


def _shares(record) -> str:
    parts = (
        ("waited", "As it ran", "waiting for input", record["input_wait_share"]),
        ("decoded", "If nothing overlapped", "decoding", record["decode_share"]),
    )
    return "".join(
        _figure_of(
            name, title, f"Dark: {_percent(share)} {what}. Pale: computing.",
            f"A bar, {_percent(share)} of it {what}, the rest computing", 18,
            f'<rect class="rest" width="{_WIDTH}" height="18"/>'
            f'<rect class="part" width="{_WIDTH * share:.1f}" height="18"/>',
        )
        for name, title, what, share in parts
    )  # fmt: skip


def _figures(record) -> str:
    epochs = _epochs(record)
    best = epochs[record["best_epoch"] - 1]
    chart = _Chart(len(epochs), _boundary(record))

    def column(name):
        return [epoch[name] for epoch in epochs]

    def ring(name):
        return best["epoch"], best[name]

    elapsed = itertools.accumulate(column("seconds"))
    finishes = [before + left for before, left in zip(elapsed, column("seconds_left"), strict=True)]
    actual = sum(column("seconds"))
    divisor, unit = (3600, "hours") if actual >= 7200 else (60, "minutes") if actual >= 300 else (1, "seconds")
    return "".join(
        (
            chart.draw(
                "loss", "Loss", "Solid: val. Dashed: train, with dropout and label smoothing.",
                column("val_loss"), second=column("loss"), ring=ring("val_loss"),
            ),
            chart.draw(
                "accuracy", "Val accuracy", "Share of val that is classified rightly.",
                column("val_accuracy"), ring=ring("val_accuracy"), limits=(0.0, 1.0),
            ),
            chart.draw(
                "speed", "Images per second",
                "All workers, training alone." + (" A frozen step computes less." if chart.boundary else ""),
                column("images_per_second"), zero=True,
            ),
            chart.draw(
                "finish", f"Length of all epochs, {unit}", "Solid: as predicted after each, best flat. Dashed: as it was.",
                [finish / divisor for finish in finishes], second=[actual / divisor] * len(epochs), zero=True,
            ),
        )
    )  # fmt: skip


# Sizes in SVG's units: a chart, and its margins.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 460, 210, 48, 8, 22, 22

# Room that the name of a phase needs; and epochs up to which each has a dot.
_NAME, _DOTS = 56, 30


@dataclasses.dataclass(frozen=True)
class _Chart:
    """Draws lines over epochs, an equal column for each."""

    epochs: int
    boundary: int | None

    def draw(
        self, name: str, title: str, caption: str, main: Sequence[float], *, second: Sequence[float] = (),
        ring: tuple[int, float] | None = None, zero: bool = False, limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> str:  # fmt: skip
        """A figure of one or two lines, with a value for each epoch; `zero`: the axis begins there."""
        ticks = _ticks(min(*main, *second, *((0.0,) if zero else (math.inf,))), max(*main, *second, -math.inf), limits)
        low, high = ticks[0], ticks[-1]

        def y(value):
            return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

        drawn = [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_tick(tick, ticks[1] - ticks[0])}</text>'
            for tick in ticks
        ]
        drawn += [
            f'<text x="{self._x(number):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{number}</text>'
            for number in self._numbers()
        ]
        drawn.append(self._phases())
        for kind, values in (("second", second), ("main", main)):
            drawn.append(self._line(kind, values, y))
        if ring:
            drawn.append(f'<circle class="best" cx="{self._x(ring[0]):.1f}" cy="{y(ring[1]):.1f}" r="6"/>')
        told = f"{_figure(main[0])} in epoch 1, {_figure(main[-1])} in epoch {len(main)}; the table below has every value"
        return _figure_of(name, title, caption, told, _HEIGHT, "".join(drawn))

    def _x(self, epoch: float) -> float:
        return _LEFT + (epoch - 0.5) / self.epochs * (_WIDTH - _LEFT - _RIGHT)

    def _numbers(self) -> list[int]:
        step = next(step for step in _STEPS if self.epochs / step <= 12)
        return [epoch for epoch in range(1, self.epochs + 1) if epoch % step == 0 or epoch == 1]

    def _phases(self) -> str:
        if not self.boundary:
            return ""
        x = self._x(self.boundary + 0.5)
        drawn = f'<line class="phase" x1="{x:.1f}" x2="{x:.1f}" y1="6" y2="{_HEIGHT - _BOTTOM}"/>'
        if x - _LEFT > _NAME:
            drawn += f'<text x="{x - 5:.1f}" y="14" text-anchor="end">frozen</text>'
        if _WIDTH - _RIGHT - x > _NAME:
            drawn += f'<text x="{x + 5:.1f}" y="14">unfrozen</text>'
        return drawn

    def _line(self, kind, values, y: Callable[[float], float]) -> str:
        points = [f"{self._x(epoch):.1f},{y(value):.1f}" for epoch, value in enumerate(values, start=1)]
        drawn = f'<polyline class="{kind}" points="{" ".join(points)}"/>' if len(points) > 1 else ""
        if len(points) <= _DOTS:
            for point in points:
                x, _, height = point.partition(",")
                drawn += f'<circle class="{kind}" cx="{x}" cy="{height}" r="2.5"/>'
        return drawn


_STEPS = [factor * 10**power for power in range(6) for factor in (1, 2, 5)]


def _figure_of(name, title, caption, told, height, drawn) -> str:
    """A figure whose drawing has a name and a description for those who do not see it."""
    return (
        f"<figure><figcaption><b>{_e(title)}</b><br>{_e(caption)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{_e(title)}</title><desc id="{name}-desc">{_e(told)}</desc>{drawn}</svg></figure>'
    )


def _table(record) -> str:
    titles = ("loss", "val loss", "val accuracy", "images/s", "waited", "learning rate", "took", "predicted left")
    head = "".join(f'<th class="n">{title}</th>' for title in titles)
    rows = []
    for phase in record["phases"]:
        for epoch in phase["epochs"]:
            best = epoch["epoch"] == record["best_epoch"]
            values = (
                f"{epoch['loss']:.3f}", f"{epoch['val_loss']:.3f}", f"{epoch['val_accuracy']:.3f}",
                _figure(epoch["images_per_second"]), _percent(epoch["input_wait_share"]), f"{epoch['learning_rate']:.2g}",
                _duration(epoch["seconds"]), _duration(epoch["seconds_left"]),
            )  # fmt: skip
            cells = "".join(f'<td class="n">{value}</td>' for value in values)
            rows.append(
                f'<tr{" class=best" if best else ""}><td class="n">{epoch["epoch"]}</td>'
                f"<td>{_e(phase['name'])}{', best' if best else ''}</td>{cells}</tr>"
            )
    return (
        f'<div class="scroll"><table><tr><th class="n">epoch</th><th>phase</th>{head}</tr>{"".join(rows)}</table></div>'
    )


def _epochs(record) -> list[Mapping]:
    return [epoch for phase in record["phases"] for epoch in phase["epochs"]]


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _percent(share: float) -> str:
    """A share in percent, with a digit after the point below 10 %.

    >>> _percent(0.031), _percent(0.4), _percent(0.0)
    ('3.1 %', '40 %', '0 %')
    """
    return f"{100 * share:.{1 if 0 < share < 0.0995 else 0}f} %".replace(".0 %", " %")


def _figure(value: float) -> str:
    """A figure with three significant digits, or all before the point."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"
