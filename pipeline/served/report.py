"""The report on requests: text for a terminal, JSON for machines, one self-contained HTML page for people."""

import dataclasses
from collections.abc import Mapping, Sequence

from pipeline import typed
from pipeline.served.rules import SIZES, Facts, ServedLimits
from pipeline.validation.histograms import Histogram, described, svg
from pipeline.validation.report import STYLE, counts_table, details
from pipeline.validation.rules import Finding
from pipeline.validation.text import escaped as _e
from pipeline.validation.text import printable, shortened

_UNITS = {"width": "pixels", "height": "pixels", "bytes": "bytes"}

_WHEN = "requests"


def content(
    known, sample, seed: int, facts: Facts, findings: Sequence[Finding], limits: ServedLimits,
    now: Mapping[str, Histogram], before: Mapping[str, Histogram],
) -> dict:  # fmt: skip
    """Everything that is known, as plain data.

    Args:
        known: What serves (`baseline.Baseline`).
        sample: What was drawn (`requests.Sample`).
        seed: Of the draw.
        facts: What was judged.
        findings: And how.
        limits: By which limits.
        now: Feature -> histogram of the sample.
        before: The same of the training snapshot.
    """
    failed = [finding.rule for finding in findings if not finding.passed]
    content = {
        "run_id": known.entry.run_id,
        "version": known.entry.to_version,
        "endpoint": known.entry.endpoint,
        "model": known.entry.path,
        "snapshot": known.entry.snapshot,
        "source": printable(sample.source),
        "found": sample.found,
        "asked": len(sample.places),
        "answered": facts.now.images,
        "ignored_files": sample.ignored,
        "seed": seed,
        "drifted": bool(failed),
        "failed": failed,
        "rules": [dataclasses.asdict(finding) for finding in findings],
        "limits": typed.to_dict(limits),
        "predictions": dataclasses.asdict(facts.now),
        "eval_predictions": dataclasses.asdict(facts.before),
        "sizes": {
            name: {
                which: {"images": found.count, "low": found.low, "median": found.median, "mean": found.mean, "high": found.high}
                for which, histograms in (("now", now), ("trained", before))
                if (found := histograms.get(name))
            }
            for name in SIZES
        },
        "divergences": {name: facts.sizes[name] for name in SIZES if name in facts.sizes},
        "unusable": {"count": facts.unusable.count, **dataclasses.asdict(facts.unusable)},
    }
    return content | {"verdict": _sentence(content)}


def _sentence(content: Mapping) -> str:
    told = f"{content['answered']} of {content['asked']} photographs were answered"
    count = len(content["rules"])
    if content["failed"]:
        return f"Requests have drifted: {len(content['failed'])} of {count} rules failed ({', '.join(content['failed'])}); {told}"
    return f"Requests have not drifted: all {count} rules passed; {told}"


def as_text(content: Mapping) -> str:
    """For a terminal: the verdict, every rule with value and limit, and of those that failed details and what to do."""
    lines = [content["verdict"]]
    width = max(len(rule["rule"]) for rule in content["rules"])
    for rule in content["rules"]:
        mark = "passed" if rule["passed"] else "FAILED"
        lines.append(f"  {mark}  {rule['rule']:<{width}}  {printable(rule['value'])}, allowed: {rule['limit']}")
        if not rule["passed"]:
            lines += [f"    - {printable(detail)}" for detail in rule["details"]]
            lines.append(f"    what to do: {rule['remedy']}")
    unusable = content["unusable"]
    if unusable["count"] and "max_unusable_share" not in content["failed"]:
        lines.append(f"  without an answer: {unusable['count']}, such as {unusable['examples'][0]}")
    if content["ignored_files"]:
        lines.append(f"  files of other kinds, not looked at: {content['ignored_files']}")
    return "\n".join([*lines, f"report: {content['report']}"])


def page(content: Mapping, facts: Facts, now: Mapping[str, Histogram], before: Mapping[str, Histogram]) -> str:
    """Draws one HTML page; nothing is fetched from elsewhere, and nothing runs in it. Arguments as `content` has them."""
    rules = "".join(
        f'<tr class="{word}"><td><b>{_e(rule["rule"])}</b></td><td class="figure">{_e(rule["value"])}</td>'
        f'<td class="figure">{_e(rule["limit"])}</td><td class="what">{word}{details(Finding(**rule))}</td></tr>'
        for rule in content["rules"]
        for word in ["passed" if rule["passed"] else "failed"]
    )
    ignored = f" · files of other kinds, not looked at: {content['ignored_files']}" if content["ignored_files"] else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Drift of what run {_e(content['run_id'])} serves</title><style>{STYLE}</style>"
        f"<h1>Requests to version {_e(content['version'])} at endpoint {_e(content['endpoint'])}</h1>"
        f'<p class="verdict {"rejected" if content["drifted"] else "accepted"}">{_e(content["verdict"])}</p>'
        f"<p>Run {_e(content['run_id'])} · {_e(content['snapshot'])} · {_e(shortened(content['source'], 300))}: "
        f"{content['found']} photographs, {content['asked']} drawn with seed {content['seed']}{ignored}</p>"
        f"<h2>Rules</h2><table><tr><th>Rule</th><th>Value</th><th>Allowed</th><th>Verdict</th></tr>{rules}</table>"
        "<h2>Predictions by class</h2><p>Baseline: what the same model said of the eval split.</p>"
        f"{_classes(facts)}<h2>How sure the model is</h2><p>The probability of the most probable class.</p>"
        f"{counts_table('Probability', list(facts.before.confidence), facts.now.confidence, facts.before.confidence, 'Requests')}"
        f"{_sizes(now, before)}{_unusable(facts)}</html>\n"
    )


def _classes(facts: Facts) -> str:
    names = list(facts.before.classes)
    # As many classes as people read: those that moved most, in the order of the model's outputs where all are shown.
    most = 100
    if len(names) > most:
        totals = max(1, facts.now.images), max(1, facts.before.images)
        names.sort(key=lambda name: -abs(facts.now.classes[name] / totals[0] - facts.before.classes[name] / totals[1]))
    table = counts_table("Class", names[:most], facts.now.classes, facts.before.classes, "Requests")
    return table + (f"<p>and {len(names) - most} classes more, which moved less</p>" if len(names) > most else "")


def _sizes(now: Mapping[str, Histogram], before: Mapping[str, Histogram]) -> str:
    figures = "".join(
        f"<figure><figcaption><b>{name}</b>, {_UNITS[name]}<br>{_WHEN} (filled): {_e(described(now.get(name)))}<br>"
        f"trained on (line): {_e(described(before.get(name)))}</figcaption>{drawn}</figure>"
        for name in SIZES
        if (drawn := svg(name, now.get(name), before.get(name), _WHEN))
    )
    return f"<h2>Photographs, as a shard would store them</h2>{figures}" if figures else ""


def _unusable(facts: Facts) -> str:
    unusable = facts.unusable
    if not unusable.count:
        return ""
    rows = "".join(f'<tr><td>{_e(reason)}</td><td class="n">{count}</td></tr>' for reason, count in unusable.reasons.items())
    examples = "".join(f"<li>{_e(example)}</li>" for example in unusable.examples)
    return (
        f"<h2>Without an answer: {unusable.count}</h2>"
        f'<table><tr><th>Reason</th><th class="n">Requests</th></tr>{rows}</table><p>The first of them:</p><ul>{examples}</ul>'
    )
