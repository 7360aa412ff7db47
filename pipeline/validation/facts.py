"""Gathers the facts that the gate judges, from the warehouse and from what TFX's validators wrote."""

import datetime
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tensorflow_metadata.proto.v0 import anomalies_pb2

from models.classes import parse_classes
from models.errors import TrainingError
from pipeline import storage
from pipeline.errors import SettingsError
from pipeline.validation.rules import OTHER, Baseline, Confusion, Drift, Facts, Offenders
from pipeline.validation.text import shortened
from pipeline.warehouse import Warehouse, queries


def read_classes(path: str | pathlib.Path) -> tuple[str, ...]:
    """Reads the classes of a schema file, in the order of the model's outputs.

    Raises:
        SettingsError: The file cannot be read, is no schema, or its `label` has no domain.
    """
    try:
        return parse_classes(storage.read(str(path)).decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the schema {path}: {error}") from error
    except TrainingError as error:
        raise SettingsError(str(error)) from error


def read_anomalies(folder: str, judged: bool = True) -> list[str]:
    """Reads what ExampleValidator or DistributionValidator wrote.

    Args:
        folder: The artifact's folder.
        judged: Whether the validator had something to judge; then writing nothing is an anomaly as well.

    Returns:
        One text an anomaly: split, feature and reason.
    """
    found = []
    verdicts = list(_verdicts(folder))
    if judged and not verdicts:
        return [f"the validator wrote no verdict into {folder}"]
    for split, anomalies in verdicts:
        where = split.removeprefix("Split-").removeprefix("SplitPair-")
        for feature, info in sorted(anomalies.anomaly_info.items()):
            # DistributionValidator clears the descriptions and leaves the reasons.
            texts = [reason.description or reason.short_description for reason in info.reason] or [info.description]
            found += [f"{where}: {feature}: {text}" for text in texts]
        if anomalies.HasField("dataset_anomaly_info"):
            found += [f"{where}: {reason.description}" for reason in anomalies.dataset_anomaly_info.reason]
        if anomalies.data_missing:
            found.append(f"{where}: there is no data")
    return found


def read_drift(folder: str) -> list[Drift]:
    """Reads the divergences that DistributionValidator measured, above their limits or not, by feature."""
    found = []
    for _, anomalies in _verdicts(folder):
        for info in anomalies.drift_skew_info:
            found += [
                Drift(".".join(info.path.step), measured.value, measured.threshold) for measured in info.drift_measurements
            ]
    return sorted(found, key=lambda drift: drift.feature)


def _verdicts(folder: str) -> Iterator[tuple[str, anomalies_pb2.Anomalies]]:
    """What a validator wrote: the name of each folder in `folder`, and the message of each file in that."""
    for split in storage.names(folder):
        for name in storage.names(storage.join(folder, split)):
            if name.endswith(".pb"):
                yield split, anomalies_pb2.Anomalies.FromString(storage.read(storage.join(folder, split, name)))


# How many labels beyond the schema's are counted one by one: a column mixed up can make every row a label of its own.
_STRANGE_LABELS = 1000


def gather(
    warehouse: Warehouse,
    snapshot: str,
    index: str,
    examples_query: str,
    baseline: str | None,
    baseline_as_of: datetime.datetime | None,
    classes: Sequence[str],
    schema_anomalies: list[str],
    drift_anomalies: list[str],
    drift: list[Drift],
) -> Facts:
    """Asks the warehouse what the gate must know. The warehouse counts; what comes back does not grow with the snapshot.

    Args:
        warehouse: An open warehouse.
        snapshot: Name of the snapshot table.
        index: Name of the table that holds the shard index.
        examples_query: The query whose rows became Examples.
        baseline: Name of the last accepted snapshot's table, or None.
        baseline_as_of: The instant, UTC, before which an edit belongs to it; None without one.
        classes: Classes of the schema.
        schema_anomalies: Texts from `read_anomalies`.
        drift_anomalies: Texts from `read_anomalies`.
        drift: From `read_drift`.

    Returns:
        The facts.
    """
    table, index = warehouse.address(snapshot), warehouse.address(index)

    def class_counts(labels: str) -> dict[str, int]:
        return _class_counts(warehouse.rows(queries.class_counts(labels, len(classes) + _STRANGE_LABELS)))

    def offenders(query: str, text: Callable[[Mapping], str]) -> Offenders:
        rows = list(warehouse.rows(query))
        return Offenders(rows[0]["total"] if rows else 0, tuple(text(row) for row in rows))

    return Facts(
        class_counts=class_counts(table),
        eval_counts=class_counts(queries.eval_labels(examples_query)),
        split_rows={row["split"]: row["n"] for row in warehouse.rows(queries.split_sizes(examples_query))},
        classes=classes,
        null_images=offenders(
            queries.null_images(table), lambda row: f"product {_id(row['product_id'])}, label {_id(row['label'])}"
        ),
        null_labels=offenders(queries.null_labels(table), lambda row: _id(row["image_id"])),
        duplicates=offenders(queries.duplicates(table), lambda row: f"{_id(row['image_id'])}: {_id(row['labels'])}"),
        orphans=offenders(queries.orphans(table, index), lambda row: f"{_id(row['image_id'])} ({_id(row['label'])})"),
        straddling=offenders(
            queries.straddling(examples_query), lambda row: f"{row['kind']} {_id(row['id'])}: {row['splits']}"
        ),
        baseline=_baseline(warehouse, table, baseline, baseline_as_of, class_counts) if baseline else None,
        schema_anomalies=schema_anomalies,
        drift_anomalies=drift_anomalies,
        drift=drift,
    )


def _baseline(warehouse, table, baseline, as_of, class_counts) -> Baseline:
    before = warehouse.address(baseline)
    edits = next(warehouse.rows(queries.edits_since(table), {"since": as_of}))
    changes = list(warehouse.rows(queries.confusions(table, before)))
    return Baseline(
        table=baseline,
        as_of=_instant(as_of),
        class_counts=class_counts(before),
        relabelled=int(changes[0]["total"]) if changes else 0,
        confusions=[
            Confusion(row["before_label"], row["after_label"], row["n"], row["first_image"], row["last_image"])
            for row in changes
        ],
        common_images=next(warehouse.rows(queries.common_images(table, before)))["n"],
        edits=edits["n"],
        newest_edit=_instant(edits["newest"]) if edits["newest"] else "",
    )


def _class_counts(rows: Iterable[Mapping]) -> dict[str, int]:
    rows = list(rows)
    counts = {row["label"]: row["n"] for row in rows}
    rest = int(rows[0]["total"]) - sum(counts.values()) if rows else 0
    return counts | ({OTHER: counts.get(OTHER, 0) + rest} if rest else {})


def _instant(instant: datetime.datetime) -> str:
    return f"{instant.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


def _id(value: str | None) -> str:
    return shortened(value) if value and value.strip() else "none"
