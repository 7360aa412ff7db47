"""Writing files so that nobody ever reads half of one."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

TEMPORARY = ".tmp-"
"""How the names of temporary folders begin that a killed process may leave behind and the next one removes."""


@contextlib.contextmanager
def new_folder(destination: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Gives an empty folder to write into, and moves it to `destination` when the block ends well.

    `destination` must not exist. After an error nothing is left behind.
    """
    destination = pathlib.Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        # mkdtemp makes it private; what is published follows the umask like any other folder.
        umask = os.umask(0)
        os.umask(umask)
        folder.chmod(0o777 & ~umask)
        yield folder
        os.rename(folder, destination)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_atomically(path: str | os.PathLike, content: bytes | str) -> None:
    """Writes a file under a temporary name, brings it to the disk and renames it to `path`."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def to_json(facts) -> str:
    """Writes facts as JSON that people read and digests agree on: sorted, indented, one newline."""
    return json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def sha256(content: bytes) -> str:
    """SHA-256 of bytes, 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_of(path: str | os.PathLike) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
