"""The best-known configurations: the hyperparameters of each run that tuned and whose model was found fit to serve.

    configurations/2026-03-02.json

One file a snapshot date. Light: no TensorFlow.
"""

import dataclasses
import json
import re

from pipeline import files, storage
from pipeline.errors import PipelineError

_FILE = re.compile(r"(\d{4}-\d{2}-\d{2})\.json")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Hyperparameters that a study found and a model was trained with that was found fit to serve.

    A search that takes days may be overtaken by a weekly release. Its model then serves nowhere, but that says nothing of its
    hyperparameters: they hold by what the release gate found.

    What has a default is not in files that older versions of this code wrote.

    Attributes:
        snapshot_date: Date of the snapshot that it was tuned on, YYYY-MM-DD.
        run_id: The run that tuned.
        hyperparameters: KerasTuner's HyperParameters as a mapping.
        snapshot: That snapshot's table, or "" if unknown.
        metric: Name of the metric.
        value: The metric of that model, trained on the full snapshot; None if unknown.
        study: Name of the study, or "" if unknown.
        trial: Number of the winner in it, from 1; None if unknown.
        trial_value: The metric of that trial, on the tuning sample; None if unknown. Not to be compared with `value`.
        accepted_at: When its model was released, or else this was recorded, ISO 8601, UTC; "" if unknown.
        overtaken: Why its model was not released although it was found fit, or "" if it was.
    """

    snapshot_date: str
    run_id: str
    hyperparameters: dict
    snapshot: str = ""
    metric: str = "val_accuracy"
    value: float | None = None
    study: str = ""
    trial: int | None = None
    trial_value: float | None = None
    accepted_at: str = ""
    overtaken: str = ""

    def facts(self) -> dict[str, str | int | float]:
        """What is known of it, for custom properties: what is not known is left out, the values are JSON."""
        known = {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, "")}
        known["values"] = json.dumps(known.pop("hyperparameters")["values"], sort_keys=True)
        return known


def record(folder: str, configuration: Configuration) -> None:
    """Keeps a configuration; one file a snapshot date, so a date that is tuned again replaces its own."""
    uri = storage.join(folder, f"{configuration.snapshot_date}.json")
    storage.write(uri, files.to_json(dataclasses.asdict(configuration)).encode())


def newest_before(folder: str, date: str) -> Configuration | None:
    """The newest configuration whose snapshot date is before `date`, or None.

    Raises:
        PipelineError: Its file cannot be read.
    """
    found = (_FILE.fullmatch(name) for name in storage.names(folder))
    newest = max((match[1] for match in found if match and match[1] < date), default=None)
    return newest and _read(folder, newest)


def _read(folder: str, date: str) -> Configuration:
    uri = storage.join(folder, f"{date}.json")
    try:
        configuration = Configuration(**json.loads(storage.read(uri)))
        if configuration.snapshot_date != date or not isinstance(configuration.hyperparameters["values"], dict):
            raise ValueError(f"it is of {configuration.snapshot_date}, or its values are no mapping")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PipelineError(
            f"{uri} is no best-known configuration ({error}): restore it from a backup, or delete it; the newest "
            "before it then holds"
        ) from error
    return configuration
