"""The rules of the gate: pure functions from the facts of a snapshot to findings.

Each rule compares one figure with one limit of `schema/gate.yaml`. A rule that could not be judged is
a failure, except drift against a baseline that does not exist in an explicit bootstrap.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

import pydantic

from pipeline import typed


@typed.frozen
class Limits:
    """The limits of the gate, edited by people in `schema/gate.yaml`.

    Attributes:
        min_rows: Fewest labels that a week may have.
        max_rows: Most labels that a week may have.
        max_row_change: Change of the number of labels against the last accepted snapshot, relative.
        max_duplicates: Images that stand in the snapshot more than once.
        max_orphans: Labels whose image no shard holds.
        max_unknown_labels: Labels of a class that the schema does not have.
        min_class_rows: Fewest labels of any class of the schema.
        min_class_eval_rows: Fewest labels of any class in the eval split.
        max_class_share_change: Change of any class's share of the labels, in absolute terms
            (0.05 is five percentage points), against the last accepted snapshot.
        max_relabelled_share: Share of the images known before whose label changed.
        drift: Feature -> Jensen-Shannon divergence (0 to 1) allowed between this week's train split
            and the last accepted one; DistributionValidator judges it.
    """

    min_rows: int = pydantic.Field(ge=1)
    max_rows: int = pydantic.Field(ge=1)
    max_row_change: float = pydantic.Field(ge=0, allow_inf_nan=False)
    max_duplicates: int = pydantic.Field(ge=0)
    max_orphans: int = pydantic.Field(ge=0)
    max_unknown_labels: int = pydantic.Field(ge=0)
    min_class_rows: int = pydantic.Field(ge=0)
    min_class_eval_rows: int = pydantic.Field(ge=0)
    max_class_share_change: float = pydantic.Field(ge=0, le=1)
    max_relabelled_share: float = pydantic.Field(ge=0, le=1)
    drift: dict[str, Annotated[float, pydantic.Field(ge=0, le=1)]] = pydantic.Field(default_factory=dict)

    def __post_init__(self):
        if self.min_rows > self.max_rows:
            raise ValueError(f"min_rows {self.min_rows} exceeds max_rows {self.max_rows}")


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the warehouse and TFX's validators say about a snapshot.

    Attributes:
        class_counts: Class -> number of labels.
        eval_counts: Class -> number of labels in the eval split.
        classes: Classes of the schema, in its order.
        duplicates: (image id, labels) of images that stand there more than once.
        orphans: (image id, label) of labels without an image.
        unknown: (label, number) of labels that the schema does not have.
        relabelled: (image id, before, after) against the baseline; empty without one.
        baseline_counts: Class -> number of labels of the last accepted snapshot; None without one.
        baseline_table: Its name; None without one.
        common_images: Images that both snapshots hold.
        schema_anomalies: What ExampleValidator found, one text each, split and feature first.
        drift_anomalies: What DistributionValidator found, likewise.
    """

    class_counts: Mapping[str, int]
    eval_counts: Mapping[str, int]
    classes: Sequence[str]
    duplicates: Sequence[tuple[str, str]]
    orphans: Sequence[tuple[str, str]]
    unknown: Sequence[tuple[str, int]]
    relabelled: Sequence[tuple[str, str, str]]
    baseline_counts: Mapping[str, int] | None
    baseline_table: str | None
    common_images: int
    schema_anomalies: Sequence[str]
    drift_anomalies: Sequence[str]

    @property
    def rows(self) -> int:
        """Number of labels."""
        return sum(self.class_counts.values())


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


def judge(facts: Facts, limits: Limits) -> list[Finding]:
    """Judges a snapshot by every rule.

    Args:
        facts: What is known of the snapshot.
        limits: What is allowed.

    Returns:
        One finding for each rule, passed or not, always in the same order.
    """
    return [
        _rows(facts, limits),
        *_against_baseline(facts, limits),
        _listed(
            "max_duplicates", limits.max_duplicates, [f"{image}: {labels}" for image, labels in facts.duplicates],
            "keep one label for each of these images: remove the other edit, or add a newer one",
        ),
        _listed(
            "max_orphans", limits.max_orphans, [f"{image} ({label})" for image, label in facts.orphans],
            "correct the image id, add the photograph, or withdraw the label by a newer edit with an empty label",
        ),
        _listed(
            "max_unknown_labels", limits.max_unknown_labels, [f"{label!r} on {count} image(s)" for label, count in facts.unknown],
            "correct the label, or add the class to schema/schema.pbtxt and retrain from a first run",
            count=sum(count for _, count in facts.unknown),
        ),
        _smallest("min_class_rows", limits.min_class_rows, facts.class_counts, facts.classes),
        _smallest("min_class_eval_rows", limits.min_class_eval_rows, facts.eval_counts, facts.classes),
        _validator("example_validator", facts.schema_anomalies, "see schema/schema.pbtxt for what each feature may hold"),
        _validator("distribution_validator", facts.drift_anomalies, "compare with the last accepted week; limits are in schema/gate.yaml"),
    ]


def _rows(facts: Facts, limits: Limits) -> Finding:
    return Finding(
        "min_rows, max_rows",
        limits.min_rows <= facts.rows <= limits.max_rows,
        str(facts.rows),
        f"{limits.min_rows} to {limits.max_rows}",
        remedy="the export may be cut short or doubled: look at its job, then at the limits",
    )


def _against_baseline(facts: Facts, limits: Limits) -> list[Finding]:
    if facts.baseline_counts is None:
        rules = ("max_row_change", "max_class_share_change", "max_relabelled_share")
        return [Finding(rule, True, "no baseline", "judged from the next snapshot on (bootstrap)") for rule in rules]
    before = sum(facts.baseline_counts.values())
    change = abs(facts.rows - before) / before
    shares = {
        label: facts.class_counts.get(label, 0) / max(facts.rows, 1) - facts.baseline_counts.get(label, 0) / before
        for label in sorted(facts.class_counts.keys() | facts.baseline_counts.keys())
    }
    worst = max(shares, key=lambda label: abs(shares[label]))
    moved = sorted(
        (label for label in shares if _exceeds(abs(shares[label]), limits.max_class_share_change)),
        key=lambda label: -abs(shares[label]),
    )
    # Without one image in common this is another table altogether, and nothing can be said of its labels.
    relabelled = len(facts.relabelled) / facts.common_images if facts.common_images else 1.0
    confusions: dict[tuple[str, str], int] = {}
    for _, old, new in facts.relabelled:
        confusions[old, new] = confusions.get((old, new), 0) + 1
    top = sorted(confusions.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    return [
        Finding(
            "max_row_change",
            not _exceeds(change, limits.max_row_change),
            f"{change:.1%} ({before} in {facts.baseline_table}, now {facts.rows})",
            f"{limits.max_row_change:.1%}",
            remedy="an export may be cut short or doubled; if the change is meant, raise the limit for this week",
        ),
        Finding(
            "max_class_share_change",
            not moved,
            f"{shares[worst]:+.1%} ({worst})",
            f"{limits.max_class_share_change:.1%}",
            tuple(
                f"{label}: {facts.baseline_counts.get(label, 0)} of {before} -> {facts.class_counts.get(label, 0)} of {facts.rows}"
                for label in moved[:_SHOWN]
            ),
            remedy="a find-and-replace may have swallowed a class: compare the week's edits by label",
        ),
        Finding(
            "max_relabelled_share",
            bool(facts.common_images) and not _exceeds(relabelled, limits.max_relabelled_share),
            f"{relabelled:.1%} ({len(facts.relabelled)} of {facts.common_images})",
            f"{limits.max_relabelled_share:.1%}",
            tuple(f"{old} -> {new}: {count}" for (old, new), count in top),
            remedy="look at the commonest change first: a single mistake usually explains it",
        ),
    ]


def _exceeds(value: float, limit: float) -> bool:
    # 0.20 - 0.15 is more than 0.05 in binary; a limit means the figure that people write.
    return value > limit + 1e-9


def _listed(rule: str, limit: int, offenders: Sequence[str], remedy: str, count: int | None = None) -> Finding:
    count = len(offenders) if count is None else count
    more = (f"and {len(offenders) - _SHOWN} more",) if len(offenders) > _SHOWN else ()
    return Finding(rule, count <= limit, str(count), str(limit), (*offenders[:_SHOWN], *more), remedy)


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


def _validator(rule: str, anomalies: Sequence[str], remedy: str) -> Finding:
    more = (f"and {len(anomalies) - _SHOWN} more",) if len(anomalies) > _SHOWN else ()
    return Finding(rule, not anomalies, f"{len(anomalies)} anomalies", "0", (*anomalies[:_SHOWN], *more), remedy)
