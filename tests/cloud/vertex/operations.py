"""Long-running operations: done at once, or when a test lets them."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from tests.cloud.vertex import names
from tests.cloud.vertex.refusals import Code, Refused, untimely


class Operations:
    """All operations, and the calls of google.longrunning.Operations.

    Args:
        changed: What guards the fake's state and tells of its changes.
    """

    def __init__(self, changed: threading.Condition):
        self._changed = changed
        self._operations: dict[str, operations_pb2.Operation] = {}
        self._held: set[str] = set()
        self._waiting: list[tuple[str, operations_pb2.Operation, Callable]] = []

    def start(self, method: str, resource: str, work: Callable[[], object]) -> operations_pb2.Operation:
        """Starts what a method does slowly.

        Args:
            method: Its name; while it is held, nothing is done.
            resource: The resource, or the location, to which the operation belongs.
            work: Does it and returns the answer, None for an empty one. What it refuses becomes the operation's error.

        Returns:
            The operation, done unless the method is held.
        """
        operation = operations_pb2.Operation(name=f"{resource}/operations/{names.new_number()}")
        with self._changed:
            self._operations[operation.name] = operation
            if method in self._held:
                self._waiting.append((method, operation, work))
            else:
                _finish(operation, work)
            return _copy(operation)

    @contextlib.contextmanager
    def held(self, method: str) -> Iterator[None]:
        """Keeps the operations of a method, such as `UploadModel`, from being done; does them in the end."""
        with self._changed:
            self._held.add(method)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(method)
                due = [waiting for waiting in self._waiting if waiting[0] == method]
                self._waiting = [waiting for waiting in self._waiting if waiting[0] != method]
                for _, operation, work in due:
                    if not operation.done:
                        _finish(operation, work)
                self._changed.notify_all()

    # --- google.longrunning.Operations ---

    def get_operation(self, request: operations_pb2.GetOperationRequest) -> operations_pb2.Operation:
        with self._changed:
            return _copy(self._find(request.name))

    def list_operations(self, request: operations_pb2.ListOperationsRequest) -> operations_pb2.ListOperationsResponse:
        with self._changed:
            found = [value for name, value in self._operations.items() if name.startswith(f"{request.name}/")]
            return operations_pb2.ListOperationsResponse(operations=found)

    def wait_operation(self, request: operations_pb2.WaitOperationRequest) -> operations_pb2.Operation:
        with self._changed:
            operation = self._find(request.name)
            self._changed.wait_for(lambda: operation.done, request.timeout.ToTimedelta().total_seconds())
            return _copy(operation)

    def cancel_operation(self, request: operations_pb2.CancelOperationRequest) -> empty_pb2.Empty:
        with self._changed:
            operation = self._find(request.name)
            if not operation.done:
                operation.done = True
                operation.error.code, operation.error.message = Code.CANCELLED.value[0], "The operation was cancelled."
            return empty_pb2.Empty()

    def delete_operation(self, request: operations_pb2.DeleteOperationRequest) -> empty_pb2.Empty:
        with self._changed:
            if not self._find(request.name).done:
                raise untimely(f"{request.name} is not done")
            del self._operations[request.name]
            return empty_pb2.Empty()

    def _find(self, name: str) -> operations_pb2.Operation:
        if name not in self._operations:
            raise Refused(Code.NOT_FOUND, f"The Operation {name!r} does not exist.")
        return self._operations[name]


def _finish(operation: operations_pb2.Operation, work: Callable[[], object]) -> None:
    try:
        answer = work()
    except Refused as refused:
        operation.error.code, operation.error.message = refused.code.value[0], str(refused)
    else:
        operation.response.Pack(empty_pb2.Empty() if answer is None else getattr(answer, "_pb", answer))
    operation.done = True


def _copy(operation: operations_pb2.Operation) -> operations_pb2.Operation:
    copy = operations_pb2.Operation()
    copy.CopyFrom(operation)
    return copy
