"""How studies stand, read beside those who may be at work on them: `python -m pipeline tune status`. No TensorFlow.

A study of this machine is in the file of its service; one of Vertex, whose record names an endpoint, is asked for there.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

from models.charts import duration
from models.study import Trial, progress, seconds_left
from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.places import Places
from pipeline.tuning import results
from pipeline.tuning.results import Results
from pipeline.validation.text import printable
from pipeline.vizier import local, regional
from pipeline.vizier.database import Transaction, is_served, looking
from pipeline.vizier.study import Budget, Study, read_trial


@dataclasses.dataclass(frozen=True)
class Standing:
    """A study as it stands.

    Attributes:
        results: Its trials so far.
        parallel: Trials at once.
        started: When the run that searched last began to, ISO 8601.
        served: Whether somebody may be at work on it: Vizier's service of this machine runs; on Vertex, a trial is under way.
    """

    results: Results
    parallel: int
    started: str
    served: bool

    @property
    def state(self) -> str:
        """`complete`, `running`, or `interrupted`: a run that tunes the same snapshot goes on with it."""
        ended = [trial for trial in self.results.trials if not trial.under_way]
        if len(ended) >= self.results.total:
            return "complete"
        return "running" if self.served else "interrupted"


def studies(places: Places, name: str | None = None) -> list[Standing]:
    """The studies of a store.

    Args:
        places: The store.
        name: Display name of one, or its beginning; None for all.

    Returns:
        At least one, the one that was searched last at the end.

    Raises:
        PipelineError: There is none, or none of that name, or a record cannot be read.
    """
    folder = places.study_records
    found = [_read(storage.join(folder, name)) for name in storage.names(folder) if name.endswith(".json")]
    records = sorted(found, key=lambda record: record["started"])
    if not records:
        raise PipelineError(
            f"no study was searched in the store {places.store}: start a run with --tune, or name another by --store"
        )
    wanted = [record for record in records if record["display_name"].startswith(name or "")]
    if not wanted:
        there = ", ".join(record["display_name"] for record in records)
        raise PipelineError(f"there is no study {name!r} in the store {places.store}; there are: {printable(there)}")
    here = [record for record in wanted if "endpoint" not in record]
    standing = {record["display_name"]: _on_vertex(record) for record in wanted if "endpoint" in record}
    if here:
        served = is_served(places.studies)
        with looking(places.studies) as transaction:
            standing |= {record["display_name"]: _standing(transaction, record, served) for record in here}
    there = [standing[record["display_name"]] for record in wanted if standing[record["display_name"]] is not None]
    if not there:
        raise PipelineError(
            f"{places.studies} does not have {printable(wanted[-1]['display_name'])} any more: a run with --tune makes it anew"
        )
    return there


_FIELDS = {
    "name": str, "display_name": str, "trials": int, "parallel": int, "epochs": int, "run_id": str, "snapshot_date": str,
    "objective": str, "started": str,
}  # fmt: skip


def _read(path: str) -> dict[str, Any]:
    try:
        record = json.loads(storage.read(path))
        if all(type(record[name]) is kind for name, kind in _FIELDS.items()):
            return record
        problem = "a field has the wrong type"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise PipelineError(f"{path} is no record of a study ({problem}): remove it; a run with --tune writes it again")


def _standing(transaction: Transaction, record: dict[str, Any], served: bool) -> Standing | None:
    """The study of a record; None where the file of studies was deleted since."""
    study = transaction.find_study(local.PARENT, record["display_name"])
    if study is None:
        return None
    trials = [read_trial(trial.message, record["objective"]) for trial in transaction.trials(study.name)]
    return _of(record, str(study.name), trials[: record["trials"]], served)


def _on_vertex(record: dict[str, Any]) -> Standing:
    client = regional.client_of(str(record["endpoint"]))
    budget = Budget(record["trials"], record["parallel"])
    trials = Study(client, record["name"], record["objective"], True, budget).trials()
    return _of(record, record["name"], trials, any(trial.under_way for trial in trials))


def _of(record: dict[str, Any], name: str, trials: Sequence[Trial], served: bool) -> Standing:
    found = Results(
        name=name,
        display_name=record["display_name"],
        objective=record["objective"],
        total=record["trials"],
        epochs=record["epochs"],
        snapshot_date=record["snapshot_date"],
        run_id=record["run_id"],
        trials=tuple(trials),
    )
    return Standing(found, record["parallel"], record["started"], served)


def as_json(standing: Standing) -> dict[str, Any]:
    """A study as plain data, with all its trials."""
    found = standing.results
    left = seconds_left(found.trials, found.total, standing.parallel, time.time())
    return {
        **results.as_json(found),
        "parallel": standing.parallel,
        "started": standing.started,
        "state": standing.state,
        "counts": found.counts(),
        "best": found.best.number if found.best else None,
        "seconds_left": left if standing.state == "running" else None,
    }


def as_text(standing: Standing) -> str:
    """A study for a terminal."""
    found = standing.results
    # What is left is only a matter of time while somebody works at it.
    told = progress(found.trials, found.total, standing.parallel, found.epochs, time.time())
    if standing.state != "running":
        told = told.partition(", ends in")[0]
    remedy = ": the same command with --tune goes on with it" if standing.state == "interrupted" else ""
    lines = [
        f"study     {printable(found.display_name)}",
        f"snapshot  {printable(found.snapshot_date)}, run {printable(found.run_id)}, since {printable(standing.started)}",
        f"state     {standing.state}{remedy}",
        f"trials    {told}",
    ]
    if found.best:
        lines.append(f"best      {printable(found.objective)} {found.best.value:.3f} with {_values(found.best)}")
    lines += [_line(found, trial) for trial in found.trials]
    return "\n".join(lines)


def _line(found: Results, trial) -> str:
    reached = trial.value if trial.value is not None else trial.curve[-1][1] if trial.curve else None
    told = f"{reached:.3f}" if reached is not None else "-"
    took = duration(trial.seconds) if trial.seconds is not None else ""
    state = found.state_of(trial)
    state = f"{state}: {printable(trial.reason)}" if trial.reason else state
    return f"  {trial.number:3d}  {told:>6}  {len(trial.curve):3d} of {found.epochs} epochs  {took:>11}  {state}".rstrip()


def _values(trial) -> str:
    return ", ".join(f"{printable(name)} {value:.3g}" for name, value in trial.values.items())
