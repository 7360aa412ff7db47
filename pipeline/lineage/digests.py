"""Digests of what a run leaves behind, such that anybody can compute them again with standard tools.

A folder's digest is the one that

    cd FOLDER && find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum

prints: the SHA-256 of one line for each file, its own SHA-256, two blanks, its path.
"""

import hashlib
from collections.abc import Mapping
from concurrent import futures

from pipeline import storage

_CHUNK = 1 << 20

_AT_ONCE = 8


def of_file(uri: str) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with storage.opened(uri) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def of_files(uri: str) -> dict[str, str]:
    """SHA-256 of each file in a folder, at any depth, by its path in the folder, in the order of the paths' bytes.

    Args:
        uri: The folder, on a disk or in Cloud Storage.

    Raises:
        OSError: It does not exist, holds no file, or one that cannot be read.
    """
    root = uri.rstrip("/")
    paths = sorted((listed.uri.removeprefix(f"{root}/") for listed in storage.walk(root)), key=str.encode)
    if not paths:
        raise FileNotFoundError(2, "there is no file in it", uri)
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(paths, pool.map(lambda path: of_file(f"{root}/{path}"), paths), strict=True))


def of_listing(files: Mapping[str, str]) -> str:
    """The digest of a folder of such files: what `of_folder` gives."""
    lines = b"".join(f"{digest}  ./".encode() + path.encode() + b"\n" for path, digest in files.items())
    return hashlib.sha256(lines).hexdigest()


def of_folder(uri: str) -> str:
    """SHA-256 over names and contents of all files in a folder, at any depth, 64 hexadecimal digits.

    Args:
        uri: The folder, on a disk or in Cloud Storage.

    Raises:
        OSError: It does not exist, holds no file, or one that cannot be read.
    """
    return of_listing(of_files(uri))
