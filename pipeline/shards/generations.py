"""Generations of image shards: what a folder of shards holds, for whoever reads it.

    shard-<digest>.tfrecord             immutable, named by content, shared by all generations
    generation-000001/                  there from the moment when its manifest is: a reader sees all of it or none
        index-00000-of-00001.parquet    image_id -> source, shard, ordinal, sizes, digests; sorted by image_id
        quarantine.json                 files that no shard took, each with its reason
        changes.parquet                 images whose bytes changed, and those that are gone
        manifest.json                   counts, settings, and the digests of index and shards
    plan/                               what a packing that has not ended yet still has to do

The folder may lie on a disk or in Cloud Storage. Imports neither TensorFlow nor Beam.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from pipeline import storage
from pipeline.errors import PipelineError

FORMAT = 2

MANIFEST = "manifest.json"

REJECTED = "rejected.json"
"""Stands in place of the manifest when too many photographs were in quarantine: no generation, but its shards are
taken over by the next packing."""

PLAN = "plan"


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of image shards.

    Attributes:
        folder: Where its index and manifest are; the shards lie beside that folder.
        number: 1 for the first.
        digest: SHA-256 over what it holds (ids, stored bytes, places, settings), 64 hex digits.
        images: Photographs in the index.
        bytes: Bytes of the shards.
        shards: Shard files that the index points to.
        packed: Photographs that were packed when it was made: new or changed ones, or all after other settings.
        changed: Photographs whose bytes had changed under an id that was known.
        gone: Photographs of the generation before that were not there any more.
        quarantined: Files that no shard took.
    """

    folder: str
    number: int
    digest: str
    images: int
    bytes: int
    shards: int
    packed: int
    changed: int
    gone: int
    quarantined: int

    @property
    def root(self) -> str:
        """Folder of the shards."""
        return self.folder.rsplit("/", 1)[0]

    @property
    def table(self) -> str:
        """Name of the warehouse table that holds the index; the digest makes it immutable."""
        return f"image_index_{self.digest[:16]}"

    def manifest(self) -> dict:
        """All that was recorded when it was sealed. Raises PipelineError."""
        return read_manifest(storage.join(self.folder, MANIFEST))

    def index_files(self) -> list[str]:
        """URIs of the files of the index, in order."""
        return [storage.join(self.folder, name) for name in sorted(self.manifest()["index"])]

    def shard_facts(self) -> dict[str, dict]:
        """Name of each shard -> {`records`, `bytes`, `sha256`}."""
        return self.manifest()["shards"]

    def shard_path(self, name: str) -> str:
        """URI of a shard."""
        return storage.join(self.root, name)

    def quarantine(self) -> list[dict]:
        """The files that no shard took: `image_id`, `source_uri`, `reason` and more of each."""
        return json.loads(storage.read(storage.join(self.folder, "quarantine.json")))


def index_digest(packing_json: str, rows: Iterable[Sequence]) -> str:
    """The digest of a generation.

    Args:
        packing_json: Its packing, as the manifest has it.
        rows: `image_id`, `sha256`, `shard`, `ordinal` of each photograph, sorted by image id.

    Returns:
        SHA-256, 64 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{FORMAT}\n{packing_json}\n".encode())
    for row in rows:
        # JSON, because an id may hold whatever would separate the fields.
        digest.update((json.dumps(row) + "\n").encode())
    return digest.hexdigest()


def latest(root: str) -> Generation | None:
    """The newest generation below `root`, or None.

    Raises:
        PipelineError: Its manifest was written by another version of this code, or cannot be read.
    """
    for folder in _folders(root):
        uri = storage.join(folder, MANIFEST)
        if storage.exists(uri):
            return of_manifest(folder, read_manifest(uri))
    return None


def every(root: str) -> list[Generation]:
    """All generations below `root`, oldest first. Raises PipelineError."""
    found = [(folder, storage.join(folder, MANIFEST)) for folder in reversed(_folders(root))]
    return [of_manifest(folder, read_manifest(uri)) for folder, uri in found if storage.exists(uri)]


def require_latest(root: str) -> Generation:
    """The newest generation below `root`. Raises PipelineError when there is none."""
    generation = latest(root)
    if generation is None:
        raise PipelineError(f"{root} holds no image shards: name the folder that `python -m pipeline shard --output` filled")
    return generation


def folder_of(root: str, number: int) -> str:
    """Folder of one generation."""
    return storage.join(root, f"generation-{number:06d}")


def of_manifest(folder: str, manifest: dict) -> Generation:
    """The generation that a manifest describes."""
    counts = manifest["counts"]
    return Generation(
        folder=folder,
        number=manifest["number"],
        digest=manifest["digest"],
        images=counts["images"],
        bytes=sum(facts["bytes"] for facts in manifest["shards"].values()),
        shards=len(manifest["shards"]),
        packed=counts["packed"],
        changed=counts["changed"],
        gone=counts["gone"],
        quarantined=counts["quarantined"],
    )


def read_manifest(uri: str) -> dict:
    """The content of a manifest, which never changes. Raises PipelineError."""
    try:
        return _parsed(uri, storage.stat(uri).version)
    except OSError as error:
        raise PipelineError(f"cannot read the manifest {uri}: {error.strerror}. Restore it from a backup") from error


@functools.lru_cache(maxsize=8)
def _parsed(uri: str, version: int) -> dict:
    try:
        manifest = json.loads(storage.read(uri))
    except ValueError as error:
        raise PipelineError(f"cannot read the manifest {uri}: {error}. Restore it from a backup") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise PipelineError(
            f"{uri} was written in format {found}, this version reads {FORMAT}: pack the photographs again into "
            "another folder, or move this one away"
        )
    return manifest


def _folders(root: str) -> list[str]:
    """Folders of generations, the newest first."""
    numbered = []
    for name in storage.names(root):
        found = re.fullmatch(r"generation-(\d{6,})", name)
        if found:
            numbered.append((int(found[1]), storage.join(root, name)))
    return [folder for _, folder in sorted(numbered, reverse=True)]
