"""Conditions of a pipeline's tasks: the part of CEL (https://github.com/google/cel-spec) that compilers write."""

import re
from typing import Any

from tests.cloud.vertex.refusals import invalid

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<name>\w+)"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!().\[\]]))"""
)
_COMPARE = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip
_CONVERT = {"int": int, "double": float, "string": str, "bool": bool}


def holds(text: str, inputs: dict[str, Any]) -> bool:
    """Whether a condition holds.

    Args:
        text: The condition.
        inputs: What `inputs` means in it: `parameter_values` and `artifacts`.

    Raises:
        Refused: It cannot be understood, or names what there is not.
    """
    return bool(_Parser(text, inputs).result())


class _Parser:
    def __init__(self, text: str, inputs: dict[str, Any]):
        self._text, self._inputs = text, inputs
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text.rstrip()):
            found = _TOKEN.match(text, position)
            if not found:
                raise self._error("it cannot be understood")
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            position = found.end()

    def result(self):
        value = self._either()
        if self._tokens:
            raise self._error(f"{self._tokens[0][1]!r} is one too many")
        return value

    def _error(self, why: str):
        return invalid(f"condition {self._text!r}: {why}")

    def _next(self) -> str:
        return self._tokens[0][1] if self._tokens and self._tokens[0][0] == "sign" else ""

    def _take(self, wanted: str = "") -> tuple[str, str]:
        if not self._tokens or (wanted and self._tokens[0] != ("sign", wanted)):
            raise self._error(f"{wanted or 'something'} is missing")
        return self._tokens.pop(0)

    def _either(self):
        value = self._all()
        while self._next() == "||":
            self._take()
            other = self._all()
            value = bool(value) or bool(other)
        return value

    def _all(self):
        value = self._comparison()
        while self._next() == "&&":
            self._take()
            other = self._comparison()
            value = bool(value) and bool(other)
        return value

    def _comparison(self):
        value = self._unary()
        while self._next() in _COMPARE:
            compare = _COMPARE[self._take()[1]]
            other = self._unary()
            try:
                value = compare(value, other)
            except TypeError as error:
                raise self._error(f"{value!r} and {other!r} cannot be compared") from error
        return value

    def _unary(self):
        if self._next() == "!":
            self._take()
            return not self._unary()
        if self._next() == "(":
            self._take()
            value = self._either()
            self._take(")")
            return value
        kind, word = self._take()
        if kind == "number":
            return float(word) if "." in word else int(word)
        if kind == "text":
            return re.sub(r"\\(.)", r"\1", word[1:-1])
        if word in ("true", "false"):
            return word == "true"
        if word in _CONVERT:
            self._take("(")
            value = self._either()
            self._take(")")
            return _CONVERT[word](value)
        if word != "inputs":
            raise self._error(f"{word!r} is unknown")
        return self._path(self._inputs)

    def _path(self, value):
        while self._next() in (".", "["):
            if self._take()[1] == ".":
                key: Any = self._take()[1]
            else:
                key = self._either()
                self._take("]")
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise self._error(f"{key!r} is not there") from error
        return value
