"""ML Metadata: contexts, executions, artifacts, and the events between them."""

from collections.abc import Iterable
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import field_mask_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.cloud.vertex import listing, names
from tests.cloud.vertex.refusals import Code, Refused, invalid
from tests.cloud.vertex.state import State

_MOST = 1000
"""A lineage subgraph with more artifacts, executions or events is refused."""

_Edge = tuple[str, str, int]
"""Of an event: execution, artifact, and whether it was read or written."""

_KINDS = {"artifacts": types.Artifact, "executions": types.Execution, "contexts": types.Context}


class Metadata:
    """The calls of MetadataService, and what pipelines write.

    Args:
        state: What the fake shares.
    """

    def __init__(self, state: State):
        self._state = state
        self._stores: dict[str, types.MetadataStore] = {}
        self._nodes: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        self._events: dict[_Edge, types.Event] = {}
        self._edges: dict[str, list[_Edge]] = {}
        self._members: dict[str, set[str]] = {}
        self._types: dict[str, pipeline_spec_pb2.ArtifactTypeSchema] = {}

    # --- For pipelines ---

    def put(self, kind: str, location: str, node_id: str = "", **fields):
        """Makes a node, or returns the one of that id.

        Args:
            kind: `artifacts`, `executions` or `contexts`.
            location: A location's name.
            node_id: Its id; a new one without.
            **fields: Its content.
        """
        name = f"{self._store(location)}/{kind}/{node_id or names.new_number()}"
        with self._state.changed:
            if name not in self._nodes[kind]:
                now = self._state.clock.now()
                self._nodes[kind][name] = _KINDS[kind](name=name, create_time=now, update_time=now, **fields)
            return self._nodes[kind][name]

    def new_artifact_name(self, location: str) -> str:
        """The name of an artifact that will be made."""
        return f"{self._store(location)}/artifacts/{names.new_number()}"

    def record(self, artifact: types.Artifact, schema: pipeline_spec_pb2.ArtifactTypeSchema) -> None:
        """Keeps an artifact that has a name, with its type."""
        with self._state.changed:
            artifact.create_time = artifact.update_time = self._state.clock.now()
            self._nodes["artifacts"][artifact.name] = artifact
            self._types[artifact.name] = schema

    def schema_of(self, artifact: types.Artifact) -> pipeline_spec_pb2.ArtifactTypeSchema:
        """An artifact's type, as pipelines write it."""
        plain = pipeline_spec_pb2.ArtifactTypeSchema(schema_title=artifact.schema_title)
        return self._types.get(artifact.name, plain)

    def artifact(self, name: str) -> types.Artifact | None:
        """The artifact of a name, if it is there."""
        return self._nodes["artifacts"].get(name)

    def execution(self, name: str) -> types.Execution | None:
        """The execution of a name, if it is there."""
        return self._nodes["executions"].get(name)

    def artifacts(self, location: str, text: str) -> list[types.Artifact]:
        """The artifacts for which a filter holds, oldest first."""
        with self._state.changed:
            return listing.matches(self._in(location, "artifacts"), text, self._functions())

    def link(self, context: str, nodes: Iterable[str]) -> None:
        """Puts artifacts and executions in a context."""
        with self._state.changed:
            self._members.setdefault(context, set()).update(nodes)

    def add_event(self, execution: str, artifact: str, kind: types.Event.Type, key: str) -> None:
        """Says that an execution read or wrote an artifact, under the name of its input or output."""
        edge = (execution, artifact, int(kind))
        with self._state.changed:
            if edge not in self._events:
                self._events[edge] = types.Event(
                    artifact=artifact, execution=execution, type_=kind, event_time=self._state.clock.now(), labels={"key": key}
                )
                self._edges.setdefault(execution, []).append(edge)
                self._edges.setdefault(artifact, []).append(edge)

    # --- Stores ---

    def create_metadata_store(self, request: types.CreateMetadataStoreRequest):
        name = f"{request.parent}/metadataStores/{request.metadata_store_id or names.new_number()}"
        if name in self._stores:
            raise Refused(Code.ALREADY_EXISTS, f"{name} is there already")

        def create():
            self._stores[name] = types.MetadataStore(name=name, create_time=self._state.clock.now())
            return self._stores[name]

        return self._state.operations.start("CreateMetadataStore", request.parent, create)

    def get_metadata_store(self, request: types.GetMetadataStoreRequest) -> types.MetadataStore:
        if request.name not in self._stores:
            raise Refused(Code.NOT_FOUND, f"{request.name} is not found")
        return self._stores[request.name]

    # --- Nodes ---

    def create_artifact(self, request) -> types.Artifact:
        return self._create("artifacts", request, request.artifact, request.artifact_id)

    def create_execution(self, request) -> types.Execution:
        return self._create("executions", request, request.execution, request.execution_id)

    def create_context(self, request) -> types.Context:
        return self._create("contexts", request, request.context, request.context_id)

    def get_artifact(self, request) -> types.Artifact:
        return self._get("artifacts", request.name)

    def get_execution(self, request) -> types.Execution:
        return self._get("executions", request.name)

    def get_context(self, request) -> types.Context:
        return self._get("contexts", request.name)

    def list_artifacts(self, request) -> types.ListArtifactsResponse:
        found, token = self._list("artifacts", request)
        return types.ListArtifactsResponse(artifacts=found, next_page_token=token)

    def list_executions(self, request) -> types.ListExecutionsResponse:
        found, token = self._list("executions", request)
        return types.ListExecutionsResponse(executions=found, next_page_token=token)

    def list_contexts(self, request) -> types.ListContextsResponse:
        found, token = self._list("contexts", request)
        return types.ListContextsResponse(contexts=found, next_page_token=token)

    def update_artifact(self, request) -> types.Artifact:
        return self._update("artifacts", request, request.artifact)

    def update_execution(self, request) -> types.Execution:
        return self._update("executions", request, request.execution)

    def update_context(self, request) -> types.Context:
        return self._update("contexts", request, request.context)

    def delete_artifact(self, request):
        return self._delete("artifacts", request.name, "DeleteArtifact")

    def delete_execution(self, request):
        return self._delete("executions", request.name, "DeleteExecution")

    def delete_context(self, request):
        return self._delete("contexts", request.name, "DeleteContext")

    # --- Edges ---

    def add_context_artifacts_and_executions(self, request) -> types.AddContextArtifactsAndExecutionsResponse:
        with self._state.changed:
            self._get("contexts", request.context)
            for name in (*request.artifacts, *request.executions):
                self._get(name.split("/")[-2], name)
            self.link(request.context, [*request.artifacts, *request.executions])
        return types.AddContextArtifactsAndExecutionsResponse()

    def add_context_children(self, request) -> types.AddContextChildrenResponse:
        with self._state.changed:
            for name in request.child_contexts:
                child = self._get("contexts", name, copy=False)
                if request.context not in child.parent_contexts:
                    child.parent_contexts.append(self._get("contexts", request.context).name)
        return types.AddContextChildrenResponse()

    def add_execution_events(self, request) -> types.AddExecutionEventsResponse:
        with self._state.changed:
            self._get("executions", request.execution)
            for event in request.events:
                self._get("artifacts", event.artifact)
                self.add_event(request.execution, event.artifact, event.type_, event.labels.get("key", ""))
        return types.AddExecutionEventsResponse()

    # --- Lineage ---

    def query_execution_inputs_and_outputs(self, request) -> types.LineageSubgraph:
        with self._state.changed:
            self._get("executions", request.execution)
            edges = self._edges.get(request.execution, [])
            return self._subgraph({request.execution, *(artifact for _, artifact, _ in edges)}, edges)

    def query_context_lineage_subgraph(self, request) -> types.LineageSubgraph:
        with self._state.changed:
            self._get("contexts", request.context)
            members = self._members.get(request.context, set())
            edges = [edge for edge in self._events if edge[0] in members and edge[1] in members]
            return self._subgraph(members, edges)

    def query_artifact_lineage_subgraph(self, request) -> types.LineageSubgraph:
        if request.max_hops < 0:
            raise invalid(f"max_hops must not be negative and is {request.max_hops}")
        with self._state.changed:
            self._get("artifacts", request.artifact)
            # Zero cannot be told from nothing in this message, and nothing asks for all.
            hops = request.max_hops or len(self._events) + 1
            seen, front, edges = {request.artifact}, {request.artifact}, {}
            while front and hops:
                hops -= 1
                touching = [edge for name in front for edge in self._edges.get(name, [])]
                edges |= dict.fromkeys(touching)
                front = {name for execution, artifact, _ in touching for name in (execution, artifact)} - seen
                seen |= front
            graph = self._subgraph(seen, edges)
            if request.filter:
                graph.artifacts = listing.matches(graph.artifacts, request.filter, self._functions())
            return graph

    # --- Inside ---

    def _store(self, location: str) -> str:
        name = f"{location}/metadataStores/default"
        with self._state.changed:
            self._stores.setdefault(name, types.MetadataStore(name=name, create_time=self._state.clock.now()))
        return name

    def _in(self, location: str, kind: str) -> list:
        return [node for name, node in self._nodes[kind].items() if name.startswith(f"{location}/")]

    def _functions(self):
        return {"in_context": lambda node, context: node.name in self._members.get(names.numbered(context), ())}

    def _create(self, kind: str, request, node, node_id: str):
        with self._state.changed:
            if request.parent not in self._stores:
                raise Refused(Code.NOT_FOUND, f"{request.parent} is not found")
            made = type(node)(node)
            made.name = f"{request.parent}/{kind}/{node_id or names.new_number()}"
            if made.name in self._nodes[kind]:
                raise Refused(Code.ALREADY_EXISTS, f"{made.name} is there already")
            made.create_time = made.update_time = self._state.clock.now()
            self._nodes[kind][made.name] = made
            return type(made)(made)

    def _get(self, kind: str, name: str, copy: bool = True):
        with self._state.changed:
            if name not in self._nodes[kind]:
                raise Refused(Code.NOT_FOUND, f"{name} is not found")
            node = self._nodes[kind][name]
            return type(node)(node) if copy else node

    def _list(self, kind: str, request) -> tuple[list, str]:
        with self._state.changed:
            found, token = listing.page(self._in(request.parent, kind), request, self._functions())
            return [type(node)(node) for node in found], token

    def _update(self, kind: str, request, changed):
        with self._state.changed:
            if changed.name not in self._nodes[kind] and request.allow_missing:
                self._nodes[kind][changed.name] = type(changed)(changed)
            node = self._get(kind, changed.name, copy=False)
            merge(changed, node, request.update_mask)
            node.update_time = self._state.clock.now()
            return type(node)(node)

    def _delete(self, kind: str, name: str, method: str):
        self._get(kind, name)

        def delete():
            self._nodes[kind].pop(name, None)
            for edge in self._edges.pop(name, []):
                self._events.pop(edge, None)
                for other in edge[:2]:
                    self._edges[other] = [each for each in self._edges.get(other, []) if each != edge]

        return self._state.operations.start(method, name, delete)

    def _subgraph(self, seen: set[str], edges: Iterable[_Edge]) -> types.LineageSubgraph:
        found = {kind: [self._nodes[kind][name] for name in seen if name in self._nodes[kind]] for kind in ("artifacts", "executions")}
        found["events"] = [self._events[edge] for edge in edges]
        for kind, nodes in found.items():
            if len(nodes) > _MOST:
                raise Refused(Code.FAILED_PRECONDITION, f"the lineage subgraph has more than {_MOST} {kind}: set max_hops")
        return types.LineageSubgraph(**found)


def merge(source, target, mask) -> None:
    """Takes over the fields of a mask, or without one those that are set."""
    source, target = type(source).pb(source), type(target).pb(target)
    paths = list(mask.paths) if mask else []
    if not paths:
        paths = [field.name for field, _ in source.ListFields()]
    for path in paths:
        if path.split(".")[0] not in target.DESCRIPTOR.fields_by_name:
            raise invalid(f"update_mask: there is no field {path}")
    field_mask_pb2.FieldMask(paths=paths).MergeMessage(source, target, True, True)
