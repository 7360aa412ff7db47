"""The best-known configurations: the hyperparameters of each run that tuned and was released."""

import dataclasses
import json

from pipeline import files, storage


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Hyperparameters that a study found and a released model was trained with.

    Attributes:
        snapshot_date: Date of the snapshot that it was tuned on, YYYY-MM-DD.
        run_id: The run that tuned.
        hyperparameters: KerasTuner's HyperParameters as a mapping.
    """

    snapshot_date: str
    run_id: str
    hyperparameters: dict


def record(folder: str, configuration: Configuration) -> None:
    """Keeps a configuration; one file a snapshot date, so a date that is tuned again replaces its own."""
    uri = storage.join(folder, f"{configuration.snapshot_date}.json")
    storage.write(uri, files.to_json(dataclasses.asdict(configuration)).encode())


def newest_before(folder: str, date: str) -> Configuration | None:
    """The newest configuration whose snapshot date is before `date`, or None."""
    names = [name for name in storage.names(folder) if name.endswith(".json") and name.removesuffix(".json") < date]
    return Configuration(**json.loads(storage.read(storage.join(folder, names[-1])))) if names else None
