"""The questions forward: which runs, models and serving intervals used a snapshot, or one photograph, and how.

An erasure request or a label that was poisoned is answered so.
"""

import dataclasses
import json
from collections.abc import Iterable

from pipeline.errors import PipelineError
from pipeline.lineage.base import SHOWN, LineageStore, Use, closest
from pipeline.lineage.timeline import Interval, Timeline
from pipeline.lineage.warehouses import opened
from pipeline.places import Places
from pipeline.validation.text import shortened
from pipeline.warehouse import Warehouse, queries

_SNAPSHOT = "pipeline.LabelSnapshot"


@dataclasses.dataclass(frozen=True)
class RunOfSnapshot:
    """A run that used a snapshot.

    Attributes:
        run_id: The run.
        state: `COMPLETE`, `RUNNING`, or such as `FAILED at SnapshotGate`.
        trained: Whether a model was trained on it.
        served: When that model served.
    """

    run_id: str
    state: str
    trained: bool
    served: tuple[Interval, ...]


@dataclasses.dataclass(frozen=True)
class SnapshotUse:
    """What used a snapshot.

    Attributes:
        table: The snapshot.
        runs: The runs that took it.
        baselines: Ids of other runs, in which it was the baseline that drift was judged against.
    """

    table: str
    runs: tuple[RunOfSnapshot, ...]
    baselines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ImageInRun:
    """What a run did with one photograph.

    Attributes:
        run: The run.
        split: `train`, `val` or `eval`; None when the run recorded no settings.
        shard: The shard that holds it in the generation of the run; None when none did, so that no model saw it.
        ordinal: Its number in that shard.
    """

    run: RunOfSnapshot
    split: str | None
    shard: str | None
    ordinal: int | None


@dataclasses.dataclass(frozen=True)
class ImageInSnapshot:
    """One label of a photograph.

    Attributes:
        table: The snapshot.
        label, product_id, source: As they stand there.
        runs: The runs that took the snapshot.
    """

    table: str
    label: str | None
    product_id: str | None
    source: str | None
    runs: tuple[ImageInRun, ...]


@dataclasses.dataclass(frozen=True)
class ImageUse:
    """What used a photograph.

    Attributes:
        image_id: Its id.
        snapshots: The snapshots that hold a label of it, oldest first.
        lost: Snapshots of the lineage that the warehouse does not have any more, and that could not be asked.
    """

    image_id: str
    snapshots: tuple[ImageInSnapshot, ...]
    lost: tuple[str, ...]


def of_snapshot(store: LineageStore, timeline: Timeline, table: str) -> SnapshotUse:
    """What used a snapshot.

    Raises:
        PipelineError: No run took a snapshot of that name; the text offers the closest.
    """
    runs = _runs(timeline, store.uses(_SNAPSHOT, "table", [table]))
    if not runs:
        known = store.values(_SNAPSHOT, "table")
        raise PipelineError(f"no run took a snapshot {table!r}; {_hint(table, known)}")
    own = {run.run_id for run in runs}
    baselines = store.uses("ExampleStatistics", "table", [table])
    return SnapshotUse(table, tuple(runs), tuple(use.run_id for use in baselines if use.run_id not in own))


def of_image(store: LineageStore, timeline: Timeline, places: Places, image_id: str) -> ImageUse:
    """What used a photograph, and with which label.

    Args:
        store: The lineage.
        timeline: What served when.
        places: The store, for its warehouse, which is only read.
        image_id: The photograph.

    Raises:
        PipelineError: No snapshot holds a label of it, or the warehouse cannot be asked.
    """
    tables = store.values(_SNAPSHOT, "table")
    if not tables:
        raise PipelineError("no run has taken a snapshot yet")
    newest = store.uses(_SNAPSHOT, "table", tables[-1:])[-1].run_id
    try:
        warehouse = opened(store.run(newest), places)
    except FileNotFoundError as error:
        raise PipelineError(f"there is no warehouse {error.filename} to know the label: restore it from a backup") from error
    with warehouse as place:
        present = place.present(tables)
        asked = {"image_id": image_id}
        labels = list(place.rows_of_each(queries.labels_of_image, present, asked))
        if not labels:
            raise PipelineError(f"no snapshot holds a label of the image {image_id!r}{_near(place, present, image_id)}")
        uses = store.uses(_SNAPSHOT, "table", {row["found_in"] for row in labels})
        run_ids = [use.run_id for use in uses]
        shards = store.facts("pipeline.ImageShards", ["index_table"], run_ids)
        indexes = {run_id: facts["index_table"] for run_id, facts in shards.items()}
        known = sorted(set(indexes.values()))
        found = {row["found_in"]: row for row in place.rows_of_each(queries.places_of_image, known, asked)}
    splits = _splits(store, run_ids)
    runs = {run.run_id: run for run in _runs(timeline, uses)}
    by_table: dict[str, list[str]] = {}
    for use in uses:
        by_table.setdefault(use.value, []).append(use.run_id)

    def in_run(run_id: str, product_id: str | None) -> ImageInRun:
        place = found.get(indexes.get(run_id), {})
        split = splits.get(run_id)
        group = (product_id if split and split["group_by"] == "product_id" else None) or image_id
        name = queries.split_of(group, split["salt"], split["train"], split["val"]) if split else None
        return ImageInRun(runs[run_id], name, place.get("shard"), place.get("ordinal"))

    return ImageUse(
        image_id,
        tuple(
            ImageInSnapshot(
                row["found_in"], row["label"], row["product_id"], row["source"],
                tuple(in_run(run_id, row["product_id"]) for run_id in by_table.get(row["found_in"], ())),
            )
            for row in sorted(labels, key=lambda row: (row["found_in"], row["label"] or ""))
        ),
        tuple(table for table in tables if table not in set(present)),
    )  # fmt: skip


def _runs(timeline: Timeline, uses: Iterable[Use]) -> list[RunOfSnapshot]:
    served: dict[str, list[Interval]] = {}
    for interval in timeline.intervals:
        served.setdefault(interval.run_id, []).append(interval)
    return [RunOfSnapshot(use.run_id, use.state, use.trained, tuple(served.get(use.run_id, ()))) for use in uses]


def _splits(store: LineageStore, run_ids: list[str]) -> dict[str, dict]:
    """Run -> its settings of splits."""
    found, read = {}, {}
    for run_id, facts in store.facts("pipeline.RunManifest", ["settings"], run_ids).items():
        text = facts["settings"]
        if text not in read:
            read[text] = json.loads(text).get("splits")
        if read[text]:
            found[run_id] = read[text]
    return found


def _near(place: Warehouse, present: list[str], image_id: str) -> str:
    """A hint: what the newest snapshot has that begins as the id does, or as half of it does."""
    if not present:
        return ": the warehouse has none of the snapshots any more"
    query = queries.images_that_begin(place.address(present[-1]), SHOWN)
    for length in dict.fromkeys((len(image_id), len(image_id) - 1, len(image_id) // 2)):
        found = [row["image_id"] for row in place.rows(query, {"beginning": image_id[:length]})] if length > 0 else []
        if found:
            return f"; the closest in {present[-1]}: {', '.join(map(shortened, found))}"
    return ""


def _hint(name: str, known: list[str]) -> str:
    near = closest(name, known)
    return f"the closest: {', '.join(near)}" if near else f"the newest is {known[-1]}" if known else "there is none"
