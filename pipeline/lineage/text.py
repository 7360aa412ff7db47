"""The answers as a terminal shows them: one fact a line, nothing that a person wrote can forge one."""

import json
from collections.abc import Iterable, Mapping, Sequence

from pipeline.lineage.audit import Served
from pipeline.lineage.base import Artifact, Run
from pipeline.lineage.diff import Difference, LabelChanges
from pipeline.lineage.facts import FAILURE, Evaluation, Gate, RunFacts
from pipeline.lineage.forward import ImageUse, RunOfSnapshot, SnapshotUse
from pipeline.lineage.moment import Span
from pipeline.lineage.timeline import Interval, Timeline
from pipeline.lineage.verify import BAD, SKIPPED, UNRECORDED, Check
from pipeline.validation.text import printable, shortened


def of_serving(span: Span, answers: list[Served], problems: Iterable[str]) -> str:
    """What served, and what produced each."""
    blocks = [f"On {printable(span.name)} served {len(answers)} model(s):", *_problems(problems)]
    for served in answers:
        lines = [f"run {printable(served.interval.run_id)}", _line("served", _served(served.interval))]
        if served.facts is None:
            lines.append(_line("unknown", "the lineage has no such run"))
        else:
            lines += of_facts(served.facts)
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *_next(served.interval.run_id for served in answers)])


def of_run(run: Run, facts: RunFacts, timeline: Timeline) -> str:
    """One run: what went in, what came out, every step."""
    lines = [f"run {printable(run.run_id)}", _line("state", facts.state)]
    if facts.reason:
        lines += [_line("reason" if position == 0 else "", line) for position, line in enumerate(facts.reason.splitlines())]
    elif facts.state not in ("COMPLETE", "RUNNING"):
        lines.append(_line("reason", "not recorded: the run is older than the record, or its process was killed"))
    lines.append(_line("time", f"{facts.started or 'no step began'} to {facts.ended or 'now'}"))
    intervals = timeline.of_run(run.run_id)
    lines += [_line("served" if position == 0 else "", _served(item)) for position, item in enumerate(intervals)]
    if not intervals:
        lines.append(_line("served", "never"))
    lines += of_facts(facts)
    blocks = ["\n".join(lines), *_problems(timeline.problems), "\n".join(["steps", *_steps(run)])]
    return "\n\n".join([*blocks, *_next([run.run_id] if facts.training else [])])


def of_facts(facts: RunFacts) -> list[str]:
    """The facts of a run, one a line, and no line of what it did not reach."""
    lines = []
    if facts.snapshot:
        lines += [
            _line("labels", f"{facts.snapshot}: {facts.rows} rows as of {facts.as_of}"),
            _line("", f"checksum {facts.checksum}"),
            _line("", facts.snapshot_uri),
        ]
    if facts.labels_sha256:
        lines.append(_line("", f"label records sha256 {facts.labels_sha256}"))
    if facts.shards:
        shards = facts.shards
        lines.append(_line("images", f"generation {shards.number}, {shards.images} photographs, digest {shards.digest}"))
    if facts.tree is not None:
        changes = f", uncommitted changes sha256 {facts.changes_sha256}" if facts.changes_sha256 else ""
        lines += [
            _line("code", f"commit {facts.commit or 'unknown'}, tree {facts.tree}{changes}"),
            _line("packages", f"{facts.lock or 'unknown'} sha256 {facts.lock_sha256 or 'unknown'}"),
            _line("image", facts.image or "none: ran outside a container"),
            _line("machine", f"{facts.platform}, Python {facts.python}, launched by {facts.launched_by or 'unknown'}"),
        ]
    if facts.training is not None:
        lines += [
            _line("training", _training(facts.training)),
            _line("", json.dumps(facts.training.get("training"), sort_keys=True)),
            _line("", f"backbone sha256 {facts.training.get('backbone_sha256') or 'none'}"),
            _line("", json.dumps(facts.training.get("tensorflow"), sort_keys=True)),
        ]
    if facts.hyperparameters is not None:
        values = json.dumps(facts.hyperparameters, sort_keys=True)
        lines.append(_line("tuned", values if facts.hyperparameters else "no: the values of the settings"))
        if facts.hyperparameters and facts.tuned_by:
            lines.append(_line("", ", ".join(f"{name} {value}" for name, value in sorted(facts.tuned_by.items()))))
        elif facts.tuned_by and facts.tuned_by.get("reason"):
            searched = "searched" if facts.tuned_by.get("tune") else "did not search"
            lines.append(_line("", f"{searched}: {facts.tuned_by['reason']}"))
    if facts.gate:
        lines += _gate(facts.gate)
    if facts.evaluation:
        lines.append(_line("evaluation", _evaluation(facts.evaluation)))
        lines += [_line("", f"missed: {failure}") for failure in facts.evaluation.failures]
    if facts.release:
        lines.append(_line("weights", f"sha256 {facts.release.weights_sha256}"))
        if facts.release.export_sha256:
            lines.append(_line("export", f"sha256 {facts.release.export_sha256}"))
        if not facts.release.released:
            lines.append(_line("held", facts.release.reason))
    return lines


def of_checks(run_id: str, checks: Sequence[Check]) -> str:
    """What `verify` found: one line a thing, and the sum."""
    lines = [f"run {printable(run_id)}"]
    for check in checks:
        lines.append(f"  {check.status:<13} {printable(check.what)}")
        if check.detail:
            lines.append(f"  {'':<13} {printable(check.detail)}")
    bad = sum(check.status in BAD for check in checks)
    rest = [f"{count} {word}" for word in (UNRECORDED, SKIPPED) if (count := sum(check.status == word for check in checks))]
    verdict = f"{bad} of {len(checks)} things are not as recorded" if bad else "nothing that was checked was altered or lost"
    return "\n".join([*lines, "", "; ".join([verdict, *rest])])


def of_diff(before: str, after: str, differences: Sequence[Difference], changes: LabelChanges) -> str:
    """What differs between two runs."""
    lines = [f"{printable(before)} -> {printable(after)}"]
    if changes.unknown:
        lines.append(_line("labels", f"cannot be compared: {changes.unknown}"))
    elif any(changes.counts.values()):
        lines.append(_line("labels", ", ".join(f"{count} {kind}" for kind, count in changes.counts.items())))
        for kind, pairs in changes.pairs.items():
            for pair in pairs:
                labels = [label for label in (pair.before_label, pair.after_label) if label or kind == "changed"]
                words = " -> ".join(repr(shortened(label)) for label in labels)
                ids = ", ".join(dict.fromkeys(map(shortened, (pair.first_image, pair.last_image))))
                lines.append(_line("", f"{kind} {pair.images}: {words} (such as {ids})"))
        for row in changes.images:
            lines.append(_line("", f"{row['kind']} {row['image_id']}: {row['before_label']!r} -> {row['after_label']!r}"))
    if changes.photographs:
        lines.append(_line("images", ", ".join(f"{count} {kind}" for kind, count in changes.photographs.items())))
    group = ""
    for difference in differences:
        word = difference.group if difference.group != group else ""
        group = difference.group
        lines.append(_line(word, f"{difference.name}: {_value(difference.before)} -> {_value(difference.after)}"))
    return "\n".join(lines if len(lines) > 1 else [*lines, "  nothing differs"])


def _value(value) -> str:
    if value is None:
        return "not recorded"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def of_snapshot(used: SnapshotUse, problems: Iterable[str]) -> str:
    """What used a snapshot."""
    lines = [f"snapshot {printable(used.table)}"]
    for run in used.runs:
        lines += _run_of_snapshot(run)
    if used.baselines:
        lines.append(_line("baseline", f"for drift in {', '.join(used.baselines)}"))
    return "\n\n".join(["\n".join(lines), *_problems(problems)])


def _run_of_snapshot(run: RunOfSnapshot, more: str = "") -> list[str]:
    what = "trained a model" if run.trained else "trained nothing"
    lines = [_line("run", f"{run.run_id}: {run.state}, {what}{more}")]
    return lines + [_line("", f"served {_served(interval)}") for interval in run.served]


def of_image(used: ImageUse, problems: Iterable[str]) -> str:
    """What used a photograph."""
    blocks = [f"image {printable(used.image_id)}"]
    for found in used.snapshots:
        label, product, source = (printable(repr(value)) for value in (found.label, found.product_id, found.source))
        lines = [f"snapshot {found.table}: label {label}, product {product}, from {source}"]
        for item in found.runs:
            where = f"split {item.split}" if item.split else "split unknown"
            where += f", record {item.ordinal} of {item.shard}" if item.shard else ", in no shard, so that no model saw it"
            lines += _run_of_snapshot(item.run, f"; {where}")
        blocks.append("\n".join(lines))
    if used.lost:
        blocks.append(f"not asked, because the warehouse does not have them any more: {', '.join(used.lost)}")
    return "\n\n".join([*blocks, *_problems(problems)])


def _line(name: str, words: str | None) -> str:
    return f"  {name:<12}{printable(words or '')}".rstrip()


def _served(interval: Interval) -> str:
    until = f"until {interval.until:%Y-%m-%d %H:%M:%S}" if interval.until else "and still serves"
    only = "" if interval.recorded == "lineage and ledger" else f" (only in the {interval.recorded})"
    return (
        f"{interval.share:.0%} of endpoint {interval.endpoint} as version {interval.version}, "
        f"from {interval.since:%Y-%m-%d %H:%M:%S} UTC {until}{only}"
    )


def _gate(gate: Gate) -> list[str]:
    lines = [_line("gate", gate.verdict)]
    if not gate.accepted:
        lines += [_line("", f"{rule}: {gate.rules[rule]}") for rule in gate.failed or ()]
    if gate.override:
        lines.append(_line("override", f"by {printable(gate.override['by'])}: {printable(gate.override['reason'])}"))
        lines += [_line("", f"{rule}: {gate.rules[rule]}") for rule in gate.override["rules"]]
        lines += [_line("", f"{rule}: did not fail") for rule in gate.override["unused"]]
    return lines


def _training(training: Mapping) -> str:
    """Phases, epochs, seed and threads of a training record, as far as it has them."""
    told = [f"{len(phase.get('epochs', ()))} epochs {phase.get('name', '')}".rstrip() for phase in training.get("phases", ())]
    settings = training.get("training") or {}
    for source, names in ((training, ("best_epoch", "workers")), (settings, ("seed", "intra_op_threads", "inter_op_threads"))):
        told += [f"{name.replace('_', ' ')} {source[name]}" for name in names if name in source]
    return ", ".join(told)


def _evaluation(evaluation: Evaluation) -> str:
    before = (
        f"against {evaluation.baseline_accuracy:.3f} of the model that served before"
        if evaluation.baseline_accuracy is not None
        else "nothing served before"
    )
    verdict = "blessed" if evaluation.blessed else "not blessed"
    return f"accuracy {evaluation.accuracy:.3f} on {evaluation.examples} examples, {before}: {verdict}"


def _steps(run: Run) -> list[str]:
    lines = []
    for step in run.executions:
        seconds = (step.updated - step.started).total_seconds()
        lines.append(f"  {step.step:<24}{step.state:<10}{step.started:%Y-%m-%d %H:%M:%S} UTC {seconds:8.1f} s")
        for word, puts in (("in ", step.inputs), ("out", step.outputs)):
            lines += [f"    {word} {printable(key):<22}{_artifact(item)}" for key, items in puts.items() for item in items]
        if FAILURE in step.parameters:
            lines.append(f"    {str(step.parameters[FAILURE]).splitlines()[0]}")
    return lines or ["  none began"]


def _artifact(artifact: Artifact) -> str:
    return printable(f"{artifact.id} {artifact.type} {artifact.uri}")


def _problems(problems: Iterable[str]) -> list[str]:
    lines = [f"warning: {printable(problem)}" for problem in problems]
    return ["\n".join(lines)] if lines else []


def _next(run_ids: Iterable[str]) -> list[str]:
    """What may be asked next of models that were trained."""
    lines = []
    for run_id in dict.fromkeys(run_ids):
        word = printable(run_id)
        lines += [f"  .venv/bin/python -m pipeline audit run {word}", f"  .venv/bin/python -m pipeline replay {word}"]
    return ["\n".join(["Try next:", *lines])] if lines else []
