"""The network: its shapes, its seeds, and checkpoints that fit or do not."""

import numpy as np
import pytest
import tensorflow as tf

from models import network
from models.config import NetworkConfig
from models.errors import TrainingError

SMALL = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)


def weights(seed, config=SMALL):
    return [variable.numpy() for variable in network.Classifier(config, classes=3, seed=seed).weights]


def test_resnet50_has_the_published_size():
    model = network.Classifier(NetworkConfig(), classes=1000, seed=0)
    assert model.parameters == 25_557_032  # torchvision's resnet50, the same v1.5
    assert model.backbone.output_shape == (None, 2048)
    assert model.backbone.get_layer("stage4_block3_relu").output_shape == (None, 7, 7, 2048)


@pytest.mark.parametrize(
    "config, channels",
    [(SMALL, 16), (NetworkConfig(blocks=(1, 2, 1), width=4, bottleneck=True, image_size=64), 64)],
)
def test_logits(config, channels):
    model = network.Classifier(config, classes=3, seed=0)
    images = tf.fill([2, config.image_size, config.image_size, 3], 128.0)
    assert model.backbone(images).shape == (2, channels)
    assert model(images).shape == (2, 3)


def test_weights_follow_the_seed_and_not_what_ran_before():
    first = weights(seed=1)
    tf.random.normal([3])
    network.Classifier(NetworkConfig(blocks=(1,), width=4, image_size=32), classes=2, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, weights(seed=1), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, weights(seed=2), strict=True))


def test_frozen_backbone_keeps_its_statistics():
    model = network.Classifier(SMALL, classes=3, seed=0)
    images = tf.random.stateless_uniform([4, 32, 32, 3], [1, 2], 0, 255)
    before = [variable.numpy() for variable in model.backbone.weights]
    model(images, dropout=0.5, seed=tf.constant([1, 2]))
    assert all(np.array_equal(a, b) for a, b in zip(before, model.backbone.weights))
    model(images, train_backbone=True)
    assert not all(np.array_equal(a, b) for a, b in zip(before, model.backbone.weights))


def test_dropout_is_keyed():
    model = network.Classifier(SMALL, classes=3, seed=0)
    images = tf.random.stateless_uniform([4, 32, 32, 3], [1, 2], 0, 255)

    def drop(*key):
        return model(images, dropout=0.5, seed=tf.constant(key)).numpy()

    assert np.array_equal(drop(1, 2), drop(1, 2))
    assert not np.array_equal(drop(1, 2), drop(1, 3))


@pytest.fixture
def checkpoint(tmp_path):
    path = str(tmp_path / "backbone.npz")
    network.save_backbone(network.resnet(SMALL, seed=7), path, {"made": "for a test"}, dtype=np.float32)
    return path


def test_checkpoint_comes_back(checkpoint, tmp_path):
    model = network.resnet(SMALL, seed=0)
    content = network.load_backbone(model, checkpoint)
    wanted = network.resnet(SMALL, seed=7)
    assert all(np.array_equal(a, b) for a, b in zip(model.weights, wanted.weights, strict=True))
    again = str(tmp_path / "again.npz")
    network.save_backbone(wanted, again, {"made": "for a test"}, dtype=np.float32)
    assert open(again, "rb").read() == content


@pytest.mark.parametrize(
    "config, message",
    [
        (NetworkConfig(blocks=(1, 1), width=12, bottleneck=False, image_size=32), r"stem/kernel has shape \(7, 7, 3, 8\)"),
        (NetworkConfig(blocks=(1, 2), width=8, bottleneck=False, image_size=32), "has no layer stage2_block2_conv1/kernel"),
        (NetworkConfig(blocks=(1,), width=8, bottleneck=False, image_size=32), "has a layer stage2_block1_conv1/kernel"),
    ],
)
def test_checkpoint_of_another_network(checkpoint, config, message):
    model = network.resnet(config, seed=0)
    before = [variable.numpy() for variable in model.weights]
    with pytest.raises(TrainingError, match=message) as error:
        network.load_backbone(model, checkpoint)
    assert checkpoint in str(error.value)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.weights))


def test_no_checkpoint(tmp_path):
    model = network.resnet(SMALL, seed=0)
    with pytest.raises(TrainingError, match="missing.npz cannot be read"):
        network.load_backbone(model, str(tmp_path / "missing.npz"))
    for content in (b"", b"PK\x03\x04 cut short", b"something else"):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(TrainingError, match="broken.npz is no checkpoint"):
            network.load_backbone(model, str(tmp_path / "broken.npz"))
