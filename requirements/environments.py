"""Environments of their own, beside .venv/, for programs whose packages TFX does not admit beside its own.

Each is built from a hashed file by the Python of the environment that asks for it, and built again when that file, an
interpreter or the folder is another one.
"""

import contextlib
import os
import sys
from typing import NamedTuple

import bootstrap


class Environment(NamedTuple):
    """One environment.

    Attributes:
      name: its folder in the project, such as `.venv-bigquery`.
      requirements: its hashed file in requirements/.
      purpose: what is built and how much is downloaded, for the one who waits.
    """

    name: str
    requirements: str
    purpose: str

    @property
    def folder(self) -> str:
        """Where it is."""
        return os.path.join(bootstrap.ROOT, self.name)

    @property
    def stamp(self) -> str:
        """The file that says what it was made from."""
        return os.path.join(self.folder, ".built")

    @property
    def requirements_file(self) -> str:
        """Path of its hashed file."""
        return os.path.join(bootstrap.REQUIREMENTS, self.requirements)

    def digest(self) -> str:
        """Fingerprint of the requirements, of both interpreters and of the place; empty when one of them is gone."""
        parts = [os.path.realpath(self.folder).encode()]
        interpreters = (os.path.join(self.folder, "bin", "python"), sys.executable)
        try:
            for path in (self.requirements_file, bootstrap.BUILD_REQUIREMENTS, *interpreters):
                with open(path, "rb") as file:
                    parts.append(file.read())
        except OSError:
            return ""
        return bootstrap.fingerprint(*parts)

    def is_current(self) -> bool:
        """Whether it is complete and made from what is here now."""
        try:
            with open(self.stamp, encoding="utf-8") as file:
                return file.read() == self.digest() != ""
        except OSError:
            return False

    def set_up(self) -> None:
        """Makes it what its requirements say; returns at once when it is.

        Raises:
          SetupError: it cannot be done, for a reason that the text gives.
        """
        if self.is_current():
            return
        with bootstrap.one_at_a_time() as lock:
            if self.is_current():  # the set-up that we waited for did it
                return
            bootstrap.say(self.purpose)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.stamp)
            bootstrap.install(bootstrap.fetch_uv(), self.folder, sys.executable, self.requirements_file, lock)
            draft = self.stamp + ".new"
            with open(draft, "w", encoding="utf-8") as file:
                file.write(self.digest())
            os.replace(draft, self.stamp)
            bootstrap.say(f"done: {self.name}/")
