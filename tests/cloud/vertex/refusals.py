"""What a call of the API is refused with."""

from http import HTTPStatus

import grpc

Code = grpc.StatusCode

# https://cloud.google.com/apis/design/errors#handling_errors: the first of each status is what a status alone means.
_HTTP = {
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.ABORTED: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.INTERNAL: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}


class Refused(Exception):
    """A call that is answered with an error.

    Args:
        code: The status of gRPC.
        message: What the client reads.
    """

    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(message)
        self.code = code

    @property
    def http_status(self) -> int:
        """The same as a status of HTTP."""
        return _HTTP[self.code]


def of_http(status: int, message: str = "") -> Refused:
    """The refusal that an HTTP status stands for; says so itself unless there is a message."""
    code = next(code for code, number in _HTTP.items() if number == status)
    return Refused(code, message or f"the fake was told so: {HTTPStatus(status).phrase}")


def invalid(message: str) -> Refused:
    """An argument that the service does not take."""
    return Refused(Code.INVALID_ARGUMENT, message)


def untimely(message: str) -> Refused:
    """A call that the state of its resource does not allow."""
    return Refused(Code.FAILED_PRECONDITION, message)


def unsupported(what: str) -> Refused:
    """What Vertex does and the fake does not: never ignored, so that no test passes because it was."""
    return Refused(Code.UNIMPLEMENTED, f"the fake has no {what}")
