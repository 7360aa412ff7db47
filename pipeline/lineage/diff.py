"""What differs between two runs, and nothing else: labels, images, code, packages, settings, figures."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.errors import PipelineError
from pipeline.lineage.base import Run
from pipeline.lineage.facts import RunFacts, to_dict
from pipeline.lineage.warehouses import opened
from pipeline.places import Places
from pipeline.warehouse import queries

_PAIRS = 8
"""How many pairs of labels are told of each kind of change."""

_GROUPS: dict[str, tuple[str, ...]] = {
    "run": ("state", "reason_kind"),
    "labels": ("snapshot", "snapshot_date", "as_of", "rows", "checksum", "source", "method", "labels_sha256"),
    "images": ("shards.number", "shards.digest", "shards.images", "shards.quarantined"),
    "code": ("commit", "tree", "changes_sha256", "training.code_sha256"),
    "packages": ("image", "lock", "lock_sha256", "python", "training.tensorflow"),
    "machine": ("platform", "launched_by", "training.processor", "training.workers", "training.replicas"),
    "settings": ("settings",),
    "hyperparameters": ("hyperparameters", "tuned_by"),
    "training": (
        "training.seed", "training.training", "training.network", "training.short_side", "training.backbone_sha256",
        "training.classes", "training.examples", "training.splits_sha256", "training.parameters", "training.steps",
        "training.epochs_run", "training.best_epoch", "training.stopped_by_window", "training.val_accuracy",
        "training.val_loss",
    ),
    "gate": ("gate.accepted", "gate.bootstrap", "gate.rules", "gate.override"),
    "evaluation": ("evaluation",),
    "release": ("release.released", "release.reason", "release.endpoint", "release.weights_sha256", "release.export_sha256"),
}  # fmt: skip
"""Group -> its facts, or the roots of trees of facts. Times, ids and places are no differences: every run has its own."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One fact that two runs do not share; None where a run did not record it."""

    group: str
    name: str
    before: Any
    after: Any


@dataclasses.dataclass(frozen=True)
class Pair:
    """Images whose label is one thing in the first snapshot and another in the second; empty where it does not hold them."""

    before_label: str
    after_label: str
    images: int
    first_image: str
    last_image: str


@dataclasses.dataclass(frozen=True)
class LabelChanges:
    """How two snapshots differ.

    Attributes:
        counts: `added`, `removed`, `changed` -> images.
        pairs: The same -> its commonest pairs of labels.
        images: `kind`, `image_id`, `before_label`, `after_label` of each image, when they were asked for.
        photographs: `added`, `gone`, `changed` photographs of the shards; None when both runs used the same.
        unknown: Why labels or photographs could not be compared; empty when they could.
    """

    counts: Mapping[str, int]
    pairs: Mapping[str, tuple[Pair, ...]]
    images: tuple[Mapping[str, str], ...]
    photographs: Mapping[str, int] | None
    unknown: str


def of_facts(before: RunFacts, after: RunFacts) -> list[Difference]:
    """The facts that differ, group by group."""
    old, new = to_dict(before), to_dict(after)
    found = []
    for group, roots in _GROUPS.items():
        for root in roots:
            was, now = _flat(root, _at(old, root)), _flat(root, _at(new, root))
            for name in dict.fromkeys([*was, *now]):
                if was.get(name) != now.get(name):
                    found.append(Difference(group, name, was.get(name), now.get(name)))
    return found


def of_labels(before: Run, after: Run, old: RunFacts, new: RunFacts, places: Places, ids: bool = False) -> LabelChanges:
    """What happened to the labels, and to the photographs, asked of the warehouse, which is only read.

    Args:
        before, after: Two runs.
        old, new: Their facts.
        places: The store.
        ids: Whether every image is wanted by its id.

    Returns:
        The changes; snapshots of one checksum are not compared.
    """
    if not old.snapshot or not new.snapshot:
        return LabelChanges({}, {}, (), None, "one of the two runs took no snapshot")
    indexes = [_index(run) for run in (before, after)]
    if old.checksum == new.checksum and indexes[0] == indexes[1]:
        return LabelChanges(dict.fromkeys(("added", "removed", "changed"), 0), {}, (), None, "")
    try:
        with opened(after, places) as place:
            if place.find(old.snapshot) is None or place.find(new.snapshot) is None:
                missing = old.snapshot if place.find(old.snapshot) is None else new.snapshot
                return LabelChanges({}, {}, (), None, f"the warehouse has no snapshot {missing} any more")
            addresses = place.address(old.snapshot), place.address(new.snapshot)
            rows = list(place.rows(queries.label_changes(*addresses, _PAIRS)))
            images = tuple(place.rows(queries.label_changes_by_image(*addresses))) if ids else ()
            photographs = None
            if indexes[0] != indexes[1] and all(indexes):
                photographs = next(place.rows(queries.index_changes(*map(place.address, indexes))))
    except FileNotFoundError as error:
        return LabelChanges({}, {}, (), None, f"there is no warehouse {error.filename}")
    except PipelineError as error:
        return LabelChanges({}, {}, (), None, str(error))
    counts, pairs = dict.fromkeys(("added", "removed", "changed"), 0), {}
    for row in rows:
        counts[row["kind"]] = int(row["total"])
        pair = Pair(row["before_label"], row["after_label"], row["n"], row["first_image"], row["last_image"])
        pairs[row["kind"]] = (*pairs.get(row["kind"], ()), pair)
    return LabelChanges(counts, pairs, images, photographs, "")


def _index(run: Run) -> str | None:
    shards = run.output("pipeline.ImageShards")
    return shards.facts.get("index_table") if shards else None


def _at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _flat(name: str, value: Any) -> dict[str, Any]:
    """A tree of facts as paths and leaves; a list is a leaf."""
    if not isinstance(value, Mapping):
        return {} if value is None else {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(f"{name}.{key}", inner)
    return found
