"""Why the service refuses a request: a gRPC status code, and a sentence for the one who sent it."""

import grpc

Code = grpc.StatusCode


class Refused(Exception):
    """A request that cannot be done.

    Attributes:
        code: gRPC's status code, as Google's API design guide gives it a meaning (google.aip.dev/193).
    """

    def __init__(self, code: Code, text: str):
        super().__init__(text)
        self.code = code


def invalid(text: str) -> Refused:
    """The request is wrong, whatever state the service is in."""
    return Refused(Code.INVALID_ARGUMENT, text)


def missing(kind: str, name: str) -> Refused:
    """What the request names does not exist."""
    return Refused(Code.NOT_FOUND, f"there is no {kind} {name}")


def untimely(text: str) -> Refused:
    """What the request names is not in a state that admits it."""
    return Refused(Code.FAILED_PRECONDITION, text)


def unsupported(text: str) -> Refused:
    """Vertex may do this; the service here does not."""
    return Refused(Code.UNIMPLEMENTED, f"{text}: not supported by the service on this machine")
