"""Loads a YAML file into a tree of frozen dataclasses and names every field that does not fit."""

import dataclasses
import difflib
import json
import pathlib
import typing

import pydantic
import yaml

from pipeline.errors import SettingsError

# Unknown keys are errors, and a value of another type is never converted in silence ("3" is not 3).
STRICT = pydantic.ConfigDict(extra="forbid", strict=True)


def frozen(cls):
    """Decorates a class as a frozen dataclass whose fields are checked when it is made."""
    return pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)(cls)


def load(cls, path: str | pathlib.Path):
    """Reads `path` as YAML and makes a `cls` of it.

    Args:
        cls: A dataclass made by `frozen`.
        path: A YAML file whose top level is a mapping.

    Returns:
        An instance of `cls`; fields that the file leaves out keep their defaults.

    Raises:
        SettingsError: The file is missing, is no YAML or no mapping, or a field is unknown, of
            the wrong type or out of range; the text names the file, each field and its value.
    """
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the settings file {path}: {error}") from error
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: 2026-13-01, ten thousand brackets
        raise SettingsError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping of settings, not {type(content).__name__}")
    return from_dict(cls, content, where=str(path))


def from_dict(cls, content: dict, where: str):
    """Makes a `cls` of plain data; `where` names its origin in errors. Raises SettingsError."""
    try:
        text = json.dumps(content, default=str)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{where} holds what no setting can: {error}") from error
    try:
        # JSON's strict rules are the ones wanted: a list fills a tuple and an integer a float, but a text
        # fills no number. What JSON does not know (a YAML date) becomes text and fails as such.
        return pydantic.TypeAdapter(cls).validate_json(text)
    except pydantic.ValidationError as error:
        lines = [_describe(problem, cls) for problem in error.errors()]
        raise SettingsError(f"{where}:\n" + "\n".join(f"  {line}" for line in lines)) from error


def to_dict(settings) -> dict:
    """Returns the plain data that `from_dict` makes `settings` of again."""
    return dataclasses.asdict(settings)


def _describe(problem: dict, cls) -> str:
    path = [str(part) for part in problem["loc"]]
    field = ".".join(path) or "the file"
    value = problem.get("input")
    kind = problem["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        near = difflib.get_close_matches(path[-1], _names_beside(cls, path), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{field}: there is no such setting{hint} (its value was {value!r})"
    if kind in ("missing", "missing_argument"):
        return f"{field}: this setting is required"
    message = problem["msg"]
    for prefix in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(prefix)
    if isinstance(value, dict) or dataclasses.is_dataclass(value):
        return f"{field}: {message}"
    return f"{field}: {message[0].lower() + message[1:]}, not {value!r}"


def _names_beside(cls, path: list[str]) -> list[str]:
    for part in path[:-1]:
        fields = {field.name: field.type for field in dataclasses.fields(cls)}
        kind = fields.get(part)
        # A setting that may be null holds its dataclass beside None.
        cls = next((one for one in typing.get_args(kind) if dataclasses.is_dataclass(one)), kind)
        if not dataclasses.is_dataclass(cls):
            return []
    return [field.name for field in dataclasses.fields(cls)]
