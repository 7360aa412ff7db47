"""Gathers the facts that the gate judges, from the warehouse and from what TFX's validators wrote."""

import pathlib
from collections.abc import Sequence

from tensorflow_metadata.proto.v0 import anomalies_pb2

from models.classes import parse_classes
from models.errors import TrainingError
from pipeline.errors import SettingsError
from pipeline.validation.rules import Facts
from pipeline.warehouse import Warehouse, queries


def read_classes(path: str | pathlib.Path) -> tuple[str, ...]:
    """Reads the classes of a schema file, in the order of the model's outputs.

    Raises:
        SettingsError: The file cannot be read, is no schema, or its `label` has no domain.
    """
    try:
        return parse_classes(pathlib.Path(path).read_text(encoding="utf-8"), str(path))
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
    paths = sorted(pathlib.Path(folder).glob("*/*.pb"))
    if judged and not paths:
        return [f"the validator wrote no verdict into {folder}"]
    for path in paths:
        anomalies = anomalies_pb2.Anomalies.FromString(path.read_bytes())
        where = path.parent.name.removeprefix("Split-").removeprefix("SplitPair-")
        for feature, info in sorted(anomalies.anomaly_info.items()):
            # DistributionValidator clears the descriptions and leaves the reasons.
            texts = [reason.description or reason.short_description for reason in info.reason] or [info.description]
            found += [f"{where}: {feature}: {text}" for text in texts]
        if anomalies.HasField("dataset_anomaly_info"):
            found += [f"{where}: {reason.description}" for reason in anomalies.dataset_anomaly_info.reason]
        if anomalies.data_missing:
            found.append(f"{where}: there is no data")
    return found


def gather(
    warehouse: Warehouse,
    snapshot: str,
    index: str,
    examples_query: str,
    baseline: str | None,
    classes: Sequence[str],
    schema_anomalies: list[str],
    drift_anomalies: list[str],
) -> Facts:
    """Asks the warehouse what the gate must know.

    Args:
        warehouse: An open warehouse.
        snapshot: Name of the snapshot table.
        index: Name of the table that holds the shard index.
        examples_query: The query whose rows became Examples.
        baseline: Name of the last accepted snapshot's table, or None.
        classes: Classes of the schema.
        schema_anomalies: Texts from `read_anomalies`.
        drift_anomalies: Texts from `read_anomalies`.

    Returns:
        The facts.
    """
    table, index = warehouse.address(snapshot), warehouse.address(index)
    counts = {row["label"]: row["n"] for row in warehouse.rows(queries.class_counts(table))}
    baseline_counts, relabelled, common = None, [], 0
    if baseline:
        before = warehouse.address(baseline)
        baseline_counts = {row["label"]: row["n"] for row in warehouse.rows(queries.class_counts(before))}
        relabelled = [
            (row["image_id"], row["before_label"], row["after_label"])
            for row in warehouse.rows(queries.relabelled(table, before))
        ]
        common = next(warehouse.rows(queries.common_images(table, before)))["n"]
    return Facts(
        class_counts=counts,
        eval_counts={
            row["label"]: row["n"] for row in warehouse.rows(queries.split_counts(examples_query)) if row["split"] == "eval"
        },
        classes=classes,
        duplicates=[(row["image_id"], row["labels"]) for row in warehouse.rows(queries.duplicates(table))],
        orphans=[(row["image_id"], row["label"]) for row in warehouse.rows(queries.orphans(table, index))],
        unknown=[(label, count) for label, count in sorted(counts.items()) if label not in classes],
        relabelled=relabelled,
        baseline_counts=baseline_counts,
        baseline_table=baseline,
        common_images=common,
        schema_anomalies=schema_anomalies,
        drift_anomalies=drift_anomalies,
    )
