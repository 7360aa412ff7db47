"""The rules of the gate: pure functions from the facts of a snapshot to findings.

Each rule compares one figure with one limit of `schema/gate.yaml` and has that limit's name. A rule that
could not be judged is a failure, except one against a baseline that does not exist in an explicit bootstrap.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import pydantic

from pipeline import typed
from pipeline.validation.text import figure, limit_percent, percent, shortened

SPLITS = ("train", "val", "eval")

OTHER = "(all other labels)"
"""Where the labels beyond those that are counted one by one are summed up."""

RULES = (
    "min_rows",
    "max_rows",
    "max_row_change",
    "min_edits",
    "max_class_share_change",
    "max_class_divergence",
    "max_relabelled_share",
    "max_null_images",
    "max_null_labels",
    "max_duplicates",
    "max_orphans",
    "max_unknown_labels",
    "min_class_rows",
    "min_class_share",
    "min_class_eval_rows",
    "min_split_rows",
    "max_straddling_groups",
    "example_validator",
    "distribution_validator",
)
"""Names of the rules, in the order of `judge`."""


@typed.frozen
class SplitRows:
    """Fewest rows of each split; none may be empty."""

    train: int = pydantic.Field(ge=1)
    val: int = pydantic.Field(ge=1)
    eval: int = pydantic.Field(ge=1)


@typed.frozen
class Limits:
    """The limits of the gate, edited by people in `schema/gate.yaml`. A figure on its limit passes.

    Attributes:
        min_rows: Fewest labels that a week may have.
        max_rows: Most labels that a week may have.
        max_row_change: Change of the number of labels against the last accepted snapshot, relative.
        min_edits: Fewest labels edited since the last accepted snapshot was taken; withdrawals leave no label
            and are not counted.
        max_null_images: Rows without an image id (NULL or blank).
        max_null_labels: Rows without a label (NULL or blank).
        max_duplicates: Images that stand in the snapshot more than once.
        max_orphans: Labelled images that no shard holds.
        max_unknown_labels: Labels of a class that the schema does not have.
        min_class_rows: Fewest labels of any class of the schema.
        min_class_share: Smallest share of the labels of any class of the schema, 0 to 1.
        min_class_eval_rows: Fewest labels of any class in the eval split.
        min_split_rows: Fewest rows of each split.
        max_straddling_groups: Products, and images, whose rows stand in more than one split.
        max_class_share_change: Change of any class's share of the labels, in absolute terms
            (0.05 is five percentage points), against the last accepted snapshot: the L-infinity distance.
        max_class_divergence: Jensen-Shannon divergence (`jensen_shannon`) of the classes from the last accepted
            snapshot's; it sees many small changes that the rule above does not.
        max_relabelled_share: Share of the images known before whose label changed.
        drift: Feature -> Jensen-Shannon divergence (0 to 1) allowed between this week's train split
            and the last accepted one; DistributionValidator judges it.
    """

    min_rows: int = pydantic.Field(ge=1)
    max_rows: int = pydantic.Field(ge=1)
    max_row_change: float = pydantic.Field(ge=0, allow_inf_nan=False)
    min_edits: int = pydantic.Field(ge=0)
    max_null_images: int = pydantic.Field(ge=0)
    max_null_labels: int = pydantic.Field(ge=0)
    max_duplicates: int = pydantic.Field(ge=0)
    max_orphans: int = pydantic.Field(ge=0)
    max_unknown_labels: int = pydantic.Field(ge=0)
    min_class_rows: int = pydantic.Field(ge=0)
    min_class_share: float = pydantic.Field(ge=0, le=1)
    min_class_eval_rows: int = pydantic.Field(ge=0)
    min_split_rows: SplitRows
    max_straddling_groups: int = pydantic.Field(ge=0)
    max_class_share_change: float = pydantic.Field(ge=0, le=1)
    max_class_divergence: float = pydantic.Field(ge=0, le=1)
    max_relabelled_share: float = pydantic.Field(ge=0, le=1)
    drift: dict[str, Annotated[float, pydantic.Field(ge=0, le=1)]] = pydantic.Field(default_factory=dict)

    def __post_init__(self):
        if self.min_rows > self.max_rows:
            raise ValueError(f"min_rows {self.min_rows} exceeds max_rows {self.max_rows}")
        splits = sum(getattr(self.min_split_rows, split) for split in SPLITS)
        if splits > self.max_rows:
            raise ValueError(f"min_split_rows add up to {splits}, which exceeds max_rows {self.max_rows}: no week could pass")


@dataclasses.dataclass(frozen=True)
class Offenders:
    """Rows that a rule counts: all of them in the warehouse, a few as examples.

    Attributes:
        count: How many there are.
        examples: The first of them, one text each.
    """

    count: int = 0
    examples: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Confusion:
    """Images that went from one label to another: how many, and the first and the last image id."""

    before: str
    after: str
    count: int
    first: str
    last: str


@dataclasses.dataclass(frozen=True)
class Drift:
    """One figure of DistributionValidator: Jensen-Shannon divergence of a feature, and what is allowed."""

    feature: str
    value: float
    limit: float


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What the last accepted snapshot was, and how this one differs.

    Attributes:
        table: Its table.
        as_of: The instant before which an edit belongs to it, as people write it.
        class_counts: Class -> number of labels.
        relabelled: Images whose label differs now.
        confusions: The commonest of these changes, commonest first.
        common_images: Images that both snapshots hold.
        edits: Labels of this snapshot edited at or after `as_of`.
        newest_edit: When the newest label of this snapshot was edited, likewise; '' when unknown.
    """

    table: str
    as_of: str
    class_counts: Mapping[str, int]
    relabelled: int
    confusions: Sequence[Confusion]
    common_images: int
    edits: int
    newest_edit: str

    @property
    def rows(self) -> int:
        """Number of labels."""
        return sum(self.class_counts.values())


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the warehouse and TFX's validators say about a snapshot.

    Attributes:
        class_counts: Label -> number of rows, the rarest labels of very many summed up as `OTHER`; no label is ''.
        eval_counts: Class -> number of rows in the eval split.
        split_rows: Split -> number of rows.
        classes: Classes of the schema, in its order.
        null_images: Rows without an image id.
        null_labels: Rows without a label.
        duplicates: Images that stand there more than once.
        orphans: Images that no shard holds.
        straddling: Products and images that stand in more than one split.
        baseline: The last accepted snapshot; None without one.
        schema_anomalies: What ExampleValidator found, one text each, split and feature first.
        drift_anomalies: What DistributionValidator found, likewise.
        drift: Every divergence that DistributionValidator measured.
    """

    class_counts: Mapping[str, int]
    eval_counts: Mapping[str, int]
    split_rows: Mapping[str, int]
    classes: Sequence[str]
    null_images: Offenders
    null_labels: Offenders
    duplicates: Offenders
    orphans: Offenders
    straddling: Offenders
    baseline: Baseline | None
    schema_anomalies: Sequence[str]
    drift_anomalies: Sequence[str]
    drift: Sequence[Drift]

    @property
    def rows(self) -> int:
        """Number of labels."""
        return sum(self.class_counts.values())

    @property
    def unknown(self) -> dict[str, int]:
        """Label -> number of rows, of labels that the schema does not have."""
        known = set(self.classes)
        return {
            label: count
            for label, count in sorted(self.class_counts.items(), key=lambda item: (-item[1], item[0]))
            if label not in known and label.strip()
        }


@dataclasses.dataclass(frozen=True)
class Finding:
    """One rule, judged.

    Attributes:
        rule: Name of the rule; the limits file has the same name where it has a limit.
        passed: Whether the snapshot may pass.
        value: The figure found, as text.
        limit: What was allowed, as text.
        details: Offending rows or classes, the first few.
        remedy: What to do when it failed.
    """

    rule: str
    passed: bool
    value: str
    limit: str
    details: tuple[str, ...] = ()
    remedy: str = ""


# How many offending rows a report lists.
_SHOWN = 8

# How much of a divergence the classes that are named must explain.
_EXPLAINED = 0.9


def judge(facts: Facts, limits: Limits) -> list[Finding]:
    """Judges a snapshot by every rule.

    Args:
        facts: What is known of the snapshot.
        limits: What is allowed.

    Returns:
        One finding for each of `RULES`, passed or not, in that order.
    """
    return [
        Finding(
            "min_rows", facts.rows >= limits.min_rows, str(facts.rows), f"at least {limits.min_rows}",
            remedy="the export may be cut short: look at its job, then at the limit",
        ),
        Finding(
            "max_rows", facts.rows <= limits.max_rows, str(facts.rows), f"{limits.max_rows}",
            remedy="the export may be doubled: look at its job, then at the limit",
        ),
        *_against_baseline(facts, limits),
        _counted(
            "max_null_images", limits.max_null_images, facts.null_images,
            "the label table, or the view over it, loses image ids: find the edits by product and complete them",
        ),
        _counted(
            "max_null_labels", limits.max_null_labels, facts.null_labels,
            "set each label by a newer edit; to withdraw an image its label must be empty, not NULL or blank",
        ),
        _counted(
            "max_duplicates", limits.max_duplicates, facts.duplicates,
            "keep one label for each of these images: remove the other edit, or add a newer one",
        ),
        _counted(
            "max_orphans", limits.max_orphans, facts.orphans,
            "correct the image id, add the photograph, or withdraw the label by a newer edit with an empty label",
        ),
        _unknown(facts, limits.max_unknown_labels),
        _smallest("min_class_rows", limits.min_class_rows, facts.class_counts, facts.classes),
        _smallest_share(facts, limits.min_class_share),
        _smallest("min_class_eval_rows", limits.min_class_eval_rows, facts.eval_counts, facts.classes),
        _splits(facts, limits.min_split_rows),
        _counted(
            "max_straddling_groups", limits.max_straddling_groups, facts.straddling,
            "training would see what the evaluation judges: divide by product (splits.group_by); give each image one product",
        ),
        _validator("example_validator", facts.schema_anomalies, "see schema/schema.pbtxt for what each feature may hold"),
        _drift(facts, limits),
    ]  # fmt: skip


def jensen_shannon(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Jensen-Shannon divergence of two distributions, base 2: sqrt of it is a metric (Lin 1991, Endres & Schindelin 2003).

    JS(p, q) = (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2

    >>> jensen_shannon({"cup": 1, "hat": 1}, {"cup": 5, "hat": 5}), jensen_shannon({"cup": 3}, {"hat": 4})
    (0.0, 1.0)
    >>> round(jensen_shannon({"cup": 3, "hat": 1}, {"cup": 1, "hat": 3}), 4)
    0.1887

    Args:
        one: Class -> count.
        other: Class -> count.

    Returns:
        0 for equal shares to 1 for no class in common. With no count at all on one side only, 1.
    """
    return min(1.0, sum(_divergence_by_class(one, other).values()))


def _divergence_by_class(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, float]:
    """Class -> its summand of `jensen_shannon`, never negative."""
    totals = sum(one.values()), sum(other.values())
    if not all(totals):
        return {"": 0.0 if totals[0] == totals[1] else 1.0}
    summands = {}
    for label in sorted(one.keys() | other.keys()):
        p, q = one.get(label, 0) / totals[0], other.get(label, 0) / totals[1]
        middle = (p + q) / 2
        summands[label] = max(0.0, sum(share / 2 * math.log2(share / middle) for share in (p, q) if share))
    return summands


def _against_baseline(facts: Facts, limits: Limits) -> list[Finding]:
    baseline = facts.baseline
    if baseline is None:
        rules = RULES[RULES.index("max_row_change") : RULES.index("max_relabelled_share") + 1]
        return [Finding(rule, True, "no baseline", "judged from the next snapshot on (bootstrap)") for rule in rules]
    change = abs(facts.rows - baseline.rows) / max(baseline.rows, 1)
    return [
        Finding(
            "max_row_change",
            not exceeds(change, limits.max_row_change),
            f"{percent(change, limits.max_row_change)} ({baseline.rows} in {baseline.table}, now {facts.rows})",
            limit_percent(limits.max_row_change),
            remedy="an export may be cut short or doubled; if the change is meant, raise the limit for this week",
        ),
        Finding(
            "min_edits",
            baseline.edits >= limits.min_edits,
            f"{baseline.edits} since {baseline.as_of}",
            f"at least {limits.min_edits}",
            (f"the newest edit is of {baseline.newest_edit}",) if baseline.newest_edit else (),
            remedy="nobody edited, or the export of the labels stands still: look at its job",
        ),
        *classes_moved(
            facts.class_counts, baseline.class_counts, limits.max_class_share_change, limits.max_class_divergence, "labels",
            (
                "a find-and-replace may have swallowed a class: compare the week's edits by label",
                "the classes are not those of the last accepted week: compare the week's edits by label",
            ),
        ),
        _relabelled(baseline, limits.max_relabelled_share),
    ]


def classes_moved(
    now: Mapping[str, int], before: Mapping[str, int], share_limit: float, divergence_limit: float, what: str,
    remedies: tuple[str, str],
) -> list[Finding]:
    """Judges how far the classes moved: `max_class_share_change` and `max_class_divergence`.

    Args:
        now: Class -> count.
        before: Class -> count of what it is compared with.
        share_limit: How far the share of a class may move, 0 to 1.
        divergence_limit: Jensen-Shannon divergence allowed.
        what: What is counted, such as `labels`.
        remedies: What to do when the one or the other fails.
    """
    labels = sorted(now.keys() | before.keys())
    rows = sum(now.values()), sum(before.values())
    shares = {label: before.get(label, 0) / max(rows[1], 1) for label in labels}
    moves = {label: now.get(label, 0) / max(rows[0], 1) - shares[label] for label in labels}
    worst = max(moves, key=lambda label: abs(moves[label]), default=None)
    moved = sorted((label for label in moves if exceeds(abs(moves[label]), share_limit)), key=lambda label: -abs(moves[label]))
    divergence = jensen_shannon(now, before)
    return [
        Finding(
            "max_class_share_change",
            worst is not None and not moved,
            f"{percent(moves[worst], share_limit, '+')} ({_name(worst)})" if labels else f"no {what}",
            limit_percent(share_limit),
            tuple(
                f"{_name(label)}: {before.get(label, 0)} of {rows[1]} -> {now.get(label, 0)} of {rows[0]}"
                for label in moved[:_SHOWN]
            ),
            remedy=remedies[0],
        ),
        Finding(
            "max_class_divergence",
            not exceeds(divergence, divergence_limit),
            figure(divergence, divergence_limit),
            f"{divergence_limit:.10g}",
            tuple(
                f"{_name(label)}: {shares[label]:.1%} of the {what} -> {shares[label] + moves[label]:.1%}, "
                f"{100 * moves[label]:+.1f} points"
                for label in _explaining(_divergence_by_class(now, before))
                if label in moves
            )[:_SHOWN],
            remedy=remedies[1],
        ),
    ]  # fmt: skip


def _explaining(summands: Mapping[str, float]) -> list[str]:
    """The classes that explain most of a divergence, largest summand first."""
    chosen, explained, whole = [], 0.0, sum(summands.values())
    for label in sorted(summands, key=lambda label: -summands[label]):
        if explained >= _EXPLAINED * whole:
            break
        chosen.append(label)
        explained += summands[label]
    return chosen


def _relabelled(baseline: Baseline, limit: float) -> Finding:
    # Without one image in common this is another table altogether, and nothing can be said of its labels.
    share = baseline.relabelled / baseline.common_images if baseline.common_images else 1.0
    named = sum(confusion.count for confusion in baseline.confusions)
    more = (f"and {_images(baseline.relabelled - named)} by rarer changes",) if baseline.relabelled > named else ()
    return Finding(
        "max_relabelled_share",
        bool(baseline.common_images) and not exceeds(share, limit),
        f"{percent(share, limit)} ({baseline.relabelled} of {baseline.common_images})",
        limit_percent(limit),
        (*(_confusion(confusion) for confusion in baseline.confusions[:_SHOWN]), *more),
        remedy="look at the commonest change first: a single mistake usually explains it",
    )


def _confusion(confusion: Confusion) -> str:
    ids = dict.fromkeys(shortened(image) for image in (confusion.first, confusion.last))
    such = "" if len(ids) == confusion.count else "such as "
    way = f"went from {_name(confusion.before)} to {_name(confusion.after)}"
    return f"{_images(confusion.count)} {way} ({such}{', '.join(ids)})"


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _name(label: str) -> str:
    return shortened(label) if label.strip() else f"no label ({label!r})"


def exceeds(value: float, limit: float) -> bool:
    """Whether a figure lies above its limit; one that lies on it does not."""
    # 0.20 - 0.15 is more than 0.05 in binary; a limit means the figure that people write.
    return value > limit + 1e-9


def _counted(rule: str, limit: int, offenders: Offenders, remedy: str) -> Finding:
    shown = offenders.examples[:_SHOWN]
    more = (f"and {offenders.count - len(shown)} more",) if offenders.count > len(shown) else ()
    return Finding(rule, offenders.count <= limit, str(offenders.count), str(limit), (*shown, *more), remedy)


def _unknown(facts: Facts, limit: int) -> Finding:
    count = sum(facts.unknown.values())
    texts = [f"{shortened(label)!r} on {n} image(s)" for label, n in facts.unknown.items()]
    more = (f"and {len(texts) - _SHOWN} more",) if len(texts) > _SHOWN else ()
    return Finding(
        "max_unknown_labels", count <= limit, str(count), str(limit), (*texts[:_SHOWN], *more),
        "correct the label, or add the class to schema/schema.pbtxt and retrain from a first run",
    )  # fmt: skip


def _smallest(rule: str, limit: int, counts: Mapping[str, int], classes: Sequence[str]) -> Finding:
    short = {label: counts.get(label, 0) for label in classes if counts.get(label, 0) < limit}
    smallest = min(classes, key=lambda label: counts.get(label, 0))
    return Finding(
        rule,
        not short,
        f"{counts.get(smallest, 0)} ({smallest})",
        f"at least {limit}",
        tuple(f"{label}: {count}" for label, count in short.items())[:_SHOWN],
        remedy="a class this small cannot be learnt or judged: find where its labels went",
    )


def _smallest_share(facts: Facts, limit: float) -> Finding:
    shares = {label: facts.class_counts.get(label, 0) / max(facts.rows, 1) for label in facts.classes}
    smallest = min(shares, key=shares.get)
    short = [label for label in facts.classes if exceeds(limit, shares[label])]
    return Finding(
        "min_class_share",
        not short,
        f"{percent(shares[smallest], limit)} ({smallest})",
        f"at least {limit_percent(limit)}",
        tuple(f"{label}: {facts.class_counts.get(label, 0)} of {facts.rows}" for label in short[:_SHOWN]),
        remedy="the others drown this class: find where its labels went, or label more of it",
    )


def _splits(facts: Facts, limits: SplitRows) -> Finding:
    rows = {split: facts.split_rows.get(split, 0) for split in SPLITS}
    fewest = {split: getattr(limits, split) for split in SPLITS}
    uses = {"train": "train on", "val": "stop the training by", "eval": "judge the model by"}
    details = [
        f"{split}: {rows[split]}, at least {fewest[split]}"
        if rows[split]
        else f"{split} is empty: there is nothing to {uses[split]}"
        for split in SPLITS
        if rows[split] < fewest[split]
    ]
    return Finding(
        "min_split_rows",
        not details,
        ", ".join(f"{split} {rows[split]}" for split in SPLITS),
        "at least " + ", ".join(f"{split} {fewest[split]}" for split in SPLITS),
        tuple(details),
        remedy="photographs may be missing from the shards, or the shares of `splits` in the settings leave too few rows",
    )


def _validator(rule: str, anomalies: Sequence[str], remedy: str) -> Finding:
    more = (f"and {len(anomalies) - _SHOWN} more",) if len(anomalies) > _SHOWN else ()
    count = f"{len(anomalies)} anomal{'y' if len(anomalies) == 1 else 'ies'}"
    return Finding(rule, not anomalies, count, "0", (*anomalies[:_SHOWN], *more), remedy)


def _drift(facts: Facts, limits: Limits) -> Finding:
    rule = "distribution_validator"
    judged = _validator(
        rule, facts.drift_anomalies, "compare with the last accepted week; the limits are under `drift` in schema/gate.yaml"
    )
    if facts.baseline is None and judged.passed:
        return Finding(rule, True, "no baseline", "judged from the next snapshot on (bootstrap)")
    measured = ", ".join(f"{drift.feature} {figure(drift.value, drift.limit)}" for drift in facts.drift)
    allowed = ", ".join(f"{feature} {limit:.10g}" for feature, limit in sorted(limits.drift.items()))
    return dataclasses.replace(judged, value=measured or judged.value, limit=allowed or "no feature is compared")
