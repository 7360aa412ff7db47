"""Google's hosts on this machine, for Google's unmodified clients: a proxy that ends TLS with an authority of its own.

Clients find it by their documented environment variables alone (`environment`). Of Google's hosts there are those of
BigQuery, which BigQuery's emulator answers (bigquery_emulator.py), and the one that gives out tokens; the proxy refuses
any other, so that no test can reach the real ones. Faults are put in between: a request that is refused, an answer that
never comes or stops in the middle.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import http.client
import http.server
import ipaddress
import json
import os
import pathlib
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.cloud import faults

ROOT = pathlib.Path(__file__).resolve().parents[2]

PROJECT = "acme-products"

REST, STORAGE, TOKENS = "bigquery.googleapis.com", "bigquerystorage.googleapis.com", "oauth2.googleapis.com"

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
        refused: Hosts that clients asked for and did not get.
        cuts: The next connections to Storage end after so many bytes from there, one number for each.
    """

    def __init__(self, folder: pathlib.Path):
        self.calls: list[Call] = []
        self.refused: list[str] = []
        self.cuts: list[int] = []
        self._rules = faults.Rules()
        self._folder = folder
        self._lock = threading.Lock()
        (folder / "buckets").mkdir()
        authority, self._certificate = _certificates(folder, [REST, STORAGE, TOKENS])
        credentials = _service_account(folder)
        self._stack = contextlib.ExitStack()
        try:
            self._emulator, ports = self._stack.enter_context(_emulator(folder / "buckets"))
            listener = self._start_rest(ports["rest"])
            port = self._stack.enter_context(_loop_thread()).start(self._start_proxy(listener, ports["grpc"]))
        except BaseException:
            self._stack.close()
            raise
        proxy = f"http://127.0.0.1:{port}"
        self.environment = {
            **{name: proxy for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy")},
            **{name: "127.0.0.1,localhost" for name in ("no_proxy", "NO_PROXY")},
            "REQUESTS_CA_BUNDLE": authority,
            "HTTPLIB2_CA_CERTS": authority,
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
        """The folder whose files are the objects of the bucket `name`, for load jobs."""
        folder = self._folder / "buckets" / name
        folder.mkdir(exist_ok=True)
        return folder

    def set_back_the_clock(self, days: float) -> None:
        """Makes it so many days earlier for the tables' histories; 0 makes it now."""
        self._emulator.stdin.write(f"{days * 86400}\n".encode())
        self._emulator.stdin.flush()
        self._emulator.stdout.readline()

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
        """Forgets all faults and calls, and sets the clock right."""
        self.set_back_the_clock(0)
        for asked in (self._rules, self.cuts, self.calls, self.refused):
            asked.clear()

    def fault(self, call: Call) -> faults.Rule | None:
        """Notes a request and does what was asked for before it; returns its fault, None for none."""
        with self._lock:
            self.calls.append(call)
        found = self._rules.of(call)
        for rule in found:
            if rule.action:
                rule.action()
        return next((rule for rule in found if not rule.action), None)

    def _tls(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        context.set_alpn_protocols([protocol])
        return context

    def _start_rest(self, emulator: int) -> int:
        """Starts to answer the hosts that speak HTTP/1.1; returns the port."""
        handler = type("Handler", (_Handler,), {"apis": self, "emulator": emulator})
        listener = _Listener(("127.0.0.1", 0), handler)
        # The handshake is each connection's own thread's.
        listener.socket = self._tls("http/1.1").wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        self._stack.callback(listener.server_close)
        self._stack.callback(listener.shutdown)
        return listener.server_port

    async def _start_proxy(self, rest: int, grpc: int) -> int:
        """Starts the proxy, and TLS for the host that speaks gRPC; returns the proxy's port."""

        async def storage(reader, writer):
            with self._lock:
                limit = self.cuts.pop(0) if self.cuts else None
            await _pipe_both(reader, writer, grpc, limit)

        async def proxy(reader, writer):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1")
                method, target, _ = head.split(" ")
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                writer.close()
                return
            port = ports.get(target) if method == "CONNECT" else None
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
    """Passes requests on to the emulator, unless a fault or the host of tokens answers them."""

    apis: GoogleApis
    emulator: int
    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds that a connection may idle
    # An answer goes out in one piece and at once: in pieces, each waits 40 ms for the client's word on the one before.
    wbufsize = -1
    disable_nagle_algorithm = True

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
        if call.host == TOKENS:
            token = {"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"}
            return self._answer(200, {"Content-Type": "application/json"}, json.dumps(token).encode())
        status, headers, content = self._ask(body)
        self._answer(status, headers, content, half=bool(fault))

    def log_message(self, *arguments):
        pass

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

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

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        left_out = ("transfer-encoding", "content-length", "accept-encoding", "connection")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator, timeout=120)
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


# --- Certificates and credentials ---


def _certificates(folder: pathlib.Path, hosts: list[str]) -> tuple[str, str]:
    """Makes an authority and a certificate for `hosts`; returns the path of each, the second with its key."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def certificate(name, key, issuer, issuer_key, *extensions):
        builder = x509.CertificateBuilder()
        builder = builder.subject_name(_name(name)).issuer_name(_name(issuer)).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=7))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    identity = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = certificate(
        "an authority for tests", authority_key, "an authority for tests", authority_key,
        (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (identity, False),
    )  # fmt: skip
    names = [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    own = certificate(
        hosts[0], key, "an authority for tests", authority_key,
        (x509.SubjectAlternativeName(names), False), (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity), False),
    )  # fmt: skip
    (folder / "authority.pem").write_bytes(authority)
    (folder / "hosts.pem").write_bytes(_pem(key) + own)
    return str(folder / "authority.pem"), str(folder / "hosts.pem")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _service_account(folder: pathlib.Path) -> str:
    """Makes a service account that exists nowhere; returns the path of its key file."""
    account = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "made-for-tests",
        "private_key": _pem(rsa.generate_private_key(65537, 2048)).decode(),
        "client_email": f"retrain@{PROJECT}.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"https://{TOKENS}/token",
    }
    path = folder / "service_account.json"
    path.write_text(json.dumps(account))
    return str(path)
