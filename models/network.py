"""The classifier: a ResNet backbone and a linear head.

ResNet v1.5: He et al., https://arxiv.org/abs/1512.03385, with a stage's stride in its 3x3 convolution; the last scale
of each residual branch starts at zero (Goyal et al., https://arxiv.org/abs/1706.02677). The backbone can be loaded
from a checkpoint and run frozen, its batch statistics included.

Under the policy mixed_bfloat16 the convolutions compute in 16 bits; pixels are normalised, features pooled and logits
computed in 32, which variables have in any case.
"""

import hashlib
import io
import json
import zipfile
import zlib

import numpy as np
import tensorflow as tf
import tf_keras

from models import files, saved_weights
from models.config import NetworkConfig
from models.errors import TrainingError

# Mean and standard deviation of ImageNet's pixels, 0 to 255, for each of red, green, blue.
MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)

# Small photograph collections make short epochs: 0.9 forgets the initial statistics within one or two of them.
_BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


class Classifier(tf.Module):
    """Photographs to logits.

    Attributes:
        backbone: Keras model: float [batch, size, size, 3], 0 to 255 -> pooled features, float32 [batch, channels].
        head: Keras layer: features -> logits, float32 [batch, classes].
    """

    def __init__(self, config: NetworkConfig, classes: int, seed: int):
        """Makes a network with random weights that are a function of `seed` alone.

        Args:
            config: Depth, width and image size.
            classes: Number of classes.
            seed: Seed of the weights.
        """
        super().__init__(name="classifier")
        self.backbone = resnet(config, seed)
        # Near zero: the first steps teach the head and leave the backbone alone.
        self.head = tf_keras.layers.Dense(
            classes,
            name="head",
            kernel_initializer=tf_keras.initializers.RandomNormal(0.0, 0.01, _seed(seed, "head")),
            dtype="float32",
        )
        self.head.build(self.backbone.output_shape)

    def __call__(
        self, images: tf.Tensor, *, train_backbone: bool = False, dropout: float = 0.0, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Computes logits.

        Args:
            images: float [batch, size, size, 3], 0 to 255.
            train_backbone: Whether batch norm takes the batch's statistics and updates its own. Without it the
                backbone is frozen, whatever the head does.
            dropout: Share of the features that is dropped; 0 for inference.
            seed: int32 [2]; which features are dropped. A key and not a state, so that a resumed training drops the
                same ones.

        Returns:
            float32 [batch, classes].
        """
        features = self.backbone(images, training=train_backbone)
        if dropout:
            features = tf.nn.experimental.stateless_dropout(features, rate=dropout, seed=seed)
        return self.head(features)

    @property
    def weights(self) -> list[tf.Variable]:
        """Every variable, batch statistics included, in an order that only the configuration decides."""
        return [*self.backbone.weights, *self.head.weights]

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        trained = [*self.backbone.trainable_variables, *self.head.trainable_variables]
        return sum(int(np.prod(variable.shape)) for variable in trained)


def resnet(config: NetworkConfig, seed: int) -> tf_keras.Model:
    """Builds the backbone.

    Args:
        config: Depth, width and image size.
        seed: Each kernel's own seed comes from it and from the layer's name, so that neither the order of
            construction nor what ran before matters.

    Returns:
        A model: float [batch, size, size, 3], 0 to 255 -> float32 [batch, channels], where channels is
        width * 2 ** (stages - 1), times 4 with bottlenecks.
    """
    images = tf_keras.Input((config.image_size, config.image_size, 3), name="images")
    x = tf_keras.layers.Rescaling(
        scale=[1 / deviation for deviation in DEVIATION],
        offset=[-mean / deviation for mean, deviation in zip(MEAN, DEVIATION)],
        name="normalise",
        dtype="float32",
    )(images)
    x = _convolution(x, config.width, kernel=7, stride=2, name="stem", seed=seed)
    x = tf_keras.layers.ReLU(name="stem_relu")(x)
    x = tf_keras.layers.MaxPool2D(3, strides=2, padding="same", name="stem_pool")(x)
    block = _bottleneck_block if config.bottleneck else _basic_block
    for stage, blocks in enumerate(config.blocks):
        for index in range(blocks):
            x = block(
                x,
                channels=config.width * 2**stage,
                stride=2 if stage > 0 and index == 0 else 1,
                name=f"stage{stage + 1}_block{index + 1}",
                seed=seed,
            )
    features = tf_keras.layers.GlobalAveragePooling2D(name="pool", dtype="float32")(x)
    return tf_keras.Model(images, features, name="backbone")


def _basic_block(x, channels, stride, name, seed):
    shortcut = x
    x = _convolution(x, channels, kernel=3, stride=stride, name=f"{name}_conv1", seed=seed)
    x = tf_keras.layers.ReLU(name=f"{name}_relu1")(x)
    x = _convolution(x, channels, kernel=3, stride=1, name=f"{name}_conv2", seed=seed, gamma="zeros")
    return _joined(x, shortcut, stride, name, seed)


def _bottleneck_block(x, channels, stride, name, seed):
    shortcut = x
    x = _convolution(x, channels, kernel=1, stride=1, name=f"{name}_conv1", seed=seed)
    x = tf_keras.layers.ReLU(name=f"{name}_relu1")(x)
    x = _convolution(x, channels, kernel=3, stride=stride, name=f"{name}_conv2", seed=seed)
    x = tf_keras.layers.ReLU(name=f"{name}_relu2")(x)
    x = _convolution(x, 4 * channels, kernel=1, stride=1, name=f"{name}_conv3", seed=seed, gamma="zeros")
    return _joined(x, shortcut, stride, name, seed)


def _joined(x, shortcut, stride, name, seed):
    if shortcut.shape[-1] != x.shape[-1] or stride != 1:
        shortcut = _convolution(shortcut, x.shape[-1], kernel=1, stride=stride, name=f"{name}_shortcut", seed=seed)
    x = tf_keras.layers.Add(name=f"{name}_add")([x, shortcut])
    return tf_keras.layers.ReLU(name=f"{name}_relu")(x)


def _convolution(x, channels, *, kernel, stride, name, seed, gamma="ones"):
    x = tf_keras.layers.Conv2D(
        channels,
        kernel,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer=tf_keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=_seed(seed, name)
        ),
        name=name,
    )(x)
    # Synchronised, or 2 workers of 16 images would not follow 1 of 32; on one replica the fused kernel is faster.
    synchronised = tf.distribute.get_strategy().num_replicas_in_sync > 1
    return tf_keras.layers.BatchNormalization(
        gamma_initializer=gamma, synchronized=synchronised, name=f"{name}_norm", **_BATCH_NORM
    )(x)


def _seed(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF


def save_backbone(backbone: tf_keras.Model, path: str, about: dict, dtype=np.float16) -> None:
    """Writes a backbone's weights, byte for byte a function of the weights and of `about`.

    Args:
        backbone: The model that `resnet` made.
        path: File to write, .npz: an array for each variable, named `layer/variable`, and `about` as JSON.
        about: How the weights came about; plain data.
        dtype: Type that the values are stored in.
    """
    arrays = {_name(variable): variable.numpy().astype(dtype) for variable in backbone.weights}
    arrays["about"] = np.array(json.dumps(about, sort_keys=True))
    # np.savez stamps the time of writing; a fixed one keeps the digest reproducible.
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(arrays):
            array = io.BytesIO()
            np.lib.format.write_array(array, arrays[name], allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), array.getvalue())
    files.write(path, content.getvalue())


def load_backbone(backbone: tf_keras.Model, path: str) -> str:
    """Fills a backbone from a checkpoint: a file of `save_backbone`, or an earlier model without its head.

    Args:
        backbone: The model that `resnet` made.
        path: The file, .npz; anything else is the folder of a SavedModel that `models.serving.export` wrote. A path, or
            a URI that TensorFlow reads.

    Returns:
        Digest, in hex: SHA-256 of the file; of a SavedModel, `saved_weights.digest` of all its weights, head included,
        so that it is the `weights_sha256` of the training that the model came from.

    Raises:
        TrainingError: There is nothing at the path, it is no checkpoint, or a layer of it does not fit the network.
    """
    arrays, digest = _read_file(path) if path.endswith(".npz") else _read_saved_model(path)
    remedy = "use the network settings that it was made with, or pretrain another one (python -m models.pretrain)"
    # Everything is compared before anything is assigned: a misfit leaves the network as it was.
    for variable in backbone.weights:
        name = _name(variable)
        if name not in arrays:
            raise TrainingError(f"training.backbone {path} has no layer {name}, which the network has: {remedy}")
        found, wanted = arrays[name].shape, tuple(variable.shape)
        if found != wanted:
            raise TrainingError(
                f"training.backbone {path}: layer {name} has shape {found}, the network wants {wanted}: {remedy}"
            )
    surplus = sorted(set(arrays) - {_name(variable) for variable in backbone.weights})
    if surplus:
        raise TrainingError(f"training.backbone {path} has a layer {surplus[0]}, which the network lacks: {remedy}")
    for variable in backbone.weights:
        variable.assign(arrays[_name(variable)].astype(np.float32))
    return digest


def _read_file(path):
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.OpError as error:
        raise TrainingError(f"training.backbone {path} cannot be read: {error.message}") from error
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise TrainingError(f"training.backbone {path} is no checkpoint of models.pretrain: {error}") from error
    arrays.pop("about", None)
    return arrays, hashlib.sha256(content).hexdigest()


def _read_saved_model(path):
    try:
        weights = dict(saved_weights.read(path))
    except tf.errors.NotFoundError as error:
        raise TrainingError(
            f"training.backbone {path} is neither an .npz file nor a model that this pipeline exported, which has "
            "variables/variables.index: name the folder that holds saved_model.pb"
        ) from error
    except tf.errors.OpError as error:
        raise TrainingError(f"training.backbone {path} cannot be read: {error.message}") from error
    arrays = {saved_weights.name(key): value for key, value in weights.items()}
    # Built outside a model, the head's variables are named without a layer.
    arrays = {name: value for name, value in arrays.items() if "/" in name}
    if not arrays:
        raise TrainingError(
            f"training.backbone {path} is a SavedModel, but not of this pipeline: name one that it exported, or an .npz "
            "file of models.pretrain"
        )
    return arrays, saved_weights.digest(weights.items())


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
