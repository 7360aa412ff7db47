"""The interface to a lineage store, and the plain records that it gives."""

import abc
import dataclasses
import datetime
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence

from pipeline.errors import PipelineError

DONE = ("COMPLETE", "CACHED")
"""States of a step whose outputs count."""

CUT_OFF = ("FAILED", "CANCELED")
"""States of a step that ended without outputs."""

RELEASE_TYPE = "pipeline.ServingRelease"
"""Type of the artifacts that releases are read from."""

SHOWN = 3
"""How many near names an error offers."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """One artifact.

    Attributes:
        id: Its id in the store: a number in ML Metadata's tables, a text on Vertex.
        type: Type name, such as `pipeline.LabelSnapshot` or `Model`.
        uri: Where its content is.
        facts: Its properties, declared and custom.
    """

    id: int | str
    type: str
    uri: str
    facts: Mapping[str, str | int | float]


@dataclasses.dataclass(frozen=True)
class Execution:
    """One step of a run.

    Attributes:
        id: Its id in the store, as that of an artifact.
        step: Name of the component.
        state: `COMPLETE`, `FAILED`, `CANCELED`, `RUNNING` or `CACHED`.
        started: When, UTC.
        updated: When its record changed last, UTC: its end, once it ended.
        parameters: Its execution properties.
        inputs: Input key -> artifacts.
        outputs: Output key -> artifacts.
    """

    id: int | str
    step: str
    state: str
    started: datetime.datetime
    updated: datetime.datetime
    parameters: Mapping[str, str | int | float]
    inputs: Mapping[str, tuple[Artifact, ...]]
    outputs: Mapping[str, tuple[Artifact, ...]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the pipeline, its steps in the order in which they started."""

    run_id: str
    executions: tuple[Execution, ...]

    def output(self, type_name: str, key: str | None = None) -> Artifact | None:
        """The first artifact of a type that a step of this run put out (under `key`), or None."""
        for execution in self.executions:
            if execution.state not in DONE:
                continue
            for name, artifacts in execution.outputs.items():
                for artifact in artifacts:
                    if artifact.type == type_name and key in (None, name):
                        return artifact
        return None

    def step(self, name: str) -> Execution | None:
        """The step of that name, or None when the run did not reach it."""
        return next((execution for execution in self.executions if execution.step == name), None)

    def cut_off(self) -> Execution | None:
        """The first step that failed or was interrupted, or None."""
        return next((execution for execution in self.executions if execution.state in CUT_OFF), None)


@dataclasses.dataclass(frozen=True)
class Release:
    """One release, as the run that made it recorded it.

    Attributes:
        number: Its number in the serving ledger.
        at: When traffic moved, ISO 8601, UTC.
        endpoint: Where.
        run_id: Run that produced and released the model.
        version: Version that serves from then on.
        share: Share of the traffic, 0 to 1.
        path: Folder of its SavedModel.
        line_sha256: Digest of the ledger's line; None for a release of a time when it was not recorded.
    """

    number: int
    at: str
    endpoint: str
    run_id: str
    version: str
    share: float
    path: str
    line_sha256: str | None


@dataclasses.dataclass(frozen=True)
class Use:
    """A run that made or used an artifact.

    Attributes:
        run_id: The run.
        value: The fact of the artifact that was asked for.
        state: `COMPLETE`, `RUNNING`, or such as `FAILED at SnapshotGate`.
        trained: Whether it trained a model.
    """

    run_id: str
    value: str
    state: str
    trained: bool


class UnknownRun(PipelineError):
    """There is no run of that id."""


class LineageStore(abc.ABC):
    """Reads what runs recorded; writes nothing."""

    @abc.abstractmethod
    def run(self, run_id: str) -> Run:
        """Reads one run.

        Raises:
            UnknownRun: There is no run of that id; the text offers the closest.
            PipelineError: The store cannot be read.
        """

    @abc.abstractmethod
    def releases(self) -> list[Release]:
        """The releases of all runs that moved traffic, in the order of the ledger."""

    @abc.abstractmethod
    def run_ids(self) -> list[str]:
        """Ids of all runs, oldest first."""

    @abc.abstractmethod
    def values(self, type_name: str, fact: str) -> list[str]:
        """The different values that a fact has in the artifacts of a type, sorted."""

    @abc.abstractmethod
    def uses(self, type_name: str, fact: str, values: Iterable[str]) -> list[Use]:
        """The runs that made or used an artifact of a type whose fact has one of `values`, oldest first."""

    @abc.abstractmethod
    def facts(self, type_name: str, names: Iterable[str], run_ids: Iterable[str]) -> dict[str, dict[str, str | int | float]]:
        """Some facts of the artifact of a type that each run put out.

        Args:
            type_name: The type.
            names: Names of the facts.
            run_ids: The runs.

        Returns:
            Run id -> facts; a run that put out none is missing.
        """


def state_of(steps: Sequence[tuple[str, str]]) -> str:
    """How far a run came.

    Args:
        steps: State and name of its steps in order; those that ended well may be left out, but for ServingLedger.

    Returns:
        `COMPLETE`, `RUNNING`, or such as `FAILED at SnapshotGate`.
    """
    for state, step in steps:
        if state in CUT_OFF:
            return f"{state} at {step}"
    return "COMPLETE" if any(step == "ServingLedger" and state in DONE for state, step in steps) else "RUNNING"


def releases_of(found: Iterable[Mapping[str, str | int | float]]) -> list[Release]:
    """The releases that artifacts tell of, by the numbers of the ledger.

    Args:
        found: Facts of each artifact. Two that tell of the same entry of the ledger tell of one release.
    """
    releases = {release.number: release for facts in found for release in _moves(facts)}
    return [releases[number] for number in sorted(releases)]


def _moves(facts: Mapping[str, str | int | float]) -> list[Release]:
    """What an artifact of a release, `pipeline.ServingRelease`, tells of traffic that moved.

    Args:
        facts: Its facts. `ledger_entries`, JSON, has the ledger's entries of a release in several steps; one that moved all
            traffic at once has its entry in facts of their own.
    """
    if facts.get("ledger_entries"):
        entries = json.loads(facts["ledger_entries"])
    elif facts.get("released"):
        named = {"number": "ledger_number", "at": "released_at", "line_sha256": "ledger_line_sha256"}
        entries = [{**facts, **{name: facts.get(fact) for name, fact in named.items()}}]
    else:
        entries = []
    return [
        Release(
            number=int(entry["number"]),
            at=entry["at"],
            endpoint=entry["endpoint"],
            run_id=entry["run_id"],
            version=entry["to_version"],
            share=float(entry["share"]),
            path=entry["path"],
            line_sha256=entry["line_sha256"],
        )
        for entry in entries
    ]


def same(recorded, value) -> bool:
    """Whether a fact of the lineage is `value`: ML Metadata keeps six digits behind the point of a number in SQLite."""
    if isinstance(value, float) and isinstance(recorded, (int, float)):
        return abs(recorded - value) <= 1e-6
    return recorded == value


def unknown_run(run_id: str, known: Sequence[str], place: str) -> UnknownRun:
    """What is told of a run that is not among those that are `known`, oldest first; `place` names the store."""
    near = closest(run_id, known)
    hint = f"the closest: {', '.join(near)}" if near else f"the newest is {known[-1]}" if known else "the store is empty"
    return UnknownRun(f"there is no run {run_id!r} in {place}; {hint}")


def closest(name: str, known: Iterable[str]) -> list[str]:
    """At most three of `known` meant by `name`, perhaps: those that begin so, the shortest and last, or look alike."""
    known = list(known)
    begin = [other for other in reversed(known) if name and other.startswith(name)]
    return sorted(begin, key=len)[:SHOWN][::-1] or difflib.get_close_matches(name, known, n=SHOWN)
