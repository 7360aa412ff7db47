"""The interface to a lineage store, and the plain records that it gives."""

import abc
import dataclasses
import datetime
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Artifact:
    """One artifact.

    Attributes:
        id: Its id in the store.
        type: Type name, such as `pipeline.LabelSnapshot` or `Model`.
        uri: Where its content is.
        facts: Its properties, declared and custom.
    """

    id: int
    type: str
    uri: str
    facts: Mapping[str, str | int | float]


@dataclasses.dataclass(frozen=True)
class Execution:
    """One step of a run.

    Attributes:
        id: Its id in the store.
        step: Name of the component.
        state: `COMPLETE`, `FAILED`, `CANCELED`, `RUNNING` or `CACHED`.
        started: When, UTC.
        updated: When its record changed last, UTC: its end, once it ended.
        parameters: Its execution properties.
        inputs: Input key -> artifacts.
        outputs: Output key -> artifacts.
    """

    id: int
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
            if execution.state not in ("COMPLETE", "CACHED"):
                continue
            for name, artifacts in execution.outputs.items():
                for artifact in artifacts:
                    if artifact.type == type_name and key in (None, name):
                        return artifact
        return None

    def step(self, name: str) -> Execution | None:
        """The step of that name, or None when the run did not reach it."""
        return next((execution for execution in self.executions if execution.step == name), None)


class LineageStore(abc.ABC):
    """Reads what runs recorded."""

    @abc.abstractmethod
    def run(self, run_id: str) -> Run:
        """Reads one run.

        Raises:
            PipelineError: There is no run of that id.
        """

    @abc.abstractmethod
    def releases(self) -> list[Artifact]:
        """The release artifacts of all runs that moved traffic, in the order of the ledger."""

    @abc.abstractmethod
    def run_ids(self) -> list[str]:
        """Ids of all runs, oldest first."""
