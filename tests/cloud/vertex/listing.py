"""How listings are filtered, ordered and cut into pages: a part of https://google.aip.dev/160 and /132, strictly.

A field that a resource does not have is refused, and so is what is not understood.
"""

import datetime
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor

from tests.cloud.vertex.refusals import invalid

_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*"|\'[^\']*\')|(<=|>=|!=|[=<>:(),])|([^\s=<>:(),!"]+))')

_PAGE, _MAX_PAGE = 100, 1000

Test = Callable[[Any], bool]


def page(
    resources: Iterable,
    request,
    functions: Mapping[str, Callable[[Any, str], bool]] | None = None,
    derived: Mapping[str, Callable[[Any], Any]] | None = None,
) -> tuple[list, str]:
    """One page of a listing, the newest first unless the request has another order.

    Args:
        resources: All there are, in the order in which they were made.
        request: The request: its filter, order_by, page_size and page_token, as far as it has them.
        functions: What a filter may call, such as `in_context`: takes a resource and the argument.
        derived: Fields that only filters know, such as `pipeline_name`: takes a resource.

    Returns:
        The resources, and the token of the next page, empty if there is none.

    Raises:
        Refused: It cannot be understood.
    """
    found = list(resources)
    if text := getattr(request, "filter", ""):
        test = _Filter(text, functions or {}, derived or {}).test
        found = [resource for resource in found if test(resource)]
    found.reverse()
    if order := getattr(request, "order_by", ""):
        found = _ordered(found, order)
    size = request.page_size or _PAGE
    if size < 0:
        raise invalid(f"page_size must not be negative and is {size}")
    token = request.page_token or "0"
    if not token.isdigit():
        raise invalid(f"page_token {token!r} is none of this listing")
    start, end = int(token), int(token) + min(size, _MAX_PAGE)
    return found[start:end], str(end) if end < len(found) else ""


def matches(resources: Iterable, text: str, functions=None) -> list:
    """Those of some resources for which a filter holds."""
    test = _Filter(text, functions or {}, {}).test if text else lambda resource: True
    return [resource for resource in resources if test(resource)]


def _ordered(found: list, order: str) -> list:
    # Python's sort is stable: the last key first.
    for key in reversed(order.split(",")):
        name, _, direction = key.strip().partition(" ")
        if direction.strip() not in ("", "asc", "desc"):
            raise invalid(f"order_by {order!r} cannot be understood")
        values = {id(resource): _value(resource, name.split(".")) for resource in found}
        found = sorted(found, key=lambda resource: values[id(resource)], reverse=direction.strip() == "desc")
    return found


class _Filter:
    """A filter, parsed once.

    Attributes:
        test: Whether it holds for a resource.
    """

    def __init__(self, text: str, functions, derived):
        self._text, self._functions, self._derived = text, functions, derived
        self._tokens, position = [], 0
        text = text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found:
                raise self._error()
            self._tokens.append(found[1] or found[2] or found[3])
            position = found.end()
        self.test = self._either()
        if self._tokens:
            raise self._error()

    def _error(self, why: str = "it cannot be understood"):
        return invalid(f"filter {self._text!r}: {why}")

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, wanted: str | None = None) -> str:
        if not self._tokens or (wanted and self._tokens[0] != wanted):
            raise self._error()
        return self._tokens.pop(0)

    def _either(self) -> Test:
        tests = [self._all()]
        while self._next() == "OR":
            self._take()
            tests.append(self._all())
        return lambda resource: any(test(resource) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._next() not in ("", "OR", ")"):
            if self._next() == "AND":
                self._take()
            tests.append(self._one())
        return lambda resource: all(test(resource) for test in tests)

    def _one(self) -> Test:
        word = self._take()
        if word == "NOT":
            test = self._one()
            return lambda resource: not test(resource)
        if word == "(":
            test = self._either()
            self._take(")")
            return test
        if self._next() == "(":
            return self._call(word)
        operator = self._take()
        if operator not in ("=", "!=", "<", "<=", ">", ">=", ":"):
            raise self._error()
        return self._compare(word.replace('"', ""), operator, _unquoted(self._take()))

    def _call(self, name: str) -> Test:
        function = self._functions.get(name)
        if not function:
            raise self._error(f"there is no function {name}")
        self._take("(")
        argument = _unquoted(self._take())
        self._take(")")
        return lambda resource: function(resource, argument)

    def _compare(self, name: str, operator: str, wanted: str) -> Test:
        derived = self._derived.get(name)

        def test(resource) -> bool:
            value = derived(resource) if derived else _value(resource, name.split("."))
            if operator == ":":
                # Labels and lists have a key or a value; of text, a part is enough.
                return value not in (None, "") if wanted == "*" else value is not None and wanted in value
            if value is None:
                return operator == "!="
            try:
                return _holds(value, operator, wanted)
            except ValueError as error:
                raise self._error(f"{wanted!r} is no value of {name}") from error

        return test


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word[:1] in ('"', "'") else word


def _holds(value, operator: str, wanted: str) -> bool:
    if isinstance(value, str) and operator in ("=", "!=") and "*" in wanted:
        return fnmatch.fnmatchcase(value, wanted.replace("[", "[[]")) == (operator == "=")
    other = _like(value, wanted)
    return {
        "=": value == other, "!=": value != other,
        "<": operator == "<" and value < other, "<=": operator == "<=" and value <= other,
        ">": operator == ">" and value > other, ">=": operator == ">=" and value >= other,
    }[operator]  # fmt: skip


def _like(value, text: str):
    if isinstance(value, bool):
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else None
    if isinstance(value, int | float):
        return float(text)
    if isinstance(value, datetime.datetime):
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)
    return text


def _value(message, path: list[str]):
    """The value of a field, None for a key or a value that is not there."""
    message = getattr(message, "_pb", message)
    for position, name in enumerate(path):
        if isinstance(message, struct_pb2.Struct):
            message = message.fields.get(name)
        elif isinstance(message, Mapping):
            return message.get(name)
        else:
            field = message.DESCRIPTOR.fields_by_name.get(name)
            if field is None:
                raise invalid(f"a filter or an order names the field {'.'.join(path)}, which there is not")
            is_present = field.message_type is None or field.label == FieldDescriptor.LABEL_REPEATED
            if not is_present and not message.HasField(name):
                return None
            if isinstance(message, struct_pb2.Value) and message.WhichOneof("kind") != name:
                return None
            message = getattr(message, name)
            if field.enum_type and position == len(path) - 1:
                return field.enum_type.values_by_number[message].name
        if message is None:
            return None
    if isinstance(message, timestamp_pb2.Timestamp):
        return message.ToDatetime(datetime.timezone.utc)
    return message
