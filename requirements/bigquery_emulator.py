"""Builds .venv-bigquery/, where BigQuery's emulator runs for tests/cloud, from the hashed bigquery-emulator.txt.

    .venv/bin/python requirements/bigquery_emulator.py      build it, or return at once when it is up to date

An environment of its own, because the emulator needs a newer pyarrow than TFX 1.16 admits. About 150 MB are downloaded
and 500 MB of disk used. It has the Python of the environment that runs this: `make test` runs it before the tests.
"""

import contextlib
import os
import sys

import bootstrap

VENV = os.path.join(bootstrap.ROOT, ".venv-bigquery")
STAMP = os.path.join(VENV, ".built")
REQUIREMENTS = os.path.join(bootstrap.REQUIREMENTS, "bigquery-emulator.txt")


def digest() -> str:
    """Fingerprint of the requirements, of both interpreters and of the place; empty when one of them is gone."""
    parts = [os.path.realpath(VENV).encode()]
    try:
        for path in (REQUIREMENTS, bootstrap.BUILD_REQUIREMENTS, os.path.join(VENV, "bin", "python"), sys.executable):
            with open(path, "rb") as file:
                parts.append(file.read())
    except OSError:
        return ""
    return bootstrap.fingerprint(*parts)


def is_current() -> bool:
    """Whether the environment is complete and made from what is here now."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            return file.read() == digest() != ""
    except OSError:
        return False


def set_up() -> None:
    """Makes .venv-bigquery/ what the requirements say.

    Raises:
      SetupError: it cannot be done, for a reason that the text gives.
    """
    if is_current():
        return
    with bootstrap.one_at_a_time() as lock:
        if is_current():  # the set-up that we waited for did it
            return
        bootstrap.say("BigQuery's emulator for the tests: about 150 MB to download, once")
        with contextlib.suppress(FileNotFoundError):
            os.remove(STAMP)
        bootstrap.install(bootstrap.fetch_uv(), VENV, sys.executable, REQUIREMENTS, lock)
        draft = STAMP + ".new"
        with open(draft, "w", encoding="utf-8") as file:
            file.write(digest())
        os.replace(draft, STAMP)
        bootstrap.say("done: .venv-bigquery/")


if __name__ == "__main__":
    sys.exit(bootstrap.exit_code(set_up, "make test"))
