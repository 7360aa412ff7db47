"""Placeholders of a compiled pipeline: `{{$.pipeline_job_name}}` in constants, `{{$.inputs...}}` in command lines."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cloud.vertex.refusals import invalid

_PLACEHOLDER = re.compile(r"\{\{\$(.*?)\}\}")
_PARAMETER = re.compile(r"\.inputs\.parameters\[['\"](.+?)['\"]\]")
_FILE = re.compile(r"\.outputs\.parameters\[['\"](.+?)['\"]\]\.output_file")
_ARTIFACT = re.compile(
    r"\.(inputs|outputs)\.artifacts\[['\"](.+?)['\"]\]\.(uri|path|name|metadata\[['\"](.+?)['\"]\]|metadata)"
)


def fill_constant(value: Any, names: Mapping[str, str]) -> Any:
    """A constant with what the run knows of itself put in, at any depth; other placeholders stay."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: names.get(found[1].removeprefix("."), found[0]), value)
    if isinstance(value, list):
        return [fill_constant(part, names) for part in value]
    if isinstance(value, dict):
        return {key: fill_constant(part, names) for key, part in value.items()}
    return value


def fill(text: str, names: Mapping[str, str], executor_input: dict[str, Any]) -> str:
    """A word of a command line, or a query, with everything put in.

    Args:
        text: The word.
        names: What the run knows of itself.
        executor_input: ExecutorInput as JSON.

    Raises:
        Refused: A placeholder names what there is not.
    """
    return _PLACEHOLDER.sub(lambda found: _value(found[1], names, executor_input), text)


def _value(path: str, names: Mapping[str, str], executor_input: dict[str, Any]) -> str:
    if path == "":
        return json.dumps(executor_input)
    if path == ".json_escape[1]":
        return json.dumps(json.dumps(executor_input))[1:-1]
    if path.removeprefix(".") in names:
        return names[path.removeprefix(".")]
    if path in (".outputs.output_file", ".outputs.outputFile"):
        return executor_input["outputs"]["outputFile"]
    try:
        if found := _PARAMETER.fullmatch(path):
            return _text(executor_input["inputs"]["parameterValues"][found[1]])
        if found := _FILE.fullmatch(path):
            return executor_input["outputs"]["parameters"][found[1]]["outputFile"]
        if found := _ARTIFACT.fullmatch(path):
            way, key, field, item = found.groups()
            artifact = executor_input[way]["artifacts"][key]["artifacts"][0]
            if item:
                return _text(artifact["metadata"][item])
            return _text(artifact["uri" if field == "path" else field])
    except (KeyError, IndexError) as error:
        raise invalid(f"the placeholder {{{{${path}}}}} names what is not there") from error
    raise invalid(f"the placeholder {{{{${path}}}}} is unknown")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
