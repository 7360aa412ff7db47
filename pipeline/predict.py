"""Classifies files with the model that serves, through the signature that serves."""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence

from pipeline.errors import PipelineError


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the model says of one file.

    Attributes:
        path: The file.
        label: Most probable class; empty after an error.
        probability: Its probability, 0 to 1.
        error: Why there is no answer; empty when there is one.
    """

    path: str
    label: str = ""
    probability: float = 0.0
    error: str = ""


_SIGNATURE = "serving_default"

NO_JPEG = "no JPEG image: it is of another kind, cut short or damaged"
"""What is said of a file that the model refuses."""


def load(model: str):
    """Loads a SavedModel with plain TensorFlow, as a server does.

    Args:
        model: Its folder.

    Returns:
        TensorFlow, and the function behind the signature that serves.

    Raises:
        PipelineError: It does not load, or has no such signature.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of the Python they run on
        import tensorflow as tf

    try:
        signatures = tf.saved_model.load(model).signatures
        if _SIGNATURE not in signatures:
            raise ValueError(f"it has no signature {_SIGNATURE}")
        return tf, signatures[_SIGNATURE]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, tf.errors.OpError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise PipelineError(
            f"the model that serves, {model}, does not load: {lines[0][:300]}. Restore its folder from a backup, or return to an "
            "older version: python -m pipeline release rollback --reason TEXT"
        ) from error


def predict(model: str, paths: Sequence[str]) -> Iterator[Answer]:
    """Asks a SavedModel about each file.

    Args:
        model: Folder of the SavedModel.
        paths: JPEG files.

    Yields:
        One answer a file, in order; a file that cannot be read or decoded gets an error of its own
        and spoils no other.

    Raises:
        PipelineError: The model does not load.
    """
    tf, signature = load(model)
    for path in paths:
        try:
            content = pathlib.Path(path).read_bytes()
        except OSError as error:
            yield Answer(path, error=f"cannot be read: {error.strerror}")
            continue
        if not content:
            yield Answer(path, error="the file is empty")
            continue
        try:
            outputs = signature(bytes_inputs=tf.constant([content]))
        except tf.errors.InvalidArgumentError:
            yield Answer(path, error=NO_JPEG)
            continue
        yield Answer(path, outputs["label"].numpy()[0].decode(), float(outputs["probability"].numpy()[0]))
