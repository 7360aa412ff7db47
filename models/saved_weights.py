"""The weights of a SavedModel that `models.serving` exported: read from its checkpoint alone, named and digested."""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

# `models.serving` keeps its variables by name in a dictionary `weights`; the rest of a key is TensorFlow's.
_KEY = re.compile(r"weights/(.*)/\.ATTRIBUTES/VARIABLE_VALUE")


def read(saved_model_dir: str) -> Iterator[tuple[str, np.ndarray]]:
    """Reads each weight; no graph is loaded.

    Args:
        saved_model_dir: Folder that `models.serving.export` wrote: a path, or a URI that TensorFlow reads.

    Yields:
        Its key in the checkpoint, sorted, and its value. None of another SavedModel, whose variables have other keys.

    Raises:
        tf.errors.NotFoundError: There is no such folder, or no checkpoint in it.
        tf.errors.OpError: The checkpoint is damaged, or cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(posixpath.join(saved_model_dir, "variables", "variables"))
        for key in sorted(reader.get_variable_to_shape_map()):
            # The rest are the object graph and the checkpoint's own counters.
            if _KEY.fullmatch(key):
                yield key, reader.get_tensor(key)
    except (ValueError, IndexError, NotImplementedError) as error:  # what TensorFlow's binding makes of some errors
        raise tf.errors.UnknownError(None, None, str(error)) from error


def name(key: str) -> str:
    """The variable's name, `layer/variable`, which TensorFlow escapes in a key.

    >>> name("weights/stem.Skernel/.ATTRIBUTES/VARIABLE_VALUE")
    'stem/kernel'
    """
    escaped = _KEY.fullmatch(key)[1]
    return re.sub(r"\.([S.])", lambda found: "/" if found[1] == "S" else ".", escaped)


def digest(weights: Iterable[tuple[str, np.ndarray]]) -> str:
    """SHA-256, in hex, over key, type, shape and bytes of each weight, in the order that `read` has."""
    content = hashlib.sha256()
    for key, value in weights:
        content.update(f"{key} {value.dtype} {value.shape}\n".encode())
        content.update(value.tobytes())
    return content.hexdigest()
