"""The lineage store on Vertex ML Metadata, read by Google's own client. It is read and never written here.

What the service does, by its reference (google.cloud.aiplatform_v1): a run is a context whose id is that of the pipeline job; a
step is an execution in it, with `input:NAME` for each parameter; custom properties of TFX stand in an artifact's metadata, in
which every number is a float. A list has pages of 1,000 at most, a subgraph fails beyond 1,000 artifacts, executions or events:
the lineage of one run is far below that, and an artifact's is asked for one hop.
"""

import bisect
import contextlib
import dataclasses
import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from pipeline.errors import PipelineError
from pipeline.lineage.base import (
    CUT_OFF,
    RELEASE_TYPE,
    Artifact,
    Execution,
    LineageStore,
    Run,
    Use,
    releases_of,
    state_of,
    unknown_run,
)
from pipeline.lineage.facts import FAILURE, FAILURE_KIND
from pipeline.lineage.rejections import of_gate_report
from pipeline.vertex.settings import VertexSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Google's packages say of the Python they run on
    from google.api_core import exceptions, retry
    from google.auth import exceptions as auth
    from google.cloud import aiplatform_v1 as v1
    from google.protobuf import json_format

    from pipeline.vertex.service import endpoint_of, refusal

_PAGE = 1000
"""The most that a page of a list holds."""

_AT_ONCE = 16
"""Questions under way at one time."""

_ONE_BY_ONE = 8
"""More values than this are looked for in one list of all artifacts of the type."""

_SECONDS = 30.0

_AGAIN = retry.Retry(
    predicate=retry.if_exception_type(exceptions.ServiceUnavailable, exceptions.TooManyRequests), initial=0.5, timeout=60.0
)

# What may stand in a resource name; the service itself takes fewer.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

# What a filter surely takes for itself within quotation marks.
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@ -]+")

_NO_STEP = ("system.Run", "system.DagExecution")
"""Executions that stand for the job and for the DAG inside it."""

_DAG = "tfx-dag"

_JOB = "PipelineJob"
"""Name of the step that a job stands for when it failed and no step of it did."""

_PREFIX = "custom:"
"""Before a custom property that has the name of a declared one (tfx/types/artifact.py)."""

_States = v1.Execution.State

_READ = (v1.Event.Type.INPUT,)


@dataclasses.dataclass(frozen=True)
class _Graph:
    """All that belongs to one run.

    Attributes:
        run: The run.
        names: Full names of its executions.
        ended: Whether its job has ended, so that nothing of it changes any more.
    """

    run: Run
    names: frozenset[str]
    ended: bool


class VertexLineage(LineageStore):
    """Reads Vertex ML Metadata.

    Args:
        settings: Vertex's settings: project and region.
        pipeline: Name of the pipeline, whose runs alone are seen.

    Raises:
        PipelineError: There are no credentials.
    """

    def __init__(self, settings: VertexSettings, pipeline: str):
        self._settings, self._pipeline = settings, pipeline
        self._parent = f"projects/{settings.project}/locations/{settings.region}"
        self._store = f"{self._parent}/metadataStores/default"
        self._ended: dict[str, _Graph] = {}
        options = {"api_endpoint": endpoint_of(settings.region)}
        with self._refusing():
            self._client = v1.MetadataServiceClient(client_options=options)
            self._jobs = functools.cache(lambda: v1.PipelineServiceClient(client_options=options))

    @property
    def place(self) -> str:
        """Where it is, as errors name it."""
        return f"the lineage store of pipeline {self._pipeline} in project {self._settings.project}, {self._settings.region}"

    def run(self, run_id):
        found = None
        with self._refusing():
            whole = self._whole()
            if whole and _RUN_ID.fullmatch(run_id):
                with contextlib.suppress(exceptions.NotFound):
                    context = self._ask(self._client.get_context, name=f"{self._store}/contexts/{run_id}")
                    if whole in context.parent_contexts:
                        found = self._graph(context.name)
        if found is None:
            raise unknown_run(run_id, self.run_ids(), self.place)
        return self._with_reason(found.run)

    def releases(self):
        with self._refusing():
            found = self._artifacts(RELEASE_TYPE, "state=LIVE")
            return releases_of(_facts(artifact) for artifact in found)

    def run_ids(self):
        with self._refusing():
            return [_id(context.name) for context in self._contexts("", "create_time", _PAGE)]

    def values(self, type_name, fact):
        with self._refusing():
            found = {_facts(artifact).get(fact) for artifact in self._artifacts(type_name)}
        return sorted(value for value in found if isinstance(value, str))

    def uses(self, type_name, fact, values):
        wanted = set(values)
        with self._refusing():
            artifacts = {}
            for condition in _conditions(fact, wanted):
                for artifact in self._artifacts(type_name, condition):
                    value = _facts(artifact).get(fact)
                    if value in wanted:
                        artifacts[artifact.name] = value
            hops = self._at_once(self._touching, artifacts)
            executions = {execution.name: execution for hop in hops for execution in hop}
            graphs = self._graphs_of(executions.values())
        pairs = {
            (graphs[execution.name].run.run_id, value)
            for value, hop in zip(artifacts.values(), hops, strict=True)
            for execution in hop
            if execution.name in graphs
        }
        runs = {graph.run.run_id: graph.run for graph in graphs.values()}
        age = {run_id: number for number, run_id in enumerate(runs)}
        return [_use(runs[run_id], value) for run_id, value in sorted(pairs, key=lambda pair: (-age[pair[0]], pair[1]))]

    def facts(self, type_name, names, run_ids):
        wanted, asked = set(names), [run_id for run_id in dict.fromkeys(run_ids) if _RUN_ID.fullmatch(run_id)]
        with self._refusing():
            graphs = self._at_once(self._graph_or_none, [f"{self._store}/contexts/{run_id}" for run_id in asked])
        found: dict[str, dict] = {}
        for graph in filter(None, graphs):
            for step in graph.run.executions:
                for artifact in itertools.chain.from_iterable(step.outputs.values()):
                    facts = {name: value for name, value in artifact.facts.items() if name in wanted}
                    if artifact.type == type_name and facts:
                        found.setdefault(graph.run.run_id, {}).update(facts)
        return found

    # --- What the service is asked ---

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except exceptions.PermissionDenied as error:
            said = " ".join(str(error.message).split())[:400]
            raise PipelineError(
                f"Vertex AI refuses to tell {self.place} ({said}): an auditor needs roles/aiplatform.viewer on the project"
            ) from error
        except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
            raise refusal(error, self._settings) from error

    def _ask(self, method: Callable, **request: Any):
        return method(request=request, timeout=_SECONDS, retry=_AGAIN)

    def _at_once(self, ask: Callable, given: Iterable) -> list:
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(ask, given))

    def _whole(self) -> str | None:
        """The pipeline's context by its full name, with the project's number, as filters want it; None before its first run."""
        try:
            return self._ask(self._client.get_context, name=f"{self._store}/contexts/{self._pipeline}").name
        except exceptions.NotFound:
            return None

    def _contexts(self, condition: str, order: str, size: int) -> Iterator[v1.Context]:
        """The runs' contexts, fetched as they are taken."""
        whole = self._whole()
        if whole:
            text = " AND ".join(filter(None, ['schema_title="system.PipelineRun"', f'parent_contexts:"{whole}"', condition]))
            yield from self._ask(self._client.list_contexts, parent=self._store, filter=text, order_by=order, page_size=size)

    def _artifacts(self, type_name: str, condition: str = "") -> Iterator[v1.Artifact]:
        whole = self._whole()
        if whole:
            title = type_name if "." in type_name else f"tfx.{type_name}"
            text = " AND ".join(filter(None, [f'schema_title="{title}"', f'in_context("{whole}")', condition]))
            yield from self._ask(self._client.list_artifacts, parent=self._store, filter=text, page_size=_PAGE)

    def _touching(self, artifact: str) -> list[v1.Execution]:
        """The executions that made or used an artifact."""
        graph = self._ask(self._client.query_artifact_lineage_subgraph, artifact=artifact, max_hops=1)
        names = {event.execution for event in graph.events if event.artifact == artifact}
        return [execution for execution in graph.executions if execution.name in names]

    def _graph(self, context: str) -> _Graph:
        if context not in self._ended:
            graph = _graph(_id(context), self._ask(self._client.query_context_lineage_subgraph, context=context))
            if not graph.ended:
                return graph
            self._ended[context] = graph
        return self._ended[context]

    def _graph_or_none(self, context: str) -> _Graph | None:
        try:
            return self._graph(context)
        except exceptions.NotFound:
            return None

    def _graphs_of(self, executions: Iterable[v1.Execution]) -> dict[str, _Graph]:
        """Execution -> the run that it belongs to, the newest run first.

        The service does not lead from an execution to its contexts. A run's context is made before its first execution, so
        the newest context that is older than the execution is the run's, as long as no two runs go on at once; from there it
        is searched backwards.
        """
        missing = sorted(executions, key=lambda execution: execution.create_time, reverse=True)
        if not missing:
            return {}
        older = _Older(functools.partial(self._contexts, f'create_time<="{missing[0].create_time.rfc3339()}"'), len(missing))
        known: dict[str, _Graph] = {}
        found: dict[str, _Graph] = {}
        for distance in itertools.count():
            candidates = {execution.name: older.than(execution, distance) for execution in missing}
            new = [name for name in dict.fromkeys(filter(None, candidates.values())) if name not in known]
            known.update(zip(new, self._at_once(self._graph, new), strict=True))
            for execution, context in candidates.items():
                if context and execution in known[context].names:
                    found[execution] = known[context]
            missing = [execution for execution in missing if execution.name not in found and candidates[execution.name]]
            if not missing:
                break
        return dict(sorted(found.items(), key=lambda item: older.position(item[1].run.run_id)))

    def _with_reason(self, run: Run) -> Run:
        """The run with what the service, and the gate's report, tell of why it ended early."""
        failed = run.cut_off()
        if failed is None:
            return run
        told = of_gate_report(failed, run.run_id)
        if not told:
            with self._refusing(), contextlib.suppress(exceptions.NotFound):
                job = self._ask(self._jobs().get_pipeline_job, name=f"{self._parent}/pipelineJobs/{run.run_id}")
                said = [task.error.message for task in job.job_detail.task_details if task.task_name == failed.step]
                reason = next(filter(None, [*said, job.error.message]), "")
                told = {FAILURE: reason, FAILURE_KIND: "Vertex AI"} if reason else {}
        steps = [
            dataclasses.replace(step, parameters={**step.parameters, **told}) if step is failed else step for step in run.executions
        ]
        return Run(run.run_id, tuple(steps))


class _Older:
    """The runs' contexts, the newest first, fetched as far back as they are needed.

    Args:
        contexts: Lists them, given their order and the size of a page.
        count: How many executions they are looked for.
    """

    def __init__(self, contexts: Callable[[str, int], Iterator[v1.Context]], count: int):
        self._size = min(_PAGE, 20 + count)
        self._listed = contexts("create_time desc", self._size)
        self._fetched: list[v1.Context] = []

    def than(self, execution: v1.Execution, distance: int) -> str | None:
        """The context that lies so many before the newest one that is older than an execution; None when there is none."""
        when = execution.create_time
        while True:
            position = distance + bisect.bisect_left(self._fetched, True, key=lambda context: context.create_time <= when)
            if position < len(self._fetched):
                return self._fetched[position].name
            further = list(itertools.islice(self._listed, self._size))
            if not further:
                return None
            self._fetched += further

    def position(self, run_id: str) -> int:
        """How many runs are newer."""
        return next(number for number, context in enumerate(self._fetched) if _id(context.name) == run_id)


# --- What the service's messages mean ---


def _id(name: str) -> str:
    return name.rpartition("/")[2]


def _conditions(fact: str, values: set[str]) -> list[str]:
    """Filters that find every artifact with one of the values, and perhaps others."""
    if len(values) <= _ONE_BY_ONE and all(_PLAIN.fullmatch(value) for value in values):
        return [f'metadata.{fact}.string_value="{value}"' for value in sorted(values)]
    return [""]


def _graph(run_id: str, found: v1.LineageSubgraph) -> _Graph:
    artifacts = {artifact.name: _artifact(artifact) for artifact in found.artifacts}
    puts: dict[tuple[str, bool], dict[str, list[Artifact]]] = {}
    for event in found.events:
        if event.artifact in artifacts:
            keys = puts.setdefault((event.execution, event.type_ in _READ), {})
            keys.setdefault(event.labels.get("key", ""), []).append(artifacts[event.artifact])
    executions = sorted(found.executions, key=lambda execution: execution.create_time)
    jobs = [execution for execution in executions if execution.schema_title == "system.Run"]
    steps = [
        _execution(execution, puts.get((execution.name, True), {}), puts.get((execution.name, False), {}))
        for execution in executions
        if execution.schema_title not in _NO_STEP and execution.display_name != _DAG
    ]
    if not any(step.state in CUT_OFF for step in steps):
        steps += [dataclasses.replace(_execution(job, {}, {}), step=_JOB) for job in jobs if _state(job) in CUT_OFF]
    ended = bool(jobs) and all(_state(job) in (*CUT_OFF, "COMPLETE") for job in jobs)
    return _Graph(Run(run_id, tuple(steps)), frozenset(execution.name for execution in executions), ended)


def _execution(execution: v1.Execution, inputs: Mapping, outputs: Mapping) -> Execution:
    return Execution(
        id=_id(execution.name),
        step=execution.display_name,
        state=_state(execution),
        started=execution.create_time,
        updated=execution.update_time,
        parameters={
            name.removeprefix("input:"): value for name, value in _plain(execution).items() if name.startswith("input:")
        },
        inputs={key: tuple(artifacts) for key, artifacts in inputs.items()},
        outputs={key: tuple(artifacts) for key, artifacts in outputs.items()},
    )


def _state(execution: v1.Execution) -> str:
    return {_States.CANCELLED: "CANCELED", _States.STATE_UNSPECIFIED: "UNKNOWN"}.get(execution.state, execution.state.name)


def _artifact(artifact: v1.Artifact) -> Artifact:
    return Artifact(_id(artifact.name), artifact.schema_title.removeprefix("tfx."), artifact.uri, _facts(artifact))


def _facts(artifact: v1.Artifact) -> dict:
    found = _plain(artifact)
    # A custom property of the same name counts.
    return found | {name.removeprefix(_PREFIX): value for name, value in found.items() if name.startswith(_PREFIX)}


def _plain(node) -> dict:
    """The metadata of a node; a number that is whole becomes one again, which the service keeps as a float."""
    found = json_format.MessageToDict(type(node).pb(node).metadata)
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in found.items()
        if value is not None
    }


def _use(run: Run, value: str) -> Use:
    steps: Sequence[tuple[str, str]] = [(step.state, step.step) for step in run.executions]
    return Use(run.run_id, value, state_of(steps), ("COMPLETE", "Trainer") in steps)
