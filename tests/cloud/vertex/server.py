"""The fake's front: it answers gRPC and HTTP, notes what it was asked, and does the faults that a test asks for.

A `Server` lives as long as the tests do; a `Vertex` for one test, and begins empty.
"""

import contextlib
import datetime
import pathlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import proto
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from tests.cloud import faults, google_apis
from tests.cloud.vertex import api, names, refusals, rest
from tests.cloud.vertex.containers import IMAGE, REGISTRY, Containers, Image
from tests.cloud.vertex.custom_jobs import CustomJobs
from tests.cloud.vertex.endpoints import Endpoints
from tests.cloud.vertex.metadata import Metadata
from tests.cloud.vertex.models import Models
from tests.cloud.vertex.pipelines import Pipelines
from tests.cloud.vertex.projects import Projects
from tests.cloud.vertex.pubsub import Publisher
from tests.cloud.vertex.refusals import Code, Refused
from tests.cloud.vertex.schedules import Schedules
from tests.cloud.vertex.state import State
from tests.cloud.vertex.studies import Studies

__all__ = ["IMAGE", "REGISTRY", "Image", "Server", "Vertex"]

_THREADS = 32

_SETTLE_SECONDS = 300

Where = str | Callable[[str, Any], bool]
"""Which requests: those of a method, such as `CreateCustomJob`, or those for whose method and content this holds."""


class Vertex:
    """A Vertex AI with nothing in it, seen from a test.

    Args:
        folder: Where logs are kept.
        google: The other hosts of Google.
        containers: What runs containers.
    """

    def __init__(self, folder: pathlib.Path, google: google_apis.GoogleApis, containers: Containers):
        self.state = State(folder, google)
        self.containers = containers
        self.jobs = CustomJobs(self.state, containers)
        self.metadata = Metadata(self.state)
        self.pipelines = Pipelines(self.state, self.metadata, containers)
        self.schedules = Schedules(self.state, self.pipelines)
        self.models = Models(self.state)
        self.endpoints = Endpoints(self.state, self.models, containers)
        self.publisher = Publisher(self.state)
        self.studies = Studies(folder)
        self._calls: list[tuple[str, Any]] = []
        self._rules = faults.Rules()
        self._services: dict[str, Any] = {
            api.OPERATIONS: self.state.operations,
            f"{api.VERTEX}.JobService": self.jobs,
            f"{api.VERTEX}.PipelineService": self.pipelines,
            f"{api.VERTEX}.ScheduleService": self.schedules,
            f"{api.VERTEX}.MetadataService": self.metadata,
            f"{api.VERTEX}.ModelService": self.models,
            f"{api.VERTEX}.EndpointService": self.endpoints,
            f"{api.VERTEX}.PredictionService": self.endpoints,
            f"{api.PROJECTS}.Projects": Projects(),
            f"{api.PUBSUB}.Publisher": self.publisher,
            f"{api.PUBSUB}.Subscriber": self.publisher,
        }

    # --- Time ---

    @property
    def now(self) -> datetime.datetime:
        """The fake's time."""
        return self.state.clock.now()

    def advance(self, moment: datetime.datetime, settle: bool = True) -> None:
        """Moves the clock on; schedules, time limits and the like come due on the way, each at its own moment.

        Args:
            moment: Until when.
            settle: Whether all that runs ends before time moves on from such a moment; otherwise time passes it by.

        Raises:
            ValueError: The moment is past, or has no time zone.
            TimeoutError: What runs does not end.
        """
        self.state.clock.advance(moment, self.settle if settle else lambda: None)

    def settle(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Waits until nothing runs. A job that waits for its quota does not run.

        Raises:
            TimeoutError: That takes more than so many seconds; says what runs.
        """
        self.state.settle(seconds)

    # --- What it was asked ---

    def calls(self) -> list[str]:
        """The method of every request so far, in their order."""
        with self.state.changed:
            return [name for name, _ in self._calls]

    def called(self, method: str) -> list[Any]:
        """The requests of a method, such as `CreateCustomJob`, in their order, those that were refused too.

        Their names of resources have the project's number, unless they were refused before that was looked at.
        """
        with self.state.changed:
            return [request for name, request in self._calls if name == method]

    def wait_for_call(self, method: str, times: int = 1, seconds: float = 60) -> None:
        """Waits until a method was called so often."""
        self.state.wait_for(lambda: len(self.called(method)) >= times, f"{method} {times} times", seconds)

    # --- Faults ---

    def answer(self, status: int, where: Where, times: int | None = None, late: bool = False) -> None:
        """From now on refuses such requests.

        Args:
            status: As an HTTP status, such as 429; clients of gRPC get what it stands for.
            where: Which requests.
            times: How often; None for always.
            late: Whether the work is done nevertheless, as when only the answer gets lost.
        """
        self._rules.add(faults.Rule(_test(where), times, status=status, late=late))

    def before(self, where: Where, action: Callable[[], None], times: int | None = 1) -> None:
        """Does `action`, in the thread of the request, before such a request goes on."""
        self._rules.add(faults.Rule(_test(where), times, action=action))

    def slow(self, method: str) -> contextlib.AbstractContextManager[None]:
        """In this context the long-running operations of a method, such as `UploadModel`, do not end."""
        return self.state.operations.held(method)

    # --- Calls ---

    def call(self, method: api.Method, request, headers: dict[str, str]):
        """Does a call; returns its answer.

        Raises:
            Refused: It is refused.
        """
        if not headers.get("authorization", "").startswith("Bearer "):
            raise Refused(Code.UNAUTHENTICATED, "Request is missing required authentication credential.")
        with self.state.changed:
            self._calls.append((method.name, request))
            self.state.changed.notify_all()
        fault = self._fault(method.name, request)
        if fault and not fault.late:
            raise refusals.of_http(fault.status)
        names.normalize(getattr(request, "_pb", request))
        handler = self.studies.handler(method, request)
        handler = handler or getattr(self._services.get(method.service), api.snake(method.name), None)
        if not handler:
            raise refusals.unsupported(f"{method.service}.{method.name}")
        answer = handler(request)
        with self.state.changed:
            self.state.changed.notify_all()
        if fault:
            raise refusals.of_http(fault.status)
        return empty_pb2.Empty() if answer is None else answer

    def _fault(self, name: str, request) -> faults.Rule | None:
        found = self._rules.of((name, request))
        for rule in found:
            if rule.action:
                rule.action()
        return next((rule for rule in found if not rule.action), None)

    def close(self) -> None:
        """Ends all that runs."""
        self.pipelines.close()
        self.jobs.close()
        self.endpoints.close()
        self.studies.close()
        self.containers.close()


def _test(where: Where) -> Callable[[tuple[str, Any]], bool]:
    if isinstance(where, str):
        return lambda call: call[0] == where
    return lambda call: where(*call)


class Server:
    """Listens for clients, for one `Vertex` after the other.

    Args:
        google: The other hosts of Google.
    """

    def __init__(self, google: google_apis.GoogleApis):
        self._google = google
        self._vertex: Vertex | None = None
        methods = api.methods()
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="vertex"),
            options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
        )
        operations = [
            api.Method(api.OPERATIONS, f"{verb}Operation", getattr(operations_pb2, f"{verb}OperationRequest"), answer, ())
            for verb, answer in (
                ("Get", operations_pb2.Operation), ("Wait", operations_pb2.Operation),
                ("Cancel", empty_pb2.Empty), ("Delete", empty_pb2.Empty),
            )
        ]  # fmt: skip
        operations.append(
            api.Method(
                api.OPERATIONS, "ListOperations", operations_pb2.ListOperationsRequest,
                operations_pb2.ListOperationsResponse, (),
            )
        )  # fmt: skip
        for service in {method.service for method in (*methods, *operations)}:
            handlers = {
                method.name: self._handler(method) for method in (*methods, *operations) if method.service == service
            }
            self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self._rest = rest.Listener(methods, self._call)
        threading.Thread(target=self._rest.serve_forever, args=(0.05,), daemon=True).start()

    @contextlib.contextmanager
    def serving(self, vertex: Vertex) -> Iterator[Vertex]:
        """Leads clients to a Vertex AI; ends what runs there in the end."""
        self._vertex = vertex
        self._google.lead(google_apis.VERTEX_HOSTS, self._port, self._rest.server_port)
        try:
            yield vertex
        finally:
            self._vertex = None
            vertex.close()

    def close(self) -> None:
        """Stops to listen."""
        self._rest.shutdown()
        self._rest.server_close()
        self._grpc.stop(0)

    def _call(self, method: api.Method, request, headers: dict[str, str]):
        vertex = self._vertex
        if vertex is None:
            raise Refused(Code.UNAVAILABLE, "no test uses the fake now")
        return vertex.call(method, request, headers)

    def _handler(self, method: api.Method) -> grpc.RpcMethodHandler:
        def answer(request, context: grpc.ServicerContext):
            try:
                return self._call(method, request, dict(context.invocation_metadata()))
            except Refused as refused:
                context.abort(refused.code, str(refused))

        read = method.request.deserialize if issubclass(method.request, proto.Message) else method.request.FromString
        return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=read, response_serializer=_bytes)


def _bytes(message) -> bytes:
    return getattr(message, "_pb", message).SerializeToString()
