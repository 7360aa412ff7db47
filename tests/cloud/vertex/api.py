"""The methods of Google's APIs, their messages and their HTTP paths, as Google's own client libraries describe them."""

import dataclasses
import importlib
import re
import typing

import proto
from google.api_core import path_template
from google.protobuf import json_format

VERTEX = "google.cloud.aiplatform.v1"
PUBSUB = "google.pubsub.v1"
PROJECTS = "google.cloud.resourcemanager.v3"
OPERATIONS = "google.longrunning.Operations"

_SERVICES = {
    VERTEX: (
        "google.cloud.aiplatform_v1.services",
        ("JobService", "PipelineService", "ScheduleService", "ModelService", "EndpointService", "PredictionService",
         "MetadataService", "VizierService"),
    ),
    PROJECTS: ("google.cloud.resourcemanager_v3.services", ("Projects",)),
    PUBSUB: ("google.pubsub_v1.services", ("Publisher", "Subscriber")),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of a service that answers one message with one.

    Attributes:
        service: Its service's full name.
        name: Its own, as in `CreateCustomJob`.
        request: The type of its request.
        response: The type of its answer.
        rules: Its HTTP paths: `method`, `uri` and perhaps `body`.
    """

    service: str
    name: str
    request: type
    response: type
    rules: tuple[dict[str, str], ...]


def methods() -> list[Method]:
    """All methods of the services above."""
    return [
        method
        for package, (module, services) in _SERVICES.items()
        for service in services
        for method in _methods_of(f"{package}.{service}", module, service)
    ]


def _methods_of(full_name: str, module: str, service: str) -> typing.Iterator[Method]:
    transports = f"{module}.{snake(service)}.transports"
    grpc = getattr(importlib.import_module(f"{transports}.grpc"), f"{service}GrpcTransport")
    rest = getattr(importlib.import_module(f"{transports}.rest_base"), f"_Base{service}RestTransport")
    for attribute, described in vars(rest).items():
        name = attribute.removeprefix("_Base")
        stub = vars(grpc).get(snake(name))
        if not isinstance(stub, property) or not hasattr(described, "_get_http_options"):
            continue
        arguments = typing.get_args(typing.get_type_hints(stub.fget)["return"])
        if len(arguments) == 2 and isinstance(arguments[0], list):
            [request], response = arguments
            yield Method(full_name, name, request, response, tuple(described._get_http_options()))


def snake(name: str) -> str:
    """`CreateCustomJob` as `create_custom_job`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def raw(message_type: type) -> type:
    """The protobuf type under a type of proto-plus."""
    return message_type.pb() if issubclass(message_type, proto.Message) else message_type


def parse_http(method: Method, verb: str, path: str, query: dict[str, list[str]], kind: str, body: bytes):
    """The request that an HTTP request carries; None if it is not one for the method.

    Args:
        method: The method.
        verb: `GET`, `POST` and so on.
        path, query: Of its URL.
        kind: The type of its content.
        body: Its content.

    Raises:
        google.protobuf.json_format.ParseError: The method has no such field, or no such value for it.
    """
    for rule in method.rules:
        variables = _match(rule["uri"], path) if rule["method"].upper() == verb else None
        if variables is None:
            continue
        message = raw(method.request)()
        if "http_body" in message.DESCRIPTOR.fields_by_name:
            # What such a method passes on is the content as it is.
            message.http_body.content_type, message.http_body.data = kind, body
        elif rule.get("body") == "*":
            json_format.Parse(body or "{}", message)
        elif rule.get("body"):
            _parse_into(message, rule["body"], body)
        for name, values in query.items():
            if not name.startswith("$"):
                _set(message, name.split("."), values)
        for name, value in variables.items():
            _set(message, name.split("."), [value])
        return method.request.wrap(message) if issubclass(method.request, proto.Message) else message
    return None


def _match(template: str, path: str) -> dict[str, str] | None:
    if not path_template.validate(template, path):
        return None
    names = re.findall(r"{([\w.]+)(?:=[^}]*)?}", template)
    pattern = re.sub(r"{[\w.]+=([^}]*)}", lambda found: f"({_segments(found[1])})", template)
    pattern = re.sub(r"{[\w.]+}", "([^/]+)", pattern)
    found = re.fullmatch(pattern, path)
    return dict(zip(names, found.groups(), strict=True)) if found else None


def _segments(template: str) -> str:
    return template.replace("**", "\0").replace("*", "[^/:]+").replace("\0", ".+")


def _parse_into(message, field: str, body: bytes) -> None:
    target = getattr(message, field)
    json_format.Parse(body or "{}", target)
    target.SetInParent()


def _set(message, path: list[str], values: list[str]) -> None:
    *outer, name = path
    for part in outer:
        message = getattr(message, part if part in message.DESCRIPTOR.fields_by_name else snake(part))
    field = message.DESCRIPTOR.fields_by_name.get(name) or message.DESCRIPTOR.fields_by_name.get(snake(name))
    if field is None:
        raise json_format.ParseError(f'Message type "{message.DESCRIPTOR.full_name}" has no field named "{name}"')
    repeated = field.label == field.LABEL_REPEATED
    json_format.ParseDict({field.name: _json_value(field, values) if repeated else _json_value(field, values)[0]}, message)


def _json_value(field, values: list[str]) -> list:
    """Values of a query: all are text there, and of an enumeration the numbers too."""
    if field.cpp_type == field.CPPTYPE_BOOL:
        return [value == "true" for value in values]
    if field.cpp_type == field.CPPTYPE_ENUM:
        return [int(value) if value.lstrip("-").isdigit() else value for value in values]
    return values
