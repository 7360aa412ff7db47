"""Training: what it writes, that it learns, what it keeps frozen, that it repeats bit for bit, and what it refuses."""

import base64
import dataclasses
import doctest
import hashlib
import itertools
import json
import logging
import os
import pathlib
import subprocess
import sys
import types

import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline, loop, network, records, serving, smoke, training
from models.code import code_digest
from models.config import NetworkConfig, TrainingConfig
from models.errors import TrainingError

CLASSES = ("amber", "blue", "chalk")
SIZES = {"image_size": 32, "short_side": 48}
SMALL = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)
THREADS = {"intra_op_threads": 2, "inter_op_threads": 2}  # as conftest.py fixed them


@pytest.fixture(scope="module")
def train(week, tmp_path_factory):
    """Trains on the week: settings -> (training.json, path of the SavedModel)."""

    def train(**settings):
        out = tmp_path_factory.mktemp("trained")
        training.run_fn(week.fn_args(out, **settings))
        return json.loads((out / "run" / "training.json").read_text()), str(out / "serving")

    return train


@pytest.fixture(scope="module")
def once(train):
    """Two epochs from random weights, seed 0."""
    return train()


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A checkpoint with the weights of another seed."""
    path = str(tmp_path_factory.mktemp("backbone") / "backbone.npz")
    network.save_backbone(network.resnet(SMALL, seed=7), path, {"made": "for a test"})
    return path


@pytest.fixture(scope="module")
def from_backbone(train, backbone):
    """One frozen and one unfrozen epoch."""
    return train(training={"backbone": backbone, "frozen_epochs": 1, "unfrozen_epochs": 1})


@pytest.fixture(scope="module")
def learned(train):
    """Five epochs with the values of a study."""
    values = keras_tuner.HyperParameters()
    values.Fixed("learning_rate", 0.03)
    values.Fixed("augmentation", 0.0)
    return train(training={"unfrozen_epochs": 5}, hyperparameters=values.get_config())


@dataclasses.dataclass
class Explored:
    """A training whose unfrozen phase only does harm: its result, its network, and the weights after each epoch."""

    result: loop.Result
    classifier: network.Classifier
    after: list[dict[str, np.ndarray]]
    start: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def explored(week, backbone):
    config = TrainingConfig(
        backbone=backbone, frozen_epochs=2, unfrozen_epochs=6, frozen_learning_rate=0.01, learning_rate=1.0,
        warmup_epochs=0, early_stopping_patience=2, batch_size=8, **THREADS,
    )  # fmt: skip
    training.prepare_tensorflow(config)
    classifier, _ = training.make_network(SMALL, config, len(CLASSES))
    start, after = values(classifier), []
    train, val = (input_pipeline.read_split(name, week.labels(name), len(CLASSES)) for name in ("train", "val"))
    result = loop.fit(
        classifier, train, val, config=config, on_epoch=lambda epoch, measured: after.append(values(classifier)), **SIZES
    )
    return Explored(result, classifier, after, start)


def values(classifier):
    return {variable.name: variable.numpy() for variable in classifier.weights}


def changed(before, after):
    return {name for name in before if not np.array_equal(before[name], after[name])}


def exported(saved_model):
    """Weights of a SavedModel by name."""
    reader = tf.train.load_checkpoint(os.path.join(saved_model, "variables", "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("weights/")]
    return {
        name.removeprefix("weights/").removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").replace(".S", "/"): reader.get_tensor(name)
        for name in names
    }


def labelled(week, split):
    """(labelled examples, their class indices) of a split."""
    (file,) = tf.io.gfile.glob(week.labelled(split)[0])
    examples = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    return tf.constant(examples), records.parse_labelled(tf.constant(examples))["label_index"].numpy()


def without_times(record):
    """What must be the same in two trainings that differ in nothing."""
    times = (
        "seconds", "seconds_left", "images_per_second", "input_wait_share", "decode_share", "decode_seconds_per_image",
    )  # fmt: skip
    if isinstance(record, dict):
        return {name: without_times(value) for name, value in record.items() if name not in times}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def test_writes_a_model_that_classifies(once):
    signature = tf.saved_model.load(once[1]).signatures["serving_examples"]
    assert signature.structured_outputs["probabilities"].shape[1] == len(CLASSES)


def test_the_trainers_own_answers_travel_with_the_model(once, week):
    content = json.loads(pathlib.Path(once[1], smoke.FILE).read_text())
    assert content["classes"] == list(CLASSES) and len(content["photographs"]) == 6  # as many as val has
    signature = tf.saved_model.load(once[1]).signatures["serving_default"]
    for photograph in content["photographs"]:
        encoded = base64.b64decode(photograph["request"]["bytes_inputs"]["b64"])
        answer = signature(bytes_inputs=tf.constant([encoded]))["probabilities"].numpy()[0]
        np.testing.assert_allclose(answer, photograph["probabilities"], atol=1e-5)


def test_the_record_says_what_was_trained_with_what(once, week):
    record, saved_model = once
    assert record["weights_sha256"] == serving.weights_digest(saved_model)
    assert record["backbone_sha256"] == ""
    assert record["seed"] == 0
    assert record["classes"] == list(CLASSES)
    assert record["examples"] == {"train": 36, "val": 6}
    assert record["short_side"] == 48
    assert record["network"] == json.loads(json.dumps(dataclasses.asdict(SMALL)))
    assert TrainingConfig(**record["training"]) == TrainingConfig(batch_size=8, unfrozen_epochs=2, **THREADS)
    assert record["hyperparameters"] == {}
    assert record["parameters"] == network.Classifier(SMALL, 3, seed=0).parameters
    facts = record["tensorflow"]
    assert facts["version"] == tf.__version__ and facts["git_version"] and facts["compiler"]
    assert "CPU" in facts["devices"] and facts["cuda"] in (True, False)
    assert facts["flags"]["TF_ENABLE_ONEDNN_OPTS"] == os.environ.get("TF_ENABLE_ONEDNN_OPTS", "unset")
    assert record["code_sha256"] == code_digest() and record["processor"]


def test_the_record_says_how_each_epoch_went(once):
    record, _ = once
    (phase,) = record["phases"]
    assert phase["name"] == "unfrozen"
    assert [epoch["epoch"] for epoch in phase["epochs"]] == [1, 2]
    for epoch in phase["epochs"]:
        assert epoch["loss"] > 0 and epoch["val_loss"] > 0 and 0 <= epoch["val_accuracy"] <= 1
        assert 0 < epoch["seconds"] < record["seconds"] and epoch["images_per_second"] > 0
    best = min(phase["epochs"], key=lambda epoch: epoch["val_loss"])
    assert (record["best_epoch"], record["val_loss"], record["val_accuracy"]) == (
        best["epoch"], best["val_loss"], best["val_accuracy"],
    )  # fmt: skip
    assert record["epochs_run"] == 2
    assert 0 <= record["input_wait_share"] <= 1


def test_the_same_data_settings_and_seed_give_the_same_weights_after_other_work(once, train):
    other, _ = train(training={"seed": 1})
    assert other["weights_sha256"] != once[0]["weights_sha256"]
    tf.random.normal([3])
    again, _ = train()
    assert without_times(again) == without_times(once[0])


def test_mixed_precision_trains_in_16_bits_and_serves_in_32(once, train, week):
    record, saved_model = train(training={"mixed_precision": True})
    assert record["weights_sha256"] != once[0]["weights_sha256"]
    # Rounded to 8 bits of mantissa: much the same losses.
    pairs = zip(record["phases"][0]["epochs"], once[0]["phases"][0]["epochs"])
    assert all(abs(low["loss"] - high["loss"]) < 0.05 for low, high in pairs)
    assert {value.dtype for value in exported(saved_model).values()} == {np.dtype(np.float32)}
    signature = tf.saved_model.load(saved_model).signatures["serving_examples"]
    types = {tensor.dtype for operation in signature.graph.get_operations() for tensor in operation.outputs}
    assert tf.bfloat16 not in types
    examples, _ = labelled(week, "train")
    assert np.allclose(signature(examples=examples)["probabilities"].numpy().sum(axis=1), 1, atol=1e-5)
    # And the next training is as if there had been none.
    assert without_times(train()[0]) == without_times(once[0])


def test_another_process_gives_the_same_weights(once, week, tmp_path):
    (tmp_path / "arguments.json").write_text(json.dumps(vars(week.fn_args(tmp_path))))
    script = (
        "import json, sys, types; from models import training; import tensorflow as tf;"
        "training.run_fn(types.SimpleNamespace(**json.load(open(sys.argv[1]))));"
        "threading = tf.config.threading;"
        "print(threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "arguments.json")],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(training.__file__).parents[1],
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert done.stdout.split()[-2:] == ["2", "2"], done.stderr
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert without_times(record) == without_times(once[0])


def test_it_learns(learned, week):
    record, saved_model = learned
    signature = tf.saved_model.load(saved_model).signatures["serving_examples"]
    examples, labels = labelled(week, "train")
    assert (signature(examples=examples)["probabilities"].numpy().argmax(axis=1) == labels).mean() > 0.9
    assert record["val_accuracy"] > 0.8
    losses = [epoch["loss"] for epoch in record["phases"][0]["epochs"]]
    assert losses[-1] < losses[0] / 2


def test_the_exported_weights_are_those_of_the_best_epoch(learned, week):
    record, saved_model = learned
    examples, labels = labelled(week, "val")
    probabilities = tf.saved_model.load(saved_model).signatures["serving_examples"](examples=examples)["probabilities"].numpy()
    loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
    np.testing.assert_allclose(loss, record["val_loss"], rtol=1e-3)
    assert (probabilities.argmax(axis=1) == labels).mean() == record["val_accuracy"]
    assert record["val_loss"] == min(epoch["val_loss"] for epoch in record["phases"][0]["epochs"])


def test_a_study_s_values_override_the_settings(learned):
    record, _ = learned
    assert record["hyperparameters"] == {"learning_rate": 0.03, "augmentation": 0.0}
    assert (record["training"]["learning_rate"], record["training"]["augmentation"]) == (0.03, 0.0)
    assert record["training"]["unfrozen_epochs"] == 5


def test_a_mapping_of_values_overrides_the_settings(week, tmp_path):
    given = {"learning_rate": 0.02, "batch_size": 16.0}
    _, config, _ = training.settings_of(week.fn_args(tmp_path, training={"dropout": 0.3}, hyperparameters=given))
    assert (config.learning_rate, config.batch_size, config.dropout) == (0.02, 16, 0.3)


def test_a_backbone_replaces_the_random_weights_and_leaves_the_head(backbone):
    config = TrainingConfig(backbone=backbone)
    loaded, digest = training.make_network(SMALL, config, 3)
    random, no_digest = training.make_network(SMALL, dataclasses.replace(config, backbone=""), 3)
    assert digest == hashlib.sha256(pathlib.Path(backbone).read_bytes()).hexdigest() and no_digest == ""
    kernels = {name for name in values(loaded) if name.endswith("/kernel:0")}
    assert changed(values(random), values(loaded)) == kernels
    np.testing.assert_array_equal(loaded.backbone.weights[0], np.load(backbone)["stem/kernel"].astype(np.float32))


def test_a_training_from_a_backbone_names_it_and_gives_other_weights(from_backbone, once, backbone):
    record, _ = from_backbone
    assert record["backbone_sha256"] == hashlib.sha256(pathlib.Path(backbone).read_bytes()).hexdigest()
    assert record["weights_sha256"] != once[0]["weights_sha256"]
    numbers = {phase["name"]: [epoch["epoch"] for epoch in phase["epochs"]] for phase in record["phases"]}
    assert numbers == {"frozen": [1], "unfrozen": [2]}


def test_a_frozen_backbone_is_exported_bit_for_bit(train, backbone):
    _, saved_model = train(training={"backbone": backbone, "frozen_epochs": 1, "unfrozen_epochs": 0})
    found = exported(saved_model)
    with np.load(backbone) as checkpoint:
        wanted = {name: checkpoint[name].astype(np.float32) for name in checkpoint.files if name != "about"}
    assert set(found) == set(wanted) | {"kernel", "bias"}  # the head's have no layer's name
    assert all(np.array_equal(found[name], value) for name, value in wanted.items())
    assert any(name.endswith("moving_variance") for name in wanted)


def test_the_frozen_phase_trains_the_head_alone(explored):
    before = explored.start
    for after in explored.after[:2]:
        assert changed(before, after) == {"kernel:0", "bias:0"}
        before = after


def test_the_unfrozen_phase_trains_everything(explored):
    moved = changed(explored.after[1], explored.after[2])
    assert moved == set(explored.start)
    assert any("moving_mean" in name for name in moved)


def test_patience_ends_a_phase_early(explored):
    frozen, unfrozen = explored.result.phases
    assert [epoch["epoch"] for epoch in frozen["epochs"]] == [1, 2]
    # At a learning rate of 1 the loss only rises: two epochs, and not the six that it could have had.
    assert [epoch["epoch"] for epoch in unfrozen["epochs"]] == [3, 4]
    assert explored.result.epochs_run == 4


def test_early_stopping_leaves_the_best_weights_of_all_phases(explored, week):
    measured = [epoch for phase in explored.result.phases for epoch in phase["epochs"]]
    best = min(measured, key=lambda epoch: epoch["val_loss"])
    assert explored.result.best_epoch == best["epoch"] <= 2
    assert changed(explored.after[best["epoch"] - 1], values(explored.classifier)) == set()
    val = input_pipeline.read_split("val", week.labels("val"), 3)
    ((images, labels),) = input_pipeline.validation_dataset(val, batch_size=6, **SIZES)
    logits = explored.classifier(images).numpy().astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = -log_probabilities[np.arange(6), labels].mean()
    np.testing.assert_allclose(loss, explored.result.val_loss, rtol=1e-5)
    assert explored.result.val_loss == best["val_loss"]


def test_the_learning_rate_warms_up_and_falls_to_zero():
    rates = [loop.learning_rate(step, total=20, warmup=4, peak=0.5) for step in range(20)]
    np.testing.assert_allclose(rates[:4], [0.125, 0.25, 0.375, 0.5])
    np.testing.assert_allclose(rates[12], 0.25)
    assert all(one >= other > 0 for one, other in zip(rates[4:], rates[5:])) and rates[-1] < 0.005
    assert loop.learning_rate(0, total=20, warmup=0, peak=0.5) == 0.5
    assert loop.learning_rate(4, total=4, warmup=4, peak=0.5) == 0.5


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_cross_entropy(smoothing):
    random = np.random.default_rng(0)
    logits, labels = random.normal(0, 3, (5, 4)), np.array([0, 3, 1, 1, 2])
    targets = (1 - smoothing) * np.eye(4)[labels] + smoothing / 4
    wanted = -(targets * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))).sum(axis=1)
    found = loop.smoothed_cross_entropy(tf.constant(logits, tf.float32), tf.constant(labels), smoothing)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_examples_in_docstrings():
    found = doctest.testmod(loop)
    assert found.attempted and not found.failed


def refused(fn_args, *words):
    """Asserts that a training is refused in these words, and that it writes nothing."""
    with pytest.raises(TrainingError) as error:
        training.run_fn(fn_args)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert not os.path.exists(fn_args.serving_model_dir) and not os.path.exists(fn_args.model_run_dir)
    return error.value


@pytest.mark.parametrize("name", ["network", "training", "short_side"])
def test_a_missing_setting_is_named(week, tmp_path, name):
    fn_args = week.fn_args(tmp_path)
    del fn_args.custom_config[name]
    refused(fn_args, f"lacks '{name}'")


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"network": {"image_size": 64}}, ["short_side 48", "image_size 64"]),
        ({"network": {"width": 2}}, ["width", "2"]),
        ({"training": {"epochs": 3}}, ["epochs", "3"]),
        ({"training": {"frozen_epochs": 3}}, ["training.frozen_epochs 3", "training.backbone"]),
        ({"hyperparameters": {"droput": 0.3}}, ["droput = 0.3"]),
        ({"hyperparameters": {"space": [], "values": {"droput": 0.3}}}, ["droput = 0.3"]),
        ({"hyperparameters": {"values": {"dropout": 1.5}}}, ["dropout", "1.5"]),
        ({"hyperparameters": {"batch_size": 8.5}}, ["batch_size", "8.5"]),
    ],
)
def test_settings_that_cannot_be_used_are_named(week, tmp_path, settings, words):
    refused(week.fn_args(tmp_path, **settings), *words)


@pytest.mark.parametrize("name", ["network", "training"])
def test_settings_that_are_no_mapping(week, tmp_path, name):
    fn_args = week.fn_args(tmp_path)
    fn_args.custom_config[name] = None
    refused(fn_args, "the settings of the training cannot be used", "mapping", "NoneType")


@pytest.mark.parametrize("value", ["48", 48.0, None])
def test_a_short_side_that_is_no_whole_number(week, tmp_path, value):
    fn_args = week.fn_args(tmp_path)
    fn_args.custom_config["short_side"] = value
    refused(fn_args, f"short_side {value!r} must be a whole number")


def test_threads_that_can_no_longer_be_changed(week, tmp_path, once):
    refused(
        week.fn_args(tmp_path, training={"intra_op_threads": 3}),
        "2 intra-op and 2 inter-op threads", "wants 3 and 2", "models.training.set_threads(3, 2)",
    )  # fmt: skip
    training.set_threads(2, 2)


@pytest.mark.parametrize(
    "text, words",
    [
        (None, ["cannot read the schema"]),
        ("feature { name: ", ["is no schema"]),
        ('feature { name: "image_id" type: BYTES }', ["has no feature label"]),
        ('feature { name: "label" string_domain { value: "amber" } }', ["two or more", "amber"]),
    ],
    ids=["absent", "broken", "no label", "one class"],
)
def test_a_schema_that_cannot_be_used_is_named(week, tmp_path, text, words):
    fn_args = week.fn_args(tmp_path)
    fn_args.schema_path = str(tmp_path / "other.pbtxt")
    if text is not None:
        (tmp_path / "other.pbtxt").write_text(text)
    refused(fn_args, "other.pbtxt", *words)


def test_label_records_that_are_nowhere(week, tmp_path):
    fn_args = week.fn_args(tmp_path)
    fn_args.eval_files = [str(tmp_path / "nowhere*")]
    refused(fn_args, "the val split has no files", "nowhere*")


def test_an_empty_split(week, tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "labels")) as writer:
        for shard in week.shards:
            writer.write(records.encode_labels(shard_uri=str(shard), shard_sha256="", shard_bytes=1, labels=[-1] * 12))
    fn_args = week.fn_args(tmp_path)
    fn_args.eval_files = [str(tmp_path / "labels")]
    refused(fn_args, "the val split is empty")


def test_labels_of_a_class_that_the_schema_lacks(week, tmp_path):
    fn_args = week.fn_args(tmp_path)
    fn_args.schema_path = str(tmp_path / "two.pbtxt")
    (tmp_path / "two.pbtxt").write_text('feature { name: "label" string_domain { value: "amber" value: "blue" } }')
    refused(fn_args, "names class 2", "the schema has 2")


def rewrite(path, change):
    content = change([record.numpy() for record in tf.data.TFRecordDataset(str(path))])
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in content:
            writer.write(record)


def photograph(name, encoded, length):
    """An image record of `length` bytes: a shard of another size would not be read at all."""
    fields = {"image_id": name, "width": 1, "height": 1, "source_sha256": "", "sha256": ""}
    for padding in range(length):
        record = records.encode_image(encoded=encoded + bytes(padding), **fields)
        if len(record) == length:
            return record
    raise ValueError(f"no padding makes {length} bytes")


def replaced(position, name):
    return lambda content: [
        *content[:position], photograph(name, b"no jpeg", len(content[position])), *content[position + 1 :]
    ]  # fmt: skip


def short(content):
    """One record in the place of the last two."""
    jpeg = records.decode_image(content[-1])["encoded"]
    return [*content[:-2], photograph("p", jpeg, len(content[-2]) + len(content[-1]) + 16)]


def test_a_missing_shard(new_week, tmp_path):
    week = new_week()
    week.shards[2].unlink()
    refused(week.fn_args(tmp_path), "1 of 4 image shards are missing", "shard-2.tfrecord")


@pytest.mark.parametrize(
    "change, words",
    [
        (short, ["it holds 11 records", "is for 12", "pack the photographs again"]),
        (replaced(0, "p-train"), ["photograph p-train, record 0, is no JPEG"]),
        (replaced(6, "p-val"), ["photograph p-val, record 6, is no JPEG"]),
    ],
    ids=["a record short", "a broken photograph of train", "a broken photograph of val"],
)
def test_a_shard_that_was_changed_is_named_with_what_is_wrong(new_week, tmp_path, change, words):
    week = new_week(shards=2)
    rewrite(week.shards[0], change)
    fn_args = week.fn_args(tmp_path, network={"blocks": [1], "width": 4}, training={"unfrozen_epochs": 1})
    refused(fn_args, "shard-0.tfrecord", *words)


@pytest.mark.parametrize(
    "name, settings, words",
    [
        ("backbone", {"width": 12}, ["stem/kernel has shape (7, 7, 3, 8)", "wants (7, 7, 3, 12)", "models.pretrain"]),
        ("backbone", {"blocks": [1, 2]}, ["has no layer stage2_block2_conv1/kernel"]),
        ("absent", {}, ["cannot be read"]),
        ("text", {}, ["is no checkpoint"]),
    ],
    ids=["another width", "another depth", "absent", "no checkpoint"],
)
def test_a_backbone_that_does_not_fit_is_named(week, backbone, tmp_path, name, settings, words):
    (tmp_path / "text.npz").write_text("no checkpoint")
    path = backbone if name == "backbone" else str(tmp_path / f"{name}.npz")
    refused(week.fn_args(tmp_path, network=settings, training={"backbone": path}), f"training.backbone {path}", *words)


def test_a_learning_rate_that_is_too_high_is_named(week, tmp_path, unstable_backbone):
    settings, path = unstable_backbone
    high = {"backbone": path, "learning_rate": 0.5, "warmup_epochs": 0, "batch_size": 64}
    error = refused(week.fn_args(tmp_path, network=settings, training=high), "epoch 1 (unfrozen)", "learning rate", "0.5")
    assert isinstance(error, loop.Diverged)


def windowed(week, out, monkeypatch, steps, **settings):
    """Trains in a window in which so many steps fit: a clock that goes on by one a step, and takes no time for the rest."""
    clock, watch = itertools.count(1), itertools.count(1, 1e-6)
    monkeypatch.setattr(
        loop, "time", types.SimpleNamespace(time=lambda: next(clock), perf_counter=lambda: next(watch))
    )
    arguments = week.fn_args(out, training={"unfrozen_epochs": 3, "reserve_minutes": 1, **settings})
    arguments.custom_config["window_end"] = 60 + steps + 0.9
    training.run_fn(arguments)
    return json.loads((out / "run" / "training.json").read_text())


def test_training_stops_in_time_for_what_comes_after_it(week, tmp_path, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        record = windowed(week, tmp_path, monkeypatch, steps=6)  # four an epoch
    assert record["stopped_by_window"] and record["epochs_run"] == 2 and (tmp_path / "serving" / "saved_model.pb").exists()
    first, second = record["phases"][0]["epochs"]
    assert first["epoch"] == 1 and second["epoch"] == 2 and record["val_loss"] == min(first["val_loss"], second["val_loss"])
    assert "the window ends: training stops in epoch 2 of 3" in caplog.text


def test_a_window_that_is_wide_enough_changes_nothing(week, tmp_path, monkeypatch, once):
    record = windowed(week, tmp_path, monkeypatch, steps=900, unfrozen_epochs=2)
    assert not record["stopped_by_window"] and record["weights_sha256"] == once[0]["weights_sha256"]


def test_a_window_without_time_for_a_step(week, tmp_path, monkeypatch):
    with pytest.raises(TrainingError, match="leaves no time to train: .*reserve_minutes"):
        windowed(week, tmp_path, monkeypatch, steps=0)
    assert not (tmp_path / "serving").exists()
