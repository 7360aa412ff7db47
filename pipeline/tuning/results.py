"""A study's trials as JSON: what the Tuner step leaves in the lineage, and what its page is drawn from."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from models.study import Trial, best, ended_early
from pipeline import files, storage
from pipeline.errors import PipelineError

ROWS = "tuner_results.json"
"""The file of a Tuner's results that TFX's own Tuner writes too."""

TRIALS = "trials.json"
"""The file of a Tuner's results that holds all of a study."""


@dataclasses.dataclass(frozen=True)
class Results:
    """A study as it stood.

    Attributes:
        name: Full name of the study; "" where nothing was tuned.
        display_name: Its display name.
        objective: What trials are compared by; more is better.
        total: Trials that it may have.
        epochs: Epochs of a whole trial.
        snapshot_date: Date of the snapshot whose sample was searched on, YYYY-MM-DD.
        run_id: The run that it belongs to.
        trials: Its trials, in the order of their numbers.
    """

    name: str
    display_name: str
    objective: str
    total: int
    epochs: int
    snapshot_date: str
    run_id: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The winner, or None."""
        return best(self.trials)

    def state_of(self, trial: Trial) -> str:
        """A trial's state in a word that people use: `succeeded`, `stopped early`, `infeasible`, `under way`."""
        if ended_early(trial, self.epochs):
            return "stopped early"
        return "under way" if trial.under_way else trial.state.lower()

    def counts(self) -> dict[str, int]:
        """How many trials there are of each of these states, and in all."""
        states = [self.state_of(trial) for trial in self.trials]
        named = {state: states.count(state) for state in ("succeeded", "stopped early", "infeasible", "under way")}
        return {"trials": len(states), **named}


def as_json(results: Results) -> dict[str, Any]:
    """The study as plain data."""
    content = dataclasses.asdict(results)
    for plain, trial in zip(content["trials"], results.trials, strict=True):
        plain["values"] = dict(trial.values)
        plain["curve"] = [list(point) for point in trial.curve]
    content["trials"] = list(content["trials"])
    return content


def from_json(content: Mapping[str, Any]) -> Results:
    """The study that `as_json` made plain. Raises KeyError or TypeError for anything else."""
    trials = tuple(
        Trial(**{**plain, "curve": tuple((step, value) for step, value in plain["curve"])}) for plain in content["trials"]
    )
    return Results(**{**content, "trials": trials})


def rows(results: Results) -> list[dict[str, Any]]:
    """What TFX's own Tuner writes into `tuner_results.json`: trials with a value, best first."""
    valued = [trial for trial in results.trials if trial.state == "SUCCEEDED" and trial.value is not None]
    ordered = sorted(valued, key=lambda trial: (-trial.value, trial.number))
    return [{"trial_id": str(trial.number), "score": trial.value, **trial.values} for trial in ordered]


def write(folder: str | os.PathLike, results: Results) -> None:
    """Writes both files, `ROWS` as TFX's Tuner has it and `trials.json` with everything."""
    storage.write(storage.join(str(folder), ROWS), json.dumps(rows(results)).encode())
    storage.write(storage.join(str(folder), TRIALS), files.to_json(as_json(results)).encode())


def read(folder: str | os.PathLike) -> Results:
    """Reads what `write` wrote.

    Raises:
        PipelineError: There is no such file, or it says something else.
    """
    path = storage.join(str(folder), TRIALS)
    try:
        return from_json(json.loads(storage.read(path)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise PipelineError(f"{path} holds no trials ({problem}): name the results of a Tuner") from error
