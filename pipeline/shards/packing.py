"""Packs one bucket of photographs into one shard: the unit of work that Beam spreads over machines.

A bucket is a Parquet file of sources in the plan's folder. Its result is a shard, and beside the bucket a Parquet file
that says of each source what became of it. Whoever finds that file need not do the bucket again, so a killed packing
goes on where it was; and a bucket done twice, as Beam may do, gives the same bytes under the same names.
"""

import collections
import dataclasses
import errno
import hashlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow_hotfix  # noqa: F401, for CVE-2023-47248

from models import tfrecords
from pipeline import storage, typed
from pipeline.errors import PipelineError
from pipeline.settings import ShardSettings
from pipeline.shards import photographs

log = logging.getLogger(__name__)

BUCKET_SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("source_uri", pa.string()),
        ("source_bytes", pa.int64()),
        ("source_version", pa.int64()),
        ("known_sha256", pa.string()),  # of the source when it was packed or refused last; empty when it is new
    ]
)

RESULT_SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("source_uri", pa.string()),
        ("source_bytes", pa.int64()),
        ("source_version", pa.int64()),
        ("source_sha256", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("shard", pa.string()),
        ("ordinal", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("bytes", pa.int64()),
        ("width", pa.int64()),
        ("height", pa.int64()),
        ("sha256", pa.string()),
    ]
)

# What became of a source.
PACKED = "packed"
UNCHANGED = "unchanged"  # listed with another version or place, but its bytes are those that are packed or refused
REFUSED = "refused"  # its bytes can be no record; they are not looked at again until they change
UNREADABLE = "unreadable"  # it could not be read; the next packing tries again
VANISHED = "vanished"  # it was listed, and was gone when it should have been read

_ATTEMPTS = 3

_SHARD = b"shard"

_SECONDS_BETWEEN_REPORTS = 5.0


def result_of(bucket: str) -> str:
    """URI of the result of a bucket."""
    return bucket.removesuffix(".parquet") + ".packed.parquet"


def pack_bucket(bucket: str, root: str, settings) -> None:
    """Makes the shard and the result of one bucket, unless they are there.

    Args:
        bucket: URI of the bucket, with the columns of `BUCKET_SCHEMA`, in the order of the shard's records.
        root: Folder of the shards.
        settings: `ShardSettings`.

    Raises:
        OSError: The shard or the result cannot be written.
    """
    if storage.exists(result_of(bucket)):
        return
    sources = pq.read_table(io.BytesIO(storage.read(bucket))).to_pylist()
    rows, facts = [], {}
    started = told = time.monotonic()
    with storage.scratch(root) as folder:
        path = os.path.join(folder, "shard")
        with open(path, "wb") as stream:
            writer = tfrecords.Writer(stream)
            for arrived in _in_order(_fetched, sources, settings.readers):
                row, record = _packed(arrived, settings)
                if record is not None:
                    place = writer.write(record)
                    row |= {"ordinal": writer.records - 1, "offset": place.offset, "length": place.length}
                rows.append(row)
                if (now := time.monotonic()) - told >= _SECONDS_BETWEEN_REPORTS:
                    told, rate = now, len(rows) / (now - started)
                    log.info("%s: %d of %d photographs, %.0f/s", storage.name_of(bucket), len(rows), len(sources), rate)
        if writer.records:
            name = f"shard-{writer.sha256[:32]}.tfrecord"
            facts = {"name": name, "records": writer.records, "bytes": writer.bytes, "sha256": writer.sha256}
            rows = [row | {"shard": name} if row["outcome"] == PACKED else row for row in rows]
            storage.publish(path, storage.join(root, name))
    schema = RESULT_SCHEMA.with_metadata({_SHARD: json.dumps(facts)})
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), content)
    storage.write(result_of(bucket), content.getvalue())


def shard_of(carried: dict[bytes, bytes]) -> dict[str, dict]:
    """Name and facts of a bucket's shard, of what its result's schema carries; none when the bucket gave no record."""
    facts = json.loads(carried[_SHARD])
    return {facts["name"]: {name: facts[name] for name in ("records", "bytes", "sha256")}} if facts else {}


def mean_record_bytes(sources: Iterable[dict], settings) -> float:
    """Mean bytes of the records that `sources` become, from which the number of shards follows; 0 when none becomes one."""
    made = (_packed(arrived, settings)[1] for arrived in _in_order(_fetched, sources, settings.readers))
    lengths = [len(record) for record in made if record is not None]
    return sum(lengths) / len(lengths) + tfrecords.OVERHEAD if lengths else 0.0


def _in_order(work: Callable, items: Iterable, threads: int) -> Iterator:
    """`map` by threads, with no more results waiting than threads could be busy with."""
    with futures.ThreadPoolExecutor(threads) as pool:
        waiting = collections.deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclasses.dataclass(frozen=True)
class _Arrived:
    """A source and its content, or why there is none."""

    row: dict
    known_sha256: str
    content: bytes | None = None
    outcome: str = VANISHED
    reason: str = ""


def _fetched(source: dict) -> _Arrived:
    row = {name: source[name] for name in ("image_id", "source_uri", "source_bytes", "source_version")}
    arrived = _Arrived(row, source["known_sha256"])
    try:
        content, listed = _read(storage.Listed(row["source_uri"], row["source_bytes"], row["source_version"]))
    except (FileNotFoundError, NotADirectoryError):
        return arrived
    except OSError as error:
        return dataclasses.replace(arrived, outcome=UNREADABLE, reason=f"it cannot be read: {error.strerror}")
    row = row | {"source_bytes": listed.bytes, "source_version": listed.version}
    return dataclasses.replace(arrived, row=row, content=content)


def _packed(arrived: _Arrived, settings) -> tuple[dict, bytes | None]:
    """The result row of a source, without its place, and its record if it becomes one."""
    # Here: it loads TensorFlow's protocol buffers, and a bucket that is done needs none.
    from models import records

    row = arrived.row | {"source_sha256": "", "outcome": arrived.outcome, "reason": arrived.reason}
    if arrived.content is None:
        return row, None
    if arrived.known_sha256 and arrived.known_sha256 == hashlib.sha256(arrived.content).hexdigest():
        return row | {"source_sha256": arrived.known_sha256, "outcome": UNCHANGED}, None
    packed = photographs.pack(row["image_id"], arrived.content, settings)
    row["source_sha256"] = packed.source_sha256
    if isinstance(packed, photographs.Quarantined):
        return row | {"outcome": REFUSED, "reason": packed.reason}, None
    stored = {"width": packed.width, "height": packed.height, "sha256": packed.sha256}
    record = records.encode_image(
        image_id=packed.image_id, encoded=packed.encoded, source_sha256=packed.source_sha256, **stored
    )
    return row | {"outcome": PACKED, "bytes": len(packed.encoded)} | stored, record


def _read(listed: storage.Listed) -> tuple[bytes, storage.Listed]:
    """The content as it was listed or, when it was changed since, as it is now."""
    for _ in range(_ATTEMPTS):
        try:
            return storage.read(listed.uri, listed.version), listed
        except FileNotFoundError:
            listed = storage.stat(listed.uri)
    raise OSError(0, f"it was changed {_ATTEMPTS} times while it was read", listed.uri)


class _PackBucket(beam.DoFn):
    def __init__(self, root, settings):
        self._root = root
        # As plain data: a frozen dataclass that checks itself does not survive every pickler.
        self._settings = typed.to_dict(settings)

    def process(self, bucket):
        try:
            pack_bucket(bucket, self._root, typed.from_dict(ShardSettings, self._settings, "shards"))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Beam keeps the text of an error, and of this one its type.
            raise PipelineError(f"cannot pack {bucket}: {error.strerror} ({error.filename})") from error
        return ()


def run(buckets: list[str], root: str, settings, options) -> None:
    """Packs buckets by Beam.

    Args:
        buckets: URIs of the buckets.
        root: Folder of the shards.
        settings: `ShardSettings`.
        options: Beam's `PipelineOptions`: which runner, and where.

    Raises:
        PipelineError: Beam refuses its options, or the job ended in another state than done.
    """
    try:
        pipeline = beam.Pipeline(options=options)
    except ValueError as error:
        raise PipelineError(f"Beam refuses its options: {error}") from error
    # Reshuffled, so that no machine keeps all the buckets because it made the list.
    _ = pipeline | beam.Create(buckets) | beam.Reshuffle() | beam.ParDo(_PackBucket(root, settings))
    try:
        state = pipeline.run().wait_until_finish()
    except PipelineError as error:
        raise PipelineError(re.sub(r" \[while running .*\]$", "", str(error), flags=re.DOTALL)) from error
    if state != beam.runners.runner.PipelineState.DONE:
        raise PipelineError(
            f"the Beam job that packs photographs ended as {state}: its own log says why. Run the same command again; "
            "what is packed stays packed"
        )
