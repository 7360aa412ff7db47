"""Vertex Vizier: its calls go on to the service of one machine, which answers as Vertex documents (pipeline/vizier)."""

import functools
import pathlib
import threading
from collections.abc import Callable

import grpc

from pipeline.vizier import local
from tests.cloud.vertex import api
from tests.cloud.vertex.refusals import Refused

VIZIER = f"{api.VERTEX}.VizierService"

_SECONDS = 120


class Studies:
    """The service, which starts with the first call; of quasi-random suggestions, which take no time.

    Args:
        folder: Where its file of studies is.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._service: local.Service | None = None
        self._channel: grpc.Channel | None = None

    def handler(self, method: api.Method, request) -> Callable | None:
        """What does a call about studies or about an operation of one; None for any other call."""
        about_studies = method.service == VIZIER or (method.service == api.OPERATIONS and "/studies/" in request.name)
        return functools.partial(self._call, method) if about_studies else None

    def _call(self, method: api.Method, request):
        ask = self._connected().unary_unary(
            f"/{method.service}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=api.raw(method.response).FromString,
        )
        try:
            return ask(getattr(request, "_pb", request), timeout=_SECONDS)
        except grpc.RpcError as error:
            raise Refused(error.code(), error.details()) from error

    def _connected(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                self._service = local.start(self._folder / "studies.sqlite", "quasi_random")
                self._channel = grpc.insecure_channel(self._service.address, [("grpc.enable_http_proxy", 0)])
            return self._channel

    def close(self) -> None:
        """Ends the service."""
        with self._lock:
            if self._channel:
                self._channel.close()
                self._service.end()
