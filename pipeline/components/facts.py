"""Facts on artifacts: custom properties, the only ones that every orchestrator keeps."""

from collections.abc import Mapping

from tfx.types import artifact


def record(target: artifact.Artifact, facts: Mapping[str, str | int | float | bool]) -> None:
    """Sets each fact as a custom property: numbers as numbers, truth as 0 or 1, all else as text."""
    for name, value in facts.items():
        if isinstance(value, (bool, int)):
            target.set_int_custom_property(name, int(value))
        elif isinstance(value, float):
            target.set_float_custom_property(name, value)
        else:
            target.set_string_custom_property(name, str(value))


def text(source: artifact.Artifact, name: str) -> str:
    """Reads a fact that is a text."""
    return source.get_string_custom_property(name)


def real(source: artifact.Artifact, name: str) -> float:
    """Reads a fact that is a number; 0 when it was not recorded."""
    return source.get_float_custom_property(name)


def number(source: artifact.Artifact, name: str) -> int:
    """Reads a fact that is a whole number; Vertex gives integers back as floats."""
    value = source.get_int_custom_property(name)
    return int(value or source.get_float_custom_property(name) or 0)
