"""Proves a generation of image shards: manifest, index and every byte of the shards against each other."""

import dataclasses
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from concurrent import futures

from models import tfrecords
from pipeline import storage
from pipeline.shards import planning
from pipeline.shards.generations import Generation

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_REPORTS = 5.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a proof found.

    Attributes:
        problems: One sentence each, naming the file; none when the generation is whole.
        shards: Shards that were read.
        images: Photographs whose stored bytes are those of the index.
        superseded: Records that this generation does not point to any more: changed or gone photographs.
        unused: Names of shard files in the folder that this generation does not point to.
    """

    problems: tuple[str, ...]
    shards: int
    images: int
    superseded: int
    unused: tuple[str, ...]


def verify(generation: Generation, threads: int | None = None) -> Verdict:
    """Reads all of a generation.

    Args:
        generation: The generation.
        threads: Shards that are read at once; by default one a core.

    Returns:
        What was found. Nothing is changed.

    Raises:
        PipelineError: The manifest cannot be read.
    """
    manifest = generation.manifest()
    problems = list(_index_problems(generation, manifest))
    images = superseded = 0
    if not problems:
        with planning.opened_index(generation) as index, futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            if index.digest(manifest["packing"]) != generation.digest:
                problems.append(f"the index of {generation.folder} is not the one that its manifest's digest is of")
            problems += _disagreements(generation, manifest, index.shards())
            names, told = sorted(manifest["shards"]), time.monotonic()
            # The rows are fetched here, a shard at a time: the database is for one thread.
            jobs = ((generation.shard_path(name), manifest["shards"][name], index.rows_of(name)) for name in names)
            for number, (found, good, records) in enumerate(_map(pool, jobs), start=1):
                problems += found
                images += good
                superseded += records - good if not found else 0
                if time.monotonic() - told >= _SECONDS_BETWEEN_REPORTS:
                    told = time.monotonic()
                    log.info("verified %d of %d shards", number, len(names))
    present = {name for name in storage.names(generation.root) if name.startswith("shard-")}
    return Verdict(
        problems=tuple(problems),
        shards=len(manifest["shards"]),
        images=images,
        superseded=superseded,
        unused=tuple(sorted(present - manifest["shards"].keys())),
    )


def _map(pool, jobs):
    """`pool.map` over `jobs` without taking all of them at once."""
    waiting = []
    for job in jobs:
        waiting.append(pool.submit(_shard, *job))
        if len(waiting) > 16:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _index_problems(generation, manifest) -> Iterator[str]:
    for name, digest in sorted(manifest["index"].items()):
        uri = storage.join(generation.folder, name)
        try:
            if hashlib.sha256(storage.read(uri)).hexdigest() != digest:
                yield f"index file {uri} was altered: its digest is not the manifest's"
        except OSError as error:
            yield f"index file {uri} cannot be read: {error.strerror}"


def _disagreements(generation, manifest, counts: dict[str, int]) -> Iterator[str]:
    for name in sorted(counts.keys() - manifest["shards"].keys()):
        yield f"the index points to {generation.shard_path(name)}, which the manifest does not name"
    for name in sorted(manifest["shards"].keys() - counts.keys()):
        yield f"the manifest names {generation.shard_path(name)}, to which the index does not point"


def _shard(uri: str, facts: dict, rows: list[dict]) -> tuple[list[str], int, int]:
    """Problems, photographs that are as the index says, and records of one shard."""
    # Here: it loads TensorFlow's protocol buffers.
    from models import records

    wanted = {row["ordinal"]: row for row in rows}
    problems, good, count = [], 0, 0
    try:
        with storage.opened(uri) as stream:
            digest = tfrecords.Digested(stream)
            for count, record in enumerate(tfrecords.read(digest), start=1):
                row = wanted.pop(count - 1, None)
                if row is None:
                    continue
                difference = _difference(row, record, records)
                if difference:
                    problems.append(f"image shard {uri}: record {count - 1}, photograph {row['image_id']!r}: {difference}")
                else:
                    good += 1
        if digest.sha256 != facts["sha256"] or count != facts["records"]:
            problems.append(f"image shard {uri} was altered: its digest is not the manifest's")
    except tfrecords.DamagedError as error:
        return [f"image shard {uri} is damaged: {error}"], good, count
    except OSError as error:
        return [f"image shard {uri} cannot be read: {error.strerror}"], good, count
    if wanted:
        first = min(wanted)
        problems.append(
            f"image shard {uri} lacks {len(wanted)} records of the index, the first is {first}, "
            f"photograph {wanted[first]['image_id']!r}"
        )
    return problems, good, count


def _difference(row: dict, record: tfrecords.Record, records) -> str:
    if (record.offset, record.length) != (row["offset"], row["length"]):
        return f"it lies at byte {record.offset}, the index says {row['offset']}"
    try:
        stored = records.decode_image(record.payload)
    except ValueError as error:
        return str(error)
    if stored["image_id"] != row["image_id"]:
        return f"the record is of {stored['image_id']!r}"
    if hashlib.sha256(stored["encoded"]).hexdigest() != row["sha256"] or stored["sha256"] != row["sha256"]:
        return "its stored bytes are not those of the index"
    if len(stored["encoded"]) != row["bytes"]:
        return f"it has {len(stored['encoded'])} bytes, the index says {row['bytes']}"
    if stored["source_sha256"] != row["source_sha256"]:
        return "it was made of another file than the index says"
    if (stored["width"], stored["height"]) != (row["width"], row["height"]):
        return f"the record says {stored['width']} x {stored['height']} pixels, the index {row['width']} x {row['height']}"
    return ""
