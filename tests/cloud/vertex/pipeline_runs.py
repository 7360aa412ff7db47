"""A run of a pipeline: its tasks in the order that their inputs ask for, as many at once as are ready."""

import dataclasses
import threading
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2 as pb

from tests.cloud.vertex import conditions, names
from tests.cloud.vertex.metadata import Metadata
from tests.cloud.vertex.pipeline_specs import Spec, in_order, to_python, upstream_of, with_defaults
from tests.cloud.vertex.placeholders import fill_constant
from tests.cloud.vertex.refusals import Code, Refused
from tests.cloud.vertex.state import State

TaskState = types.PipelineTaskDetail.State
PipelineState = types.PipelineState

_FINAL = (TaskState.SUCCEEDED, TaskState.SKIPPED, TaskState.FAILED, TaskState.CANCELLED, TaskState.NOT_TRIGGERED)
_GOOD = (TaskState.SUCCEEDED, TaskState.SKIPPED)

_ALWAYS = pb.PipelineTaskSpec.TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED
_FAST = types.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST


@dataclasses.dataclass
class Values:
    """What goes into a task, or comes out of it.

    Attributes:
        parameters: Values of JSON by name.
        artifacts: Artifacts by name.
    """

    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    artifacts: dict[str, list[types.Artifact]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Task:
    """A task of a run.

    Attributes:
        name: Its name in its DAG.
        path: Its name in the run, with those of the DAGs around it before it.
        spec: As compiled.
        component: What it runs.
        detail: What the job says of it.
        inputs: What it was given; empty until it starts.
        outputs: What it gave; empty until it has succeeded.
    """

    name: str
    path: str
    spec: pb.PipelineTaskSpec
    component: pb.ComponentSpec
    detail: types.PipelineTaskDetail
    inputs: Values = dataclasses.field(default_factory=Values)
    outputs: Values = dataclasses.field(default_factory=Values)

    @property
    def always(self) -> bool:
        """Whether it runs whatever becomes of those before it."""
        return self.spec.trigger_policy.strategy == _ALWAYS


class Cancelled(Exception):
    """The run was cancelled while the task ran."""


class Run:
    """A run of a pipeline.

    Args:
        job: Its job, which it keeps up to date.
        spec: The pipeline.
        state: What the fake shares.
        metadata: Where it is recorded.
        leaves: What does a task that is no DAG: takes the run and the task, and fills in `task.outputs`.
        schedule_time: When its schedule wanted it, as text; without a schedule when it was created.

    Attributes:
        names: What placeholders may ask for.
        pipeline: The name of its context of schema system.Pipeline.
        context: The name of its own, of schema system.PipelineRun.
        cancelled: Set once it is cancelled.
    """

    def __init__(self, job: types.PipelineJob, spec: Spec, state: State, metadata: Metadata, leaves, schedule_time: str):
        self.job, self.spec, self.state, self.metadata, self._leaves = job, spec, state, metadata, leaves
        self.location = "/".join(job.name.split("/")[:4])
        self.id = names.last(job.name)
        self.root = job.runtime_config.gcs_output_directory.rstrip("/")
        self.cancelled = threading.Event()
        self.failing = False
        self.names = {
            "pipeline_job_name": self.id,
            "pipeline_job_resource_name": job.name,
            "pipeline_job_uuid": str(names.new_number()),
            "pipeline_job_create_time_utc": time_text(job.create_time),
            "pipeline_job_schedule_time_utc": schedule_time,
            "pipeline_root": self.root,
        }
        self.pipeline, self.context = self._contexts()

    @property
    def fails_fast(self) -> bool:
        """Whether nothing new starts once something has failed."""
        return self.job.runtime_config.failure_policy == _FAST

    def run(self) -> None:
        """Runs it to its end, and says in its job how it ended."""
        self._update(state=PipelineState.PIPELINE_STATE_RUNNING, start_time=self.state.clock.now())
        parameters = self.spec.parameters(given_parameters(self.job))
        execution = self.metadata.put(
            "executions", self.location, f"{self.id}-run", display_name=self.id, schema_title="system.Run",
            schema_version="0.0.1", state=types.Execution.State.RUNNING,
            metadata={f"input:{name}": value for name, value in parameters.items()},
        )  # fmt: skip
        for context in (self.context, self.pipeline):
            self.metadata.link(context, [execution.name])
        dag = Dag(self, "", self.spec.root, Values(fill_constant(parameters, self.names)), 0)
        dag.run()
        failed = dag.failed()
        with self.state.changed:
            ended = {"end_time": self.state.clock.now()}
            if failed:
                where = f"(project_id = {names.NUMBER}, job_id = {self.names['pipeline_job_uuid']})"
                message = f"{_failure(failed)}; Job {where} is failed due to the above error."
                ended["error"] = {"code": Code.FAILED_PRECONDITION.value[0], "message": message}
                execution.state, state = types.Execution.State.FAILED, PipelineState.PIPELINE_STATE_FAILED
            elif self.cancelled.is_set():
                ended["error"] = {"code": Code.CANCELLED.value[0], "message": "The pipeline job was cancelled."}
                execution.state, state = types.Execution.State.CANCELLED, PipelineState.PIPELINE_STATE_CANCELLED
            else:
                execution.state, state = types.Execution.State.COMPLETE, PipelineState.PIPELINE_STATE_SUCCEEDED
            self._update(state=state, **ended)

    def cancel(self) -> None:
        """Ends what runs; only tasks that always run still start."""
        self.cancelled.set()
        self._leaves.cancel(self)

    def do_leaf(self, task: Task) -> None:
        """Does a task that is no DAG."""
        self._leaves.do(self, task)

    def new_detail(self, task: str, path: str, parent: int) -> types.PipelineTaskDetail:
        """Another task in what the job says of its tasks."""
        with self.state.changed:
            now = self.state.clock.now()
            details = self.job.job_detail.task_details
            details.append(
                types.PipelineTaskDetail(
                    task_id=names.new_number(), task_name=task, task_unique_name=path, parent_task_id=parent, create_time=now,
                    state=TaskState.PENDING,
                )  # fmt: skip
            )
            return details[-1]

    def set_state(self, detail: types.PipelineTaskDetail, state: TaskState, error: Refused | None = None) -> None:
        """Says that a task is in another state."""
        with self.state.changed:
            now = self.state.clock.now()
            detail.state = state
            status = {"update_time": now, "state": state}
            if error:
                detail.error = status["error"] = {"code": error.code.value[0], "message": str(error)}
            detail.pipeline_task_status.append(types.PipelineTaskDetail.PipelineTaskStatus(status))
            if state == TaskState.RUNNING:
                detail.start_time = now
            if state in _FINAL:
                detail.end_time = now
            self.job.update_time = now
            self.state.changed.notify_all()

    def _update(self, **fields) -> None:
        with self.state.changed:
            for name, value in fields.items():
                setattr(self.job, name, value)
            self.job.update_time = self.state.clock.now()
            self.state.changed.notify_all()

    def _contexts(self) -> tuple[str, str]:
        pipeline = self.metadata.put(
            "contexts", self.location, self.spec.name, display_name=self.spec.name, schema_title="system.Pipeline",
            schema_version="0.0.1",
        )  # fmt: skip
        run = self.metadata.put(
            "contexts", self.location, self.id, display_name=self.id, schema_title="system.PipelineRun",
            schema_version="0.0.1", parent_contexts=[pipeline.name],
        )  # fmt: skip
        self.job.job_detail = {"pipeline_context": pipeline, "pipeline_run_context": run}
        return pipeline.name, run.name


class Dag:
    """A DAG of a run.

    Args:
        run: The run.
        path: The DAG's name in the run, empty for the root.
        component: The component that it is.
        inputs: What it was given.
        task_id: The task that it is, 0 for the root.
    """

    def __init__(self, run: Run, path: str, component: pb.ComponentSpec, inputs: Values, task_id: int):
        self._run, self._path, self._component, self._inputs = run, path, component, inputs
        self.tasks: dict[str, Task] = {}
        for name in in_order(component.dag.tasks):
            spec = component.dag.tasks[name]
            full = f"{path}.{name}" if path else name
            target = run.spec.components[spec.component_ref.name]
            self.tasks[name] = Task(name, full, spec, target, run.new_detail(name, full, task_id))

    def run(self) -> None:
        """Runs its tasks until each is in a final state."""
        changed = self._run.state.changed
        started: set[str] = set()
        with changed:
            while not all(task.detail.state in _FINAL for task in self.tasks.values()):
                moved = False
                for task in self.tasks.values():
                    if task.name not in started and self._is_ready(task):
                        started.add(task.name)
                        moved = True
                        self._begin(task)
                if not moved:
                    changed.wait()

    def failed(self) -> list[str]:
        """The names of its tasks that failed."""
        return sorted(task.name for task in self.tasks.values() if task.detail.state == TaskState.FAILED)

    def outputs(self) -> Values:
        """What it gives, as far as its tasks gave it."""
        found = Values()
        for key, wanted in self._component.dag.outputs.artifacts.items():
            for selector in wanted.artifact_selectors:
                made = self.tasks[selector.producer_subtask].outputs.artifacts.get(selector.output_artifact_key, [])
                found.artifacts.setdefault(key, []).extend(made)
        for key, wanted in self._component.dag.outputs.parameters.items():
            selectors = [wanted.value_from_parameter] if wanted.HasField("value_from_parameter") else []
            for selector in (*selectors, *wanted.value_from_oneof.parameter_selectors):
                made = self.tasks[selector.producer_subtask].outputs.parameters
                if selector.output_parameter_key in made:
                    found.parameters[key] = made[selector.output_parameter_key]
        return found

    def _is_ready(self, task: Task) -> bool:
        return all(self.tasks[name].detail.state in _FINAL for name in upstream_of(task.spec))

    def _begin(self, task: Task) -> None:
        """Starts a task in a thread of its own, or says why it does not start."""
        before = [self.tasks[name].detail.state for name in upstream_of(task.spec)]
        if not task.always:
            if self._run.cancelled.is_set():
                return self._run.set_state(task.detail, TaskState.CANCELLED)
            if not all(state in _GOOD for state in before) or (self._run.failing and self._run.fails_fast):
                return self._run.set_state(task.detail, TaskState.NOT_TRIGGERED)
        self._run.state.in_thread(f"task {task.path} of {self._run.id}", lambda: self._do(task))
        return None

    def _do(self, task: Task) -> None:
        try:
            task.inputs = self._inputs_of(task)
            if self._is_off(task):
                return self._run.set_state(task.detail, TaskState.NOT_TRIGGERED)
            self._run.set_state(task.detail, TaskState.RUNNING)
            if task.component.HasField("dag"):
                return self._do_dag(task)
            self._run.do_leaf(task)
        except Cancelled:
            return self._run.set_state(task.detail, TaskState.CANCELLED)
        except Refused as refused:
            self._run.failing = True
            return self._run.set_state(task.detail, TaskState.FAILED, refused)
        except Exception as error:  # a mistake of the fake: the job ends, and says so
            self._run.failing = True
            self._run.set_state(task.detail, TaskState.FAILED, Refused(Code.INTERNAL, f"the fake failed: {error!r}"))
            raise
        return None

    def _do_dag(self, task: Task) -> None:
        dag = Dag(self._run, task.path, task.component, task.inputs, task.detail.task_id)
        dag.run()
        task.outputs = dag.outputs()
        if failed := dag.failed():
            self._run.set_state(task.detail, TaskState.FAILED, Refused(Code.FAILED_PRECONDITION, _failure(failed)))
        elif self._run.cancelled.is_set():
            self._run.set_state(task.detail, TaskState.CANCELLED)
        else:
            self._run.set_state(task.detail, TaskState.SUCCEEDED)

    def _is_off(self, task: Task) -> bool:
        condition = task.spec.trigger_policy.condition
        if not condition:
            return False
        artifacts = {
            key: {"artifacts": [{"name": made.name, "uri": made.uri, "metadata": dict(made.metadata)} for made in found]}
            for key, found in task.inputs.artifacts.items()
        }
        inputs = {"parameter_values": task.inputs.parameters, "artifacts": artifacts}
        # What another language of the same compiler calls them.
        inputs["parameters"] = inputs["parameter_values"]
        return not conditions.holds(condition, inputs)

    def _inputs_of(self, task: Task) -> Values:
        inputs = Values()
        for key, given in task.spec.inputs.parameters.items():
            found = self._parameter(task, given, task.component.input_definitions.parameters[key].parameter_type)
            if found is not None:
                inputs.parameters[key] = found
        inputs.parameters = with_defaults(inputs.parameters, task.component.input_definitions, f"task {task.path!r}")
        for key, given in task.spec.inputs.artifacts.items():
            if given.HasField("task_output_artifact"):
                selector = given.task_output_artifact
                outputs = self.tasks[selector.producer_task].outputs
                inputs.artifacts[key] = list(outputs.artifacts.get(selector.output_artifact_key, []))
            else:
                inputs.artifacts[key] = list(self._inputs.artifacts.get(given.component_input_artifact, []))
        return inputs

    def _parameter(self, task: Task, given: pb.TaskInputsSpec.InputParameterSpec, kind: int):
        """The value of a parameter, None if there is none."""
        placeholders = {**self._run.names, "pipeline_task_name": task.name}
        if given.HasField("runtime_value"):
            return fill_constant(to_python(given.runtime_value.constant), placeholders)
        if given.HasField("task_output_parameter"):
            selector = given.task_output_parameter
            return self.tasks[selector.producer_task].outputs.parameters.get(selector.output_parameter_key)
        if given.HasField("task_final_status"):
            status = self._final_status(self.tasks[given.task_final_status.producer_task])
            return json_format.MessageToJson(status) if kind == pb.ParameterType.STRING else json_format.MessageToDict(status)
        return self._inputs.parameters.get(given.component_input_parameter)

    def _final_status(self, task: Task) -> pb.PipelineTaskFinalStatus:
        status = pb.PipelineTaskFinalStatus(
            state=TaskState(task.detail.state).name,
            pipeline_job_resource_name=self._run.job.name,
            pipeline_task_name=task.name,
        )
        if task.detail.error.code:
            status.error.code, status.error.message = task.detail.error.code, task.detail.error.message
        return status


def _failure(failed: list[str]) -> str:
    return f"The DAG failed because some tasks failed. The failed tasks are: [{', '.join(failed)}]."


def given_parameters(job: types.PipelineJob) -> dict[str, Any]:
    """The parameters with which a job was submitted."""
    given = types.PipelineJob.pb(job).runtime_config.parameter_values
    return {name: to_python(value) for name, value in given.items()}


def time_text(moment) -> str:
    """A moment as placeholders give it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
