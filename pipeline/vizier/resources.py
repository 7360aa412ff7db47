"""The names of studies, trials and operations, as Vertex writes them."""

import re
from typing import NamedTuple

from pipeline.vizier.refusals import invalid

_PARENT = r"projects/[^/]+/locations/[^/]+"
_NUMBER = r"[1-9][0-9]{0,17}"


class StudyName(NamedTuple):
    """`projects/{project}/locations/{location}/studies/{number}`."""

    parent: str
    number: int

    def __str__(self) -> str:
        return f"{self.parent}/studies/{self.number}"


class TrialName(NamedTuple):
    """`{study}/trials/{number}`; numbers count from 1 in each study."""

    study: StudyName
    number: int

    def __str__(self) -> str:
        return f"{self.study}/trials/{self.number}"


class OperationName(NamedTuple):
    """`{study}/operations/{number}`."""

    study: StudyName
    number: int

    def __str__(self) -> str:
        return f"{self.study}/operations/{self.number}"


def parse_parent(text: str) -> str:
    """Checks the name of a project's location and returns it.

    Raises:
        Refused: It is none (INVALID_ARGUMENT).
    """
    if not re.fullmatch(_PARENT, text):
        raise invalid(f"{text!r} is no projects/PROJECT/locations/LOCATION")
    return text


def parse_study(text: str) -> StudyName:
    """Reads a study's name.

    >>> parse_study("projects/p/locations/us-central1/studies/7").number
    7

    Raises:
        Refused: It is none (INVALID_ARGUMENT).
    """
    match = re.fullmatch(rf"({_PARENT})/studies/({_NUMBER})", text)
    if not match:
        raise invalid(f"{text!r} is no projects/PROJECT/locations/LOCATION/studies/NUMBER")
    return StudyName(match[1], int(match[2]))


def parse_trial(text: str) -> TrialName:
    """Reads a trial's name. Raises Refused (INVALID_ARGUMENT) if it is none."""
    study, separator, number = text.rpartition("/trials/")
    if not separator or not re.fullmatch(_NUMBER, number):
        raise invalid(f"{text!r} is no projects/PROJECT/locations/LOCATION/studies/NUMBER/trials/NUMBER")
    return TrialName(parse_study(study), int(number))


def parse_operation(text: str) -> OperationName:
    """Reads an operation's name. Raises Refused (INVALID_ARGUMENT) if it is none."""
    study, separator, number = text.rpartition("/operations/")
    if not separator or not re.fullmatch(_NUMBER, number):
        raise invalid(f"{text!r} is no projects/PROJECT/locations/LOCATION/studies/NUMBER/operations/NUMBER")
    return OperationName(parse_study(study), int(number))
