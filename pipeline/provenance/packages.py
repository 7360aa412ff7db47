"""The locked Python packages of a run, out of the requirements file that it recorded."""

import dataclasses
import pathlib
import re
import subprocess

from pipeline import files
from pipeline.lineage.facts import RunFacts

_ROOT = pathlib.Path(__file__).resolve().parents[2]

_LOCKED = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_LOCK_NAME = re.compile(r"[\w.-]+\.txt")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Package:
    """A locked package.

    Attributes:
        name, version: As the package index has them.
        sha256: Digests of its files, one of which was installed.
    """

    name: str
    version: str
    sha256: tuple[str, ...]


def of_run(facts: RunFacts) -> tuple[list[Package], str]:
    """The packages that a run's environment was made from.

    Args:
        facts: What the run recorded: name and digest of the requirements file, commit, version of Python.

    Returns:
        The packages by name, and why there are none; empty when there are some.
    """
    if not facts.lock or not facts.lock_sha256:
        return [], "the run recorded no locked requirements"
    for content in (_here(facts), _of_commit(facts)):
        if content is not None and files.sha256(content) == facts.lock_sha256:
            return parse(content.decode(), facts.python or ""), ""
    return [], (
        f"requirements/{facts.lock} with the digest {facts.lock_sha256} is neither here nor in git at commit "
        f"{facts.commit or '?'}: ask in a checkout that has that commit"
    )


def parse(text: str, python: str) -> list[Package]:
    """The packages of a hashed requirements file that a version of Python installs on x86-64 Linux, by name.

    >>> text = "numpy==2.0 ; python_version < '3.12' \\\\\\n    --hash=sha256:" + "a" * 64 + "\\n"
    >>> [(package.name, package.version) for package in parse(text, "3.11.7")], parse(text, "3.13.0")
    ([('numpy', '2.0')], [])
    """
    from packaging.markers import Marker

    # Whoever audits may do so elsewhere than on the machine of the run.
    machine = {
        "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "extra": "",
    }  # fmt: skip
    if python:
        machine |= {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    return [
        Package(name, version, tuple(_HASH.findall(hashes)))
        for name, version, marker, hashes in _LOCKED.findall(text)
        if not marker or Marker(marker).evaluate(machine)
    ]


def _here(facts: RunFacts) -> bytes | None:
    path = _ROOT / "requirements" / facts.lock
    return path.read_bytes() if _LOCK_NAME.fullmatch(facts.lock) and path.is_file() else None


def _of_commit(facts: RunFacts) -> bytes | None:
    if not _LOCK_NAME.fullmatch(facts.lock) or not _COMMIT.fullmatch(facts.commit or ""):
        return None
    words = ["git", "-c", f"safe.directory={_ROOT}", "-C", str(_ROOT), "show", f"{facts.commit}:requirements/{facts.lock}"]
    try:
        return subprocess.run(words, capture_output=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
