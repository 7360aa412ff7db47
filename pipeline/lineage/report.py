"""A dossier of one run in one HTML file: what it was made of, what came of it, when it served, every step.

Nothing is fetched from elsewhere, nothing runs in the reader's browser, and its own content policy forbids both. It prints.
"""

import dataclasses
import datetime
import html
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline import files
from pipeline.errors import PipelineError
from pipeline.lineage import chart, graph
from pipeline.lineage.base import Artifact, Execution, Run
from pipeline.lineage.facts import FAILURE, FAILURE_FACTS, FAILURE_KIND, Gate, RunFacts
from pipeline.lineage.timeline import Interval, Timeline
from pipeline.lineage.verify import BAD, Check
from pipeline.validation.text import printable, shortened

_GENERATOR = "pipeline audit report"

_LONGEST = 20_000
"""Longest value that is shown whole, in characters."""

_IN_STEPS = 1_200
"""The same where a step is told in full: configurations of TFX's own would fill pages. `--json` has them whole."""

_STYLE = """
:root { --ink: #1c1e21; --soft: #4a4f57; --line: #d9dce0; --axis: #9aa1ab; --main: #4a70aa; --rest: #c3cddc; --page: #fff; --good: #2e8b57; --bad: #c0392b; --wait: #d08b00; --good-page: #e2f3e5; --good-ink: #12602a; --bad-page: #fbe4e2; --bad-ink: #8c1b12; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--ink); background: var(--page); }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; } p { overflow-wrap: anywhere; }
a { color: inherit; } nav a { margin-right: 1rem; } .verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600; } .good { background: var(--good-page); color: var(--good-ink); } .bad { background: var(--bad-page); color: var(--bad-ink); }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; font-size: .92rem; } th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { overflow-wrap: normal; } table.rows td { min-width: 3.6rem; } #gate table.rows td:first-child { min-width: 12rem; } #serving td { font-size: .85rem; } #serving td:nth-child(n+4):nth-child(-n+6) { white-space: nowrap; }
table.facts { table-layout: fixed; } table.facts th { width: 12rem; font-weight: 500; color: var(--soft); } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } .mono, pre { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; margin: 0; }
tr.own td { background: #e9f0fa; } tr.failed td { font-weight: 600; } tr:target, section:target > h3, tbody:target { background: #fff4c9; } figure { margin: 1rem 0; } figcaption { font-size: .9rem; color: var(--soft); }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; display: block; } svg text { fill: var(--soft); } svg a { text-decoration: none; }
svg .step rect { fill: var(--page); stroke: var(--axis); } svg .step .name { fill: var(--ink); font-weight: 600; } svg .step .state { fill: var(--good); stroke: none; } svg .failed .state { fill: var(--bad); } svg .canceled .state, svg .running .state { fill: var(--wait); } svg .failed rect:first-child { stroke: var(--bad); stroke-width: 2; }
svg .direct, svg .implied { fill: none; stroke: #5b6470; stroke-width: 1.4; } svg .implied { stroke: var(--rest); stroke-width: 1.1; } svg a:hover path { stroke: var(--main); stroke-width: 2.5; } svg marker path { fill: #5b6470; }
svg .own { fill: var(--main); } svg .other { fill: var(--rest); } svg .axis { stroke: var(--line); } svg .own + .on { fill: #fff; } svg .other + .on { fill: var(--ink); }
@media print { body { margin: 0; max-width: none; font-size: 10.5pt; } nav { display: none; } h2, h3 { break-after: avoid; } figure, tr { break-inside: avoid; } figure.graph { break-before: page; } svg { max-height: 24cm; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def write(path: str, page: str) -> None:
    """Writes a report, all of it or nothing.

    Args:
        path: The file: new, or a former report.
        page: From `page`.

    Raises:
        PipelineError: There is something else at `path`, or it cannot be written.
    """
    place = pathlib.Path(path)
    try:
        if place.is_dir() or (place.exists() and _GENERATOR not in place.read_bytes()[:2000].decode(errors="replace")):
            raise PipelineError(f"{path} is there and is no report of an audit: name another file by --html")
        files.write_atomically(place, page)
    except OSError as error:
        raise PipelineError(f"cannot write the report {path}: {error.strerror}") from error


def page(
    run: Run, facts: RunFacts, timeline: Timeline, checks: Sequence[Check] | None, now: datetime.datetime, store: str
) -> str:
    """Draws the page.

    Args:
        run: The run, of whatever end.
        facts: Its facts.
        timeline: What served when.
        checks: What was verified; None when nothing was.
        now: When it was asked, UTC.
        store: Where, for people.

    Returns:
        HTML. Everything that people or data brought is escaped.
    """
    sections = [
        ("serving", "Serving", _serving(run, timeline, now)),
        ("lineage", "Lineage", _lineage(run)),
        ("labels", "Labels and photographs", _labels(facts)),
        ("code", "Code and machine", _code(facts)),
        ("training", "Training and settings", _training(facts)),
        ("gate", "Gate", _gate(facts.gate) if facts.gate else ""),
        ("evaluation", "Evaluation and release", _evaluation(facts)),
        ("verified", "Verified", _checks(checks) if checks is not None else ""),
        ("steps", "Steps", "".join(_step(step) for step in run.executions)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in sections if body]
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in shown)
    bodies = "".join(f'<section id="{anchor}"><h2>{title}</h2>{body}</section>' for anchor, title, body in shown)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta name="generator" content="{_GENERATOR}">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Run {_e(run.run_id)}</title><style>{_STYLE}</style></head><body><h1>Run {_e(run.run_id)}</h1>"
        f"{_verdict(run, facts, timeline)}<nav>{links}</nav>{bodies}"
        f"<p>Asked {now:%Y-%m-%d %H:%M:%S} UTC of the store {_e(store)}. The same facts for machines: "
        f"<span class=\"mono\">python -m pipeline audit run {_e(run.run_id)} --json</span></p></body></html>\n"
    )


def _e(text: Any) -> str:
    """People's words as a page shows them: one line, not too long, no markup."""
    return html.escape(printable(str(text)))


def _whole(value: Any, longest: int = _LONGEST) -> str:
    """A value with its line ends; a tree of facts as indented lines."""
    text = shortened(value if isinstance(value, str) else "\n".join(_tree(value)), longest)
    shown = "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)
    return f"<pre>{html.escape(shown)}</pre>"


def _tree(value: Any) -> list[str]:
    """A tree of facts as indented lines; what has no names in it stands on one."""
    if not isinstance(value, Mapping) or not value:
        return [json.dumps(value, sort_keys=True, ensure_ascii=False)]
    lines = []
    for name, inner in sorted(value.items()):
        first, *rest = _tree(inner)
        if isinstance(inner, Mapping) and inner:
            lines += [f"{json.dumps(name, ensure_ascii=False)}:", *(f"  {line}" for line in (first, *rest))]
        else:
            lines.append(f"{json.dumps(name, ensure_ascii=False)}: {first}")
    return lines


def _facts(rows: Iterable[tuple[str, Any]], longest: int = _LONGEST) -> str:
    """A table of names and values; what is None is left out."""
    body = "".join(
        f"<tr><th>{_e(name)}</th><td>{_whole(value, longest) if isinstance(value, (dict, list)) else _e(value)}</td></tr>"
        for name, value in rows
        if value is not None
    )
    return f'<table class="facts">{body}</table>' if body else ""


def _rows(head: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]]) -> str:
    """A table with a head; each row has attributes and cells."""
    titles = "".join(f"<th>{_e(title)}</th>" for title in head)
    body = "".join(f"<tr{attributes}>{''.join(f'<td>{_e(cell)}</td>' for cell in cells)}</tr>" for attributes, cells in rows)
    return f'<table class="rows"><tr>{titles}</tr>{body}</table>'


def _verdict(run: Run, facts: RunFacts, timeline: Timeline) -> str:
    served = timeline.of_run(run.run_id)
    told = facts.state
    if facts.release and facts.state == "COMPLETE":
        told = "Released" if facts.release.released else f"Not released: {facts.release.reason}"
    kind = "good" if facts.state == "COMPLETE" else "bad"
    now = "serves" if any(interval.until is None for interval in served) else "served" if served else "never served"
    reason = f'<p>Reason ({_e(facts.reason_kind or "not recorded")}):</p>{_whole(facts.reason)}' if facts.reason else ""
    problems = "".join(f'<p class="verdict bad">{_e(problem)}</p>' for problem in timeline.problems)
    return (
        f'<p class="verdict {kind}">{_e(told)}; its model {now}.</p>{reason}{problems}'
        f"<p>{_e(facts.started or 'no step began')} to {_e(facts.ended or 'now')}, labels {_e(facts.snapshot or 'not taken')}, "
        f"launched by {_e(facts.launched_by or 'unknown')}</p>"
    )


def _serving(run: Run, timeline: Timeline, now: datetime.datetime) -> str:
    intervals = chart.chosen(timeline, run.run_id)
    if not intervals:
        return "<p>Nothing was released in this store.</p>"
    rows = [
        (
            f' id="interval-{position}"' + (' class="own"' if item.run_id == run.run_id else ""),
            (item.endpoint, item.version, item.run_id, f"{item.share:.0%}", *_times(item), item.recorded),
        )
        for position, item in enumerate(intervals)
    ]
    left_out = len(timeline.intervals) - len(intervals)
    more = f"<p>{left_out} intervals further away are left out.</p>" if left_out else ""
    table = _rows(("Endpoint", "Version", "Run", "Share", "From (UTC)", "Until (UTC)", "Recorded in"), rows)
    return (
        f"<figure>{chart.svg(intervals, run.run_id, now)}<figcaption>What served when; this run's model in the darker colour."
        f"</figcaption></figure>{table}{more}"
    )


def _times(interval: Interval) -> tuple[str, str]:
    until = f"{interval.until:%Y-%m-%d %H:%M:%S}" if interval.until else "still serves"
    return f"{interval.since:%Y-%m-%d %H:%M:%S}", until


def _lineage(run: Run) -> str:
    if not run.executions:
        return "<p>No step began.</p>"
    return (
        f'<figure class="graph">{graph.svg(run)}<figcaption>Every step and what it handed on, from top to bottom. A light '
        "line says no more than the dark ones imply. Each step and line leads to its facts.</figcaption></figure>"
    )


def _labels(facts: RunFacts) -> str:
    shards = facts.shards
    return _facts(
        [
            ("snapshot", facts.snapshot),
            ("place", facts.snapshot_uri),
            ("rows", facts.rows),
            ("as of", facts.as_of),
            ("content checksum", facts.checksum),
            ("taken from", facts.source),
            ("method", facts.method),
            ("label records sha256", facts.labels_sha256),
            *((f"image shards: {name}", value) for name, value in (dataclasses.asdict(shards) if shards else {}).items()),
        ]
    )


def _code(facts: RunFacts) -> str:
    return _facts(
        [
            ("commit", facts.commit),
            ("tree", facts.tree),
            ("uncommitted changes sha256", facts.changes_sha256 or None),
            ("container image", facts.image or ("none: ran outside a container" if facts.tree else None)),
            ("locked packages", facts.lock),
            ("their sha256", facts.lock_sha256),
            ("Python", facts.python),
            ("machine", facts.platform),
            ("launched by", facts.launched_by),
        ]
    )


def _training(facts: RunFacts) -> str:
    training = dict(facts.training or {})
    phases = training.pop("phases", ())
    training.pop("hyperparameters", None)
    told = [(phase.get("name", ""), len(phase.get("epochs", ()))) for phase in phases if isinstance(phase, Mapping)]
    rows: list[tuple[str, Any]] = [(f"epochs {name}", count) for name, count in told]
    rows += [("hyperparameters", facts.hyperparameters or None), ("which come from", facts.tuned_by)]
    return _facts([*rows, *sorted(training.items()), ("all settings", facts.settings)])


def _gate(gate: Gate) -> str:
    failed = set(gate.failed or ())
    rows = [
        (' class="failed"' if rule in failed else "", (rule, words, "failed" if rule in failed else ""))
        for rule, words in gate.rules.items()
    ]
    return _facts(
        [
            ("verdict", gate.verdict),
            ("baseline", "none: bootstrap" if gate.bootstrap else None),
            ("override", gate.override),
            ("gate.json sha256", gate.report_sha256),
        ]
    ) + _rows(("Rule", "Value and limit", ""), rows)


def _evaluation(facts: RunFacts) -> str:
    evaluation, release = facts.evaluation, facts.release
    parts = ""
    if evaluation:
        figures = dataclasses.asdict(evaluation)
        classes = figures.pop("by_class")
        parts = _facts((name.replace("_", " "), value) for name, value in figures.items())
        rows = [("", (name, f"{accuracy:.3f}", int(examples))) for name, (accuracy, examples) in sorted(classes.items())]
        parts += _rows(("Class", "Accuracy", "Examples"), rows)
    if release:
        parts += _facts((name.replace("_", " "), value) for name, value in dataclasses.asdict(release).items())
    return parts


def _checks(checks: Sequence[Check]) -> str:
    rows = [(' class="failed"' if check.status in BAD else "", (check.status, check.what, check.detail)) for check in checks]
    return _rows(("", "What", "Detail"), rows)


def _step(step: Execution) -> str:
    hidden = (FAILURE, FAILURE_KIND, FAILURE_FACTS)
    parameters = {name: value for name, value in step.parameters.items() if name not in hidden and not name.startswith("__")}
    seconds = (step.updated - step.started).total_seconds()
    reason = _whole(step.parameters[FAILURE]) if FAILURE in step.parameters else ""
    return (
        f'<section id="step-{_e(step.id)}"><h3>{_e(step.step)}</h3>'
        f"<p>{_e(step.state)}, {step.started:%Y-%m-%d %H:%M:%S} UTC, {seconds:.1f} s</p>"
        f"{reason}{_puts('in', step.inputs)}{_puts('out', step.outputs)}"
        f"{_facts(((name, _parsed(value)) for name, value in sorted(parameters.items())), _IN_STEPS)}</section>"
    )


def _puts(word: str, puts: Mapping[str, Sequence[Artifact]]) -> str:
    rows = ""
    for key, artifacts in puts.items():
        for artifact in artifacts:
            name, what = f"{word}: {_e(key)}", f"{_e(artifact.type)} {_e(artifact.id)}"
            place = f' <span class="mono">{_e(artifact.uri)}</span>'
            if word == "in":
                rows += f'<tr><th>{name}</th><td><a href="#artifact-{_e(artifact.id)}">{what}</a>{place}</td></tr>'
                continue
            known = {key: _parsed(value) for key, value in artifact.facts.items() if key not in ("is_external", "tfx_version")}
            told = _whole(known, _IN_STEPS) if known else ""
            rows += f'<tr id="artifact-{_e(artifact.id)}"><th>{name}</th><td>{what}{place}{told}</td></tr>'
    return f'<table class="facts">{rows}</table>' if rows else ""


def _parsed(value: Any) -> Any:
    """JSON in a fact as what it says."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value
