"""Container images, named by digest: a tag may mean something else tomorrow, and a rerun must not."""

import re
import shlex

from pipeline.errors import SettingsError

_BY_DIGEST = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]*@sha256:[0-9a-f]{64}")

_NAME = re.compile(r"[a-z0-9][a-zA-Z0-9._/:-]*")


def require_digest(image: str, field: str = "--image") -> str:
    """The image, when it is named by digest.

    Args:
        image: The image.
        field: Who names it, for the error.

    Raises:
        SettingsError: It is not; the text has the command that finds the digest.
    """
    if _BY_DIGEST.fullmatch(image):
        return image
    name = image.partition("@")[0]
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{field} {image!r} is no image: write REGISTRY/REPOSITORY/NAME@sha256:DIGEST")
    command = ["gcloud", "artifacts", "docker", "images", "describe", name, "--format=value(image_summary.fully_qualified_digest)"]
    raise SettingsError(
        f"{field} {image} names no digest, and a tag may mean another image tomorrow. This finds it:\n  {shlex.join(command)}"
    )
