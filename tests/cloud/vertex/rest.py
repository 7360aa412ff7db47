"""The API over HTTP with JSON, by the paths that Google's client libraries know."""

import http.server
import json
import re
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import json_format

from tests.cloud.vertex import api
from tests.cloud.vertex.refusals import Code, Refused, invalid

_OPERATION = re.compile(r"/v1/(projects/.+/operations/[^/:]+)(?::(cancel|wait))?")


class Listener(http.server.ThreadingHTTPServer):
    """Listens on a free port of the loopback, without TLS.

    Args:
        methods: All methods of the API.
        call: Does a call: takes the method, the request and the headers; returns the answer.
    """

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, methods: list[api.Method], call: Callable[[api.Method, Any, dict[str, str]], Any]):
        self.methods, self.call = methods, call
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request, client_address):
        pass  # a client that goes in the middle


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Listener
    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds that a connection may idle
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        try:
            method, request = self._find(urllib.parse.unquote(url.path), query, body)
            answer = self.server.call(method, request, {name.lower(): value for name, value in self.headers.items()})
        except Refused as refused:
            status = {"code": refused.http_status, "message": str(refused), "status": refused.code.name}
            return self._send(refused.http_status, "application/json", json.dumps({"error": status}).encode())
        raw = getattr(answer, "_pb", answer)
        if raw.DESCRIPTOR.full_name == "google.api.HttpBody":
            return self._send(HTTPStatus.OK, raw.content_type, raw.data)
        as_numbers = "enum-encoding=int" in "".join(query.get("$alt", []))
        text = json_format.MessageToJson(raw, use_integers_for_enums=as_numbers)
        return self._send(HTTPStatus.OK, "application/json", text.encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def log_message(self, *arguments):
        pass

    def _find(self, path: str, query: dict[str, list[str]], body: bytes) -> tuple[api.Method, Any]:
        if found := _OPERATION.fullmatch(path):
            name = {"GET": "Get", "DELETE": "Delete", "POST": (found[2] or "").capitalize()}.get(self.command, "")
            request = getattr(operations_pb2, f"{name}OperationRequest", None)
            if request:
                answer = operations_pb2.Operation
                return api.Method(api.OPERATIONS, f"{name}Operation", request, answer, ()), request(name=found[1])
        kind = self.headers.get("Content-Type", "")
        try:
            for method in self.server.methods:
                request = api.parse_http(method, self.command, path, query, kind, body)
                if request is not None:
                    return method, request
        except json_format.ParseError as error:
            raise invalid(f"Invalid JSON payload received. {error}") from error
        raise Refused(Code.NOT_FOUND, f"{self.command} {path} is no method of the API")

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
