"""The model as it is served: a SavedModel that plain TensorFlow loads, with its signatures and its digest.

    serving_default    bytes_inputs: string [batch], JPEG files as they come
                       -> label: string [batch]; probability: float [batch], that label's
                          classes: string [batch, classes]; probabilities: float [batch, classes]
    serving_examples   examples: string [batch], labelled examples (models.records), for TFMA
                       -> probabilities: float [batch, classes]

Both prepare a photograph as training did. EXIF orientation is not applied: send photographs upright.
"""

from collections.abc import Sequence

import tensorflow as tf

from models import records, saved_weights
from models.errors import TrainingError
from models.network import Classifier

# Width times height above which a request is refused before a pixel is decoded: 300 MB of RGB.
MAX_PIXELS = 100_000_000


class _Served(tf.Module):
    """The weights by name, the classes, and what the signatures do with them."""

    def __init__(self, network: Classifier, classes: Sequence[str], image_size: int, short_side: int):
        super().__init__()
        # Variables, not layers: the export holds no Keras object and needs no Keras to be loaded.
        self.weights = {variable.name.split(":")[0]: variable for variable in network.weights}
        self._without_tracking = (network,)
        self._classes = tuple(classes)
        self._image_size = image_size
        self._short_side = short_side

    def probabilities(self, encoded):
        """string [batch] -> float [batch, classes]."""
        # One after another where the pixels are many: a batch of large photographs must not fill the memory.
        images = tf.map_fn(
            lambda jpeg: pixels(jpeg, self._image_size, self._short_side),
            encoded,
            fn_output_signature=tf.TensorSpec([self._image_size, self._image_size, 3], tf.float32),
            parallel_iterations=4,
        )
        (network,) = self._without_tracking
        # On some processors oneDNN's fused convolution fails on no images: a blank one stands in, and is cut off.
        batch = tf.shape(images)[0]
        images = tf.pad(images, [[0, tf.cast(tf.equal(batch, 0), tf.int32)], [0, 0], [0, 0], [0, 0]])
        return tf.nn.softmax(network(images))[:batch]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="bytes_inputs")])
    def serve(self, bytes_inputs):
        probabilities = self.probabilities(bytes_inputs)
        classes = tf.constant(self._classes)
        return {
            "label": tf.gather(classes, tf.argmax(probabilities, axis=1)),
            "probability": tf.reduce_max(probabilities, axis=1),
            "probabilities": probabilities,
            "classes": tf.tile(classes[tf.newaxis], [tf.shape(probabilities)[0], 1]),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve_examples(self, examples):
        return {"probabilities": self.probabilities(records.parse_labelled(examples)["image/encoded"])}


def pixels(jpeg: tf.Tensor, image_size: int, short_side: int) -> tf.Tensor:
    """Prepares any JPEG as the sharder, validation and training prepare theirs.

    Args:
        jpeg: string []; a JPEG of any size; greyscale and CMYK become RGB.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels that the shorter side is resized to before the centre is cropped.

    Returns:
        float32 [size, size, 3], 0 to 255.

    Raises:
        tf.errors.InvalidArgumentError: It is no JPEG, is damaged, or has more than `MAX_PIXELS`.
    """
    is_jpeg = tf.debugging.Assert(tf.io.is_jpeg(jpeg), ["the request holds something that is no JPEG"])
    with tf.control_dependencies([is_jpeg]):
        shape = tf.cast(tf.io.extract_jpeg_shape(jpeg), tf.int64)
    small = tf.debugging.Assert(
        shape[0] * shape[1] <= MAX_PIXELS, ["the JPEG has too many pixels; height, width, limit:", shape[:2], MAX_PIXELS]
    )
    with tf.control_dependencies([small]):
        image = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE")
    shorter = tf.minimum(shape[0], shape[1])
    # A photograph of the stored size was resized by the sharder: once is enough.
    image = tf.cond(
        shorter == short_side,
        lambda: tf.cast(image, tf.float32),
        lambda: _resized(image, shape, shorter, short_side),
    )
    height, width = tf.shape(image)[0], tf.shape(image)[1]
    top, left = (height - image_size) // 2, (width - image_size) // 2
    image = image[top : top + image_size, left : left + image_size]
    return tf.ensure_shape(image, [image_size, image_size, 3])


def _resized(image, shape, shorter, short_side):
    size = tf.cast(tf.round(tf.cast(shape[:2], tf.float64) * (short_side / shorter)), tf.int32)
    resized = tf.image.resize(image, tf.maximum(size, short_side), method="lanczos3", antialias=True)
    return tf.clip_by_value(resized, 0.0, 255.0)


def export(network: Classifier, classes: Sequence[str], image_size: int, short_side: int, path: str) -> None:
    """Writes the SavedModel.

    Args:
        network: The trained network.
        classes: Class names, in the order of the logits.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side before the crop.
        path: Folder to write.
    """
    served = _Served(network, classes, image_size, short_side)
    tf.saved_model.save(
        served,
        path,
        signatures={"serving_default": served.serve, "serving_examples": served.serve_examples},
    )


def classes_of(saved_model_dir: str) -> tuple[str, ...]:
    """Asks an export for its classes, which also proves that it loads and answers.

    Args:
        saved_model_dir: Folder that `export` wrote.

    Returns:
        The names, in the order of the probabilities.

    Raises:
        TrainingError: It does not load, or does not answer as an export of this module does.
    """
    try:
        serve = tf.saved_model.load(saved_model_dir).signatures["serving_default"]
        blank = tf.io.encode_jpeg(tf.zeros([16, 16, 3], tf.uint8))
        return tuple(name.decode() for name in serve(bytes_inputs=blank[tf.newaxis])["classes"].numpy()[0])
    except (OSError, ValueError, KeyError, TypeError, tf.errors.OpError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise TrainingError(f"{saved_model_dir} is no model that answers: {lines[0][:300]}") from error


class _Aligned(tf.Module):
    """An export whose probabilities are put into another order."""

    def __init__(self, model, positions: Sequence[int]):
        super().__init__()
        self.model = model
        self._positions = list(positions)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve_examples(self, examples):
        probabilities = self.model.signatures["serving_examples"](examples=examples)["probabilities"]
        # A column of nought for what the export does not know.
        padded = tf.pad(probabilities, [[0, 0], [0, 1]])
        return {"probabilities": tf.gather(padded, self._positions, axis=1)}


def align(saved_model_dir: str, own: Sequence[str], classes: Sequence[str], path: str) -> None:
    """Writes an export once more, with the probabilities of other classes: for a comparison, not to be served.

    Args:
        saved_model_dir: Folder that `export` wrote.
        own: Its classes, as `classes_of` gives them.
        classes: Those wanted. One that is not its own has probability 0; one of its own that is not wanted is left out.
        path: Folder to write; the signature `serving_examples` alone.
    """
    positions = [own.index(name) if name in own else len(own) for name in classes]
    aligned = _Aligned(tf.saved_model.load(saved_model_dir), positions)
    tf.saved_model.save(aligned, path, signatures={"serving_examples": aligned.serve_examples})


def weights_digest(saved_model_dir: str) -> str:
    """Digest of a SavedModel's weights: equal for two exports when, and only when, each weight is, bit for bit.

    Args:
        saved_model_dir: Folder that `export` wrote.

    Returns:
        SHA-256, in hex, over name, type, shape and bytes of each variable, sorted by name.
    """
    return saved_weights.digest(saved_weights.read(saved_model_dir))
