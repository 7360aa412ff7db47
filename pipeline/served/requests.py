"""The photographs that were sent: a sample of them, from logs of requests or from files, read one after another.

A log has one JSON object a line: a request as a client sends it to Vertex, `{"instances": [{"bytes_inputs": {"b64": ...}}]}`,
or a row of the BigQuery table into which an endpoint logs requests, exported as JSON, with `request_payload`.
"""

import base64
import binascii
import dataclasses
import hashlib
import heapq
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from pipeline import storage
from pipeline.errors import PipelineError

_LOGS = (".jsonl", ".json", ".ndjson")
_PHOTOGRAPHS = (".jpg", ".jpeg")

MAX_BYTES = 64 * 2**20
"""Bytes of one line, or of one file, above which it is not read: Vertex takes requests of 1.5 MB."""


class Place(NamedTuple):
    """Where a photograph is.

    Attributes:
        uri: The file.
        line: Line of a log, from 1; 0 for a file that is a photograph.
        position: Which instance of the line; -1 for a line that holds none.
    """

    uri: str
    line: int = 0
    position: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Photograph:
    """One photograph that was sent.

    Attributes:
        name: Where it was found, as people read it.
        content: The bytes of its file; none when there is a problem.
        problem: Why it cannot be read; empty for most.
    """

    name: str
    content: bytes = b""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Which photographs are looked at.

    Attributes:
        source: What was named.
        found: Photographs that there are, lines that hold none included.
        places: Those that were drawn, sorted.
        ignored: Files of other kinds.
    """

    source: str
    found: int
    places: tuple[Place, ...]
    ignored: int

    def read(self) -> Iterator[Photograph]:
        """Reads those that were drawn, one at a time, in order. What cannot be read has a problem, and stops nothing."""
        for uri, places in itertools.groupby(self.places, key=lambda place: place.uri):
            name = _relative(uri, self.source)
            yield from _of_file(uri, name) if uri.lower().endswith(_PHOTOGRAPHS) else _of_log(uri, name, list(places))


def draw(source: str, most: int, seed: int) -> Sample:
    """Draws a sample, each photograph with the same chance; the same files and seed give the same one.

    Args:
        source: A log, a photograph, or a folder or gs:// prefix of either at any depth. Its files end in .jsonl, .json or
            .ndjson, and in .jpg or .jpeg.
        most: Photographs that are drawn at most.
        seed: Of the draw.

    Raises:
        PipelineError: It does not exist, cannot be read, or has no photograph in it.
    """
    source = storage.absolute(source)
    ignored, counter = [], itertools.count()

    def keyed() -> Iterator[tuple[bytes, Place]]:
        for listed in _files(source):
            if listed.uri.lower().endswith((*_LOGS, *_PHOTOGRAPHS)):
                for place in _places(listed.uri):
                    next(counter)
                    yield _key(seed, _relative(listed.uri, source), place), place
            else:
                ignored.append(None)

    try:
        # The smallest of random keys: one pass, the memory of the sample, and no matter in which order files are listed.
        drawn = heapq.nsmallest(most, keyed())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PipelineError(
            f"there is no file or folder {source}: name a log of requests (.jsonl), or a folder or gs:// prefix of logs or "
            "photographs"
        ) from error
    except OSError as error:
        raise PipelineError(f"cannot read {error.filename or source}: {error.strerror or error}") from error
    if not drawn:
        other = f"; {len(ignored)} files there have another ending" if ignored else ""
        raise PipelineError(
            f"{source} holds no request and no photograph{other}: logs end in .jsonl, .json or .ndjson, photographs in .jpg or "
            ".jpeg"
        )
    return Sample(source, next(counter), tuple(sorted(place for _, place in drawn)), len(ignored))


def _files(source: str) -> Iterator[storage.Listed]:
    if storage.exists(source):
        return iter([storage.stat(source)])
    return storage.walk(source)


def _key(seed: int, name: str, place: Place) -> bytes:
    text = f"{seed}\n{name}\n{place.line}\n{place.position}"
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).digest()


def _relative(uri: str, source: str) -> str:
    """`uri` as seen from `source`, so that a folder that was moved gives the same sample."""
    return uri.removeprefix(source).lstrip("/" if storage.is_cloud(source) else os.sep) or storage.name_of(uri)


def _places(uri: str) -> Iterator[Place]:
    if uri.lower().endswith(_PHOTOGRAPHS):
        yield Place(uri)
        return
    with storage.opened(uri) as stream:
        for number, line in _lines(stream):
            try:
                count = len(_instances(line))
            except ValueError:
                yield Place(uri, number, -1)
                continue
            yield from (Place(uri, number, position) for position in range(count))


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Number and content of each line that is not blank; None for one that is too long to be read."""
    for number in itertools.count(1):
        line = stream.readline(MAX_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_BYTES and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_BYTES)
            yield number, None
        elif line.strip():
            yield number, line


def _instances(line: bytes | None) -> Sequence[Any]:
    """The instances of one line. Raises ValueError with what is wrong."""
    if line is None:
        raise ValueError(f"the line is longer than {MAX_BYTES:,} bytes")
    content = _json(line)
    if isinstance(content, dict) and "request_payload" in content:
        payload = content["request_payload"]
        texts = [payload] if isinstance(payload, str) else payload
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("its request_payload is no text and no list of texts")
        found = []
        for text in texts:
            part = _json(text)
            found += part["instances"] if isinstance(part, dict) and isinstance(part.get("instances"), list) else [part]
    else:
        found = content.get("instances") if isinstance(content, dict) else None
    if not isinstance(found, list) or not found:
        raise ValueError('it is no request: {"instances": [{"bytes_inputs": {"b64": "..."}}]} is one')
    return found


def _json(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: ten thousand brackets
        raise ValueError("it is no JSON") from error


def _of_file(uri: str, name: str) -> Iterator[Photograph]:
    try:
        size = storage.stat(uri).bytes
        if size > MAX_BYTES:
            yield Photograph(name, problem=f"its {size:,} bytes are more than {MAX_BYTES:,}")
        else:
            yield Photograph(name, storage.read(uri))
    except OSError as error:
        yield Photograph(name, problem=f"it cannot be read: {error.strerror or error}")


def _of_log(uri: str, name: str, wanted: Sequence[Place]) -> Iterator[Photograph]:
    by_line: dict[int, list[int]] = {}
    for place in wanted:
        by_line.setdefault(place.line, []).append(place.position)
    try:
        with storage.opened(uri) as stream:
            for number, line in _lines(stream):
                for position in by_line.pop(number, ()):
                    yield _of_instance(line, position, f"{name}:{number}")
                if not by_line:
                    return
        reason = "it is not there any more"
    except OSError as error:
        reason = f"it cannot be read: {error.strerror or error}"
    for number, positions in by_line.items():
        yield from (Photograph(f"{name}:{number}", problem=reason) for _ in positions)


def _of_instance(line: bytes | None, position: int, name: str) -> Photograph:
    try:
        instances = _instances(line)
    except ValueError as error:
        return Photograph(name, problem=str(error))
    name = f"{name}[{position}]" if len(instances) > 1 else name
    if not 0 <= position < len(instances):
        return Photograph(name, problem="it is not there any more")
    instance = instances[position]
    found = instance.get("bytes_inputs", instance) if isinstance(instance, dict) else None
    text = found.get("b64") if isinstance(found, dict) else None
    if not isinstance(text, str):
        return Photograph(name, problem="it has no bytes_inputs.b64")
    try:
        return Photograph(name, base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return Photograph(name, problem="its b64 is no base64")
