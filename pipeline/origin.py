"""Where a run comes from: the code, the packages, the image, the person. Light: no TensorFlow."""

import dataclasses
import getpass
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess

from pipeline import files

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a run was made of, beside its parameters.

    Attributes:
        commit: Git commit of the code; empty when the code is in no git repository and in no image that was built of one.
        tree: `clean`, `changed` (with uncommitted changes) or `unknown`.
        lock: Name of the locked requirements file that the environment was made from.
        lock_sha256: Its digest.
        image: Container image by digest; empty for a run outside a container.
        python: Version of Python.
        platform: Operating system and processor.
        launched_by: Account that started the run.
        changes_sha256: Digest of the uncommitted changes: of `git diff HEAD --binary` and of every new file that git does not
            ignore; empty when there is none, or git cannot tell.
    """

    commit: str
    tree: str
    lock: str
    lock_sha256: str
    image: str
    python: str
    platform: str
    launched_by: str
    changes_sha256: str = ""


def discover() -> Origin:
    """Finds out; what cannot be found is an empty text, never a guess."""
    commit, tree, changes = _git()
    if not commit and os.environ.get("PIPELINE_COMMIT"):
        # An image holds no repository, but the export of a commit: deploy/image.py builds nothing else.
        commit, tree, changes = os.environ["PIPELINE_COMMIT"], "clean", ""
    lock, digest = _lock()
    return Origin(
        commit=commit,
        tree=tree,
        lock=lock,
        lock_sha256=digest,
        image=os.environ.get("PIPELINE_IMAGE", ""),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        launched_by=_account(),
        changes_sha256=changes,
    )


def in_container(compiled: dict) -> dict:
    """The origin of a run whose pipeline was compiled elsewhere: code and packages are those of the container that it runs in.

    Args:
        compiled: The fields of `Origin` when the pipeline was compiled; whoever did that, and for which image, stays.

    Returns:
        The fields of `Origin`.
    """
    here = dataclasses.asdict(discover())
    return {**here, **{name: compiled[name] for name in ("image", "launched_by") if name in compiled}}


def _git() -> tuple[str, str, str]:
    def ask(*words: str) -> bytes:
        # An owner that differs from the user's (a mounted checkout) is no reason not to know the commit.
        command = ["git", "-c", f"safe.directory={_ROOT}", "-C", str(_ROOT), *words]
        return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout

    try:
        if pathlib.Path(os.fsdecode(ask("rev-parse", "--show-toplevel").strip())).resolve() != _ROOT:
            return "", "unknown", ""
        commit = ask("rev-parse", "HEAD").decode().strip()
        if not ask("status", "--porcelain").strip():
            return commit, "clean", ""
        # Neither a person's configuration of git nor a tool of theirs may change what is digested.
        changes = hashlib.sha256(ask("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"))
        for name in sorted(ask("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]):
            path = _ROOT / os.fsdecode(name)
            content = files.sha256_of(path) if path.is_file() else "no file"
            changes.update(b"%s\0%s\n" % (name, content.encode()))
        return commit, "changed", changes.hexdigest()
    except (OSError, subprocess.SubprocessError):
        return _head(), "unknown", ""


def _head() -> str:
    """The commit that is checked out, read without git's help: a minimal machine has none."""
    folder = _ROOT / ".git"
    try:
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            commit = head
        elif (folder / head[5:]).is_file():
            commit = (folder / head[5:]).read_text(encoding="utf-8").strip()
        else:
            packed = (folder / "packed-refs").read_text(encoding="utf-8").splitlines()
            commit = next(line.split()[0] for line in packed if line.endswith(f" {head[5:]}"))
    except (OSError, UnicodeDecodeError, StopIteration):
        return ""
    return commit if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit) else ""


def _lock() -> tuple[str, str]:
    """The locked requirements that stand beside the environment's packages."""
    try:
        line = ".".join(importlib.metadata.version("tfx").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return "", ""
    path = _ROOT / "requirements" / f"tfx-{line}.txt"
    return (path.name, files.sha256_of(path)) if path.is_file() else ("", "")


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
