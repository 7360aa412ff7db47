"""The network: its shapes, its seeds, its precision, and checkpoints that fit or do not."""

import doctest
import hashlib
import pathlib
import shutil
import zlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from models import network, saved_weights, serving
from models.config import NetworkConfig
from models.errors import TrainingError

SMALL = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


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


def test_weights_and_outputs_are_those_of_the_plain_operations():
    """Bit for bit: a precision or a default that changes would change every model in silence."""
    model = network.Classifier(SMALL, classes=3, seed=5)
    by_name = {variable.name.split(":")[0]: variable for variable in model.weights}
    he = tf_keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal", zlib.crc32(b"5/stem") & 0x7FFFFFFF)
    normal = tf_keras.initializers.RandomNormal(0.0, 0.01, zlib.crc32(b"5/head") & 0x7FFFFFFF)
    np.testing.assert_array_equal(by_name["stem/kernel"], he([7, 7, 3, 8]))
    np.testing.assert_array_equal(by_name["kernel"], normal([16, 3]))

    for variable in model.weights:  # at first, scales and statistics are 0 and 1, which hide what is done with them
        noise = tf.random.stateless_uniform(variable.shape, [len(variable.name), 3], 0.5, 1.5)
        variable.assign(noise if "_norm" in variable.name else variable + 0.1 * noise)
    images = tf.random.stateless_uniform([4, 32, 32, 3], [1, 2], 0, 255)
    np.testing.assert_array_equal(model(images), plainly_computed(by_name, images))


def plainly_computed(weights, images):
    """The logits of `SMALL`."""

    def convolved(x, name, stride):
        x = tf.nn.conv2d(x, weights[f"{name}/kernel"], stride, "SAME")
        norm = [weights[f"{name}_norm/{part}"] for part in ("gamma", "beta", "moving_mean", "moving_variance")]
        return tf.compat.v1.nn.fused_batch_norm(x, *norm, epsilon=1e-5, is_training=False)[0]

    deviation, mean = np.array([58.395, 57.12, 57.375]), np.array([123.675, 116.28, 103.53])
    x = images * tf.constant(1 / deviation, tf.float32) + tf.constant(-mean / deviation, tf.float32)
    x = tf.nn.max_pool2d(tf.nn.relu(convolved(x, "stem", 2)), 3, 2, "SAME")
    for name, stride in (("stage1_block1", 1), ("stage2_block1", 2)):
        branch = convolved(tf.nn.relu(convolved(x, f"{name}_conv1", stride)), f"{name}_conv2", 1)
        x = tf.nn.relu(branch + (convolved(x, f"{name}_shortcut", stride) if stride == 2 else x))
    return tf.reduce_mean(x, [1, 2]) @ weights["kernel"] + weights["bias"]


@pytest.fixture
def mixed_precision():
    """A call turns it on; after the test it is off."""
    yield lambda: tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tf_keras.mixed_precision.set_global_policy("float32")


def test_mixed_precision_is_for_the_convolutions_only(mixed_precision):
    images = tf.random.stateless_uniform([4, 32, 32, 3], [1, 2], 0, 255)
    full = network.Classifier(SMALL, classes=3, seed=0)
    mixed_precision()
    mixed = network.Classifier(SMALL, classes=3, seed=0)
    assert {variable.dtype for variable in mixed.weights} == {tf.float32}
    assert all(np.array_equal(a, b) for a, b in zip(full.weights, mixed.weights, strict=True))
    in_float32 = {layer.name for layer in mixed.backbone.layers if layer.compute_dtype == "float32"}
    assert in_float32 == {"images", "normalise", "pool"}
    assert {layer.compute_dtype for layer in mixed.backbone.layers if layer.name not in in_float32} == {"bfloat16"}
    normalised = [model.backbone.get_layer("normalise")(images) for model in (full, mixed)]
    np.testing.assert_array_equal(*normalised)
    assert mixed.backbone(images).dtype == mixed(images).dtype == tf.float32
    # Near each other, and not the same: it was used.
    np.testing.assert_allclose(full.backbone(images), mixed.backbone(images), rtol=0.05, atol=0.05)
    assert not np.array_equal(full(images), mixed(images))


def test_mixed_precision_trains(mixed_precision):
    mixed_precision()
    model = network.Classifier(SMALL, classes=3, seed=0)
    variables = [*model.backbone.trainable_variables, *model.head.trainable_variables]
    optimizer = tf_keras.optimizers.AdamW(1e-2)
    optimizer.build(variables)
    images = tf.random.stateless_uniform([8, 32, 32, 3], [1, 2], 0, 255)
    labels = tf.constant([0, 1, 2, 0, 1, 2, 0, 1])

    losses = []
    for number in range(16):
        with tf.GradientTape() as tape:
            logits = model(images, train_backbone=True, dropout=0.1, seed=tf.constant([1, number]))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        losses.append(float(loss))
    assert {gradient.dtype for gradient in gradients} == {tf.float32}
    assert losses[-1] < 0.5 * losses[0]


def test_a_model_of_mixed_precision_is_exported_like_any_other(mixed_precision, saved_model, tmp_path):
    mixed_precision()
    exported = export(tmp_path / "mixed", network.Classifier(SMALL, classes=3, seed=7))
    assert serving.weights_digest(exported) == serving.weights_digest(saved_model)
    model = network.resnet(SMALL, seed=0)
    network.load_backbone(model, saved_model)
    assert same_weights(model, network.resnet(SMALL, seed=7))


def export(path, classifier):
    serving.export(classifier, ("amber", "blue", "chalk"), SMALL.image_size, short_side=48, path=str(path))
    return str(path)


def same_weights(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left.weights, right.weights, strict=True))


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("npz") / "backbone.npz")
    network.save_backbone(network.resnet(SMALL, seed=7), path, {"made": "for a test"}, dtype=np.float32)
    return path


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    return export(tmp_path_factory.mktemp("saved") / "model", network.Classifier(SMALL, classes=3, seed=7))


@pytest.fixture(params=["npz", "saved_model"])
def checkpoint(request):
    return request.getfixturevalue(request.param)


def test_checkpoint_comes_back(checkpoint):
    model = network.resnet(SMALL, seed=0)
    network.load_backbone(model, checkpoint)
    assert same_weights(model, network.resnet(SMALL, seed=7))


def test_the_digest_of_a_file_is_that_of_its_bytes(npz, tmp_path):
    wanted = network.resnet(SMALL, seed=7)
    again = str(tmp_path / "again.npz")
    network.save_backbone(wanted, again, {"made": "for a test"}, dtype=np.float32)
    assert hashlib.sha256(open(again, "rb").read()).hexdigest() == network.load_backbone(wanted, npz)


def test_the_digest_of_a_model_is_that_of_its_training(saved_model, tmp_path):
    digest = network.load_backbone(network.resnet(SMALL, seed=0), saved_model)
    assert digest == serving.weights_digest(saved_model)
    other_head = network.Classifier(SMALL, classes=3, seed=7)
    other_head.head.kernel.assign_add(tf.ones_like(other_head.head.kernel))
    assert network.load_backbone(network.resnet(SMALL, seed=0), export(tmp_path / "other", other_head)) != digest


def test_a_model_of_other_classes_gives_its_backbone_and_leaves_the_head(saved_model):
    model, untouched = (network.Classifier(SMALL, classes=5, seed=0) for _ in range(2))
    network.load_backbone(model.backbone, saved_model)
    assert same_weights(model.backbone, network.resnet(SMALL, seed=7))
    assert same_weights(model.head, untouched.head)


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
    with pytest.raises(TrainingError, match=message) as error:
        network.load_backbone(model, checkpoint)
    assert f"training.backbone {checkpoint}" in str(error.value) and "network settings" in str(error.value)
    assert same_weights(model, network.resnet(config, seed=0))


def test_no_checkpoint(tmp_path):
    model = network.resnet(SMALL, seed=0)
    with pytest.raises(TrainingError, match="missing.npz cannot be read"):
        network.load_backbone(model, str(tmp_path / "missing.npz"))
    for content in (b"", b"PK\x03\x04 cut short", b"something else"):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(TrainingError, match="broken.npz is no checkpoint"):
            network.load_backbone(model, str(tmp_path / "broken.npz"))


def test_no_saved_model(tmp_path):
    (tmp_path / "file.h5").write_bytes(b"something else")
    model = network.resnet(SMALL, seed=0)
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file.h5"):
        with pytest.raises(TrainingError, match=f"training.backbone {path} is neither .* folder that holds saved_model.pb"):
            network.load_backbone(model, str(path))
    with pytest.raises(TrainingError, match="training.backbone nowhere://bucket/model cannot be read: .*not implemented"):
        network.load_backbone(model, "nowhere://bucket/model")


def test_a_saved_model_of_something_else(tmp_path):
    other = tf.Module()
    other.dense = tf.Variable([1.0, 2.0])
    tf.saved_model.save(other, str(tmp_path / "other"))
    with pytest.raises(TrainingError, match="other is a SavedModel, but not of this pipeline"):
        network.load_backbone(network.resnet(SMALL, seed=0), str(tmp_path / "other"))


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001"])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"junk"), flipped, lambda path: path.unlink()])
def test_a_damaged_saved_model(saved_model, tmp_path, name, damage):
    copy = pathlib.Path(shutil.copytree(saved_model, tmp_path / "copy"))
    damage(copy / "variables" / name)
    model = network.resnet(SMALL, seed=0)
    with pytest.raises(TrainingError, match=f"training.backbone {copy} "):
        network.load_backbone(model, str(copy))
    assert same_weights(model, network.resnet(SMALL, seed=0))


def test_names_in_a_saved_model():
    assert doctest.testmod(saved_weights).failed == 0
    for name in ("stem/kernel", "a.b/c", "a.Sb", "a..b", "kernel"):
        escaped = name.replace(".", "..").replace("/", ".S")
        assert saved_weights.name(f"weights/{escaped}/.ATTRIBUTES/VARIABLE_VALUE") == name
