"""Tasks that are no DAGs: containers with their cache, importers and resolvers."""

import json
import pathlib
import threading
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2 as pb

from tests.cloud.vertex import names
from tests.cloud.vertex.containers import Container, Containers
from tests.cloud.vertex.metadata import Metadata
from tests.cloud.vertex.pipeline_runs import Cancelled, Run, Task, TaskState, Values
from tests.cloud.vertex.pipeline_specs import title_of, to_python
from tests.cloud.vertex.placeholders import fill, fill_constant
from tests.cloud.vertex.refusals import Code, Refused, invalid
from tests.cloud.vertex.state import State

Executed = types.Execution.State

_GRACE_SECONDS = 5.0


class Leaves:
    """Does them.

    Args:
        state: What the fake shares.
        metadata: Where they are recorded.
        containers: What runs them.
    """

    def __init__(self, state: State, metadata: Metadata, containers: Containers):
        self._state, self._metadata, self._containers = state, metadata, containers
        self._cache: dict[tuple[str, str], tuple[str, Values]] = {}
        self._running: dict[str, set[Container]] = {}

    def do(self, run: Run, task: Task) -> None:
        """Does a task: fills in its outputs, and says in its detail how it ended.

        Raises:
            Refused: It failed.
            Cancelled: The run was cancelled.
        """
        executor = run.spec.executors[task.component.executor_label]
        if executor.HasField("container"):
            self._do_container(run, task, executor.container)
        elif executor.HasField("importer"):
            self._import(run, task, executor.importer)
            self._succeed(run, task)
        else:
            self._resolve(run, task, executor.resolver)
            self._succeed(run, task)

    def cancel(self, run: Run) -> None:
        """Ends the containers of a run."""
        with self._state.changed:
            running = list(self._running.get(run.job.name, ()))
        for container in running:
            threading.Thread(target=container.stop, args=(_GRACE_SECONDS,), daemon=True).start()

    def log_file(self, run_id: str, task: str) -> pathlib.Path:
        """Where the containers of a task write."""
        return self._state.folder / "pipelineJobs" / run_id / f"{task}.log"

    # --- Containers ---

    def _do_container(self, run: Run, task: Task, container: pb.PipelineDeploymentConfig.PipelineContainerSpec) -> None:
        number = names.new_number()
        folder = f"{run.root}/{names.NUMBER}/{run.id}/{task.name}_{number}"
        placeholders = {**run.names, "pipeline_task_name": task.name, "pipeline_task_uuid": str(number)}
        executor_input = self._executor_input(run, task, folder)
        if container.lifecycle.HasField("pre_cache_check"):
            driver = container.lifecycle.pre_cache_check
            self._start(run, task, container, driver.command, driver.args, placeholders, executor_input)
            self._read_driver(executor_input)
        key = self._key(run, task, container, executor_input)
        if task.spec.caching_options.enable_cache and self._reuse(run, task, key):
            return
        execution = self._record(run, task, Executed.RUNNING, executor_input["inputs"].get("parameterValues", {}))
        try:
            for attempt in range(task.spec.retry_policy.max_retry_count + 1):
                try:
                    self._start(run, task, container, container.command, container.args, placeholders, executor_input)
                    break
                except Refused as refused:
                    if attempt == task.spec.retry_policy.max_retry_count or run.cancelled.is_set():
                        raise
                    run.set_state(task.detail, TaskState.PENDING, refused)
                    run.set_state(task.detail, TaskState.RUNNING)
            task.outputs = self._read_outputs(run, task, executor_input)
        except (Refused, Cancelled) as ended:
            with self._state.changed:
                execution.state = Executed.CANCELLED if isinstance(ended, Cancelled) else Executed.FAILED
                task.detail.execution = execution
            raise
        with self._state.changed:
            execution.state = Executed.COMPLETE
            execution.metadata = {
                **dict(execution.metadata), **{f"output:{name}": value for name, value in task.outputs.parameters.items()}
            }  # fmt: skip
            self._write_outputs(run, task, execution)
            self._cache[run.location, key] = execution.name, task.outputs
        run.set_state(task.detail, TaskState.SUCCEEDED)

    def _start(self, run: Run, task: Task, spec, command, arguments, placeholders, executor_input) -> None:
        """Runs a container to its end.

        Raises:
            Refused: It ended with another status than 0.
            Cancelled: The run was cancelled.
        """
        if not self._containers.has(spec.image):
            raise invalid(f"Failed to pull the image {spec.image!r}: not found.")
        words = [[fill(word, placeholders, executor_input) for word in part] for part in (command, arguments)]
        environment = {each.name: fill(each.value, placeholders, executor_input) for each in spec.env}
        if run.cancelled.is_set() and not task.always:
            raise Cancelled
        started = self._containers.start(spec.image, *words, environment, self.log_file(run.id, task.path))
        with self._state.changed:
            # A task that always runs is not ended by what came before it.
            if not task.always:
                self._running.setdefault(run.job.name, set()).add(started)
        if run.cancelled.is_set() and not task.always:
            started.stop(_GRACE_SECONDS)
        status = started.wait()
        with self._state.changed:
            self._running.get(run.job.name, set()).discard(started)
        if run.cancelled.is_set() and not task.always:
            raise Cancelled
        if status:
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"The replica workerpool0-0 exited with a non-zero status of {status}. Termination reason: Error. "
                f"To find out more about why your job exited please check the logs: {self.log_file(run.id, task.path)}",
            )

    def _executor_input(self, run: Run, task: Task, folder: str) -> dict[str, Any]:
        local = self._state.to_local(folder)
        self._state.make_folder(local)
        definitions = task.component.output_definitions
        outputs: dict[str, Any] = {"outputFile": f"{local}/executor_output.json"}
        for key, about in definitions.artifacts.items():
            if about.artifact_type.instance_schema:
                # TFX's artifacts are folders, and its components take them to be there, as under any of its runners.
                self._state.make_folder(f"{local}/{key}")
            artifact = {
                "name": self._metadata.new_artifact_name(run.location), "uri": f"{local}/{key}",
                "type": json_format.MessageToDict(about.artifact_type), "metadata": json_format.MessageToDict(about.metadata),
            }  # fmt: skip
            outputs.setdefault("artifacts", {})[key] = {"artifacts": [artifact]}
        for key in definitions.parameters:
            outputs.setdefault("parameters", {})[key] = {"outputFile": f"{local}/{key}"}
        inputs: dict[str, Any] = {"parameterValues": dict(task.inputs.parameters)}
        inputs["artifacts"] = {
            key: {"artifacts": [self._runtime_artifact(artifact) for artifact in found]}
            for key, found in task.inputs.artifacts.items()
        }
        content = {"inputs": inputs, "outputs": outputs}
        json_format.ParseDict(content, pb.ExecutorInput())  # as the containers will
        return content

    def _runtime_artifact(self, artifact: types.Artifact) -> dict[str, Any]:
        return {
            "name": artifact.name,
            "uri": self._state.to_local(artifact.uri),
            "type": json_format.MessageToDict(self._metadata.schema_of(artifact)),
            "metadata": _metadata_of(artifact),
        }

    def _read_driver(self, executor_input: dict[str, Any]) -> None:
        """Takes over what the driver changed."""
        said = json.loads(self._state.read(executor_input["outputs"]["outputFile"]) or "{}")
        executor_input["inputs"]["parameterValues"].update(said.get("parameterValues", {}))
        for key, found in said.get("artifacts", {}).items():
            executor_input["outputs"]["artifacts"][key]["artifacts"][0]["metadata"] = found["artifacts"][0].get("metadata", {})

    def _read_outputs(self, run: Run, task: Task, executor_input: dict[str, Any]) -> Values:
        text = self._state.read(executor_input["outputs"]["outputFile"])
        said = pb.ExecutorOutput()
        if text is not None:
            try:
                json_format.Parse(text, said)
            except json_format.ParseError as error:
                raise invalid(f"task {task.path!r} wrote an output that is none: {error}") from error
        made = Values({key: to_python(value) for key, value in said.parameter_values.items()})
        for key, about in task.component.output_definitions.parameters.items():
            text = self._state.read(executor_input["outputs"]["parameters"][key]["outputFile"])
            if key not in made.parameters and text is not None:
                made.parameters[key] = text if about.parameter_type == pb.ParameterType.STRING else json.loads(text)
        for key, about in task.component.output_definitions.artifacts.items():
            content = dict(executor_input["outputs"]["artifacts"][key]["artifacts"][0])
            for other in said.artifacts[key].artifacts[:1] if key in said.artifacts else []:
                content["uri"] = other.uri or content["uri"]
                content["metadata"] = {**content["metadata"], **json_format.MessageToDict(other.metadata)}
            uri = self._state.to_uri(content["uri"], run.root)
            artifact = self._new_artifact(content["name"], key, uri, about.artifact_type, content["metadata"])
            made.artifacts[key] = [artifact]
        return made

    def _new_artifact(self, name: str, key: str, uri: str, schema, metadata: dict[str, Any]) -> types.Artifact:
        return types.Artifact(
            name=name, display_name=key, uri=uri, schema_title=title_of(schema),
            schema_version=schema.schema_version or "0.0.1", state=types.Artifact.State.LIVE, metadata=metadata,
        )  # fmt: skip

    # --- Cache ---

    def _key(self, run: Run, task: Task, container, executor_input: dict[str, Any]) -> str:
        """What makes two executions of one pipeline's tasks the same."""
        content = {
            "pipeline": run.spec.name,
            "container": json_format.MessageToDict(container),
            "outputs": json_format.MessageToDict(task.component.output_definitions),
            "parameters": executor_input["inputs"]["parameterValues"],
            "artifacts": {key: [artifact.name for artifact in found] for key, found in task.inputs.artifacts.items()},
        }
        return json.dumps(content, sort_keys=True)

    def _reuse(self, run: Run, task: Task, key: str) -> bool:
        """Takes the outputs of an execution of the same, if it and they are still there; says whether it did."""
        with self._state.changed:
            name, outputs = self._cache.get((run.location, key), ("", Values()))
            artifacts = [artifact for found in outputs.artifacts.values() for artifact in found]
            if not self._metadata.execution(name) or not all(self._metadata.artifact(each.name) for each in artifacts):
                return False
            task.outputs = Values(
                dict(outputs.parameters),
                {key: [self._metadata.artifact(each.name) for each in found] for key, found in outputs.artifacts.items()},
            )
            execution = self._record(run, task, Executed.CACHED, task.inputs.parameters)
            self._write_outputs(run, task, execution)
        run.set_state(task.detail, TaskState.SKIPPED)
        return True

    # --- Importers and resolvers ---

    def _import(self, run: Run, task: Task, importer: pb.PipelineDeploymentConfig.ImporterSpec) -> None:
        placeholders = {**run.names, "pipeline_task_name": task.name}
        if importer.artifact_uri.runtime_parameter:
            uri = task.inputs.parameters[importer.artifact_uri.runtime_parameter]
        else:
            uri = fill_constant(to_python(importer.artifact_uri.constant), placeholders)
        metadata = fill_constant(json_format.MessageToDict(importer.metadata), placeholders)
        [key] = task.component.output_definitions.artifacts
        title = title_of(importer.type_schema)
        with self._state.changed:
            known = [] if importer.reimport else self._metadata.artifacts(run.location, f'schema_title="{title}"')
            same = [each for each in known if each.uri == uri and _metadata_of(each) == metadata]
            if not same:
                name = self._metadata.new_artifact_name(run.location)
                same = [self._new_artifact(name, key, uri, importer.type_schema, metadata)]
                self._metadata.record(same[0], importer.type_schema)
            task.outputs.artifacts[key] = [same[-1]]

    def _resolve(self, run: Run, task: Task, resolver: pb.PipelineDeploymentConfig.ResolverSpec) -> None:
        inputs = {
            key: {"artifacts": [self._runtime_artifact(artifact) for artifact in found]}
            for key, found in task.inputs.artifacts.items()
        }
        executor_input = {"inputs": {"parameterValues": task.inputs.parameters, "artifacts": inputs}}
        placeholders = {**run.names, "pipeline_task_name": task.name}
        for key, query in resolver.output_artifact_queries.items():
            if any(not found for found in task.inputs.artifacts.values()):
                task.outputs.artifacts[key] = []  # what it depends on was not found either
                continue
            found = self._metadata.artifacts(run.location, fill(query.filter, placeholders, executor_input))
            task.outputs.artifacts[key] = found[::-1][: query.limit or 1]

    def _succeed(self, run: Run, task: Task) -> None:
        with self._state.changed:
            execution = self._record(run, task, Executed.COMPLETE, task.inputs.parameters)
            self._write_outputs(run, task, execution)
        run.set_state(task.detail, TaskState.SUCCEEDED)

    # --- ML Metadata ---

    def _record(self, run: Run, task: Task, state: Executed, parameters: dict[str, Any]) -> types.Execution:
        """Records an execution with its inputs."""
        with self._state.changed:
            execution = self._metadata.put(
                "executions", run.location, display_name=task.name, schema_title="system.ContainerExecution",
                schema_version="0.0.1", state=state, metadata={f"input:{name}": value for name, value in parameters.items()},
            )  # fmt: skip
            self._metadata.link(run.context, [execution.name])
            self._metadata.link(run.pipeline, [execution.name])
            self._events(run, execution, task.inputs, types.Event.Type.INPUT)
            task.detail.inputs = _lists(task.inputs)
            task.detail.execution = execution
            return execution

    def _write_outputs(self, run: Run, task: Task, execution: types.Execution) -> None:
        """Records the outputs of an execution."""
        for key, found in task.outputs.artifacts.items():
            for artifact in found:
                if not self._metadata.artifact(artifact.name):
                    self._metadata.record(artifact, task.component.output_definitions.artifacts[key].artifact_type)
        self._events(run, execution, task.outputs, types.Event.Type.OUTPUT)
        task.detail.outputs = _lists(task.outputs)
        task.detail.execution = execution

    def _events(self, run: Run, execution: types.Execution, values: Values, kind: types.Event.Type) -> None:
        for key, found in values.artifacts.items():
            for artifact in found:
                self._metadata.add_event(execution.name, artifact.name, kind, key)
                self._metadata.link(run.context, [artifact.name])
                self._metadata.link(run.pipeline, [artifact.name])


def _metadata_of(artifact: types.Artifact) -> dict[str, Any]:
    return json_format.MessageToDict(types.Artifact.pb(artifact).metadata)


def _lists(values: Values) -> dict[str, Any]:
    return {key: {"artifacts": found} for key, found in values.artifacts.items()}
