"""Builds the container image from a commit, with Docker or Podman.

    make image BASE=IMAGE@sha256:DIGEST BEAM=IMAGE@sha256:DIGEST IMAGE=REGISTRY/REPOSITORY/NAME:TAG

deploy/Dockerfile says what BASE and BEAM must hold. The image holds the code of the commit that is checked out: files that
were changed since are an error. Standard library only. Exit status: 0 built; 1 something a person can mend.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_BY_DIGEST = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")

_TAGGED = re.compile(r"[a-z0-9][A-Za-z0-9._/:-]*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class BuildError(Exception):
    """Something the person at the keyboard can put right; its text says what and how."""


def main(environment=os.environ) -> int:
    """Builds the image that the environment names; returns the exit status."""
    try:
        build(environment)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(environment) -> None:
    """Builds it from an export of the commit, so that nothing that is not committed gets in. Raises BuildError."""
    image = environment.get("IMAGE", "")
    if not _TAGGED.fullmatch(image):
        raise BuildError(f"IMAGE={image!r} is no name for an image: write REGISTRY/REPOSITORY/NAME:TAG")
    for name in ("BASE", "BEAM"):
        if not _BY_DIGEST.fullmatch(environment.get(name, "")):
            raise BuildError(
                f"{name}={environment.get(name, '')!r} is no image by digest: write NAME@sha256:DIGEST. deploy/Dockerfile says "
                "what it must hold, and `docker buildx imagetools inspect NAME:TAG` prints its digest"
            )
    commit = committed()
    engine = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if engine is None:
        raise BuildError("there is neither docker nor podman here to build an image with: install one of them")
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        export(commit, folder)
        command = [
            engine, "build", "--file", os.path.join(folder, "deploy", "Dockerfile"), "--tag", image,
            *(f"--build-arg={name}={environment[name]}" for name in ("BASE", "BEAM")),
            f"--build-arg=COMMIT={commit}", f"--label=org.opencontainers.image.revision={commit}", folder,
        ]  # fmt: skip
        print(shlex.join(command), flush=True)
        status = subprocess.run(command, check=False).returncode
    if status:
        raise BuildError(f"{engine} could not build {image} (exit status {status}); what it said stands above")
    print(f"{image} holds commit {commit}. Push it; the registry then knows the digest that kubeflow_runner.py wants")


def export(commit: str, folder: str) -> None:
    """Lays the files of a commit into a folder."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)


def committed() -> str:
    """The commit that is checked out. Raises BuildError: there is none, or files were changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"an image is built from a commit, and git knows none here: {done.stderr.strip()}")
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain")
    if changed:
        raise BuildError(
            f"the image would lack what is not committed; commit it, or put it away:\n{os.linesep.join(changed.splitlines()[:10])}"
        )
    return commit


if __name__ == "__main__":
    sys.exit(main())
