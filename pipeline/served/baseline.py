"""What requests are compared with: the training and the evaluation of the model that serves, as its run left them in the store.

The serving ledger names the model, the run that released it and the snapshot. `reports/RUN_ID/release.json` has what the model
said of the eval split, and how photographs were packed; `accepted/SNAPSHOT` the statistics of what it was trained on.
"""

import dataclasses
import json
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0 import statistics_pb2

from pipeline import storage, typed
from pipeline.errors import PipelineError, SettingsError
from pipeline.places import Places
from pipeline.release import ledger
from pipeline.served.rules import Predictions, bin_names
from pipeline.settings import ShardSettings
from pipeline.validation import acceptance, histograms

SPLIT = "train"
"""The split whose sizes count: the model was trained on it, and it is the largest."""


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
    """What the model that serves was made of.

    Attributes:
        entry: The ledger's.
        classes: Its classes, in the order of the probabilities.
        predictions: What it said of the eval split.
        statistics: TFDV's, of the training snapshot's `SPLIT`.
        shards: How its photographs were packed.
    """

    entry: ledger.Entry
    classes: Sequence[str]
    predictions: Predictions
    statistics: statistics_pb2.DatasetFeatureStatisticsList
    shards: ShardSettings


def find(places: Places, endpoint: str) -> Baseline:
    """Finds what serves at an endpoint, and what it was made of.

    Raises:
        PipelineError: Nothing serves there, or what its run recorded is not there or cannot be read.
    """
    try:
        return _found(places, endpoint)
    except OSError as error:
        raise PipelineError(f"cannot read the store {places.store}: {error.strerror or error} ({error.filename})") from error


def _found(places: Places, endpoint: str) -> Baseline:
    entry = ledger.serving(places.ledger, endpoint)
    if entry is None:
        raise PipelineError(
            f"nothing serves at endpoint {endpoint!r} of the store {places.store}: run the pipeline first, or name another store "
            "by --store"
        )
    if not storage.exists(storage.join(entry.path, "saved_model.pb")):
        raise PipelineError(
            f"version {entry.to_version} of run {entry.run_id} serves, says the ledger, and its folder {entry.path} is not "
            "there or not whole: restore it from a backup, or return to an older one: python -m pipeline release rollback "
            "--reason TEXT"
        )
    classes, predictions, shards = _report(storage.join(places.reports(entry.run_id), "release.json"))
    return Baseline(entry, classes, predictions, _statistics(places.accepted, entry.snapshot), shards)


def _report(uri: str) -> tuple[list[str], Predictions, ShardSettings]:
    try:
        content = json.loads(storage.read(uri))
        if content.get("shards") is None and "confusion" in content:
            raise PipelineError(
                f"the report {uri} is of an older version of the pipeline, which did not write down how photographs were packed: "
                "requests can be judged from the next release on"
            )
        classes, confusion = content["classes"], content["confusion"]
        counts = [sum(row[place] for row in confusion) for place in range(len(classes))]
        bins = [int(count) for count, _, _ in content["reliability"]["candidate"]]
        predictions = Predictions(dict(zip(classes, counts, strict=True)), dict(zip(bin_names(len(bins)), bins, strict=True)))
        return classes, predictions, typed.from_dict(ShardSettings, content["shards"], uri)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, SettingsError) as error:
        problem = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise PipelineError(
            f"the report {uri}, of the release of the model that serves, cannot be read ({problem}): restore it from a backup; "
            "requests are compared with what it says of the eval split"
        ) from error


def _statistics(folder: str, table: str) -> statistics_pb2.DatasetFeatureStatisticsList:
    problem = "there are none"
    try:
        accepted = acceptance.of_table(folder, table)
        found = accepted and histograms.read_statistics(accepted.statistics, SPLIT)
        if found:
            return found
    except (ValueError, TypeError, DecodeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise PipelineError(
        f"cannot read the statistics of the snapshot {table}, which the model that serves was trained on, in {folder} ({problem}): "
        "restore the folder from a backup; sizes are compared with them"
    )
