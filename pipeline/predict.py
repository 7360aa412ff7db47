"""Classifies files with the model that serves, through the signature that serves."""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence


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


def predict(model: str, paths: Sequence[str]) -> Iterator[Answer]:
    """Asks a SavedModel about each file.

    Args:
        model: Folder of the SavedModel.
        paths: JPEG files.

    Yields:
        One answer a file, in order; a file that cannot be read or decoded gets an error of its own
        and spoils no other.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of the Python they run on
        import tensorflow as tf

    signature = tf.saved_model.load(model).signatures["serving_default"]
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
            yield Answer(path, error="no JPEG image: it is of another kind, cut short or damaged")
            continue
        yield Answer(path, outputs["label"].numpy()[0].decode(), float(outputs["probability"].numpy()[0]))
