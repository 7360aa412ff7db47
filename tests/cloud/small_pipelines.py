"""Small pipelines in the form that a compiler gives them, whose tasks are a few lines of Python."""

from typing import Any

from tests.cloud.vertex.containers import IMAGE

# Before each script: `inputs` and `outputs` are those of ExecutorInput; `give` writes what the task gives.
_HEAD = """
import json, os, sys
given = json.loads(sys.argv[1])
inputs, outputs = given["inputs"], given["outputs"]
parameters = inputs.get("parameterValues", {})
def give(artifacts=None, **values):
    made = {key: {"artifacts": [{**outputs["artifacts"][key]["artifacts"][0], "metadata": metadata}]}
            for key, metadata in (artifacts or {}).items()}
    with open(outputs["outputFile"], "w") as file:
        json.dump({"artifacts": made, "parameterValues": values}, file)
"""

_KINDS = {str: "STRING", int: "NUMBER_INTEGER", float: "NUMBER_DOUBLE", bool: "BOOLEAN", dict: "STRUCT", list: "LIST"}


def task(script: str = "print('ran')", after: tuple[str, ...] = (), parameters: dict[str, Any] | None = None,
         artifacts: dict[str, tuple[str, str]] | None = None, outputs: dict[str, str] | None = None,
         values: dict[str, type] | None = None, cache: bool = False, **more) -> dict:  # fmt: skip
    """A task that runs a script.

    Args:
        script: The script.
        after: Tasks that come before.
        parameters: By name: a constant; `{"root": NAME}`, `{"from": (TASK, KEY)}` or `{"status": TASK}`.
        artifacts: By name: a task and the name of its output.
        outputs: Artifacts that it gives: by name, the title of the schema.
        values: Parameters that it gives: by name, the type.
        cache: Whether it is served from the cache.
        **more: `condition`, `always`, `retries`, `image`, `environment`, `executor` (instead of a container).
    """
    return {
        "script": script, "after": after, "parameters": parameters or {}, "artifacts": artifacts or {},
        "outputs": outputs or {}, "values": values or {}, "cache": cache, **more,
    }  # fmt: skip


def spec(name: str, tasks: dict[str, dict], parameters: dict[str, dict] | None = None, inner: dict | None = None) -> dict:
    """A compiled pipeline.

    Args:
        name: Its name.
        tasks: Its tasks by name.
        parameters: Its parameters by name, as ParameterSpec.
        inner: Tasks of a DAG that is its task `tfx-dag`, as with an exit handler; they see its parameters too.
    """
    components: dict[str, Any] = {}
    executors: dict[str, Any] = {}
    definitions = {"inputDefinitions": {"parameters": parameters}} if parameters else {}
    root = {"dag": {"tasks": {key: _task(key, each, components, executors) for key, each in tasks.items()}}, **definitions}
    if inner:
        dag = {"dag": {"tasks": {key: _task(key, each, components, executors) for key, each in inner.items()}}}
        components["tfx-dag"] = {**dag, **definitions}
        passed = {key: {"componentInputParameter": key} for key in parameters or {}}
        root["dag"]["tasks"]["tfx-dag"] = {
            "taskInfo": {"name": "tfx-dag"}, "componentRef": {"name": "tfx-dag"}, "inputs": {"parameters": passed},
        }  # fmt: skip
    return {
        "pipelineInfo": {"name": name}, "schemaVersion": "2.1.0", "sdkVersion": "tests", "root": root,
        "components": components, "deploymentSpec": {"executors": executors},
    }  # fmt: skip


def _task(key: str, about: dict, components: dict, executors: dict) -> dict:
    given, defined = {}, {}
    for name, value in about["parameters"].items():
        given[name], defined[name] = _parameter(value)
    components[key] = {
        "executorLabel": key,
        "inputDefinitions": {
            "parameters": defined,
            "artifacts": {name: {"artifactType": {"schemaTitle": "system.Artifact"}} for name in about["artifacts"]},
        },
        "outputDefinitions": {
            "artifacts": {name: {"artifactType": {"schemaTitle": title}} for name, title in about["outputs"].items()},
            "parameters": {name: {"parameterType": _KINDS[kind]} for name, kind in about["values"].items()},
        },
    }
    executors[key] = about.get("executor") or {
        "container": {
            "image": about.get("image", IMAGE), "command": ["python", "-c", _HEAD + about["script"]], "args": ["{{$}}"],
            "env": [{"name": name, "value": value} for name, value in about.get("environment", {}).items()],
        }
    }  # fmt: skip
    policy = {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"} if about.get("always") else {}
    if about.get("condition"):
        policy["condition"] = about["condition"]
    return {
        "taskInfo": {"name": key}, "componentRef": {"name": key}, "dependentTasks": list(about["after"]),
        "inputs": {
            "parameters": given,
            "artifacts": {
                name: {"taskOutputArtifact": {"producerTask": producer, "outputArtifactKey": output}}
                for name, (producer, output) in about["artifacts"].items()
            },
        },
        "cachingOptions": {"enableCache": about["cache"]}, "triggerPolicy": policy,
        **({"retryPolicy": {"maxRetryCount": about["retries"]}} if about.get("retries") else {}),
    }  # fmt: skip


def _parameter(value) -> tuple[dict, dict]:
    if isinstance(value, dict) and "root" in value:
        return {"componentInputParameter": value["root"]}, {"parameterType": value.get("type", "STRING")}
    if isinstance(value, dict) and "from" in value:
        producer, key = value["from"]
        output = {"producerTask": producer, "outputParameterKey": key}
        return {"taskOutputParameter": output}, {"parameterType": value.get("type", "STRING")}
    if isinstance(value, dict) and "status" in value:
        return {"taskFinalStatus": {"producerTask": value["status"]}}, {"parameterType": value.get("type", "STRING")}
    return {"runtimeValue": {"constant": value}}, {"parameterType": _KINDS[type(value)]}
