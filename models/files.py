"""Writing files through TensorFlow, here or in Cloud Storage, so that nobody reads half of one."""

import os

import tensorflow as tf


def write(path: str, content: bytes | str) -> None:
    """Writes a file beside its place and moves it there: the file before or the whole new one is what a kill leaves.

    Args:
        path: A path, or a URI that TensorFlow writes to.
        content: What the file holds.

    Raises:
        tf.errors.OpError: It cannot be written; the file before is still there.
    """
    draft = f"{path}.{os.getpid()}"
    with tf.io.gfile.GFile(draft, "wb") as file:
        file.write(content)
    tf.io.gfile.rename(draft, path, overwrite=True)
