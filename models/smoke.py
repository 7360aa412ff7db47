"""The smoke set: a few photographs and the trainer's own answers to them, for whoever is about to serve the model.

The trainer makes it at export, because only there both are known: the pixels as training prepared them, and the network
before it became a graph. It lies in the SavedModel's folder, so it is wherever the model goes: a step before the release
asks the export, and a canary can ask what was deployed.

    assets.extra/smoke.json    which TensorFlow leaves alone when it loads the model
        classes                names, in the order of the probabilities
        photographs            a list of
            request            one instance of a request, as Vertex takes it: {"bytes_inputs": {"b64": JPEG}}
            probabilities      [classes], the trainer's answer
"""

import base64
import json
import posixpath
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models import files, input_pipeline, pixels

FILE = "assets.extra/smoke.json"
"""Where in a SavedModel's folder."""

PHOTOGRAPHS = 8
"""How many there are, unless val has fewer."""

# Of val's photographs, those that are looked at for one of each class.
_LOOKED_AT = 1024


def write(network, val: input_pipeline.Split, classes: Sequence[str], image_size: int, short_side: int, path: str) -> None:
    """Writes the smoke set beside an export.

    Args:
        network: What is exported: float32 [batch, size, size, 3], 0 to 255, to logits [batch, classes].
        val: Where its photographs are from: in the order of the shards, the first of each class and then the others.
        classes: Names, in the order of the logits.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side of the stored photographs.
        path: Folder of the SavedModel.

    Raises:
        TrainingError: The photographs cannot be read.
    """
    with input_pipeline.reading(val):
        chosen = _choose(val)
        # As validation prepares them, and not by the export's own graph, which is what will be asked.
        images = tf.stack([pixels.centre_crop(encoded, shape, image_size, short_side) for encoded, shape in chosen])
    # Where it will be asked, too: an A100 multiplies in fewer bits, which is a thousandth of a probability.
    with tf.device("/CPU:0"):
        answers = tf.nn.softmax(network(images)).numpy()
    content = {
        "classes": list(classes),
        "photographs": [
            {
                "request": {"bytes_inputs": {"b64": base64.b64encode(encoded.numpy()).decode()}},
                "probabilities": [float(probability) for probability in answer],
            }
            for (encoded, _), answer in zip(chosen, answers, strict=True)
        ],
    }
    tf.io.gfile.makedirs(posixpath.dirname(posixpath.join(path, FILE)))
    files.write(posixpath.join(path, FILE), json.dumps(content) + "\n")


def _choose(val):
    """JPEG, and height and width, of `PHOTOGRAPHS` photographs of as many classes as there are."""
    photographs = input_pipeline.blocks(val, readers=1, order=None).map(lambda start, *columns: columns).unbatch()
    seen, firsts, others = set(), [], []
    for encoded, shape, label in photographs.take(_LOOKED_AT):
        kind = int(np.asarray(label))
        if kind not in seen:
            seen.add(kind)
            firsts.append((encoded, shape))
        elif len(others) < PHOTOGRAPHS:
            others.append((encoded, shape))
        if len(firsts) == min(PHOTOGRAPHS, val.classes) and len(firsts) + len(others) >= PHOTOGRAPHS:
            break
    return (firsts + others)[:PHOTOGRAPHS]
