"""Packs a folder of photographs into image shards, and later only what is new.

    shards/shard-<digest>.tfrecord      immutable, named by content, shared by all generations
    shards/generation-000001/           sealed by one rename: a reader sees all of it or none
        index.parquet                   image_id -> shard, ordinal, sizes, digests
        quarantine.json                 files that no shard took, each with its reason
        manifest.json                   counts, settings, and the digests of index and shards

Images are spread over shards by the hash of their id, so a shard is a fair sample of its generation.
"""

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from models import records
from pipeline import files, typed
from pipeline.errors import PipelineError
from pipeline.shards import photographs

log = logging.getLogger(__name__)

FORMAT = 1

INDEX_SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("source_file", pa.string()),
        ("source_sha256", pa.string()),
        ("source_bytes", pa.int64()),
        ("source_mtime_ns", pa.int64()),
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


@dataclasses.dataclass(frozen=True)
class Generation:
    """A sealed generation of image shards.

    Attributes:
        folder: Where its index and manifest are; the shards lie beside that folder.
        number: 1 for the first.
        digest: SHA-256 over what it holds (ids, stored bytes, places, settings), 64 hex digits.
        images: Photographs in the index.
        shards: Shard files that the index points to.
        packed: Photographs that were new or changed when it was made.
        quarantined: Files that no shard took.
    """

    folder: str
    number: int
    digest: str
    images: int
    shards: int
    packed: int
    quarantined: int

    @property
    def index(self) -> str:
        """Path of the index."""
        return os.path.join(self.folder, "index.parquet")

    def shard_facts(self) -> dict[str, dict]:
        """Name of each shard -> {`records`, `bytes`, `sha256`}."""
        return json.loads(pathlib.Path(self.folder, "manifest.json").read_text(encoding="utf-8"))["shards"]

    def shard_path(self, name: str) -> str:
        """Path of a shard: the shards lie beside the generation's folder."""
        return os.path.join(os.path.dirname(self.folder), name)

    @property
    def table(self) -> str:
        """Name of the warehouse table that holds the index; the digest makes it immutable."""
        return f"image_index_{self.digest[:16]}"


def latest(root: str | os.PathLike) -> Generation | None:
    """The newest sealed generation under `root`, or None."""
    folders = sorted(pathlib.Path(root).glob("generation-*/manifest.json"), key=lambda path: _number(path.parent))
    return _read(folders[-1].parent) if folders else None


def pack_folder(images: str | os.PathLike, root: str | os.PathLike, settings) -> Generation:
    """Brings the shards under `root` up to date with the JPEG files in `images`.

    Args:
        images: Folder of JPEG files, at any depth; a file's name without its ending is the image id.
        root: Folder of the shards.
        settings: `ShardSettings`.

    Returns:
        The generation that describes the folder as it is: a new one, or the newest one when nothing
        changed. Unchanged files (size and modification time) are not read.

    Raises:
        PipelineError: The folder is missing or holds no JPEG file, two files have one id, or more
            files than `settings.max_quarantine_share` had to be left out.
    """
    root = pathlib.Path(root)
    sources = _list(pathlib.Path(images))
    previous = latest(root)
    if previous and json.loads(pathlib.Path(previous.folder, "manifest.json").read_text())["settings"] != _packing(settings):
        log.info("the shard settings changed: every photograph is packed again")
        known, refused = {}, {}
    else:
        known, refused = _known(previous), _refused(previous)

    kept, fresh, quarantined = [], [], []
    for image_id, path in sources.items():
        stat = path.stat()
        entry = known.get(image_id) or refused.get(image_id)
        if entry and (entry["source_bytes"], entry["source_mtime_ns"]) == (stat.st_size, stat.st_mtime_ns):
            (kept if image_id in known else quarantined).append(entry)
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise PipelineError(f"cannot read the photograph {path}: {error.strerror}") from error
        source = {
            "image_id": image_id,
            "source_file": str(path.relative_to(images)),
            "source_bytes": stat.st_size,
            "source_mtime_ns": stat.st_mtime_ns,
        }
        digest = hashlib.sha256(content).hexdigest()
        if entry and entry["source_sha256"] == digest:
            (kept if image_id in known else quarantined).append({**entry, **source})
            continue
        packed = photographs.pack(image_id, content, settings)
        if isinstance(packed, photographs.Quarantined):
            log.warning("photograph %s goes to quarantine: %s", path, packed.reason)
            quarantined.append({**source, "source_sha256": digest, "reason": packed.reason})
        else:
            fresh.append((packed, source))

    _check_quarantine(quarantined, len(sources), settings)
    gone = len((known.keys() | refused.keys()) - sources.keys())
    unchanged = [(row["image_id"], row["source_sha256"], row["reason"]) for row in quarantined] == [
        (image_id, row["source_sha256"], row["reason"]) for image_id, row in sorted(refused.items())
    ]
    if previous and not fresh and not gone and unchanged and len(kept) == previous.images:
        return previous
    rows, shards = _write_shards(fresh, root, settings)
    index = sorted(kept + rows, key=lambda row: row["image_id"])
    if previous:
        shards = previous.shard_facts() | shards
    return _seal(root, previous, index, shards, quarantined, len(fresh), settings)


def _list(images: pathlib.Path) -> dict[str, pathlib.Path]:
    if not images.is_dir():
        raise PipelineError(f"there is no folder of photographs {images}: give the folder that holds images/ by --data")
    sources: dict[str, pathlib.Path] = {}
    for path in sorted(images.rglob("*")):
        if path.suffix.lower() not in (".jpg", ".jpeg") or not path.is_file():
            continue
        try:
            str(path.relative_to(images)).encode()
        except UnicodeEncodeError as error:
            raise PipelineError(f"the name of the photograph {str(path)!r} is not UTF-8: rename it") from error
        if path.stem in sources:
            raise PipelineError(
                f"two photographs have the id {path.stem!r}: {sources[path.stem]} and {path}. An id is the file's "
                "name without its ending: rename one"
            )
        sources[path.stem] = path
    if not sources:
        raise PipelineError(f"{images} holds no photograph: files that end in .jpg or .jpeg are wanted")
    return sources


def _packing(settings) -> dict:
    """The settings that decide what shards hold; how many files may be left out is not one of them."""
    return {name: value for name, value in typed.to_dict(settings).items() if name != "max_quarantine_share"}


def _known(generation: Generation | None) -> dict[str, dict]:
    if generation is None:
        return {}
    missing = [name for name in generation.shard_facts() if not os.path.exists(generation.shard_path(name))]
    if missing:
        raise PipelineError(
            f"{len(missing)} image shard(s) of {generation.folder} are missing, the first is "
            f"{generation.shard_path(missing[0])}: restore them from a backup, or move that folder's "
            "parent away so that the photographs are packed again"
        )
    return {row["image_id"]: row for row in pq.read_table(generation.index).to_pylist()}


def _refused(generation: Generation | None) -> dict[str, dict]:
    if generation is None:
        return {}
    listed = json.loads(pathlib.Path(generation.folder, "quarantine.json").read_text(encoding="utf-8"))
    return {row["image_id"]: row for row in listed}


def _check_quarantine(quarantined: list[dict], total: int, settings) -> None:
    if len(quarantined) <= settings.max_quarantine_share * total:
        return
    listed = "\n".join(f"  {row['source_file']}: {row['reason']}" for row in quarantined[:10])
    more = f"\n  and {len(quarantined) - 10} more" if len(quarantined) > 10 else ""
    raise PipelineError(
        f"{len(quarantined)} of {total} photographs cannot be used, more than shards.max_quarantine_share "
        f"{settings.max_quarantine_share} allows:\n{listed}{more}\n"
        "Replace or remove these files, or raise the share in the settings"
    )


def _write_shards(fresh, root: pathlib.Path, settings) -> tuple[list[dict], dict[str, dict]]:
    """Writes the packed photographs into new shards; returns their index rows and the shards' facts."""
    root.mkdir(parents=True, exist_ok=True)
    # By the hash of the id: neither the file's name nor the day it arrived decides its neighbours.
    fresh = sorted(fresh, key=lambda item: hashlib.sha256(item[0].image_id.encode()).digest())
    batches, pending, size = [], [], 0
    for packed, source in fresh:
        record = records.encode_image(
            image_id=packed.image_id,
            encoded=packed.encoded,
            width=packed.width,
            height=packed.height,
            source_sha256=packed.source_sha256,
            sha256=packed.sha256,
        )
        if pending and size + len(record) > settings.target_bytes:
            batches.append(_write_shard(pending, root))
            pending, size = [], 0
        pending.append((record, packed, source))
        size += len(record)
    if pending:
        batches.append(_write_shard(pending, root))
    return [row for rows, _ in batches for row in rows], {name: facts for _, (name, facts) in batches}


def _write_shard(items, root: pathlib.Path) -> tuple[list[dict], tuple[str, dict]]:
    temporary = root / f".shard-{os.getpid()}.tmp"
    try:
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for record, _, _ in items:
                writer.write(record)
        digest = files.sha256_of(temporary)
        name = f"shard-{digest[:32]}.tfrecord"
        os.replace(temporary, root / name)
    finally:
        temporary.unlink(missing_ok=True)
    rows, offset = [], 0
    for ordinal, (record, packed, source) in enumerate(items):
        # A TFRecord frames its payload by 12 bytes before (length, checksum) and 4 after.
        length = len(record) + 16
        rows.append(
            {
                **source,
                "source_sha256": packed.source_sha256,
                "shard": name,
                "ordinal": ordinal,
                "offset": offset,
                "length": length,
                "bytes": len(packed.encoded),
                "width": packed.width,
                "height": packed.height,
                "sha256": packed.sha256,
            }
        )
        offset += length
    return rows, (name, {"records": len(items), "bytes": offset, "sha256": digest})


def _seal(root, previous, index, shards, quarantined, packed, settings) -> Generation:
    number = previous.number + 1 if previous else 1
    if not index:
        raise PipelineError("every photograph went to quarantine: nothing is left to train on")
    content = [[row["image_id"], row["sha256"], row["shard"], row["ordinal"]] for row in index]
    digest = hashlib.sha256(json.dumps([FORMAT, _packing(settings), content]).encode()).hexdigest()
    with files.new_folder(root / f"generation-{number:06d}") as folder:
        pq.write_table(pa.Table.from_pylist(index, schema=INDEX_SCHEMA), folder / "index.parquet")
        (folder / "quarantine.json").write_text(files.to_json(quarantined), encoding="utf-8")
        manifest = {
            "format": FORMAT,
            "number": number,
            "digest": digest,
            "settings": _packing(settings),
            "images": len(index),
            "shards": {name: shards[name] for name in sorted({row["shard"] for row in index})},
            "packed": packed,
            "quarantined": len(quarantined),
            "index_sha256": files.sha256_of(folder / "index.parquet"),
        }
        (folder / "manifest.json").write_text(files.to_json(manifest), encoding="utf-8")
    return _read(root / f"generation-{number:06d}")


def _read(folder: pathlib.Path) -> Generation:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if manifest.get("format") != FORMAT:
        raise PipelineError(
            f"{folder} was written in format {manifest.get('format')}, this version reads {FORMAT}: "
            "pack the photographs again into another folder"
        )
    return Generation(
        folder=str(folder),
        number=manifest["number"],
        digest=manifest["digest"],
        images=manifest["images"],
        shards=len(manifest["shards"]),
        packed=manifest["packed"],
        quarantined=manifest["quarantined"],
    )


def _number(folder: pathlib.Path) -> int:
    found = re.fullmatch(r"generation-(\d+)", folder.name)
    return int(found[1]) if found else -1
