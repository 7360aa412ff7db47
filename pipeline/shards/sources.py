"""Which photographs there are: a folder or prefix of JPEG files, or a table of their URIs."""

import csv
import dataclasses
import io
import os
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator
from concurrent import futures

import pyarrow.parquet as pq
import pyarrow_hotfix  # noqa: F401, for CVE-2023-47248

from pipeline import storage
from pipeline.errors import PipelineError

_ENDINGS = (".jpg", ".jpeg")

_AT_ONCE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One photograph as it was found.

    Attributes:
        image_id: Its id: the file's name without its ending, in Unicode's composed form (NFC), so that one name
            typed on two systems is one id; or what a table of URIs says.
        uri: Where it is.
        bytes: Its size.
        version: As in `storage.Listed`.
        problem: Why no shard can take it, whatever is in it; empty for most.
    """

    image_id: str
    uri: str
    bytes: int
    version: int
    problem: str = ""


def find(images: str) -> Iterator[Source]:
    """All photographs, in no order that counts.

    Args:
        images: A folder or a gs:// prefix (files that end in .jpg or .jpeg, at any depth), or a table of URIs: a
            Parquet or CSV file with the column `uri` and, if wanted, `image_id`. A relative URI counts from the
            table's folder, and may not leave it.

    Raises:
        PipelineError: It does not exist, cannot be listed or read, or is no such table.
    """
    images = storage.absolute(images)
    try:
        if images.endswith((".csv", ".parquet")) and storage.exists(images):
            yield from _of_table(images)
        else:
            for listed in _below(images):
                name = storage.name_of(listed.uri)
                if name.lower().endswith(_ENDINGS):
                    yield _source(name.rpartition(".")[0], listed)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PipelineError(
            f"there is no folder of photographs {images}: give a folder, a gs:// prefix, or a .csv or .parquet table of URIs"
        ) from error
    except OSError as error:
        raise PipelineError(f"cannot list the photographs in {images}: {error.strerror} ({error.filename})") from error


def _below(images: str) -> Iterable[storage.Listed]:
    if not storage.is_cloud(images):
        return storage.walk(images)
    return _listed_at_once(images)


def _listed_at_once(prefix: str) -> Iterator[storage.Listed]:
    """A page of 1,000 objects takes Cloud Storage some 0.1 s, so folders that lie side by side are listed at once."""
    listed, folders = storage.children(prefix)
    if not listed and not folders:
        raise FileNotFoundError(prefix)
    yield from listed
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        for found in pool.map(lambda folder: list(storage.walk(folder)), folders):
            yield from found


def _source(name: str, listed: storage.Listed) -> Source:
    try:
        name.encode()
        listed.uri.encode()
    except UnicodeEncodeError:
        # A name of bytes that are no UTF-8; what cannot be written down is written with escapes.
        uri = listed.uri.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return Source(uri, uri, listed.bytes, listed.version, "its name is not UTF-8: rename it")
    image_id = unicodedata.normalize("NFC", name)
    problem = ""
    if not image_id.strip(". "):
        problem = "its name leaves no id: rename it"
    elif re.search(r"[\x00-\x1f\x7f]", image_id):
        problem = "its name has a control character: rename it"
    return Source(image_id, listed.uri, listed.bytes, listed.version, problem)


def _of_table(table: str) -> Iterator[Source]:
    rows = enumerate(_rows(table), start=1)
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        while batch := [row for _, row in zip(range(4096), rows)]:
            places = [_place(table, number, row) for number, row in batch]
            for (_, row), uri, listed in zip(batch, places, pool.map(_stat, places)):
                name = _text(row.get("image_id")) or storage.name_of(uri).rpartition(".")[0]
                source = _source(name, listed or storage.Listed(uri, 0, -1))
                yield source if listed else dataclasses.replace(source, problem="there is no such file")


def _rows(table: str) -> Iterator[dict]:
    wanted = ("uri", "image_id")
    try:
        if table.endswith(".csv"):
            with storage.opened(table) as stream:
                reader = csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
                names = reader.fieldnames or []
                _require_uri(table, names)
                yield from reader
        else:
            with storage.opened(table) as stream:
                parquet = pq.ParquetFile(stream)
                _require_uri(table, parquet.schema_arrow.names)
                columns = [name for name in wanted if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(columns=columns):
                    yield from batch.to_pylist()
    except (ValueError, csv.Error, OSError) as error:
        # Arrow's errors are ValueErrors, and OSErrors without a number for what a disk did not do.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise PipelineError(f"cannot read the table of URIs {table}: {error}") from error
    except RuntimeError as error:
        # From pyarrow_hotfix: to read such a type is to run what the file says.
        if "arrow.py_extension_type" not in str(error):
            raise
        raise PipelineError(
            f"the table of URIs {table} holds a column of a pickled Python type, which runs code when it is read: "
            "write its columns as strings"
        ) from error


def _require_uri(table: str, names) -> None:
    if "uri" not in names:
        raise PipelineError(f"the table of URIs {table} has no column uri; its columns are {', '.join(map(str, names)) or 'none'}")


def _place(table: str, number: int, row: dict) -> str:
    uri = _text(row.get("uri"))
    if not uri:
        raise PipelineError(f"row {number} of the table of URIs {table} has no uri")
    if ".." in uri.split("/"):
        raise PipelineError(f"row {number} of the table of URIs {table}: {uri!r} leaves its folder by '..': write it without")
    if storage.is_cloud(uri) or os.path.isabs(uri):
        return uri
    return storage.join(posixpath.dirname(table), uri)


def _text(value) -> str:
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)


def _stat(uri: str) -> storage.Listed | None:
    try:
        return storage.stat(uri)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
