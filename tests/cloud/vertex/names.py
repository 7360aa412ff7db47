"""Names of resources: what is asked for by the project's id is answered with its number."""

import itertools
import re

from google.protobuf.descriptor import FieldDescriptor

from tests.cloud import google_apis
from tests.cloud.vertex.refusals import Code, Refused, invalid

NUMBER = google_apis.PROJECT_NUMBER
"""The project's number."""

REGIONS = google_apis.REGIONS

PARENT = f"projects/{google_apis.PROJECT}/locations/{REGIONS[0]}"
"""Where tests make things, as a client names it."""

ENDPOINT = {"api_endpoint": google_apis.VERTEX_HOSTS[0]}
"""The options of a client that goes there."""

_numbers = itertools.count(1_000_000_000_000_001)

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def new_number() -> int:
    """A number that nothing has yet."""
    return next(_numbers)


def parent(location: str) -> str:
    """A location's name."""
    return f"projects/{NUMBER}/locations/{location}"


def location(name: str) -> str:
    """The location of a resource."""
    return name.split("/")[3]


def last(name: str) -> str:
    """The last part of a name."""
    return name.rpartition("/")[2]


def normalize(message) -> None:
    """Puts the project's number in the names of a request (protobuf), whatever they were given with.

    Raises:
        Refused: It names another project, or a location where the fake is not.
    """
    for field, value in message.ListFields():
        if field.message_type and field.message_type.full_name.startswith("google.protobuf."):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.label == FieldDescriptor.LABEL_REPEATED else [value]:
                normalize(part)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.label == FieldDescriptor.LABEL_REPEATED:
                value[:] = [numbered(text) for text in value]
            else:
                setattr(message, field.name, numbered(value))


def numbered(text: str) -> str:
    """The name of a resource with the project's number; any other text as it is."""
    found = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)(/.*)?", text)
    if not found:
        return text
    project, place, rest = found.groups(default="")
    if project not in (google_apis.PROJECT, NUMBER):
        raise Refused(
            Code.PERMISSION_DENIED,
            f"Permission denied on resource project {project}, or it does not exist.",
        )
    if place not in REGIONS:
        raise invalid(f"Location {place} is not supported; the fake is in {', '.join(REGIONS)}")
    return f"projects/{NUMBER}/locations/{place}{rest}"


def check_labels(labels) -> None:
    """Raises Refused unless these can be a resource's labels."""
    if len(labels) > 64:
        raise invalid(f"labels: {len(labels)} of them, more than 64")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise invalid(f"labels: the key {key!r} is not lower-case letters, digits, _ and -, at most 63, a letter first")
        if not _LABEL_VALUE.fullmatch(value):
            raise invalid(f"labels: the value {value!r} of {key} is not lower-case letters, digits, _ and -, at most 63")


def check_display_name(text: str) -> None:
    """Raises Refused unless this can be a resource's display name."""
    if not 1 <= len(text) <= 128:
        raise invalid(f"display_name must have 1 to 128 characters and has {len(text)}: {text[:140]!r}")


def check_folder(uri: str, field: str) -> None:
    """Raises Refused unless this is a folder of Cloud Storage, or of this machine, which stands for one."""
    if not re.match(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/|$)", uri) and not uri.startswith("/"):
        raise invalid(f"{field} must be a gs:// URI, and is {uri!r}")
