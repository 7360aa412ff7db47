"""From a stored JPEG to what the network sees: the middle of it, or a random part in random colours.

What is cut out is decided before a photograph is decoded, so that no more of it is decoded. Colours are changed in the
training step, where a GPU does so in no time: on the processors that decode they would cost as much again as decoding does
(bench/training.json). Until then pixels are bytes, a quarter of what floats would take on their way.
"""

import math

import tensorflow as tf

DRAWS = 8
"""Random numbers that `random_crop` and `colour_factors` take together for a photograph."""

# Shares of red, green and blue in grey: ITU-R BT.601, as in JPEG.
_GREY = (0.299, 0.587, 0.114)


def centre_crop(encoded: tf.Tensor, shape: tf.Tensor, image_size: int, short_side: int) -> tf.Tensor:
    """Decodes the middle of a stored photograph, and no more than that.

    Args:
        encoded: string []; JPEG.
        shape: int32 [2]; its height and width.
        image_size: Pixels of the square wanted.
        short_side: Pixels of the shorter side of the stored photographs; a smaller one was not enlarged for storing
            and is enlarged here, the same part of it being seen.

    Returns:
        float32 [size, size, 3], 0 to 255.
    """
    side = _scaled(tf.minimum(shape[0], shape[1]), image_size, short_side)
    top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
    return _resize(decode(encoded, tf.stack([top, left, side, side])), image_size)


def random_crop(
    encoded: tf.Tensor, shape: tf.Tensor, image_size: int, short_side: int, strength: float, draws: tf.Tensor
) -> tf.Tensor:
    """Decodes a random part of a stored photograph, and mirrors it half of the time.

    At strength a (Szegedy et al., https://arxiv.org/abs/1409.4842, at a = 1): a part with an area share drawn from
    1 - 0.92 a to 1 and an aspect ratio from (3/4)^a to (4/3)^a, at random. At 0 it is `centre_crop`.

    Args:
        encoded: string []; JPEG.
        shape: int32 [2]; its height and width.
        image_size: Pixels of the square wanted.
        short_side: Pixels of the shorter side of the stored photographs.
        strength: 0 to 1.
        draws: float32 [DRAWS], each from 0 up to but not 1; all that is random comes from them.

    Returns:
        uint8 [size, size, 3].
    """
    if strength == 0:
        return _to_bytes(centre_crop(encoded, shape, image_size, short_side))
    # A scalar op costs about what a pass over a channel does, so what is random is computed in vectors.
    spread = strength * math.log(4 / 3)
    lower, upper = tf.constant([1 - 0.92 * strength, -spread]), tf.constant([1.0, spread])
    share, log_ratio = tf.unstack(_between(draws[:2], lower, upper))
    side = tf.sqrt(share * tf.reduce_prod(tf.cast(shape, tf.float32)))
    # Half of the logarithm for each side: their ratio has the whole one, their product is the area.
    size = tf.round(side * tf.exp(log_ratio * tf.constant([-0.5, 0.5])))
    size = tf.clip_by_value(tf.cast(size, tf.int32), 1, shape)
    corner = tf.cast(draws[2:4] * tf.cast(shape - size + 1, tf.float32), tf.int32)
    part = decode(encoded, tf.concat([corner, size], 0))
    part = tf.cond(draws[4] < 0.5, lambda: tf.reverse(part, [1]), lambda: part)
    return _to_bytes(_resize(part, image_size))


def colour_factors(strength: float, draws: tf.Tensor) -> tf.Tensor:
    """By what `recolour` multiplies a photograph's brightness, contrast and saturation.

    Args:
        strength: a, 0 to 1.
        draws: float32 [DRAWS], those of `random_crop`.

    Returns:
        float32 [3], each from 1 - 0.4 a to 1 + 0.4 a.
    """
    return _between(draws[5:], 1 - 0.4 * strength, 1 + 0.4 * strength)


def recolour(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Changes brightness, then contrast, then saturation: all colours, then those away from the mean, then those from grey.

    Args:
        images: uint8 [batch, height, width, 3].
        factors: float32 [batch, 3]; of brightness, contrast and saturation. 1 changes nothing.

    Returns:
        float32 [batch, height, width, 3], 0 to 255.
    """
    images = tf.cast(images, tf.float32)
    # Whole numbers that floats hold exactly, a row in 32 bits and a photograph in 64: no order of adding changes the mean.
    rows = tf.cast(tf.reduce_sum(images, axis=[2, 3]), tf.float64)
    mean = tf.cast(tf.reduce_mean(rows, axis=1) / (3 * images.shape[2]), tf.float32)
    brightness, contrast, saturation = tf.unstack(factors, axis=1)
    scale = brightness * contrast
    # The three are affine together, so one pass over the pixels does for all. Element by element, whose bits no number of
    # threads changes, as it may those of a matrix product.
    red, green, blue = tf.unstack(images, axis=-1)
    grey = _GREY[0] * red + _GREY[1] * green + _GREY[2] * blue
    common = grey * _spread(scale - scale * saturation, 3) + _spread(mean * (brightness - scale), 3)
    return tf.clip_by_value(images * _spread(scale * saturation, 4) + common[..., tf.newaxis], 0.0, 255.0)


def _spread(values, rank):
    return tf.reshape(values, [-1, *[1] * (rank - 1)])


def decode(encoded: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Decodes a part of a JPEG as training and validation do: string [] and int32 [4], top, left, height, width; to uint8."""
    return tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_ACCURATE")


def _resize(image, image_size):
    return tf.ensure_shape(tf.image.resize(image, [image_size, image_size]), [image_size, image_size, 3])


def _to_bytes(image):
    return tf.cast(image + 0.5, tf.uint8)


def _scaled(side, image_size, short_side):
    return tf.maximum(1, (side * image_size + short_side // 2) // short_side)


def _between(draw, lower, upper):
    return lower + draw * (upper - lower)
