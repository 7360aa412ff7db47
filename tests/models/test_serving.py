"""The served model: any JPEG, clear refusals, plain TensorFlow, a digest of the weights."""

import io
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from models import network, records, serving
from models.config import NetworkConfig
from models.errors import TrainingError

CLASSES = ("amber", "blue", "chalk")
CONFIG = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)


def export(path, seed=0):
    serving.export(network.Classifier(CONFIG, 3, seed), CLASSES, image_size=32, short_side=48, path=str(path))
    return str(path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def signatures(exported):
    return tf.saved_model.load(exported).signatures


def jpeg(width, height, mode="RGB", **options):
    noise = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.BICUBIC).convert(mode).save(content, "JPEG", **options)
    return content.getvalue()


def test_signature(signatures):
    outputs = signatures["serving_default"](bytes_inputs=tf.constant([jpeg(60, 48), jpeg(200, 300)]))
    assert {name: (value.dtype, value.shape) for name, value in outputs.items()} == {
        "label": (tf.string, (2,)),
        "probability": (tf.float32, (2,)),
        "probabilities": (tf.float32, (2, 3)),
        "classes": (tf.string, (2, 3)),
    }
    assert outputs["classes"].numpy()[0].tolist() == [name.encode() for name in CLASSES]
    best = outputs["probabilities"].numpy().argmax(axis=1)
    assert outputs["label"].numpy().tolist() == [CLASSES[index].encode() for index in best]
    np.testing.assert_allclose(outputs["probabilities"].numpy().sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(outputs["probability"], outputs["probabilities"].numpy().max(axis=1))


def test_batch_of_none(signatures):
    outputs = signatures["serving_default"](bytes_inputs=tf.constant([], tf.string))
    assert outputs["probabilities"].shape == (0, 3)


@pytest.mark.parametrize("width, height", [(1, 1), (10, 300), (47, 49), (48, 48), (1024, 700)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_any_size_and_colour_space(signatures, width, height, mode):
    outputs = signatures["serving_default"](bytes_inputs=tf.constant([jpeg(width, height, mode)]))
    assert np.isfinite(outputs["probability"].numpy()).all()


def test_cmyk_shows_the_same_picture():
    rgb, cmyk = (serving.pixels(jpeg(60, 48, mode), 32, 48).numpy() for mode in ("RGB", "CMYK"))
    assert np.abs(rgb - cmyk).mean() < 8


def test_progressive(signatures):
    signatures["serving_default"](bytes_inputs=tf.constant([jpeg(300, 200, progressive=True)]))


def png():
    content = io.BytesIO()
    Image.new("RGB", (48, 48)).save(content, "PNG")
    return content.getvalue()


def huge():
    """The header announces 60,000 x 60,000 pixels."""
    content = bytearray(jpeg(64, 64))
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = (60_000).to_bytes(2, "big") * 2
    return bytes(content)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "no JPEG"),
        (b"hello", "no JPEG"),
        (png(), "no JPEG"),
        (jpeg(300, 300)[:200], "JPEG"),
        (jpeg(300, 300)[:-500], "JPEG"),
        (huge(), "too many pixels"),
    ],
)
def test_refuses_and_goes_on(signatures, content, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures["serving_default"](bytes_inputs=tf.constant([content]))
    signatures["serving_default"](bytes_inputs=tf.constant([jpeg(60, 48)]))


def test_labelled_examples_get_the_same_probabilities(signatures):
    content = jpeg(60, 48)
    example = records.encode_labelled(
        image_id="a", product_id="a", source="", label="blue", label_index=1, encoded=content, width=60, height=48
    )
    from_example = signatures["serving_examples"](examples=tf.constant([example]))["probabilities"]
    from_bytes = signatures["serving_default"](bytes_inputs=tf.constant([content]))["probabilities"]
    np.testing.assert_array_equal(from_example, from_bytes)


def test_loads_without_keras(exported):
    check = (
        "import sys, tensorflow as tf; sys.modules['tf_keras'] = sys.modules['keras'] = None; "
        f"model = tf.saved_model.load({exported!r}); print(sorted(model.signatures))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "['serving_default', 'serving_examples']", done.stderr


def test_an_export_names_its_classes(exported, tmp_path):
    assert serving.classes_of(exported) == CLASSES
    (tmp_path / "saved_model.pb").write_bytes(b"no graph")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(TrainingError, match="is no model that answers"):
            serving.classes_of(str(path))


def test_an_export_is_asked_in_other_classes(exported, tmp_path):
    wanted = ("chalk", "door", "amber")
    serving.align(exported, CLASSES, wanted, str(tmp_path / "aligned"))
    example = records.encode_labelled(
        image_id="a", product_id="a", source="", label="blue", label_index=1, encoded=jpeg(60, 48), width=60, height=48
    )
    own, other = (
        tf.saved_model.load(path).signatures["serving_examples"](examples=tf.constant([example]))["probabilities"].numpy()[0]
        for path in (exported, str(tmp_path / "aligned"))
    )
    np.testing.assert_array_equal(other, [own[2], 0, own[0]])


def test_digest_is_of_the_weights(exported, tmp_path):
    digest = serving.weights_digest(exported)
    assert len(digest) == 64
    assert serving.weights_digest(export(tmp_path / "again")) == digest
    assert serving.weights_digest(export(tmp_path / "other", seed=1)) != digest
    moved = shutil.copytree(exported, tmp_path / "moved")
    assert serving.weights_digest(str(moved)) == digest
