"""A server of Vertex's gRPC methods whose answers a test gives; Google's own clients ask it."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
from google.cloud import aiplatform_v1 as v1
from google.cloud.aiplatform_v1.services.job_service.transports import JobServiceGrpcTransport
from google.cloud.aiplatform_v1.services.pipeline_service.transports import PipelineServiceGrpcTransport
from google.cloud.aiplatform_v1.services.schedule_service.transports import ScheduleServiceGrpcTransport

_REQUESTS = {
    "CreatePipelineJob": v1.CreatePipelineJobRequest,
    "GetPipelineJob": v1.GetPipelineJobRequest,
    "ListPipelineJobs": v1.ListPipelineJobsRequest,
    "CreateSchedule": v1.CreateScheduleRequest,
    "UpdateSchedule": v1.UpdateScheduleRequest,
    "ListSchedules": v1.ListSchedulesRequest,
    "CreateCustomJob": v1.CreateCustomJobRequest,
    "GetCustomJob": v1.GetCustomJobRequest,
    "ListCustomJobs": v1.ListCustomJobsRequest,
    "CancelCustomJob": v1.CancelCustomJobRequest,
}


class Refused(Exception):
    """What a test's answer raises so that the server refuses."""

    def __init__(self, code: grpc.StatusCode, details: str):
        super().__init__(details)
        self.code, self.details = code, details


class Vertex(grpc.GenericRpcHandler):
    """The server, seen from a test.

    Attributes:
        answers: Method -> function of its request.
        asked: Method and request of each call so far.
    """

    def __init__(self, port: int):
        self.answers: dict[str, Callable] = {}
        self.asked: list[tuple[str, object]] = []
        self._address = f"127.0.0.1:{port}"

    def service(self, call_details):
        """Finds the answer to a call."""
        method = call_details.method.rpartition("/")[2]
        kind = _REQUESTS[method]

        def answer(request, context):
            self.asked.append((method, request))
            try:
                given = self.answers[method](request)
            except Refused as refused:
                context.abort(refused.code, refused.details)
            return given.SerializeToString() if hasattr(given, "SerializeToString") else type(given).serialize(given)

        return grpc.unary_unary_rpc_method_handler(answer, kind.deserialize, lambda content: content)

    def requests(self, method: str) -> list:
        """What was asked by a method."""
        return [request for name, request in self.asked if name == method]

    def _channel(self):
        return grpc.insecure_channel(self._address)

    @property
    def pipelines(self) -> v1.PipelineServiceClient:
        """Google's client of pipeline jobs."""
        return v1.PipelineServiceClient(transport=PipelineServiceGrpcTransport(channel=self._channel()))

    @property
    def schedules(self) -> v1.ScheduleServiceClient:
        """Google's client of schedules."""
        return v1.ScheduleServiceClient(transport=ScheduleServiceGrpcTransport(channel=self._channel()))

    @property
    def jobs(self) -> v1.JobServiceClient:
        """Google's client of custom jobs."""
        return v1.JobServiceClient(transport=JobServiceGrpcTransport(channel=self._channel()))


@contextlib.contextmanager
def running() -> Iterator[Vertex]:
    """A server on a free port of the loopback."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    vertex = Vertex(server.add_insecure_port("127.0.0.1:0"))
    server.add_generic_rpc_handlers([vertex])
    server.start()
    try:
        yield vertex
    finally:
        server.stop(None).wait(10)
