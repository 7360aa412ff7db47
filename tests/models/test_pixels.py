"""What is cut out of a photograph and how its colours change: against the same in plain NumPy, and the same bits each time."""

import numpy as np
import pytest
import tensorflow as tf

from models import pixels, records
from tests.models.conftest import jpeg


def drawn(seed):
    return tf.random.stateless_uniform([pixels.DRAWS], [seed, 3])


def augmented(content, shape, strength, draws, image_size=32, short_side=48):
    image = pixels.random_crop(content, shape, image_size, short_side, strength, draws)
    return pixels.recolour(image[tf.newaxis], pixels.colour_factors(strength, draws)[tf.newaxis])[0]


def test_augmentation_depends_on_the_photograph_and_not_on_its_neighbours(week):
    content = next(iter(tf.data.TFRecordDataset(str(week.shards[0])).map(records.parse_image)))["image/encoded"]
    shape, draws = tf.io.extract_jpeg_shape(content)[:2], drawn(4)
    once = augmented(content, shape, 0.7, draws)
    assert np.array_equal(once, augmented(content, shape, 0.7, draws))
    assert not np.array_equal(once, augmented(content, shape, 0.7, drawn(5)))
    (mapped,) = tf.data.Dataset.from_tensors(content).map(lambda content: augmented(content, shape, 0.7, draws))
    assert np.array_equal(once, mapped)
    images = tf.stack([pixels.random_crop(content, shape, 32, 48, 0.7, drawn(seed)) for seed in (9, 4, 6)])
    factors = tf.stack([pixels.colour_factors(0.7, drawn(seed)) for seed in (9, 4, 6)])
    assert np.array_equal(once, pixels.recolour(images, factors)[1])


@pytest.mark.parametrize("number", range(12))
def test_augmentation_is_what_it_says_one_step_after_the_other(number):
    """The colours are changed in one pass; here in the three that its description has."""
    content, strength, draws = jpeg(70, 48, (200, 90, 40), seed=number), 0.8, drawn(number)
    image = augmented(content, tf.constant([48, 70]), strength, draws)
    np.testing.assert_allclose(image, slowly_augmented(content, strength, draws.numpy().astype(float)), atol=0.01)


def slowly_augmented(content, strength, draws):
    area, ratio = 48 * 70 * (1 - 0.92 * strength * (1 - draws[0])), (4 / 3) ** (strength * (2 * draws[1] - 1))
    height, width = min(48, round((area / ratio) ** 0.5)), min(70, round((area * ratio) ** 0.5))
    top, left = int(draws[2] * (49 - height)), int(draws[3] * (71 - width))
    part = tf.io.decode_jpeg(content, dct_method="INTEGER_ACCURATE")[top : top + height, left : left + width]
    image = np.floor(tf.image.resize(part, [32, 32]).numpy() + 0.5)
    if draws[4] < 0.5:
        image = image[:, ::-1]
    brightness, contrast, saturation = 1 + 0.4 * strength * (2 * draws[5:] - 1)
    image = image * brightness
    image = image.mean() + (image - image.mean()) * contrast
    grey = image @ np.array([[0.299], [0.587], [0.114]])
    return np.clip(grey + (image - grey) * saturation, 0, 255)


def test_without_strength_it_is_the_centre_in_its_own_colours():
    content, shape = jpeg(70, 48, (200, 90, 40), seed=3), tf.constant([48, 70])
    image = pixels.random_crop(content, shape, 32, 48, 0.0, drawn(1))
    np.testing.assert_allclose(image, pixels.centre_crop(content, shape, 32, 48), atol=0.5)
    assert np.array_equal(pixels.recolour(image[tf.newaxis], pixels.colour_factors(0.0, drawn(1))[tf.newaxis])[0], image)


def test_the_mean_of_the_largest_photograph_is_exact():
    # Its bytes add up to more than 2 ** 24, behind which floats hold no odd numbers.
    images = np.full([1, 1024, 1024, 3], 251, np.uint8)
    images[0, 0, 0] = 0
    flat = pixels.recolour(tf.constant(images), tf.constant([[1.0, 0.0, 1.0]]))  # no contrast: all becomes the mean
    assert np.unique(flat).tolist() == [np.float32(images.mean(dtype=np.float64))]
