"""The best-known configurations: the hyperparameters of each run that tuned and was released."""

import dataclasses
import json
import pathlib

from pipeline import files


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
    path = pathlib.Path(folder, f"{configuration.snapshot_date}.json")
    files.write_atomically(path, files.to_json(dataclasses.asdict(configuration)))


def newest_before(folder: str, date: str) -> Configuration | None:
    """The newest configuration whose snapshot date is before `date`, or None."""
    dates = sorted(path.stem for path in pathlib.Path(folder).glob("*.json") if path.stem < date)
    if not dates:
        return None
    return Configuration(**json.loads(pathlib.Path(folder, f"{dates[-1]}.json").read_text(encoding="utf-8")))
