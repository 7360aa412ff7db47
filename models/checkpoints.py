"""The state of a training on its way, so that a killed one goes on and ends with the weights of an unbroken one.

One file holds everything, weights, optimiser, best weights and position, and is replaced as a whole: whatever happens,
either the state before or the state after is there.
"""

import hashlib
import io
import json
import logging
import posixpath
import time
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from models import files

_log = logging.getLogger(__name__)

_STATE = "state"


class Checkpoint:
    """The checkpoint of one training.

    Args:
        root: Folder of the checkpoints of all trainings: a path, or a URI that TensorFlow reads.
        identity: All that the weights depend on. Another identity is another training with a checkpoint of its own, so a
            checkpoint never goes on with other data or settings than it began with.
        minutes: Least time between two checkpoints that `due` asks for.
    """

    def __init__(self, root: str, identity: Mapping, minutes: float):
        text = json.dumps(identity, sort_keys=True)
        self._folder = posixpath.join(root, hashlib.sha256(text.encode()).hexdigest()[:32])
        self._path = posixpath.join(self._folder, "checkpoint.npz")
        self._seconds = 60 * minutes
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return time.monotonic() - self._saved >= self._seconds

    def save(self, state: Mapping, arrays: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Replaces the checkpoint.

        Args:
            state: What JSON can hold.
            arrays: Name -> arrays, such as a network's weights in their order.

        Raises:
            tf.errors.OpError: It cannot be written; the one before is still there.
        """
        content = io.BytesIO()
        numbered = {f"{name}/{number:05d}": array for name, found in arrays.items() for number, array in enumerate(found)}
        # Parts carry checksums (it is a zip file), so one that was cut short is noticed.
        np.savez(content, **numbered, **{_STATE: np.array(json.dumps(state))})
        tf.io.gfile.makedirs(self._folder)
        files.write(self._path, content.getvalue())
        self._saved = time.monotonic()

    def load(self) -> tuple[dict, dict[str, list[np.ndarray]]] | None:
        """What was saved last; None when nothing was, or when it cannot be read, which the log then says."""
        try:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                content = file.read()
        except tf.errors.NotFoundError:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as found:
                state = json.loads(str(found[_STATE]))
                arrays: dict[str, list[np.ndarray]] = {}
                for name in sorted(set(found.files) - {_STATE}):
                    arrays.setdefault(name.split("/")[0], []).append(found[name])
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            _log.warning("the checkpoint %s cannot be read (%s): the training starts anew", self._path, error)
            return None
        return state, arrays

    def remove(self) -> None:
        """Removes the checkpoint: the training is done."""
        if tf.io.gfile.exists(self._folder):
            tf.io.gfile.rmtree(self._folder)
