"""The page of a study: how the best grew, where good values lie, which parameters mattered, and every trial."""

import math

from models.charts import duration, tick, ticks
from models.charts import escaped as _e
from models.config import LOGARITHMIC
from models.study import Trial
from pipeline import storage
from pipeline.tuning.importance import MIN_TRIALS, importances
from pipeline.tuning.results import Results
from pipeline.validation.text import shortened

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #4a4f57; --line: #d9dce0; --axis: #9aa1ab; --main: #4a70aa; --rest: #b9c6da; --good: #e2f3e5; --good-ink: #12602a; --bad: #fbe4e2; --bad-ink: #8c1b12; --best: #2e8b57; --lost: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e5e8; --soft: #b1b7c0; --line: #3b4048; --axis: #7b838f; --main: #8fb3ea; --rest: #4a566b; --good: #143d22; --good-ink: #b5e6c3; --bad: #55201b; --bad-ink: #fac9c4; --best: #5fce92; --lost: #ef8378; } body { background: #17191c; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: var(--ink); }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; } p, td { overflow-wrap: anywhere; }
.verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600; } .found { background: var(--good); color: var(--good-ink); } .none { background: var(--bad); color: var(--bad-ink); }
figure { margin: .6rem 0; } figcaption { font-size: .9rem; color: var(--soft); } svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; display: block; } svg text { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--axis); } svg .so-far { fill: none; stroke: var(--best); stroke-width: 2; } svg .lost { stroke: var(--lost); stroke-width: 1.5; fill: none; }
svg circle { fill: var(--main); } svg circle.early { fill: none; stroke: var(--main); } svg circle.best { fill: var(--best); stroke: none; } svg .trial { fill: none; stroke: var(--main); } svg .trial.best { stroke: var(--best); stroke-width: 3; stroke-opacity: 1; }
svg .part { fill: var(--main); } svg .rest { fill: var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .85rem; } th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line); } .state { min-width: 8rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } tr.best td { font-weight: 600; } tr.best td:first-child { box-shadow: inset .3rem 0 var(--best); } tr.infeasible td:first-child { box-shadow: inset .3rem 0 var(--lost); }
"""

# Sizes in SVG's units: a chart, and its margins.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 940, 260, 52, 16, 14, 28


def write(path: str, results: Results) -> None:
    """Writes the page, all of it or nothing.

    Args:
        path: The file.
        results: The study.
    """
    storage.write(str(path), page(results).encode())


def page(results: Results) -> str:
    """Draws one HTML page; nothing is fetched from elsewhere, and nothing runs in it.

    Args:
        results: The study.

    Returns:
        HTML.
    """
    counts = results.counts()
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "trials" and count)
    took = sum(trial.seconds or 0.0 for trial in results.trials)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Study {_word(results.display_name)}</title><style>{_STYLE}</style>"
        f"<h1>Study {_word(results.display_name)}</h1>{_verdict(results)}"
        f"<p>{counts['trials']} of {results.total} trials ({told or 'none yet'}), each of {results.epochs} epochs at most; "
        f"{duration(took)} of trials in all. Snapshot of {_word(results.snapshot_date)}, run {_word(results.run_id)}.</p>"
        f"<h2>Best so far</h2>{_growth(results)}"
        f"<h2>Where good values lie</h2>{_coordinates(results)}"
        f"<h2>Which parameters mattered</h2>{_importance(results)}"
        f"<h2>Trials</h2>{_table(results)}</html>\n"
    )


def _verdict(results: Results) -> str:
    best = results.best
    if best is None:
        return '<p class="verdict none">No trial has a value.</p>'
    values = ", ".join(f"{_word(name)} {value:.3g}" for name, value in best.values.items())
    return (
        f'<p class="verdict found">Trial {best.number} is the best: {_word(results.objective)} {best.value:.3f} with '
        f"{values}</p>"
    )


def _growth(results: Results) -> str:
    valued = [trial for trial in results.trials if trial.value is not None]
    if not valued:
        return "<p>No trial has a value.</p>"
    marks = ticks(min(trial.value for trial in valued), max(trial.value for trial in valued), (-math.inf, math.inf))
    last = max(trial.number for trial in results.trials)

    def x(number: float) -> float:
        return _LEFT + (number - 0.5) / last * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - marks[0]) / (marks[-1] - marks[0]) * (_HEIGHT - _TOP - _BOTTOM)

    drawn = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{tick(mark, marks[1] - marks[0])}</text>'
        for mark in marks
    ]
    step = -(-last // 15)
    drawn += [
        f'<text x="{x(number):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{number}</text>'
        for number in range(step, last + 1, step)
    ]
    highest, points = -math.inf, []
    for trial in valued:
        if trial.value > highest:
            # A step: between trials the best is what it was.
            points += [(x(trial.number), y(highest))] if points else []
            highest = trial.value
        points.append((x(trial.number), y(highest)))
    drawn.append(f'<polyline class="so-far" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')
    drawn += [_mark(results, trial, x(trial.number), y) for trial in results.trials]
    return _figure(
        "growth", "Best so far",
        "A point is a trial, in the order in which they began: filled, of all its epochs; hollow, stopped early; a cross, "
        "infeasible. The line is the best so far.",
        f"The best value grew to {highest:.3f} within {last} trials; the table below has every value", _HEIGHT, "".join(drawn),
    )  # fmt: skip


def _mark(results: Results, trial: Trial, x: float, y) -> str:
    if trial.state == "INFEASIBLE":
        base = _HEIGHT - _BOTTOM - 6
        return f'<path class="lost" d="M{x - 4:.1f} {base - 4} l8 8 m-8 0 l8 -8"/>'
    if trial.value is None:
        return ""
    kind = "best" if trial == results.best else "early" if results.state_of(trial) == "stopped early" else "whole"
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y(trial.value):.1f}" r="{5 if kind == "best" else 3.5}"/>'


def _coordinates(results: Results) -> str:
    valued = [trial for trial in results.trials if trial.value is not None]
    if len(valued) < 2:
        return "<p>Fewer than two trials have a value.</p>"
    axes = [*valued[0].values, results.objective]
    rows = {trial.number: [*(trial.values[name] for name in axes[:-1]), trial.value] for trial in valued}
    scales = [_scale(name, [row[position] for row in rows.values()]) for position, name in enumerate(axes)]
    top, bottom = 40, _HEIGHT + 60

    def x(position: int) -> float:
        return 60 + position / (len(axes) - 1) * (_WIDTH - 120)

    drawn = []
    for position, (name, (low, high, _)) in enumerate(zip(axes, scales, strict=True)):
        drawn.append(
            f'<line class="axis" x1="{x(position):.1f}" x2="{x(position):.1f}" y1="{top}" y2="{bottom}"/>'
            f'<text x="{x(position):.1f}" y="14" text-anchor="middle">{_word(name)}</text>'
            f'<text x="{x(position):.1f}" y="{top - 8}" text-anchor="middle">{high:.3g}</text>'
            f'<text x="{x(position):.1f}" y="{bottom + 16}" text-anchor="middle">{low:.3g}</text>'
        )
    # The best trials are drawn last, so on top, and darkest.
    ordered = sorted(valued, key=lambda trial: (trial.value, -trial.number))
    for rank, trial in enumerate(ordered, start=1):
        points = " ".join(
            f"{x(position):.1f},{bottom - scale[2](value) * (bottom - top):.1f}"
            for position, (scale, value) in enumerate(zip(scales, rows[trial.number], strict=True))
        )
        kind, shade = ("trial best", 1.0) if trial == results.best else ("trial", 0.08 + 0.8 * (rank / len(ordered)) ** 3)
        drawn.append(f'<polyline class="{kind}" stroke-opacity="{shade:.2f}" points="{points}"/>')
    return _figure(
        "coordinates", "Parallel coordinates",
        "A line is a trial, from its parameters to its value; the darker, the better; green, the best. Each axis spans the "
        "values that were tried; learning rate and weight decay logarithmically.",
        "Lines over the parameters' values; the table below has them all", bottom + 26, "".join(drawn),
    )  # fmt: skip


def _scale(name: str, values: list[float]):
    """Lowest, highest, and what maps a value to 0..1; one value alone lies in the middle."""
    low, high = min(values), max(values)
    convert = math.log if name in LOGARITHMIC and low > 0 else float
    if low == high:
        return low, high, lambda value: 0.5
    return low, high, lambda value: (convert(value) - convert(low)) / (convert(high) - convert(low))


def _importance(results: Results) -> str:
    answer = importances(results.trials)
    if answer is None:
        return f"<p>Not said: that takes {MIN_TRIALS} trials with a value, and values that differ.</p>"
    found, explained = answer
    row, left, bar = 24, 150, _WIDTH - 150 - 210
    drawn = [
        f'<text x="{left - 8}" y="{row * position + 16}" text-anchor="end">{_word(each.parameter)}</text>'
        f'<rect class="rest" x="{left}" y="{row * position + 5}" width="{bar}" height="14"/>'
        f'<rect class="part" x="{left}" y="{row * position + 5}" width="{bar * each.share:.1f}" height="14"/>'
        f'<text x="{left + bar + 8}" y="{row * position + 16}">{each.share:.0%}, rank correlation {each.correlation:+.2f}</text>'
        for position, each in enumerate(found)
    ]
    trust = (
        f"On trials that its trees had not seen, the forest explains {explained:.0%} of the differences."
        if explained > 0
        else "On trials that its trees had not seen, the forest explains nothing: do not read anything into the shares."
    )
    return _figure(
        "importance", "Importance",
        "How much worse a random forest predicts a trial's value when one parameter is shuffled (permutation importance), as a "
        f"share of all. {trust} The rank correlation (Spearman) says in which direction; near 0 also where the best values are "
        "in the middle.",
        "; ".join(f"{each.parameter} {each.share:.0%}" for each in found), row * len(found) + 6, "".join(drawn),
    )  # fmt: skip


def _figure(name: str, title: str, caption: str, told: str, height: int, drawn: str) -> str:
    """A figure whose drawing has a name and a description for those who do not see it."""
    return (
        f'<figure><figcaption>{_e(caption)}</figcaption><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{_e(title)}</title>'
        f'<desc id="{name}-desc">{_e(told)}</desc>{drawn}</svg></figure>'
    )


def _table(results: Results) -> str:
    names = list(dict.fromkeys(name for trial in results.trials for name in trial.values))
    head = "".join(f'<th class="n">{_word(name)}</th>' for name in ("epochs", "took", *names))
    rows = []
    for trial in results.trials:
        cells = [
            str(len(trial.curve)),
            "–" if trial.seconds is None else duration(trial.seconds),
            *("–" if name not in trial.values else f"{trial.values[name]:.3g}" for name in names),
        ]
        best = trial == results.best
        reason = f": {_word(trial.reason, 300)}" if trial.reason else ""
        value = "–" if trial.value is None else f"{trial.value:.3f}"
        rows.append(
            f'<tr class="{"best" if best else _e(trial.state.lower())}"><td class="n">{trial.number}</td>'
            f'<td class="n">{value}</td><td class="state">{_e(results.state_of(trial))}{", best" if best else ""}{reason}</td>'
            f"{''.join(f'<td class=n>{_e(cell)}</td>' for cell in cells)}</tr>"
        )
    return (
        f'<div class="scroll"><table><tr><th class="n">trial</th><th class="n">{_word(results.objective)}</th><th>state</th>'
        f"{head}</tr>{''.join(rows)}</table></div>"
    )


def _word(text: str, longest: int = 130) -> str:
    return _e(shortened(str(text), longest))
