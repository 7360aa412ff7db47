"""What the services of the fake share: one lock, one clock, the operations, what runs now, and where buckets lie."""

import contextlib
import pathlib
import re
import threading
import time
from collections.abc import Iterator

from tests.cloud import google_apis
from tests.cloud.vertex.clock import Clock
from tests.cloud.vertex.operations import Operations


class State:
    """One Vertex AI, as new.

    Args:
        folder: Where logs are kept.
        google: The other hosts of Google, for the folders of their buckets.

    Attributes:
        changed: Guards all state; notified at each change.
        clock: The fake's time.
        operations: Its long-running operations.
    """

    def __init__(self, folder: pathlib.Path, google: google_apis.GoogleApis):
        self.folder = folder
        self.changed = threading.Condition(threading.RLock())
        self.clock = Clock()
        self.operations = Operations(self.changed)
        self._google = google
        self._active: list[str] = []

    @contextlib.contextmanager
    def active(self, what: str) -> Iterator[None]:
        """For as long as something is under way."""
        with self.changed:
            self._active.append(what)
        try:
            yield
        finally:
            with self.changed:
                self._active.remove(what)
                self.changed.notify_all()

    def in_thread(self, what: str, work) -> None:
        """Does something under way in a thread of its own; it is under way when this returns."""
        under_way = self.active(what)
        under_way.__enter__()

        def run():
            with contextlib.ExitStack() as stack:
                stack.push(under_way)
                work()

        threading.Thread(target=run, name=what, daemon=True).start()

    def settle(self, seconds: float) -> None:
        """Waits until nothing is under way.

        Raises:
            TimeoutError: That takes more than so many real seconds; says what is under way.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: not self._active, seconds):
                raise TimeoutError(f"after {seconds:g} s there are still under way: {', '.join(self._active)}")

    def wait_for(self, condition, what: str, seconds: float):
        """Waits until a condition holds; returns what it gave.

        Raises:
            TimeoutError: That takes more than so many real seconds.
        """
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (found := condition()):
                if not self.changed.wait(max(deadline - time.monotonic(), 0)) and time.monotonic() >= deadline:
                    raise TimeoutError(f"not within {seconds:g} s: {what}; under way: {', '.join(self._active)}")
            return found

    # --- Where things lie ---

    def to_local(self, uri: str) -> str:
        """What containers are given for a gs:// URI: the URI where Cloud Storage has its emulator, else a path of this machine.

        Any other text stays as it is.
        """
        found = re.fullmatch(r"gs://([^/]+)(/.*)?", uri)
        if not found or self._google.objects:
            return uri
        return str(self._google.bucket(found[1])) + (found[2] or "")

    def to_uri(self, path: str, root: str) -> str:
        """The reverse, for what lies under a root that was given as a gs:// URI."""
        if not root.startswith("gs://") or path.startswith("gs://"):
            return path
        bucket = root.split("/")[2]
        folder = f"{self._google.bucket(bucket)}/"
        return f"gs://{bucket}/{path.removeprefix(folder)}" if path.startswith(folder) else path

    def make_folder(self, path: str) -> None:
        """Makes a folder that `to_local` gave. Cloud Storage has none, so that nobody has to make one before writing."""
        if not path.startswith("gs://"):
            pathlib.Path(path).mkdir(parents=True, exist_ok=True)

    def has(self, path: str) -> bool:
        """Whether there is a file that `to_local` gave."""
        return self._google.objects.find(path) is not None if path.startswith("gs://") else pathlib.Path(path).is_file()

    def read(self, path: str) -> str | None:
        """The text of a file that `to_local` gave; None when it is not there."""
        if path.startswith("gs://"):
            content = self._google.objects.find(path)
            return None if content is None else content.decode()
        file = pathlib.Path(path)
        return file.read_text() if file.is_file() else None
