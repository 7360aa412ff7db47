"""The gate's report: JSON for machines, one self-contained HTML page for people."""

import html
import json
from collections.abc import Mapping, Sequence

from pipeline import files, storage
from pipeline.validation.histograms import Histogram, described, svg
from pipeline.validation.rules import Facts, Finding
from pipeline.validation.text import escaped as _e
from pipeline.validation.text import printable, shortened
from pipeline.validation.verdict import Verdict

# Of this page and the release's.
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c1e21; }
h1, p, li, figcaption { overflow-wrap: anywhere; } h1 { font-size: 1.4rem; } .verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600; overflow-wrap: anywhere; }
.accepted { background: #e2f3e5; color: #12602a; } .rejected { background: #fbe4e2; color: #8c1b12; } .overridden-week { background: #fdf0d2; color: #6b4700; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; } th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #d9dce0; overflow-wrap: anywhere; }
th { overflow-wrap: normal; } td b { white-space: nowrap; } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } td.what { min-width: 22rem; } td.figure { min-width: 9rem; }
tr.failed td:first-child { border-left: .3rem solid #c0392b; } tr.passed td:first-child { border-left: .3rem solid #2e8b57; } tr.overridden td:first-child { border-left: .3rem solid #d08b00; }
ul { margin: .3rem 0; padding-left: 1.2rem; } .remedy { color: #5a4a00; background: #fff7dc; padding: .2rem .4rem; display: inline-block; }
.bar { background: #5b7fb5; height: .7rem; display: inline-block; } .bar.before { background: #c3cddc; }
figure { margin: 1.2rem 0; max-width: 40rem; } figcaption { font-size: .9rem; color: #4a4f57; } svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg .now { fill: #5b7fb5; fill-opacity: .55; } svg .then { fill: none; stroke: #1c1e21; stroke-width: 1.3; } svg .axis { stroke: #9aa1ab; } svg text { fill: #4a4f57; }
"""

# The numeric features whose histograms the page shows, and their units.
_NUMERIC = {"width": "pixels", "height": "pixels", "bytes": "bytes"}

# How many labels that the schema does not have the page counts one by one.
_STRANGE = 20


def verdict_line(table: str, verdict: Verdict) -> str:
    """The verdict in one sentence."""
    count, failed = len(verdict.findings), verdict.failed
    if not verdict.accepted:
        told = f"{table} is rejected: {len(failed)} of {count} rules failed ({', '.join(failed)})"
        if verdict.override:
            told += f"; the override by {_by(verdict)} does not name {', '.join(verdict.broken)}"
    elif failed:
        told = (
            f"{table} is accepted by an override: {len(failed)} of {count} rules failed ({', '.join(failed)}), and "
            f"{_by(verdict)} let them pass: {printable(verdict.override.reason)}"
        )
    else:
        told = f"{table} is accepted: all {count} rules passed"
    if verdict.unused:
        told += f"; not needed: the override of {', '.join(verdict.unused)} by {_by(verdict)}"
    return told


def _by(verdict: Verdict) -> str:
    return printable(shortened(verdict.override.by))


def as_text(table: str, verdict: Verdict) -> str:
    """The failed rules for a terminal, each with value, limit, details and remedy."""
    lines = [verdict_line(table, verdict)]
    for finding in verdict.findings:
        if finding.passed:
            continue
        overridden = " (overridden)" if finding.rule in verdict.overridden else ""
        lines.append(f"  {finding.rule}: {printable(finding.value)}, allowed: {finding.limit}{overridden}")
        lines += [f"    - {printable(detail)}" for detail in finding.details]
        if finding.remedy:
            lines.append(f"    what to do: {finding.remedy}")
    return "\n".join(lines)


def write(
    folder: str,
    run_id: str,
    snapshot: dict,
    facts: Facts,
    verdict: Verdict,
    now: Mapping[str, Histogram],
    before: Mapping[str, Histogram],
) -> None:
    """Writes `gate.json` and `gate.html`.

    Args:
        folder: Where.
        run_id: Id of the run.
        snapshot: table, date, as_of, checksum, table_uri and rows of the snapshot.
        facts: What was judged.
        verdict: And how.
        now: Feature -> histogram of this week's train split.
        before: The same of the baseline's; empty without one.
    """
    content = {
        "run_id": run_id,
        "snapshot": snapshot,
        "baseline": facts.baseline.table if facts.baseline else None,
        "accepted": verdict.accepted,
        "override": verdict.record(),
        "class_counts": dict(facts.class_counts),
        "baseline_counts": dict(facts.baseline.class_counts) if facts.baseline else None,
        "split_rows": dict(facts.split_rows),
        "rules": [
            {
                "rule": finding.rule,
                "passed": finding.passed,
                "overridden": finding.rule in verdict.overridden,
                "value": finding.value,
                "limit": finding.limit,
                "details": list(finding.details),
                "remedy": finding.remedy,
            }
            for finding in verdict.findings
        ],
    }
    page = _page(run_id, snapshot, facts, verdict, now, before)
    storage.write(storage.join(folder, "gate.json"), files.to_json(content).encode())
    storage.write(storage.join(folder, "gate.html"), page.encode())


def broken_rules(folder: str) -> list[str]:
    """The rules for which a report rejects its snapshot; none when there is no report, or it cannot be read, or it accepts.

    Args:
        folder: Where `write` put it.
    """
    try:
        verdict = json.loads(storage.read(storage.join(folder, "gate.json")))
    except (OSError, ValueError):  # the run did not come so far; whoever asks has other things to tell
        return []
    if verdict["accepted"]:
        return []
    return [rule["rule"] for rule in verdict["rules"] if not rule["passed"] and not rule["overridden"]]


def _page(run_id, snapshot, facts: Facts, verdict: Verdict, now, before) -> str:
    rows = "".join(
        f'<tr class="{verdict.word(finding.rule)}"><td><b>{_e(finding.rule)}</b></td>'
        f'<td class="figure">{_e(finding.value)}</td><td class="figure">{_e(finding.limit)}</td>'
        f'<td class="what">{verdict.word(finding.rule)}{details(finding)}</td></tr>'
        for finding in verdict.findings
    )
    table = snapshot["table"]
    kind = "rejected" if not verdict.accepted else "overridden-week" if verdict.failed else "accepted"
    baseline = facts.baseline.table if facts.baseline else "none (bootstrap)"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{_e(table)}: {'accepted' if verdict.accepted else 'rejected'}</title><style>{STYLE}</style>"
        f"<h1>Gate report of {_e(table)}</h1>"
        # Not shortened again: names and reason are already, and the rules must all be read.
        f'<p class="verdict {kind}">{html.escape(verdict_line(table, verdict))}</p>'
        f"<p>Run {_e(run_id)} · {snapshot['rows']} labels as of {_e(snapshot['as_of'])} · "
        f"checksum {_e(snapshot['checksum'][:16])} · baseline: {_e(baseline)}</p>"
        f"<h2>Rules</h2><table><tr><th>Rule</th><th>Value</th><th>Allowed</th><th>Verdict</th></tr>{rows}</table>"
        f"<h2>Labels by class</h2>{_classes(facts)}{_confusions(facts)}{_figures(now, before)}</html>\n"
    )


def details(finding: Finding) -> str:
    """What of a rule that failed offends, and what to do, as HTML; nothing of one that passed."""
    if finding.passed:
        return ""
    items = "".join(f"<li>{_e(detail)}</li>" for detail in finding.details)
    listed = f"<ul>{items}</ul>" if items else ""
    return f'{listed}<span class="remedy">{_e(finding.remedy)}</span>' if finding.remedy else listed


def _classes(facts: Facts) -> str:
    before = facts.baseline.class_counts if facts.baseline else {}
    strange = sorted(
        (facts.class_counts.keys() | before.keys()) - set(facts.classes),
        key=lambda label: (-max(facts.class_counts.get(label, 0), before.get(label, 0)), label),
    )
    table = counts_table(
        "Class", [*facts.classes, *strange[:_STRANGE]], facts.class_counts, before if facts.baseline else None, "This week"
    )
    more = f"<p>and {len(strange) - _STRANGE} labels more, all rarer</p>" if len(strange) > _STRANGE else ""
    return table + more


def counts_table(
    head: str, names: Sequence[str], now: Mapping[str, int], before: Mapping[str, int] | None, when: str
) -> str:
    """A table of counts and their shares, with a bar for each share.

    Args:
        head: What a name is.
        names: Which are shown, in this order; '' is a label that is none.
        now: Name -> count.
        before: The same of the baseline; None without one.
        when: What `now` is of, such as `This week`.
    """
    known = before or {}
    totals = max(sum(now.values()), 1), max(sum(known.values()), 1)
    shares = [{name: each.get(name, 0) / total for name in names} for each, total in zip((now, known), totals, strict=True)]
    widest = max([share for each in shares for share in each.values()], default=0) or 1

    def cell(count: int, total: int, known: bool = True) -> str:
        return f'<td class="n">{count} ({count / total:.1%})</td>' if known else '<td class="n">–</td>'

    rows = "".join(
        f"<tr><td>{_e(shortened(name)) if name.strip() else '<i>no label</i>'}</td>"
        f"{cell(known.get(name, 0), totals[1], before is not None)}"
        f"{cell(now.get(name, 0), totals[0])}<td>{_bar(shares[1][name] / widest, 'bar before')}<br>"
        f"{_bar(shares[0][name] / widest, 'bar')}</td></tr>"
        for name in names
    )
    titles = f'<tr><th>{head}</th><th class="n">Baseline</th><th class="n">{when}</th><th></th></tr>'
    return f"<table>{titles}{rows}</table>"


def _confusions(facts: Facts) -> str:
    if not facts.baseline or not facts.baseline.confusions:
        return ""
    rows = "".join(
        f'<tr><td>{_e(shortened(item.before))}</td><td>{_e(shortened(item.after))}</td><td class="n">{item.count}</td>'
        f"<td>{_e(', '.join(dict.fromkeys(shortened(image) for image in (item.first, item.last))))}</td></tr>"
        for item in facts.baseline.confusions
    )
    return (
        f"<h2>Labels that changed</h2>"
        f"<p>{facts.baseline.relabelled} of {facts.baseline.common_images} images known before; the commonest changes first.</p>"
        '<table><tr><th>From</th><th>To</th><th class="n">Images</th><th>First and last image id</th></tr>'
        f"{rows}</table>"
    )


def _figures(now: Mapping[str, Histogram], before: Mapping[str, Histogram]) -> str:
    figures = "".join(
        f"<figure><figcaption><b>{name}</b>, {unit}<br>this week (filled): {_e(described(now.get(name)))}<br>"
        f"baseline (line): {_e(described(before.get(name)))}</figcaption>{drawn}</figure>"
        for name, unit in _NUMERIC.items()
        if (drawn := svg(name, now.get(name), before.get(name)))
    )
    return f"<h2>Photographs of the train split, as packed</h2>{figures}" if figures else ""


def _bar(length: float, kind: str) -> str:
    return f'<span class="{kind}" style="width:{18 * length:.2f}rem"></span>'
