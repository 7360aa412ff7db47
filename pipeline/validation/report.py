"""The gate's report: JSON for machines, one self-contained HTML page for people."""

import html
import pathlib

from pipeline import files
from pipeline.validation.rules import Facts, Finding

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c1e21; }
h1 { font-size: 1.4rem; } .verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600; }
.accepted { background: #e2f3e5; color: #12602a; } .rejected { background: #fbe4e2; color: #8c1b12; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; } th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #d9dce0; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } .failed td:first-child { border-left: .3rem solid #c0392b; } .passed td:first-child { border-left: .3rem solid #2e8b57; }
ul { margin: .3rem 0; padding-left: 1.2rem; } .remedy { color: #5a4a00; background: #fff7dc; padding: .2rem .4rem; display: inline-block; }
.bar { background: #5b7fb5; height: .7rem; display: inline-block; } .bar.before { background: #c3cddc; }
"""


def verdict_line(table: str, findings: list[Finding]) -> str:
    """The verdict in one sentence."""
    failed = [finding.rule for finding in findings if not finding.passed]
    if failed:
        return f"{table} is rejected: {len(failed)} of {len(findings)} rules failed ({', '.join(failed)})"
    return f"{table} is accepted: all {len(findings)} rules passed"


def as_text(table: str, findings: list[Finding]) -> str:
    """The failed rules for a terminal, each with value, limit, details and remedy."""
    lines = [verdict_line(table, findings)]
    for finding in findings:
        if finding.passed:
            continue
        lines.append(f"  {finding.rule}: {_printable(finding.value)}, allowed: {finding.limit}")
        lines += [f"    - {_printable(detail)}" for detail in finding.details]
        if finding.remedy:
            lines.append(f"    what to do: {finding.remedy}")
    return "\n".join(lines)


def _printable(text: str) -> str:
    # Labels and ids are people's input: a line end or a terminal's control code must not forge a line.
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def write(folder: str, run_id: str, snapshot: dict, facts: Facts, findings: list[Finding]) -> None:
    """Writes `gate.json` and `gate.html` into `folder`."""
    accepted = all(finding.passed for finding in findings)
    content = {
        "run_id": run_id,
        "snapshot": snapshot,
        "baseline": facts.baseline_table,
        "accepted": accepted,
        "class_counts": dict(facts.class_counts),
        "baseline_counts": dict(facts.baseline_counts) if facts.baseline_counts is not None else None,
        "rules": [
            {
                "rule": finding.rule,
                "passed": finding.passed,
                "value": finding.value,
                "limit": finding.limit,
                "details": list(finding.details),
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
    }
    files.write_atomically(pathlib.Path(folder, "gate.json"), files.to_json(content))
    files.write_atomically(pathlib.Path(folder, "gate.html"), _page(run_id, snapshot, facts, findings, accepted))


def _page(run_id, snapshot, facts: Facts, findings, accepted: bool) -> str:
    e = html.escape
    rows = "".join(
        f'<tr class="{"passed" if finding.passed else "failed"}"><td><b>{e(finding.rule)}</b></td><td>{e(finding.value)}</td>'
        f"<td>{e(finding.limit)}</td><td>{'passed' if finding.passed else 'failed'}{_details(finding)}</td></tr>"
        for finding in findings
    )
    before = facts.baseline_counts or {}
    widest = max([1, *facts.class_counts.values(), *before.values()])
    counts = "".join(
        f'<tr><td>{e(label)}</td><td class="n">{before.get(label, 0) if facts.baseline_counts is not None else "–"}</td>'
        f'<td class="n">{facts.class_counts.get(label, 0)}</td><td>{_bar(before.get(label, 0), widest, "bar before")}<br>'
        f"{_bar(facts.class_counts.get(label, 0), widest, 'bar')}</td></tr>"
        for label in sorted(facts.class_counts.keys() | before.keys())
    )
    table = snapshot["table"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{e(table)}: {'accepted' if accepted else 'rejected'}</title><style>{_STYLE}</style>"
        f"<h1>Gate report of {e(table)}</h1>"
        f'<p class="verdict {"accepted" if accepted else "rejected"}">{e(verdict_line(table, findings))}</p>'
        f"<p>Run {e(run_id)} · {snapshot['rows']} labels as of {e(snapshot['as_of'])} · checksum {e(snapshot['checksum'][:16])} · "
        f"baseline: {e(facts.baseline_table or 'none (bootstrap)')}</p>"
        f"<h2>Rules</h2><table><tr><th>Rule</th><th>Value</th><th>Allowed</th><th>Verdict</th></tr>{rows}</table>"
        f"<h2>Labels by class</h2><table><tr><th>Class</th><th>Baseline</th><th>This week</th><th></th></tr>{counts}</table></html>\n"
    )


def _details(finding: Finding) -> str:
    if finding.passed:
        return ""
    items = "".join(f"<li>{html.escape(detail)}</li>" for detail in finding.details)
    listed = f"<ul>{items}</ul>" if items else ""
    return f'{listed}<span class="remedy">{html.escape(finding.remedy)}</span>' if finding.remedy else listed


def _bar(count: int, widest: int, kind: str) -> str:
    return f'<span class="{kind}" style="width:{18 * count / widest:.2f}rem"></span>'
