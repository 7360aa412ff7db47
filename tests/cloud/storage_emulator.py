"""Cloud Storage on this machine, for Google's unmodified client: an emulator that is made to answer as documented.

The emulator keeps objects with their generations, but ignores preconditions, never cuts a listing into pages, and more.
What Cloud Storage documents of these is put in front of it here, in the same process, and so are faults: a bucket that
refuses, a server that is busy, an object that goes between two requests. See
https://cloud.google.com/storage/docs/request-preconditions and .../json_api/v1/objects/list.
"""

import contextlib
import dataclasses
import functools
import hashlib
import http.server
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest
from gcp_storage_emulator import server
from gcp_storage_emulator.handlers import buckets, objects

from pipeline import storage
from tests.cloud import faults

_KINDS = {
    objects.ls: "list",
    objects.get: "stat",  # or "read", by its parameter alt
    objects.download: "read",
    objects.insert: "write",
    objects.upload_partial: "write",
    objects.delete: "delete",
}

# Preconditions that nobody needs here yet: refused, so that no test passes because they were ignored.
_UNKNOWN = ("ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")


@dataclasses.dataclass(frozen=True)
class Call:
    """A request as it arrived.

    Attributes:
        kind: `list`, `stat`, `read` (of content), `write`, `delete` or `other`.
        bucket: Its bucket.
        name: Its object; for a listing the prefix.
        range: The header Range of a read, empty for the whole.
        upload: `media`, `multipart` or `resumable` for a write.
    """

    kind: str
    bucket: str
    name: str
    range: str = ""
    upload: str = ""

    @property
    def uri(self) -> str:
        """Its object, as a gs:// URI."""
        return f"gs://{self.bucket}/{self.name}"


class _Listener(http.server.HTTPServer):
    request_queue_size = 128  # the default of 5 makes the sixth of many threads wait for a second

    def handle_error(self, request, client_address):
        pass  # Emulator.failures has what counts


class Emulator:
    """A running emulator, seen from a test. Its objects can be read and changed without a request.

    Attributes:
        calls: All requests so far, those that were refused included.
        failures: Exceptions inside the emulator that are no broken connections; a test that ends with one failed.
        page: Objects and prefixes of one page of a listing, at most.
    """

    def __init__(self):
        self.calls: list[Call] = []
        self.failures: list[BaseException] = []
        self.page = 1000
        self._rules = faults.Rules()
        # A test's own thread and the server's.
        self._lock = threading.RLock()
        self._storage = server.create_server("127.0.0.1", 0, in_memory=True)._storage
        self._listener = _Listener(("127.0.0.1", 0), functools.partial(server.RequestHandler, self._storage))
        # Its own keys take "a//b", "a/./b" and "a\\b" for one name, and it writes all it knows at each change.
        self._storage._object_path = lambda bucket, name: f"{bucket}/{hashlib.sha256(name.encode()).hexdigest()}"
        self._storage._write_config_to_file = lambda: None

    def answer(self, status: int, where: Callable[[Call], bool], times: int | None = None, late: bool = False) -> None:
        """From now on answers `status` to the requests for which `where` holds.

        Args:
            status: HTTP status.
            where: Which requests.
            times: How often; None for always.
            late: Whether the work is done nevertheless, as when only the answer got lost.
        """
        self._rules.add(faults.Rule(where, times, status=status, late=late))

    def before(self, where: Callable[[Call], bool], action: Callable[[], None], times: int | None = 1) -> None:
        """Does `action`, which may send none itself, before it answers a request for which `where` holds."""
        self._rules.add(faults.Rule(where, times, action=action))

    def heal(self) -> None:
        """Forgets all that `answer` and `before` asked for."""
        self._rules.clear()

    def count(self, kind: str, part: str = "") -> int:
        """Requests of a kind whose object has `part` in its name."""
        return sum(call.kind == kind and part in call.name for call in self.calls)

    def add_bucket(self, name: str) -> None:
        """Makes a bucket."""
        with self._lock:
            buckets.create_bucket(name, self._storage)

    def put(self, uri: str, content: bytes) -> int:
        """Writes an object; returns its generation."""
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        with self._lock:
            resource = objects._make_object_resource(self.endpoint, bucket, name, "image/jpeg", str(len(content)))
            self._storage.create_file(bucket, name, content, objects._checksums(content, resource))
        return int(resource["generation"])

    def delete(self, uri: str) -> None:
        """Removes an object."""
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        with self._lock:
            self._storage.delete_file(bucket, name)

    def content(self, uri: str) -> bytes:
        """The content of an object."""
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        with self._lock:
            return self._storage.get_file(bucket, name)

    def find(self, uri: str) -> bytes | None:
        """The content of an object; None when it is not there."""
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        with self._lock:
            is_there = name in self._storage.objects.get(bucket, {})
            return self._storage.get_file(bucket, name) if is_there else None

    def below(self, uri: str) -> dict[str, bytes]:
        """Name, without that of `uri`, and content of all objects below it."""
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        with self._lock:
            names = sorted(name for name in self._storage.objects.get(bucket, {}) if name.startswith(prefix))
            return {name.removeprefix(prefix): self._storage.get_file(bucket, name) for name in names}

    @property
    def port(self) -> int:
        """Its port on the loopback."""
        return self._listener.server_port

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts to answer, on a free port of the loopback."""
        # The emulator's own thread looks only twice a second whether it should stop.
        threading.Thread(target=self._listener.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stops to listen."""
        self._listener.shutdown()
        self._listener.server_close()

    def routes(self, handlers) -> tuple:
        """The emulator's routes, with what this module adds."""
        return tuple(
            (regex, {method: self._guarded(handler) for method, handler in of_methods.items()})
            for regex, of_methods in handlers
        )

    def _guarded(self, handler):
        def handle(request, response, kept):
            try:
                with self._lock:
                    self._handle(handler, request, response)
            except BaseException as error:
                # A client that was killed breaks its connection; anything else is a defect here.
                if not isinstance(error, ConnectionError):
                    self.failures.append(error)
                raise

        return handle

    def _handle(self, handler, request, response) -> None:
        # First: a client that is refused before it has said all takes it for a broken connection.
        if request.data is None and request.query.get("uploadType") == ["media"]:
            request._data = b""  # an object without content, with which the emulator does not reckon
        call = self._call(handler, request)
        self.calls.append(call)
        late = 0
        for rule in self._rules.of(call):
            if rule.action:
                rule.action()
            elif rule.late:
                late = rule.status
            else:
                return _refuse(response, rule.status)
        refused = self._precondition(call, request)
        if refused:
            return _refuse(response, refused)
        handler(request, response, self._storage)
        if call.kind == "list" and response.status == HTTPStatus.OK:
            self._cut(request, response)
        if late:
            _refuse(response, late)

    def _call(self, handler, request) -> Call:
        query = {name: values[0] for name, values in request.query.items()}
        params, data = request.params, request.data
        kind = _KINDS.get(handler, "other")
        if kind == "stat" and query.get("alt") == "media":
            kind = "read"
        name = params.get("object_id") or ""
        if kind == "list":
            name = query.get("prefix", "")
        elif kind == "write" and "upload_id" in query:
            known = self._storage.resumable.get(query["upload_id"], {})
            name = known.get("name", "")
        elif kind == "write":
            metadata = data.get("meta", data) if isinstance(data, dict) else {}
            name = query.get("name") or metadata.get("name", "")
        return Call(
            kind=kind,
            bucket=params.get("bucket_name") or "",
            name=name,
            range=request.get_header("range", "") if kind == "read" else "",
            upload=query.get("uploadType", "") if kind == "write" else "",
        )

    def _precondition(self, call: Call, request) -> int:
        """The status of a request that its preconditions, generation or range forbid; 0 for any other."""
        query = {name: values[0] for name, values in request.query.items()}
        if any(name in query for name in _UNKNOWN):
            return HTTPStatus.NOT_IMPLEMENTED
        if call.kind not in ("stat", "read", "write", "delete"):
            return 0
        live = self._storage.objects.get(call.bucket, {}).get(call.name)
        if live is None and call.kind != "write":
            return HTTPStatus.NOT_FOUND
        generation = live["generation"] if live else "0"
        if query.get("ifGenerationMatch", generation) != generation:
            return HTTPStatus.PRECONDITION_FAILED
        if call.kind != "write" and query.get("generation", generation) != generation:
            return HTTPStatus.NOT_FOUND
        if call.range and int(call.range.removeprefix("bytes=").partition("-")[0]) >= int(live["size"]):
            return HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        return 0

    def _cut(self, request, response) -> None:
        """Leaves one page of a listing, and of it the fields that were asked for."""
        query = {name: values[0] for name, values in request.query.items()}
        whole = json.loads(response._content)
        entries = sorted(
            [("items", item["name"], item) for item in whole["items"]]
            + [("prefixes", prefix, prefix) for prefix in whole["prefixes"]],
            key=lambda entry: entry[1],
        )
        # A token says where the page before ended, so that none is left out when those before are removed meanwhile.
        entries = [entry for entry in entries if entry[1] > query.get("pageToken", "")]
        page = {"kind": whole["kind"]}
        most = min(self.page, int(query.get("maxResults", self.page)))
        for part, _, entry in entries[:most]:
            page.setdefault(part, []).append(entry)
        if len(entries) > most:
            page["nextPageToken"] = entries[most - 1][1]
        if "fields" in query:
            page = _only(page, query["fields"])
        response.json(page)


def _only(page: dict, fields: str) -> dict:
    """A partial response: `fields` as in "items(name,size),nextPageToken" or "items/name,nextPageToken"."""
    inner = ()
    fields = fields.replace("items/name", "items(name)")
    if "items(" in fields:
        before, _, rest = fields.partition("items(")
        names, _, after = rest.partition(")")
        inner, fields = tuple(names.split(",")), f"{before}items{after}"
    kept = {name: value for name, value in page.items() if name in fields.split(",")}
    if inner and "items" in kept:
        kept["items"] = [{name: item[name] for name in inner} for item in kept["items"]]
    return kept


def _refuse(response, status: int) -> None:
    status = HTTPStatus(status)
    response.status = status
    response.json({"error": {"code": status.value, "message": f"the emulator was told so: {status.phrase}"}})


def _whole(read_raw_data):
    """Takes no upload whose client died before its end: the emulator would keep the part that came."""

    def read(handler):
        content = read_raw_data(handler)
        expected = handler.headers.get("Content-Length")
        if expected and len(content or b"") < int(expected):
            raise ConnectionAbortedError("the client sent less than it announced")
        return content

    return read


def _linked(make_object_resource):
    """Escapes the name in an object's link to its content, by which Google's client reads what it has seen before.

    Who came by Google's name came encrypted, and the link leads there again.
    """

    def make(base_url, bucket, name, *arguments, **options):
        base_url = re.sub(r"^http://(?=[a-z]+\.googleapis\.com)", "https://", base_url)
        resource = make_object_resource(base_url, bucket, name, *arguments, **options)
        link = f"{base_url}/download/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
        return resource | {"mediaLink": f"{link}?generation={resource['generation']}&alt=media"}

    return make


@contextlib.contextmanager
def running(*names: str) -> Iterator[Emulator]:
    """An emulator with buckets of these names, which this process and those it starts take for Cloud Storage."""
    emulator = Emulator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "HANDLERS", emulator.routes(server.HANDLERS))
        patch.setattr(server, "_read_raw_data", _whole(server._read_raw_data))
        patch.setattr(objects, "_make_object_resource", _linked(objects._make_object_resource))
        emulator.start()
        patch.setenv("STORAGE_EMULATOR_HOST", emulator.endpoint)
        for variable in ("NO_PROXY", "no_proxy"):
            patch.setenv(variable, ",".join(filter(None, [os.environ.get(variable), "127.0.0.1"])))
        storage._client.cache_clear()
        try:
            for name in names:
                emulator.add_bucket(name)
            yield emulator
        finally:
            storage._client.cache_clear()
            emulator.stop()
    assert not emulator.failures, emulator.failures
