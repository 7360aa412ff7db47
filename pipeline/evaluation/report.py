"""The release's report: JSON for machines, one self-contained HTML page for people."""

import base64
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from pipeline import files, storage, typed
from pipeline.evaluation.judge import Judgement, Slice
from pipeline.evaluation.metrics import HIGHER_IS_BETTER
from pipeline.evaluation.thresholds import Thresholds
from pipeline.validation.report import STYLE
from pipeline.validation.text import escaped as _e
from pipeline.validation.text import shortened

_STYLE = STYLE + """
td.name { font-weight: 600; min-width: 12rem; } table.matrix { width: auto; } table.matrix td, table.matrix th { padding: .25rem .5rem; text-align: right; } .matrix th.side { text-align: right; }
.scroll { overflow-x: auto; } td.change { white-space: nowrap; } .worse { color: #8c1b12; } .better { color: #12602a; } td.few { color: #6b7079; }
.photographs { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1rem; } .photographs figure { margin: 0; } .photographs img { width: 100%; aspect-ratio: 1; object-fit: contain; background: #f0f1f3; }
svg .then, svg .line { fill: none; } svg .line { stroke: #3b62a0; stroke-width: 2; } svg .ideal { stroke: #9aa1ab; stroke-dasharray: 3 3; } svg .then { stroke-dasharray: 5 3; } svg circle { fill: #3b62a0; }
"""

# Slices that the page lists of one kind, classes whose confusion it draws, pairs that it lists, and a thumbnail's bounds.
_SLICES, _MATRIX, _PAIRS, _PIXELS, _BYTES = 100, 25, 10, 160, 24_576


@dataclasses.dataclass(frozen=True)
class Heading:
    """What a report is about.

    Attributes:
        run_id: Id of the run.
        snapshot: Table of its labels.
        serving: What serves, in words; empty when nothing does.
        bootstrap: Whether nothing serves.
        smoke: What `SmokeTest` wrote.
        shards: How photographs were packed (`ShardSettings`), so that requests can be compared with them later.
    """

    run_id: str
    snapshot: str
    serving: str
    bootstrap: bool
    smoke: Mapping[str, Any]
    shards: Mapping[str, Any] | None = None


def sentence(failures: Sequence[str], judgement: Judgement | None) -> str:
    """The verdict in one sentence."""
    if judgement is None:
        return f"The candidate must not serve: {'; '.join(failures)}"
    count = len(judgement.checks)
    if failures:
        named = "; ".join(failures[:3]) + (f"; and {len(failures) - 3} more" if len(failures) > 3 else "")
        return f"The candidate must not serve: {len(failures)} of {count} thresholds are missed. {named}"
    against = "; nothing serves that it could be compared with" if not judgement.compared else ""
    return f"The candidate may serve: all {count} thresholds are met{against}"


def content(
    heading: Heading, judgement: Judgement | None, failures: Sequence[str], thresholds: Thresholds, classes: Sequence[str]
) -> dict:
    """Everything that is known, as plain data; without a judgement, why nothing was evaluated."""
    known = {
        "run_id": heading.run_id,
        "snapshot": heading.snapshot,
        "serving": heading.serving or None,
        "bootstrap": heading.bootstrap,
        "blessed": not failures,
        "verdict": sentence(failures, judgement),
        "failures": list(failures),
        "smoke": heading.smoke,
        "shards": heading.shards,
        "thresholds": typed.to_dict(thresholds),
        "evaluated": judgement is not None,
    }
    if judgement is None:
        return known
    return known | _finite(
        {
            "examples": judgement.examples,
            "compared_examples": judgement.compared,
            "metrics": judgement.figures,
            "serving_metrics": judgement.serving,
            "checks": [dataclasses.asdict(check) for check in judgement.checks],
            "slices": [dataclasses.asdict(each) for each in judgement.slices],
            "classes": list(classes),
            "confusion": judgement.confusion.tolist(),
            "reliability": judgement.reliability,
            "notes": list(judgement.notes),
        }
    )


def _finite(value):
    """The same with None for what is no number: JSON has none."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(
    folder: str,
    heading: Heading,
    judgement: Judgement | None,
    failures: Sequence[str],
    content: Mapping,
    classes: Sequence[str],
    worst: Sequence[Mapping],
) -> None:
    """Writes `release.json` and `release.html`.

    Args:
        folder: Where.
        heading: What they are about.
        judgement: What was found; None when nothing was evaluated.
        failures: Why the candidate must not serve; empty when it may.
        content: What this module's `content` made of it.
        classes: Names, in the order of the logits.
        worst: What the candidate is most wrong about (`predictions.read_worst`).
    """
    storage.write(storage.join(folder, "release.json"), files.to_json(content).encode())
    storage.write(storage.join(folder, "release.html"), page(heading, judgement, failures, classes, worst).encode())


def page(
    heading: Heading, judgement: Judgement | None, failures: Sequence[str], classes: Sequence[str], worst: Sequence[Mapping]
) -> str:
    """Draws one HTML page; nothing is fetched from elsewhere. Arguments as `write` takes them."""
    kind = "rejected" if failures else "accepted"
    told = sentence(failures, judgement)
    # Without a limit of its own: each failure is short already, and the first three must all be read.
    verdict = "".join(_e(part) for part in _pieces(told))
    against = _e(heading.serving) if heading.serving else "nothing (bootstrap)"
    notes = "".join(f'<p class="remedy">{_e(note)}</p>' for note in (judgement.notes if judgement else ()))
    body = _judged(judgement, classes, worst) if judgement else ""
    smoke = _smoke(heading.smoke)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{_e(heading.snapshot)}: {'refused' if failures else 'may serve'}</title><style>{_STYLE}</style>"
        f"<h1>Release report of {_e(heading.snapshot)}</h1>"
        f'<p class="verdict {kind}">{verdict}</p><p>Run {_e(heading.run_id)} · '
        f"{f'{judgement.examples} photographs' if judgement else 'not evaluated'} · compared with: {against}</p>{notes}"
        f"{_thresholds(judgement) if judgement else ''}{body}{smoke}</html>\n"
    )


def _pieces(text: str) -> list[str]:
    return [text[begin : begin + 500] for begin in range(0, len(text), 500)]


def _thresholds(judgement: Judgement) -> str:
    rows = "".join(
        f'<tr class="{"passed" if check.passed else "failed"}"><td class="name">{_e(check.name)}</td>'
        f'<td class="figure">{_e(check.told)}</td><td class="figure">{_e(check.wanted)}</td>'
        f'<td class="n">{_signed(check.margin)}</td><td class="n">{"met" if check.passed else "missed"}</td></tr>'
        for check in sorted(judgement.checks, key=lambda check: (check.passed, check.value is None))
    )
    head = '<tr><th>Threshold</th><th>Value</th><th>Limit</th><th class="n">Margin</th><th></th></tr>'
    return (
        "<h2>Thresholds</h2><p>What is missed stands first. In brackets, how far chance alone moves a figure. Against the "
        "serving model the worse end of that interval decides, for a single slice the better one.</p>"
        f'<table class="thresholds">{head}{rows}</table>'
    )


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"


def _judged(judgement: Judgement, classes: Sequence[str], worst: Sequence[Mapping]) -> str:
    return (
        f"{_metrics(judgement)}{_slices(judgement)}{_reliability(judgement)}"
        f"{_confusion(judgement, classes)}{_photographs(worst, classes)}"
    )


def _metrics(judgement: Judgement) -> str:
    rows = "".join(
        f'<tr><td>{name.replace("_", " ")}</td><td class="n">{judgement.figures[name]:.3f}</td>'
        f'<td class="n">{_plain(judgement.serving.get(name))}</td><td>{"higher" if higher else "lower"} is better</td></tr>'
        for name, higher in HIGHER_IS_BETTER.items()
    )
    told = f" (on {judgement.compared} photographs)" if judgement.compared not in (0, judgement.examples) else ""
    head = f'<tr><th>Metric</th><th class="n">Candidate</th><th class="n">Serving model{told}</th><th></th></tr>'
    return f"<h2>Metrics</h2><table>{head}{rows}</table>"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


_TITLES = {
    "label": "By class", "source": "By source of the label", "size": "By longer side, as packed", "new": "New this week",
}  # fmt: skip


def _slices(judgement: Judgement) -> str:
    parts = []
    for kind, title in _TITLES.items():
        slices = [each for each in judgement.slices if each.kind == kind]
        if not slices:
            continue
        # The greatest losses first, and otherwise as they are.
        slices.sort(key=lambda each: each.change or 0.0)
        rows = "".join(map(_slice_row, slices[:_SLICES]))
        more = f"<p>and {len(slices) - _SLICES} more</p>" if len(slices) > _SLICES else ""
        head = (
            f'<tr><th>{title}</th><th class="n">Photographs</th><th class="n">Candidate</th><th class="n">Serving model</th>'
            '<th class="n">Change</th><th>Interval</th></tr>'
        )
        parts.append(f"<table>{head}{rows}</table>{more}")
    return f"<h2>Accuracy by slice, against the serving model</h2>{''.join(parts)}"


def _slice_row(each: Slice) -> str:
    change = "–" if each.change is None else f"{each.change:+.3f}"
    kind = "" if not each.change else " worse" if each.change < 0 else " better"
    known = each.interval and all(map(math.isfinite, each.interval))
    interval = f"{each.interval[0]:+.3f} to {each.interval[1]:+.3f}" if known else "–"
    few = "" if each.judged else ", too few to be judged"
    return (
        f'<tr><td{"" if each.judged else " class=few"}>{_e(shortened(each.name)) or "<i>none</i>"}{few}</td>'
        f'<td class="n">{each.examples}</td><td class="n">{_plain(each.accuracy)}</td><td class="n">{_plain(each.serving)}</td>'
        f'<td class="n{kind}">{change}</td><td class="change">{interval}</td></tr>'
    )


# Sizes in SVG's units.
_SIDE, _LEFT, _BELOW = 260, 34, 30


def _reliability(judgement: Judgement) -> str:
    def place(mean, share):
        return f"{_LEFT + mean * _SIDE:.1f},{8 + (1 - share) * _SIDE:.1f}"

    def line(name, kind):
        points = [(count, place(mean, share)) for count, mean, share in judgement.reliability.get(name, ()) if count]
        drawn = f'<polyline class="{kind}" points="{" ".join(point for _, point in points)}"/>'
        if kind == "line":
            for count, point in points:
                x, _, y = point.partition(",")
                radius = 2 + 6 * math.sqrt(count / max(1, judgement.examples))
                drawn += f'<circle cx="{x}" cy="{y}" r="{radius:.1f}"><title>{count} photographs</title></circle>'
        return drawn

    ticks = "".join(
        f'<text x="{_LEFT - 5}" y="{12 + (1 - share) * _SIDE:.0f}" text-anchor="end">{share:.1f}</text>'
        f'<text x="{_LEFT + share * _SIDE:.0f}" y="{_SIDE + 23}" text-anchor="middle">{share:.1f}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    first, last = place(0, 0), place(1, 1)
    (x1, y1), (x2, y2) = first.split(","), last.split(",")
    candidate = judgement.reliability["candidate"]
    bins = "; ".join(f"{mean:.2f}: {share:.2f} of {count}" for count, mean, share in candidate if count)
    serving = " Dashed: the model that serves." if judgement.serving else ""
    return (
        "<h2>Reliability</h2><figure style='max-width:22rem'><figcaption>Across: the probability of the most probable class. "
        "Up: how often it is right. On the diagonal, a probability means what it says. Solid: the candidate."
        f"{serving}</figcaption>"
        f'<svg viewBox="0 0 {_LEFT + _SIDE + 14} {_SIDE + _BELOW}" role="img" aria-label="Reliability. {bins}">'
        f'<line class="ideal" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
        f'<line class="axis" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y1}"/>'
        f'<line class="axis" x1="{x1}" y1="{y1}" x2="{x1}" y2="{y2}"/>'
        f"{line('serving', 'then')}{line('candidate', 'line')}{ticks}</svg></figure>"
    )


def _confusion(judgement: Judgement, classes: Sequence[str]) -> str:
    pairs = "".join(
        f"<tr><td>{_e(shortened(label))}</td><td>{_e(shortened(taken))}</td><td class=\"n\">{count}</td>"
        f'<td class="n">{share:.0%}</td></tr>'
        for label, taken, count, share in judgement.pairs[:_PAIRS]
    )
    listed = (
        "<table><tr><th>Label</th><th>Taken for</th><th class=\"n\">Photographs</th><th class=\"n\">Of the label's</th></tr>"
        f"{pairs}</table>"
        if pairs
        else "<p>No class with enough examples is taken for another.</p>"
    )
    return f"<h2>Confusion</h2>{_matrix(judgement, classes)}{listed}"


# Red, green and blue of a cell on the diagonal, and off it.
_RIGHT, _WRONG = "46,139,87", "192,57,43"


def _matrix(judgement: Judgement, classes: Sequence[str]) -> str:
    if len(classes) > _MATRIX:
        return f"<p>{len(classes)} classes are too many to draw; release.json has the whole matrix.</p>"
    counts = judgement.confusion
    names = [_e(shortened(name, 16)) for name in classes]
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for row, name in enumerate(names):
        total = max(1, int(counts[row].sum()))
        shades = [(_RIGHT if row == column else _WRONG, 0.75 * count / total) for column, count in enumerate(counts[row])]
        cells = "".join(
            f'<td style="background:rgba({colour},{shade:.2f})">{count or ""}</td>'
            for count, (colour, shade) in zip(counts[row], shades, strict=True)
        )
        rows.append(f'<tr><th class="side">{name}</th>{cells}</tr>')
    return (
        "<p>Rows: the label. Columns: what the candidate takes it for. Shade: share of the row.</p>"
        f'<div class="scroll"><table class="matrix"><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'
    )


def _photographs(worst: Sequence[Mapping], classes: Sequence[str]) -> str:
    if not worst:
        return "<h2>Worst photographs</h2><p>None: the candidate is wrong about no photograph.</p>"
    figures = []
    for wrong in worst:
        label, taken = (_e(shortened(classes[wrong[name]])) for name in ("label_index", "predicted"))
        uri = thumbnail(base64.b64decode(wrong["jpeg"]))
        shown = f'<img alt="photograph of {label}" src="{uri}">' if uri else "<p>It cannot be shown.</p>"
        figures.append(
            f"<figure>{shown}<figcaption><b>{label}</b> ({wrong['p_true']:.1%})<br>taken for {taken} "
            f"({wrong['p_predicted']:.1%})<br>{_e(shortened(wrong['image_id']))}</figcaption></figure>"
        )
    return (
        "<h2>Worst photographs</h2><p>Those whose own class the candidate finds least probable. Some are wrong labels.</p>"
        f'<div class="photographs">{"".join(figures)}</div>'
    )


def thumbnail(jpeg: bytes) -> str:
    """A small picture as a data URI of at most 24 KB of JPEG; '' when the bytes are no JPEG.

    Decoded and encoded anew, so that nothing that hides in the file reaches the page.
    """
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            image.thumbnail((_PIXELS, _PIXELS))
            small = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
    for quality in (80, 50, 20):
        content = io.BytesIO()
        small.save(content, "JPEG", quality=quality)
        if content.tell() <= _BYTES:
            return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
    return ""


def smoke_line(smoke: Mapping) -> str:
    """What the smoke test found, in a few words."""
    checks = smoke["checks"]
    failed = [check["rule"] for check in checks if not check["passed"]]
    if failed:
        return f"refused: {', '.join(failed)}"
    return f"all {len(checks)} checks passed, {smoke['facts']['latency_ms_median']:.1f} ms for one photograph"


def _smoke(smoke: Mapping) -> str:
    rows = "".join(
        f'<tr class="{"passed" if check["passed"] else "failed"}"><td><b>{_e(check["rule"])}</b></td>'
        f'<td>{_e(check["value"])}{_remedy(check["remedy"])}</td><td>{_e(check["limit"])}</td></tr>'
        for check in smoke["checks"]
    )
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in smoke["facts"].items())
    return (
        f"<h2>Smoke test of the export</h2><p>{_e(told)}</p>"
        f"<table><tr><th>Check</th><th>Value</th><th>Wanted</th></tr>{rows}</table>"
    )


def _remedy(text: str) -> str:
    return f'<br><span class="remedy">{_e(text)}</span>' if text else ""
