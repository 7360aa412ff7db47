"""Google's hosts on this machine, for Google's unmodified clients: a proxy that ends TLS with an authority of its own.

Clients find it by their documented environment variables alone (`environment`). Of Google's hosts there are those of
BigQuery, which BigQuery's emulator answers (bigquery_emulator.py) from the first request on, the one that gives out tokens,
and, if a test leads there (`lead`), those of Vertex AI (vertex/) and those of Cloud Storage, which its emulator answers
(storage_emulator.py) when a test has one, and which else only say whether a bucket is there. The proxy refuses any other, so
that no test can reach the real ones. Faults are put in between: a request that is refused, an answer that never comes or stops
in the middle.
"""

import asyncio
import contextlib
import dataclasses
import http.client
import http.server
import json
import os
import pathlib
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus

from tests.cloud import certificates, faults, storage_emulator

ROOT = pathlib.Path(__file__).resolve().parents[2]

PROJECT, PROJECT_NUMBER = "acme-products", "123456789012"

REST, STORAGE, TOKENS = "bigquery.googleapis.com", "bigquerystorage.googleapis.com", "oauth2.googleapis.com"
OBJECTS = "storage.googleapis.com"

OF_TENSORFLOW = "www.googleapis.com"
"""Where TensorFlow's own client of Cloud Storage gets its tokens, and what it asks of objects but for their content."""

REGIONS = ("us-central1", "europe-west4")
VERTEX_HOSTS = (
    *(f"{region}-aiplatform.googleapis.com" for region in REGIONS),
    "cloudresourcemanager.googleapis.com",
    "pubsub.googleapis.com",
)
"""Where clients look for Vertex AI and for what goes with it, which the same server answers."""

_START_SECONDS = 60

# https://cloud.google.com/bigquery/docs/error-messages
_REASONS = {403: "accessDenied", 404: "notFound", 409: "duplicate", 429: "rateLimitExceeded", 503: "backendError"}


@dataclasses.dataclass(frozen=True)
class Call:
    """A request as it arrived.

    Attributes:
        host: Google's host that it was meant for.
        method: `GET`, `POST` and so on.
        path: Path and query.
        body: Its content.
    """

    host: str
    method: str
    path: str
    body: bytes = dataclasses.field(repr=False)


class GoogleApis:
    """The proxy and what stands behind it, seen from a test.

    Args:
        folder: Where certificates, credentials and the content of buckets are kept.

    Attributes:
        calls: All REST requests so far.
        objects: The emulator of Cloud Storage that answers for it now; None for none.
        refused: Hosts that clients asked for and did not get.
        cuts: The next connections to Storage end after so many bytes from there, one number for each.
    """

    def __init__(self, folder: pathlib.Path):
        self.calls: list[Call] = []
        self.objects: storage_emulator.Emulator | None = None
        self.refused: list[str] = []
        self.cuts: list[int] = []
        self._rules = faults.Rules()
        self._folder = folder
        self._lock = threading.Lock()
        (folder / "buckets").mkdir()
        self._led: dict[str, int] = {}
        self._secured: dict[tuple[int, int], int] = {}
        self._bigquery: tuple[subprocess.Popen, dict[str, int]] | None = None
        authority, self._certificate = certificates.certificates(
            folder, [REST, STORAGE, TOKENS, OBJECTS, OF_TENSORFLOW, *VERTEX_HOSTS]
        )
        credentials = certificates.service_account(folder, PROJECT, TOKENS)
        self._stack = contextlib.ExitStack()
        try:
            self._rest_port = self._start_rest()
            self._loop = self._stack.enter_context(_loop_thread())
            port = self._loop.start(self._start_proxy(self._rest_port))
        except BaseException:
            self._stack.close()
            raise
        proxy = f"http://127.0.0.1:{port}"
        self.environment = {
            **{name: proxy for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy")},
            **{name: "127.0.0.1,localhost" for name in ("no_proxy", "NO_PROXY")},
            "REQUESTS_CA_BUNDLE": authority,
            "HTTPLIB2_CA_CERTS": authority,
            "CURL_CA_BUNDLE": authority,  # TensorFlow's
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": authority,
            "GOOGLE_APPLICATION_CREDENTIALS": credentials,
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "NO_GCE_CHECK": "true",
        }
        """What makes a process take this for Google."""

    def close(self) -> None:
        """Ends all of it."""
        self._stack.close()

    def bucket(self, name: str) -> pathlib.Path:
        """The folder whose files are the objects of the bucket `name`, for load jobs and for Vertex AI."""
        folder = self._folder / "buckets" / name
        folder.mkdir(exist_ok=True)
        return folder

    def has_bucket(self, name: str) -> bool:
        """Whether there is such a bucket."""
        return (self._folder / "buckets" / name).is_dir()

    def show_objects(self, body: bytes) -> None:
        """Lays the objects that a request to BigQuery names where its emulator looks for them, if Cloud Storage has its own."""
        if self.objects is None:
            return
        for bucket, name in re.findall(r'"gs://([^/"]+)/([^"]+)"', body.decode(errors="replace")):
            content = self.objects.find(f"gs://{bucket}/{name}")
            if content is not None:
                path = self.bucket(bucket) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def lead(self, hosts: Iterable[str], http2: int, http1: int) -> None:
        """Until `heal` leads clients of these hosts to ports of the loopback, one for each protocol, without TLS.

        Clients of Cloud Storage are answered from then on too.
        """
        if (http2, http1) not in self._secured:
            self._secured[http2, http1] = self._loop.start(self._start_tls({"h2": http2, "http/1.1": http1}))
        self._led = {f"{host}:443": self._secured[http2, http1] for host in hosts}
        self._led |= dict.fromkeys((f"{OBJECTS}:443", f"{OF_TENSORFLOW}:443"), self._rest_port)

    def emulator(self) -> tuple[subprocess.Popen, dict[str, int]]:
        """The process of BigQuery's emulator and its ports; starts it unless it runs."""
        with self._lock:
            if self._bigquery is None:
                self._bigquery = self._stack.enter_context(_emulator(self._folder / "buckets"))
            return self._bigquery

    def set_back_the_clock(self, days: float) -> None:
        """Makes it so many days earlier for the tables' histories; 0 makes it now."""
        emulator, _ = self.emulator()
        emulator.stdin.write(f"{days * 86400}\n".encode())
        emulator.stdin.flush()
        emulator.stdout.readline()

    def answer(self, status: int, where: Callable[[Call], bool], times: int | None = None) -> None:
        """From now on answers `status` to the requests for which `where` holds, `times` times or always."""
        self._rules.add(faults.Rule(where, times, status=status))

    def drop(self, where: Callable[[Call], bool], times: int | None = None, late: bool = False) -> None:
        """From now on ends the connection of such a request without an answer.

        Args:
            where: Which requests.
            times: How often; None for always.
            late: Whether the work is done nevertheless, and the answer stops in the middle.
        """
        self._rules.add(faults.Rule(where, times, late=late))

    def before(self, where: Callable[[Call], bool], action: Callable[[], None], times: int | None = 1) -> None:
        """Does `action`, in the thread of the request, before a request for which `where` holds goes on."""
        self._rules.add(faults.Rule(where, times, action=action))

    def heal(self) -> None:
        """Forgets all faults and calls, leads to no further hosts, and sets the clock right."""
        self._led = {}
        if self._bigquery:
            self.set_back_the_clock(0)
        for asked in (self._rules, self.cuts, self.calls, self.refused):
            asked.clear()

    def fault(self, call: Call) -> faults.Rule | None:
        """Notes a request and does what was asked for before it; returns its fault, None for none."""
        self.calls.append(call)
        found = self._rules.of(call)
        for rule in found:
            if rule.action:
                rule.action()
        return next((rule for rule in found if not rule.action), None)

    def _tls(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        context.set_alpn_protocols(list(protocols))
        return context

    def _start_rest(self) -> int:
        """Starts to answer the hosts that speak HTTP/1.1; returns the port."""
        handler = type("Handler", (_Handler,), {"apis": self})
        listener = _Listener(("127.0.0.1", 0), handler)
        # The handshake is each connection's own thread's.
        listener.socket = self._tls("http/1.1").wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        self._stack.callback(listener.server_close)
        self._stack.callback(listener.shutdown)
        return listener.server_port

    async def _start_tls(self, ports: dict[str, int]) -> int:
        """Starts to end TLS for ports of the loopback, one for each protocol; returns the port for all of them."""

        async def serve(reader, writer):
            protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            await _pipe_both(reader, writer, ports[protocol or "http/1.1"])

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self._tls(*ports))
        return server.sockets[0].getsockname()[1]

    async def _start_proxy(self, rest: int) -> int:
        """Starts the proxy, and TLS for BigQuery's host that speaks gRPC; returns the proxy's port."""

        async def storage(reader, writer):
            limit = self.cuts.pop(0) if self.cuts else None
            _, emulator = await asyncio.get_running_loop().run_in_executor(None, self.emulator)
            await _pipe_both(reader, writer, emulator["grpc"], limit)

        async def proxy(reader, writer):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1")
                method, target, _ = head.split(" ")
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                writer.close()
                return
            port = (ports.get(target) or self._led.get(target)) if method == "CONNECT" else None
            if port is None:
                self.refused.append(target)
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                writer.close()
                return
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await _pipe_both(reader, writer, port)

        secure = await asyncio.start_server(storage, "127.0.0.1", 0, ssl=self._tls("h2"))
        plain = await asyncio.start_server(proxy, "127.0.0.1", 0)
        ports = {
            f"{REST}:443": rest,
            f"{TOKENS}:443": rest,
            f"{STORAGE}:443": secure.sockets[0].getsockname()[1],
        }
        return plain.sockets[0].getsockname()[1]


# --- REST ---


class _Listener(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # a client that goes, or is sent away, in the middle


class _Handler(http.server.BaseHTTPRequestHandler):
    """Passes requests on to the emulator, unless a fault or a host without one answers them."""

    apis: GoogleApis
    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds that a connection may idle
    # An answer goes out in one piece and at once: in pieces, each waits 40 ms for the client's word on the one before.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_expect_100(self):
        super().handle_expect_100()
        self.wfile.flush()  # else curl, and so TensorFlow, waits for a second before it sends the body
        return True

    def handle_any(self):
        body = self._body()
        call = Call(self.headers["Host"].partition(":")[0], self.command, self.path, body)
        fault = self.apis.fault(call)
        if fault and fault.status:
            phrase = HTTPStatus(fault.status).phrase
            error = {"reason": _REASONS[fault.status], "message": f"the proxy was told so: {phrase}", "domain": "global"}
            answer = {"error": {"code": fault.status, "message": error["message"], "errors": [error]}}
            return self._answer(fault.status, {"Content-Type": "application/json"}, json.dumps(answer).encode())
        if fault and not fault.late:
            return self._hang_up()
        if call.host == TOKENS or call.host == OF_TENSORFLOW and call.path.startswith("/oauth2/"):
            token = {"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"}
            return self._answer(200, {"Content-Type": "application/json"}, json.dumps(token).encode())
        if call.host in (OBJECTS, OF_TENSORFLOW):
            if self.apis.objects is None:
                return self._answer_for_bucket()
            status, headers, content = self._ask(body, self.apis.objects.port)
            # Which knows nothing of TLS, and names itself in the addresses of uploads and of contents.
            plain, secure = (f"{scheme}://{call.host}/" for scheme in ("http", "https"))
            headers = {name: value.replace(plain, secure) for name, value in headers.items()}
            if headers.get("Content-Type", "").startswith("application/json") and "alt=media" not in call.path:
                content = content.replace(plain.encode(), secure.encode())
        else:
            self.apis.show_objects(body)
            status, headers, content = self._ask(body, self.apis.emulator()[1]["rest"])
        self._answer(status, headers, content, half=bool(fault))

    def log_message(self, *arguments):
        pass

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def _answer_for_bucket(self):
        """Says whether a bucket is there, which is all that Vertex's client asks before it submits a pipeline."""
        found = re.fullmatch(r"/storage/v1/b/([^/?]+)(\?.*)?", self.path)
        status = 501 if not found or self.command != "GET" else 200 if self.apis.has_bucket(found[1]) else 404
        answer = {"error": {"code": status, "message": HTTPStatus(status).phrase}}
        if status == 200:
            answer = {"name": found[1], "projectNumber": PROJECT_NUMBER}
        self._answer(status, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the client sent less than it announced")
        return body

    def _ask(self, body: bytes, port: int) -> tuple[int, dict[str, str], bytes]:
        left_out = ("transfer-encoding", "content-length", "accept-encoding", "connection")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        with contextlib.closing(connection):
            # The emulator names itself in the address of a resumable upload.
            connection.request(self.command, self.path, body, {**headers, "X-Forwarded-Proto": "https"})
            answer = connection.getresponse()
            return answer.status, {name.title(): value for name, value in answer.getheaders()}, answer.read()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, half: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in ("Content-Length", "Transfer-Encoding", "Connection"):
                self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if half:
            self.wfile.write(content[: len(content) // 2])
            self._hang_up()
        elif status != HTTPStatus.NO_CONTENT:
            self.wfile.write(content)

    def _hang_up(self):
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


# --- Bytes ---


async def _pipe_both(reader, writer, port: int, limit: int | None = None) -> None:
    """Carries bytes between a client and a port of the loopback until either ends.

    Args:
        reader, writer: The client.
        port: The port.
        limit: Ends both after so many bytes from the port; None for no limit.
    """
    try:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    with contextlib.suppress(asyncio.CancelledError):  # the end of the loop
        await asyncio.gather(_pipe(reader, back_writer), _pipe(back_reader, writer, limit))


async def _pipe(reader, writer, limit: int | None = None) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(65536):
            if limit is not None:
                data, limit = data[:limit], max(limit - len(data), 0)
            writer.write(data)
            await writer.drain()
            if limit == 0:
                break
    with contextlib.suppress(OSError, ssl.SSLError):
        writer.close()


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self, coroutine):
        """Runs a coroutine there; returns its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_SECONDS)

    def stop(self) -> None:
        """Ends what still runs there, then the loop."""

        async def end():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextlib.contextmanager
def _loop_thread() -> Iterator[_Loop]:
    loop = _Loop()
    try:
        yield loop
    finally:
        loop.stop()


# --- The emulator ---


@contextlib.contextmanager
def _emulator(buckets: pathlib.Path) -> Iterator[tuple[subprocess.Popen, dict[str, int]]]:
    """BigQuery's emulator, whose environment is built unless it is there; yields its process and its ports."""
    subprocess.run([sys.executable, ROOT / "requirements" / "bigquery_emulator.py"], check=True)
    program = ROOT / "tests" / "cloud" / "bigquery_emulator.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "BQEMU_"))}
    with open(buckets.parent / "emulator.log", "w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [ROOT / ".venv-bigquery" / "bin" / "python", "-B", program, buckets],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
        )  # fmt: skip
        try:
            yield process, _ports(process, log)
        finally:
            process.stdin.close()  # which is how it is told to end
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _ports(process: subprocess.Popen, log) -> dict[str, int]:
    deadline, said = time.monotonic() + _START_SECONDS, b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
        part = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not part:
            log.seek(0)
            raise RuntimeError(f"BigQuery's emulator did not start in {_START_SECONDS} s:\n{log.read()[-4000:]}")
        said += part
    return json.loads(said)

