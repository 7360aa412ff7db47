"""Files on a disk or in Cloud Storage, through one set of functions: what the steps need of either, and no more.

A URI is a path of this machine or begins with gs://. Whatever is written appears whole or not at all: on a disk by a
rename, in Cloud Storage because an object exists from the moment when its upload ends. Cloud Storage is reached by
Google's client and application default credentials, and its errors are raised as the OSErrors that a disk has.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import io
import os
import pathlib
import posixpath
import shutil
import stat as stat_module
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import BinaryIO

from pipeline import files

_CLOUD = "gs://"

_AT_ONCE = 16

_UPDATES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A file as a listing shows it.

    Attributes:
        uri: Where it is.
        bytes: Its size.
        version: What changes when its content does: the object's generation in Cloud Storage, the time
            of its last modification in nanoseconds on a disk.
    """

    uri: str
    bytes: int
    version: int


def is_cloud(uri: str) -> bool:
    """Whether `uri` lies in Cloud Storage."""
    return uri.startswith(_CLOUD)


def absolute(uri: str) -> str:
    """`uri` without a relative start or an end slash, so that one place has one name."""
    return uri.rstrip("/") if is_cloud(uri) else os.path.abspath(uri)


def join(root: str, *names: str) -> str:
    """`root` and `names`, joined by what separates them there."""
    return posixpath.join(root, *names) if is_cloud(root) else os.path.join(root, *names)


def name_of(uri: str) -> str:
    """The last part of `uri`."""
    return uri.rsplit("/", 1)[-1]


def walk(root: str) -> Iterator[Listed]:
    """All files below `root`, at any depth, links to files included, in no order that counts.

    Raises:
        OSError: `root` or a folder in it does not exist or cannot be listed.
    """
    if is_cloud(root):
        with _translated(root):
            for blob in _listing(root):
                yield from _listed(root, blob)
        return
    listed, folders = children(root)
    yield from listed
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # it went since its parent was listed
            yield from walk(folder)


def children(folder: str) -> tuple[list[Listed], list[str]]:
    """The files and the URIs of the folders that lie directly in `folder`. Raises OSError."""
    listed, folders = [], []
    if is_cloud(folder):
        with _translated(folder):
            listing = _listing(folder, delimiter="/")
            for blob in listing:
                listed.extend(_listed(folder, blob))
            folders = [f"{_CLOUD}{_split(folder)[0]}/{prefix[:-1]}" for prefix in sorted(listing.prefixes)]
        return listed, folders
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file():
                try:
                    status = entry.stat()
                except FileNotFoundError:  # it went since the folder was listed
                    continue
                listed.append(Listed(entry.path, status.st_size, status.st_mtime_ns))
    return listed, folders


def names(folder: str) -> list[str]:
    """Names of what lies directly in `folder`, sorted; none when it does not exist."""
    if is_cloud(folder):
        listed, folders = children(folder)
        return sorted(name_of(uri) for uri in [*(file.uri for file in listed), *folders])
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def stat(uri: str) -> Listed:
    """Size and version of one file. Raises OSError."""
    if is_cloud(uri):
        with _translated(uri):
            blob = _blob(uri)
            blob.reload()
            return Listed(uri, int(blob.size), int(blob.generation))
    status = os.stat(uri)
    if stat_module.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", uri)
    return Listed(uri, status.st_size, status.st_mtime_ns)


def exists(uri: str) -> bool:
    """Whether there is such a file."""
    try:
        stat(uri)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    return True


def read(uri: str, version: int | None = None) -> bytes:
    """The content of a file.

    Args:
        uri: Where it is.
        version: As listed; a file of another version counts as not there any more.

    Raises:
        OSError: FileNotFoundError when there is no such file or version.
    """
    if is_cloud(uri):
        try:
            with _translated(uri):
                return _blob(uri).download_as_bytes(if_generation_match=version)
        except FileExistsError as error:
            raise FileNotFoundError(errno.ENOENT, "the object was changed since it was listed", uri) from error
    with open(uri, "rb") as stream:
        content = stream.read()
        if version is not None and os.fstat(stream.fileno()).st_mtime_ns != version:
            raise FileNotFoundError(errno.ENOENT, "the file was changed since it was listed", uri)
    return content


@contextlib.contextmanager
def opened(uri: str) -> Iterator[BinaryIO]:
    """A stream over the content of a file, never the whole of it in memory. Raises OSError."""
    if is_cloud(uri):
        with _translated(uri), _blob(uri).open("rb", chunk_size=8 * 2**20) as stream:
            yield stream
    else:
        with open(uri, "rb") as stream:
            yield stream


def write(uri: str, content: bytes) -> None:
    """Writes a file, in place of one that may be there. Raises OSError."""
    if is_cloud(uri):
        with _translated(uri):
            _blob(uri).upload_from_file(io.BytesIO(content), size=len(content), retry=_retry())
    else:
        files.write_atomically(uri, content)


def create(uri: str, content: bytes) -> None:
    """Writes a file that must not be there yet: of two writers at once, one succeeds.

    Raises:
        OSError: FileExistsError when it is there.
    """
    if is_cloud(uri):
        with _translated(uri):
            _blob(uri).upload_from_file(io.BytesIO(content), size=len(content), if_generation_match=0)
        return
    path = pathlib.Path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A link is made of nothing but a complete file, and refuses a name that is taken.
    with tempfile.TemporaryDirectory(prefix=files.TEMPORARY, dir=path.parent) as folder:
        files.write_atomically(pathlib.Path(folder, path.name), content)
        os.link(os.path.join(folder, path.name), path)


def update(uri: str, change: Callable[[bytes | None], bytes]) -> None:
    """Writes what `change` makes of a file's content; of two that do so at once, the second sees what the first wrote.

    Args:
        uri: The file.
        change: Gets the content, None when there is no such file, and returns the new one. It may be called again, and
            what it raises leaves the file as it is.

    Raises:
        OSError: BlockingIOError when others were faster time and again.
    """
    if not is_cloud(uri):
        folder = os.path.dirname(uri)
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = read(uri) if exists(uri) else None
            after = change(before)
            if after != before:
                files.write_atomically(uri, after)
        finally:
            os.close(descriptor)
        return
    after = None
    for _ in range(_UPDATES):
        version, before = _current(uri)
        if before is not None and before == after:
            return  # it was written, and the answer got lost
        after = change(before)
        if after == before:
            return
        with contextlib.suppress(FileExistsError), _translated(uri):
            _blob(uri).upload_from_file(io.BytesIO(after), size=len(after), if_generation_match=version)
            return
    raise BlockingIOError(errno.EAGAIN, "others change it all the time", uri)


def _current(uri: str) -> tuple[int, bytes | None]:
    """Generation and content of an object; 0 and None when there is none."""
    while True:
        try:
            version = stat(uri).version
        except FileNotFoundError:
            return 0, None
        with contextlib.suppress(FileNotFoundError):  # replaced since
            return version, read(uri, version)


def copy_folder(source: str, destination: str, last: str = "") -> None:
    """Copies all files below `source` to below `destination`, in place of those of the same names.

    Args:
        source: A folder that is there.
        destination: A folder that need not be.
        last: Name of a file directly in `source` that comes after all others, for readers who wait for it.

    Raises:
        OSError: There is no such folder, or a file cannot be read or written.
    """
    source, destination = absolute(source), absolute(destination)
    final = join(source, last) if last else None
    if not is_cloud(source) and not is_cloud(destination):

        def left_out(folder, names):
            return [last] if last and folder == source else []

        shutil.copytree(source, destination, ignore=left_out, dirs_exist_ok=True)
        if final and os.path.exists(final):
            shutil.copy2(final, destination)
        return
    found = [listed.uri for listed in walk(source)]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "there is nothing below it", source)

    def copy(uri: str) -> None:
        _copy(uri, join(destination, uri.removeprefix(f"{source}/")))

    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, [uri for uri in found if uri != final]))
    if final in found:
        copy(final)


def _copy(source: str, destination: str) -> None:
    """Copies a file from, to or within Cloud Storage."""
    if is_cloud(source) and is_cloud(destination):
        with _translated(source):
            blob, token = _blob(destination), None
            while True:  # Cloud Storage copies a large object in several calls
                token, _, _ = blob.rewrite(_blob(source), token=token, retry=_retry())
                if token is None:
                    return
    elif is_cloud(destination):
        publish(source, destination)
    else:
        with scratch(os.path.dirname(destination)) as folder, _translated(source):
            path = os.path.join(folder, "copy")
            _blob(source).download_to_filename(path)
            publish(path, destination)


@contextlib.contextmanager
def on_disk(folder: str) -> Iterator[str]:
    """The folder, for libraries that read files of this machine only; of one in Cloud Storage, a copy for the time being.

    Raises:
        OSError: It cannot be read, or there is nothing in it.
    """
    if not is_cloud(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=files.TEMPORARY) as copy:
        copy_folder(folder, copy)
        yield copy


@contextlib.contextmanager
def scratch(root: str) -> Iterator[str]:
    """A folder of this machine for files that `publish` will bring below `root`; it is removed in the end."""
    if not is_cloud(root):
        os.makedirs(root, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=files.TEMPORARY, dir=None if is_cloud(root) else root) as folder:
        yield folder


def publish(path: str, uri: str) -> None:
    """Brings a finished file of this machine to `uri`, in place of one that may be there.

    Args:
        path: The file; on a disk it must be on the same one as `uri` (see `scratch`), and it is moved.
        uri: Where it goes.
    """
    if is_cloud(uri):
        with _translated(uri):
            _blob(uri).upload_from_filename(path, retry=_retry())
        return
    os.makedirs(os.path.dirname(uri), exist_ok=True)
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())
    os.replace(path, uri)


def remove(uri: str) -> None:
    """Removes a file, if it is there. Raises OSError."""
    if is_cloud(uri):
        _delete(_blob(uri))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(uri)


def remove_folder(folder: str) -> None:
    """Removes a folder and all that is in it, if it is there."""
    if is_cloud(folder):
        bucket, prefix = _split(folder)
        with _translated(folder), futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(_delete, _client().list_blobs(bucket, prefix=f"{prefix}/")))
    else:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


@contextlib.contextmanager
def locked(root: str) -> Iterator[None]:
    """Holds a folder of this machine for one process, and sweeps up what killed ones left in it.

    In Cloud Storage it does nothing: there nothing half-written is ever left, and `create` decides between two.

    Raises:
        BlockingIOError: Another process holds it.
    """
    if is_cloud(root):
        yield
        return
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, "lock"), "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir(root):
            if name.startswith(files.TEMPORARY):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        yield


def _delete(blob) -> None:
    with contextlib.suppress(FileNotFoundError), _translated(f"{_CLOUD}{blob.bucket.name}/{blob.name}"):
        blob.delete()


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix(_CLOUD).partition("/")
    return bucket, name


def _listing(folder: str, delimiter: str | None = None):
    bucket, prefix = _split(folder)
    return _client().list_blobs(
        bucket,
        prefix=f"{prefix}/" if prefix else None,
        delimiter=delimiter,
        fields="items(name,size,generation),prefixes,nextPageToken",
    )


def _listed(folder: str, blob) -> Iterator[Listed]:
    if not blob.name.endswith("/"):  # what consoles make to show an empty folder
        yield Listed(f"{_CLOUD}{_split(folder)[0]}/{blob.name}", int(blob.size), int(blob.generation))


@functools.lru_cache(maxsize=1)
def _client():
    # Here, because whoever works on a disk need not wait for it.
    from google.cloud import storage

    return storage.Client()


def _retry():
    # The client repeats an upload without a precondition only when it is told so; ours give the same bytes each time.
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY


def _blob(uri: str):
    bucket, name = _split(uri)
    return _client().bucket(bucket).blob(name)


@contextlib.contextmanager
def _translated(uri: str) -> Iterator[None]:
    import requests
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    try:
        yield
    except exceptions.NotFound as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such object or bucket", uri) from error
    except exceptions.PreconditionFailed as error:
        raise FileExistsError(errno.EEXIST, "the object is there already", uri) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise PermissionError(errno.EACCES, f"Cloud Storage refuses access: {error.message}", uri) from error
    except (exceptions.GoogleAPIError, requests.RequestException) as error:
        reason = getattr(error, "message", str(error))
        raise OSError(errno.EIO, f"Cloud Storage failed: {reason}", uri) from error
    except auth.GoogleAuthError as error:
        raise PermissionError(
            errno.EACCES,
            f"no credentials for Cloud Storage ({error}); `gcloud auth application-default login` makes some",
            uri,
        ) from error
