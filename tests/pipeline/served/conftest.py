"""A store in which a small model serves, with all that its run left, and photographs like those that it was trained on."""

import json
import random

import pytest

from pipeline.places import Places
from pipeline.release import ledger
from pipeline.validation import acceptance
from tests.models.conftest import jpeg

HOSTILE = "<script>document.documentElement.dataset.run=1</script>"
CLASSES = ("dark", "light", HOSTILE)
SHARDS = {
    "short_side": 112, "quality": 90, "target_bytes": 1024, "readers": 1, "min_side": 64, "max_pixels": 1_000_000,
    "max_quarantine_share": 0.1,
}  # fmt: skip
TRAINED = 200


def photographs(count: int, seed: int, light=0.5, scale=1) -> list[bytes]:
    """Half of them light, of some sizes."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        colour = (235, 235, 235) if chance.random() < light else (20, 20, 20)
        width, height = chance.choice([(120, 120), (150, 120), (120, 160)])
        found.append(jpeg(round(width * scale), round(height * scale), colour, seed=chance.randrange(10**6)))
    return found


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """A SavedModel that tells light from dark, with an export's own outputs."""
    import tensorflow as tf

    class Brightness(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="bytes_inputs")])
        def serve(self, bytes_inputs):
            def light_of(content):
                with tf.control_dependencies([tf.debugging.Assert(tf.io.is_jpeg(content), ["no JPEG"])]):
                    return tf.reduce_mean(tf.cast(tf.io.decode_jpeg(content, channels=3), tf.float32)) / 255

            light = tf.map_fn(light_of, bytes_inputs, fn_output_signature=tf.float32)
            probabilities = tf.stack([1 - light, light, tf.zeros_like(light)], axis=1)
            classes = tf.constant(CLASSES)
            return {
                "label": tf.gather(classes, tf.argmax(probabilities, axis=1)),
                "probability": tf.reduce_max(probabilities, axis=1),
                "probabilities": probabilities,
                "classes": tf.tile(classes[tf.newaxis], [tf.shape(light)[0], 1]),
            }

    folder = str(tmp_path_factory.mktemp("served") / "model")
    module = Brightness()
    tf.saved_model.save(module, folder, signatures={"serving_default": module.serve})
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> str:
    """Statistics of what it was trained on."""
    from pipeline.served import statistics
    from pipeline.settings import ShardSettings
    from pipeline.shards.photographs import pack

    packed = [pack("p", content, ShardSettings(**SHARDS)) for content in photographs(TRAINED, seed=1)]
    sizes = {
        "width": [each.width for each in packed], "height": [each.height for each in packed],
        "bytes": [len(each.encoded) for each in packed],
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("trained")
    (folder / "Split-train").mkdir()
    (folder / "Split-train" / "FeatureStats.pb").write_bytes(statistics.of(sizes).SerializeToString())
    return str(folder)


@pytest.fixture
def store(tmp_path, model, trained) -> Places:
    """What a release leaves."""
    places = Places(store=str(tmp_path / "store"))
    ledger.append(
        places.ledger, endpoint="default", to_version="7", model=model, run_id="run-1", snapshot="labels_20260302",
        snapshot_date="2026-03-02", weights_sha256="0",
    )  # fmt: skip
    acceptance.record(places.accepted, "labels_20260302", "2026-03-02", "c" * 64, "run-1", trained)
    sure = [[0, None, None]] * 9 + [[100, 0.92, 1.0]]
    report = {
        "classes": CLASSES, "confusion": [[48, 2, 0], [2, 48, 0], [0, 0, 0]], "reliability": {"candidate": sure},
        "shards": SHARDS,
    }  # fmt: skip
    folder = tmp_path / "store" / "reports" / "run-1"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(json.dumps(report))
    return places
