"""A compiled pipeline, parsed and checked as Vertex does it when a job is submitted."""

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2 as pb

from tests.cloud.vertex.refusals import invalid, unsupported

_Type = pb.ParameterType
_NUMBERS = (_Type.NUMBER_INTEGER, _Type.NUMBER_DOUBLE)

_TYPES = {
    _Type.NUMBER_INTEGER: (int, float), _Type.NUMBER_DOUBLE: (int, float), _Type.STRING: (str,),
    _Type.BOOLEAN: (bool,), _Type.LIST: (list,), _Type.STRUCT: (dict,),
}  # fmt: skip


class Spec:
    """A pipeline that can run.

    Args:
        spec: `pipelineSpec` of a job, as JSON.

    Attributes:
        name: The pipeline's name.
        root: Its root component.
        components: The others.
        executors: By label.

    Raises:
        Refused: It cannot; says where and why.
    """

    def __init__(self, spec: dict[str, Any]):
        parsed = _parse(spec, pb.PipelineSpec(), "pipeline_spec")
        deployment = json_format.MessageToDict(parsed.deployment_spec)
        config = _parse(deployment, pb.PipelineDeploymentConfig(), "pipeline_spec.deployment_spec")
        self.name = parsed.pipeline_info.name
        self.root = parsed.root
        self.components = dict(parsed.components)
        self.executors = dict(config.executors)
        if not re.fullmatch(r"2\.1\.\d+", parsed.schema_version):
            raise unsupported(f"pipeline spec {parsed.schema_version!r}, only 2.1")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,127}", self.name):
            raise invalid(f"pipeline_info.name {self.name!r} is not lower-case letters, digits and -, at most 128")
        _Check(self).dag("root", self.root)

    def parameters(self, given: dict[str, Any]) -> dict[str, Any]:
        """The parameters of a job: what was given, and defaults.

        Raises:
            Refused: One is missing, unknown, or of another type.
        """
        return with_defaults(given, self.root.input_definitions, "the pipeline")


def with_defaults(given: dict[str, Any], definitions: pb.ComponentInputsSpec, where: str) -> dict[str, Any]:
    """The parameters of a component: what was given, and defaults.

    Raises:
        Refused: One is missing, unknown, or of another type.
    """
    for name in given:
        if name not in definitions.parameters:
            raise invalid(f"{where} has no parameter {name!r}; it has {', '.join(sorted(definitions.parameters)) or 'none'}")
    values = dict(given)
    for name, about in definitions.parameters.items():
        if name not in values and about.HasField("default_value"):
            values[name] = to_python(about.default_value)
        if name in values:
            values[name] = _typed(values[name], about.parameter_type, f"{where}: the parameter {name!r}")
        elif not about.is_optional:
            raise invalid(f"{where}: the parameter {name!r} has no value and no default")
    return values


def to_python(value: struct_pb2.Value) -> Any:
    """A value of JSON."""
    return json_format.MessageToDict(value)


def _typed(value: Any, kind: int, what: str) -> Any:
    wanted = _TYPES.get(kind)
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and kind in _NUMBERS)):
        raise invalid(f"{what} must be {_Type.ParameterTypeEnum.Name(kind)} and is {value!r}")
    if kind == _Type.NUMBER_INTEGER:
        if float(value) != int(value):
            raise invalid(f"{what} must be NUMBER_INTEGER and is {value!r}")
        return int(value)
    return value


def title_of(schema: pb.ArtifactTypeSchema) -> str:
    """The title of a type of artifact."""
    if schema.schema_title:
        return schema.schema_title
    found = re.search(r"^title:\s*(\S+)", schema.instance_schema, re.MULTILINE)
    return found[1] if found else "system.Artifact"


def _parse(content: dict[str, Any], message, where: str):
    try:
        return json_format.ParseDict(content, message)
    except json_format.ParseError as error:
        raise invalid(f"{where} is not valid: {error}") from error


class _Check:
    """Looks for names that lead nowhere, and for what the fake does not do."""

    def __init__(self, spec: Spec):
        self._spec = spec

    def dag(self, name: str, component: pb.ComponentSpec) -> None:
        tasks = component.dag.tasks
        if not tasks:
            raise invalid(f"component {name!r} has no tasks")
        for key, task in tasks.items():
            where = f"task {key!r} of {name!r}"
            target = self._spec.components.get(task.component_ref.name)
            if target is None:
                raise invalid(f"{where} refers to the component {task.component_ref.name!r}, which there is not")
            if task.HasField("artifact_iterator") or task.HasField("parameter_iterator"):
                raise unsupported(f"iterator ({where})")
            self._inputs(where, task, tasks, component, target)
            if target.HasField("dag"):
                self.dag(task.component_ref.name, target)
            else:
                self._executor(where, target)
        in_order(tasks)

    def _inputs(self, where, task, tasks, outer, target) -> None:
        for producer in upstream_of(task):
            if producer not in tasks:
                raise invalid(f"{where} depends on the task {producer!r}, which there is not")
        for key, given in task.inputs.parameters.items():
            if key not in target.input_definitions.parameters:
                raise invalid(f"{where} gives the parameter {key!r}, which its component does not define")
            wanted = given.component_input_parameter
            if wanted and wanted not in outer.input_definitions.parameters:
                raise invalid(
                    f"{where} takes the parameter {wanted!r} from the component around it, which does not define it as input"
                )
            if given.parameter_expression_selector:
                raise unsupported(f"parameterExpressionSelector ({where})")
            if given.HasField("task_output_parameter"):
                selector = given.task_output_parameter
                producer = self._spec.components[tasks[selector.producer_task].component_ref.name]
                if selector.output_parameter_key not in producer.output_definitions.parameters:
                    raise invalid(f"{where} takes a parameter that {selector.producer_task!r} does not give")
        for key, given in task.inputs.artifacts.items():
            if key not in target.input_definitions.artifacts:
                raise invalid(f"{where} gives the artifact {key!r}, which its component does not define")
            wanted = given.component_input_artifact
            if wanted and wanted not in outer.input_definitions.artifacts:
                raise invalid(f"{where} takes the artifact {wanted!r} from the component around it, which does not define it")

    def _executor(self, where: str, component: pb.ComponentSpec) -> None:
        executor = self._spec.executors.get(component.executor_label)
        if executor is None:
            raise invalid(f"{where} has the executor {component.executor_label!r}, which there is not")
        if executor.HasField("custom_job"):
            raise unsupported(f"executor customJob ({where})")
        if executor.HasField("container"):
            if not executor.container.image:
                raise invalid(f"{where} has no image")
            for word in (*executor.container.command, *executor.container.args):
                if re.match(r'\{"(IfPresent|Concat)"', word):
                    raise unsupported(f"placeholder {word[:12]}... ({where})")


def in_order(tasks: Mapping[str, pb.PipelineTaskSpec]) -> list[str]:
    """The names of tasks, each after those that come before it, otherwise by name.

    Raises:
        Refused: They depend on each other in a circle.
    """
    order: list[str] = []
    while len(order) < len(tasks):
        ready = sorted(name for name, task in tasks.items() if name not in order and upstream_of(task) <= set(order))
        if not ready:
            circle = ", ".join(sorted(set(tasks) - set(order)))
            raise invalid(f"the tasks depend on each other in a circle: {circle}")
        order += ready
    return order


def upstream_of(task: pb.PipelineTaskSpec) -> set[str]:
    """The tasks that come before one."""
    found = set(task.dependent_tasks)
    for given in task.inputs.parameters.values():
        for field in ("task_output_parameter", "task_final_status"):
            if given.HasField(field):
                found.add(getattr(given, field).producer_task)
    for given in task.inputs.artifacts.values():
        if given.HasField("task_output_artifact"):
            found.add(given.task_output_artifact.producer_task)
    return found
