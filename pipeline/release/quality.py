"""How well each run trained: one file a run that reached its end, released or not.

    quality/20260302-20261203T051034Z.json

By them a week is judged that has a best-known configuration: does it still train as well as it did? Light: no TensorFlow.
"""

import dataclasses
import json
import math
import re

from pipeline import files, storage
from pipeline.errors import PipelineError

METRIC = "val_accuracy"
"""What is judged: accuracy on the val split of the weights that were kept, as `training.json` has it."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

# What an interrupted write leaves begins with a dot.
_FILE = re.compile(r"[^.].*\.json")


@dataclasses.dataclass(frozen=True)
class Quality:
    """How well one run trained.

    Attributes:
        run_id: The run.
        snapshot_date: Date of its snapshot, YYYY-MM-DD.
        value: Its `METRIC`, 0 to 1.
        released: Whether its model was released.
        tuned: Whether the run searched for the hyperparameters that it trained with.
        reason: Why its model was not released, or "".
        configuration: The run that found the best-known configuration when this one decided, "" for none; None if unknown, as
            in records of older code.
    """

    run_id: str
    snapshot_date: str
    value: float
    released: bool
    tuned: bool
    reason: str = ""
    configuration: str | None = None


def record(folder: str, quality: Quality) -> None:
    """Keeps how well a run trained."""
    content = {"metric": METRIC, **dataclasses.asdict(quality)}
    storage.write(storage.join(folder, f"{quality.run_id}.json"), files.to_json(content).encode())


def before(folder: str, date: str) -> list[Quality]:
    """How well the weeks before `date` trained, oldest first, each snapshot date once.

    Of several runs of a date the first one counts whose model was released, else the first one: what a later rerun does
    changes nothing for a week that is run again.

    Args:
        folder: Folder of the records; one that does not exist has none.
        date: YYYY-MM-DD.

    Raises:
        PipelineError: A record cannot be read.
    """
    # Ids of runs sort by the date of the snapshot, then by their start.
    found = [_read(storage.join(folder, name)) for name in storage.names(folder) if _FILE.fullmatch(name)]
    by_date: dict[str, Quality] = {}
    for each in found:
        if each.snapshot_date < date:
            there = by_date.get(each.snapshot_date)
            if there is None or each.released and not there.released:
                by_date[each.snapshot_date] = each
    return [by_date[key] for key in sorted(by_date)]


def _read(uri: str) -> Quality:
    try:
        content = json.loads(storage.read(uri))
        metric = content.pop("metric")
        quality = Quality(**content)
        if metric != METRIC:
            raise ValueError(f"its metric is {metric!r} and should be {METRIC!r}")
        if not _DATE.fullmatch(quality.snapshot_date) or not math.isfinite(quality.value):
            raise ValueError(f"snapshot_date {quality.snapshot_date!r} or value {quality.value!r} is none")
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise PipelineError(
            f"{uri} is no record of how well a run trained ({error}): restore it from a backup, or delete it; the week "
            "then counts as never trained"
        ) from error
    return quality
