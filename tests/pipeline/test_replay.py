"""A training is repeated from what its run recorded: bit for bit, or with the place where it differs, or not at all and why."""

import copy
import dataclasses
import doctest
import fcntl
import hashlib
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from models.errors import TrainingError
from pipeline import origin, replay, store
from pipeline.__main__ import main
from pipeline.errors import PipelineError
from pipeline.places import Places
from tests.models.conftest import make_week
from tests.pipeline.conftest import answers
from tests.pipeline.lineage.conftest import HandWritten

RUN = "20260302-20261201T053000Z"
HYPERPARAMETERS = {"space": [], "values": {"learning_rate": 0.002}}


@dataclasses.dataclass(frozen=True)
class Trained:
    """A training of the small week: what it was given, and what it wrote."""

    custom_config: dict
    model: pathlib.Path
    record: dict


class Store:
    """A store with one run, written by hand as the pipeline writes it."""

    def __init__(self, folder: pathlib.Path, week):
        folder.mkdir(parents=True)
        self.places, self.week = Places(store=str(folder)), week
        self.written = HandWritten(self.places)
        trainer = pathlib.Path(self.places.artifacts, "Trainer")
        self.model, self.model_run = trainer / "model" / "14", trainer / "model_run" / "14"
        self.labels, self.schema, self.tuned = (
            pathlib.Path(self.places.artifacts, *parts)
            for parts in (("LabelJoin", "labels", "12"), ("ImportSchemaGen", "schema", "2"), ("Known", "hyperparameters", "11"))
        )

    def train(self, trained: Trained, record=None, custom=None, manifest=None, shards=None) -> "Store":
        """Adds a run that trained at the second attempt; `record`, `custom` and `manifest` take the place of its own."""
        for split in ("train", "val"):
            (self.labels / f"Split-{split}").mkdir(parents=True, exist_ok=True)
            shutil.copy(self.week.root / f"Split-{split}" / "labels", self.labels / f"Split-{split}")
        for folder in (self.schema, self.tuned, self.model, self.model_run):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.week.schema, self.schema)
        (self.tuned / "best_hyperparameters.txt").write_text(json.dumps(HYPERPARAMETERS))
        shutil.copytree(trained.model, self.model / "Format-Serving", dirs_exist_ok=True)
        (self.model_run / "training.json").write_text(json.dumps(record or trained.record))
        put, run = self.written.artifact, self.written.run(RUN)
        step = self.written.step
        manifest = manifest or dataclasses.asdict(origin.discover())
        step(run, "RunManifest", outputs={"manifest": [put("pipeline.RunManifest", manifest)]})
        if shards:
            step(run, "ImageSharder", outputs={"shards": [put("pipeline.ImageShards", {"folder": shards})]})
        inputs = {
            "examples": [put("Examples", {}, uri=str(self.labels))],
            "schema": [put("Schema", {}, uri=str(self.schema))],
            "hyperparameters": [put("HyperParameters", {}, uri=str(self.tuned))],
        }
        custom = copy.deepcopy(custom or trained.custom_config)
        # What a run has and a replay must not use.
        custom |= {"checkpoints": f"{self.places.store}/checkpoints", "window_end": 1.0}
        arguments = {"train_args": '{"splits": ["train"]}', "eval_args": '{"splits": ["val"]}'}
        step(run, "Trainer", "CANCELED", inputs, parameters={**arguments, "custom_config": "{}"})
        outputs = {"model": [put("Model", {}, uri=str(self.model))], "model_run": [put("ModelRun", {}, uri=str(self.model_run))]}
        step(run, "Trainer", inputs=inputs, outputs=outputs, parameters={**arguments, "custom_config": json.dumps(custom)})
        return self

    def content(self) -> dict[str, str]:
        """Digest of each file, replays and the lock left out."""
        files = (path for path in pathlib.Path(self.places.store).rglob("*") if path.is_file())
        kept = (path for path in files if "replays" not in path.parts and path.name != "lock")
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return make_week(tmp_path_factory.mktemp("week") / "data")


def train(week, out, **custom) -> Trained:
    from models import training

    fn_args = week.fn_args(out, training={"seed": 3, "dropout": 0.3}, hyperparameters=HYPERPARAMETERS)
    given = copy.deepcopy(fn_args.custom_config)
    fn_args.custom_config |= custom
    training.run_fn(fn_args)
    return Trained(given, out / "serving", json.loads((out / "run" / "training.json").read_text()))


@pytest.fixture(scope="module")
def trained(week, tmp_path_factory):
    return train(week, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def stopped(week, tmp_path_factory):
    """A training that the window stopped in its second epoch."""
    return train(week, tmp_path_factory.mktemp("stopped"), stop_after=5)


@pytest.fixture
def new_store(week, tmp_path):
    return lambda name="store": Store(tmp_path / name, week)


@pytest.fixture
def untrained(monkeypatch, trained):
    """Instead of training, gives what was trained already; for what comes after. Counts how often."""
    calls = []

    def copied(fn_args, workers):
        calls.append((fn_args, workers))
        shutil.copytree(trained.model, fn_args["serving_model_dir"])
        pathlib.Path(fn_args["model_run_dir"]).mkdir()
        pathlib.Path(fn_args["model_run_dir"], "training.json").write_text(json.dumps(trained.record))

    monkeypatch.setattr(replay.workers, "train", copied)
    return calls


def asked(store: Store, *words, run_id=RUN):
    return main(["replay", run_id, "--store", store.places.store, *words])


def verdict(store: Store) -> dict:
    return json.loads(pathlib.Path(store.places.store, "replays", RUN, "replay.json").read_text())


# The same weights.


def test_the_same_weights_come_again_and_nothing_else_of_the_store_changes(new_store, trained, capsys):
    written = new_store().train(trained)
    before = written.content()
    with store.exclusive(written.places, "another run, which goes on meanwhile"):
        assert asked(written) == 0
    assert written.content() == before
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"identical  {trained.record['weights_sha256']}"
    assert sum("epoch 2/2" in line for line in out) == 1
    assert not any(line.startswith(("differs", "losses", "weights")) for line in out)
    to = pathlib.Path(written.places.store, "replays", RUN)
    assert sorted(path.name for path in to.iterdir()) == ["model", "model_run", "replay.json", "replay.log"]
    assert (to / "model" / "saved_model.pb").is_file() and (to / "model_run" / "training.json").is_file()
    assert verdict(written)["identical"] and verdict(written)["conditions"]["differing"] == {}


def test_a_training_that_the_window_stopped_is_repeated_to_the_step(new_store, stopped, capsys):
    assert stopped.record["stopped_by_window"] and stopped.record["steps"] == 5
    assert asked(new_store().train(stopped)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"identical  {stopped.record['weights_sha256']}"


def test_run_fn_gets_what_the_run_recorded(new_store, trained, untrained):
    custom = copy.deepcopy(trained.custom_config)
    custom["training"] |= {"workers": 2}
    written = new_store().train(trained, custom=custom)
    assert asked(written, "--to", f"{written.places.store}-to") == 0
    ((fn_args, workers),) = untrained
    assert workers == 2
    assert fn_args == {
        "train_files": [str(written.labels / "Split-train" / "*")],
        "eval_files": [str(written.labels / "Split-val" / "*")],
        "schema_path": str(written.schema / "schema.pbtxt"),
        "custom_config": custom,  # without checkpoints and window_end
        "hyperparameters": HYPERPARAMETERS,
        "serving_model_dir": f"{written.places.store}-to/unfinished/model",
        "model_run_dir": f"{written.places.store}-to/unfinished/model_run",
    }


# Other weights.


def test_another_seed_gives_other_weights_and_is_named(new_store, trained, capsys):
    custom = copy.deepcopy(trained.custom_config)
    custom["training"]["seed"] = 4
    record = copy.deepcopy(trained.record)
    record["tensorflow"]["version"] = "2.15.0"
    written = new_store().train(trained, custom=custom, record=record)
    assert asked(written) == 1
    out = capsys.readouterr().out
    assert "\nexpected   another TensorFlow gives other weights" in out
    now = verdict(written)["weights_sha256"]["now"]
    assert out.splitlines()[-1] == f"different  {trained.record['weights_sha256']} then, {now} now"
    first = trained.record["phases"][0]["epochs"][0]
    assert f"losses     part in epoch 1 (unfrozen): loss {first['loss']!r} then, " in out
    assert " training.seed: 3 then, 4 now\n" in out and verdict(written)["conditions"]["differing"]["training.seed"] == [3, 4]
    tensors = verdict(written)["tensors"]
    assert f"weights    {len(tensors['differing'])} of {tensors['count']} tensors differ: " in out
    assert "by " in out and tensors["largest"][0] > 0 and tensors["largest"][1] in tensors["differing"]


def test_an_altered_digest_is_told_from_altered_weights(new_store, trained, untrained, capsys):
    written = new_store().train(trained, record={**trained.record, "weights_sha256": "0" * 64})
    assert asked(written) == 1
    out = capsys.readouterr().out
    assert "every epoch has the same loss and val_loss" in out and "tensors differs from the recorded model" in out
    assert "expected" not in out
    assert f"the digest in {written.model_run}/training.json is not that model's, so the record was altered" in out
    assert "nothing that was compared: the machine itself, or a defect" in out


def test_a_model_that_was_deleted_is_said_to_be(new_store, trained, untrained, capsys):
    written = new_store().train(trained, record={**trained.record, "weights_sha256": "0" * 64})
    shutil.rmtree(written.model)
    assert asked(written) == 1
    assert f"the recorded model is not there any more ({written.model}/Format-Serving)" in capsys.readouterr().out


def test_what_an_older_record_lacks_is_named_as_unknown(new_store, trained, untrained, capsys):
    record = {name: value for name, value in trained.record.items() if name not in ("code_sha256", "processor")}
    written = new_store().train(trained, record={**record, "weights_sha256": "0" * 64})
    assert asked(written) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("unknown    "))
    named = set(line.split(maxsplit=1)[1].split(", "))
    assert {"code_sha256", "processor"} <= named == set(verdict(written)["conditions"]["unknown"])


def test_other_code_packages_and_machines_are_told_before_and_after(new_store, trained, untrained, capsys, monkeypatch):
    # As an image says it: a machine without git knows its commit by no other way.
    monkeypatch.setenv("PIPELINE_COMMIT", "ab" * 20)
    manifest = dataclasses.asdict(origin.discover()) | {"commit": "c0ffee", "lock_sha256": "1" * 64, "python": "3.10.1"}
    record = copy.deepcopy(trained.record) | {"processor": "Z80", "code_sha256": "2" * 64}
    record["tensorflow"]["version"] = "2.15.0"
    assert asked(new_store().train(trained, record=record, manifest=manifest)) == 0
    before, after = capsys.readouterr().out.split("training again", 1)
    for name, then in {"commit": "c0ffee", "lock_sha256": "1" * 64, "python": "3.10.1", "code_sha256": "2" * 64}.items():
        assert f"{name}: {then} then, " in before and f"{name}: {then} then, " in after
    assert "tensorflow.version: 2.15.0 then, " in before and "processor: Z80 then, " in after


def test_two_models_are_compared_tensor_by_tensor(tmp_path):
    import tensorflow as tf

    def zeros(size):
        return np.zeros(size, np.float32)

    def saved(name, **tensors):
        module = tf.Module()
        module.weights = {key: tf.Variable(value) for key, value in tensors.items()}
        tf.saved_model.save(module, str(tmp_path / name))
        return str(tmp_path / name)

    one = saved("one", a=zeros(3), b=zeros(2), c=zeros(2), d=zeros(1))
    other = saved("other", a=zeros(3), b=np.float32([0, -0.25]), c=zeros(3), e=zeros(1))
    assert replay.compare(one, other) == replay.Tensors(5, ("b", "c", "d", "e"), (0.25, "b"))
    assert replay.compare(one, one) == replay.Tensors(4, (), None)
    # Equal, and not the same bits.
    minus = saved("minus", a=np.float32([0, 0, -0.0]), b=zeros(2), c=zeros(2), d=zeros(1))
    assert replay.compare(one, minus) == replay.Tensors(4, ("a",), (0.0, "a"))
    with pytest.raises(PipelineError, match="cannot be compared"):
        replay.compare(one, str(tmp_path / "none"))


def test_trainings_of_other_lengths_are_compared_as_long_as_both_ran():
    def phases(epochs):
        return [{"name": "frozen", "epochs": [{"loss": 1 / n, "val_loss": 1 / n} for n in range(1, epochs + 1)]}]

    assert replay.first_difference(phases(3), phases(3)) == ""
    assert "3 epochs then, 2 now" in replay.first_difference(phases(3), phases(2))


def test_the_doctests_hold():
    assert doctest.testmod(replay) == doctest.TestResults(failed=0, attempted=3)


# Where it goes.


def test_a_former_replay_is_replaced_and_only_by_one_that_trained(new_store, trained, untrained, capsys, monkeypatch):
    written = new_store().train(trained)
    to = pathlib.Path(written.places.store, "replays", RUN)
    assert asked(written) == 0
    (to / "model" / "of-the-former").touch()
    before = verdict(written)

    def fails(fn_args, workers):
        pathlib.Path(fn_args["serving_model_dir"]).mkdir()
        raise TrainingError("image shard 7 is missing")

    with monkeypatch.context() as patch:
        patch.setattr(replay.workers, "train", fails)
        assert asked(written) == 1
    assert "was not repeated: image shard 7 is missing. A replay needs all that the run was trained on" in capsys.readouterr().err
    assert verdict(written) == before and (to / "model" / "of-the-former").exists() and not (to / "unfinished").exists()
    (to / "unfinished" / "model").mkdir(parents=True)  # of one that was killed
    assert asked(written) == 0
    assert not (to / "model" / "of-the-former").exists() and not (to / "unfinished").exists()


def test_what_is_no_replay_of_this_run_is_not_touched(new_store, trained, untrained, tmp_path, capsys):
    written = new_store().train(trained)
    for name, content in (("other", "{}"), ("replay.json", '{"run_id": "another"}'), ("replay.json", "no JSON")):
        folder = tmp_path / "taken"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        assert asked(written, "--to", str(folder)) == 1
        assert f"{folder} is neither empty nor a former replay of run {RUN}: nothing was touched" in capsys.readouterr().err
        assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, content)]
        shutil.rmtree(folder)
    assert untrained == []


def test_two_replays_at_once_need_two_folders(new_store, trained, untrained, tmp_path, capsys):
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert asked(new_store().train(trained), "--to", str(tmp_path)) == 1
    finally:
        os.close(held)
    assert "another replay writes to" in capsys.readouterr().err


# Refusals.


def test_what_cannot_be_repeated_is_a_sentence_that_loads_nothing(new_store, trained, tmp_path):
    good, moved, windowed, older, empty = (new_store(name) for name in ("good", "moved", "windowed", "older", "empty"))
    good.train(trained)
    for run_id, steps in {
        "rejected": [("SnapshotGen", "COMPLETE"), ("SnapshotGate", "FAILED")],
        "interrupted": [("SnapshotGate", "COMPLETE"), ("Trainer", "CANCELED")],
        "running": [("SnapshotGate", "COMPLETE"), ("Trainer", "RUNNING")],
    }.items():
        run = good.written.run(run_id)
        for step, state in steps:
            good.written.step(run, step, state)
    custom = copy.deepcopy(trained.custom_config)
    custom["training"]["backbone"] = "/gone/backbone.npz"
    moved.train(trained, custom=custom, shards="/gone/shards/generation-000001")
    os.rename(moved.places.store, tmp_path / "elsewhere")
    record = {name: value for name, value in trained.record.items() if name != "steps"}
    windowed.train(trained, record={**record, "stopped_by_window": True})
    custom = copy.deepcopy(trained.custom_config)
    custom["training"]["optimizer"] = "lion"
    older.train(trained, custom=custom, manifest={"commit": "c0ffee"})
    (tmp_path / "file").touch()

    at = {each: ["--store", str(tmp_path / each)] for each in ("good", "elsewhere", "windowed", "older", "empty", "none")}
    cases = [
        (["20260302", *at["good"]], ["no run '20260302'", f"the closest: {RUN}"]),
        (["reject", *at["good"]], ["no run 'reject'", "the closest: rejected"]),
        (["x", *at["good"]], ["no run 'x'", "the newest: running"]),
        (["x", *at["empty"]], ["holds no run yet"]),
        (["x", *at["none"]], ["there is no lineage store"]),
        (["rejected", *at["good"]], ["ended at SnapshotGate (FAILED)", "logs/rejected.log says why", f"that has trained is {RUN}"]),
        (["interrupted", *at["good"]], ["ended at Trainer (CANCELED)"]),
        (["running", *at["good"]], ["it is at Trainer: wait until it has trained"]),
        (
            [RUN, *at["elsewhere"]],
            [
                f"the record of its training, {moved.model_run}/training.json",
                f"its label records, {moved.labels}/Split-train", f"its label records, {moved.labels}/Split-val",
                f"its schema, {moved.schema}", f"its hyperparameters, {moved.tuned}",
                "its image shards, /gone/shards", "the backbone that it began with, /gone/backbone.npz",
                f"the store was {moved.places.store} then: bring it back there, or link it there",
            ],
        ),
        ([RUN, *at["windowed"]], ["cannot be repeated exactly", "training in epoch 2", "does not say after how many steps"]),
        ([RUN, *at["older"]], ["optimizer", "Check out the commit of that run, c0ffee"]),
        ([RUN, *at["good"], "--to", "gs://bucket/replay"], ["gs://bucket/replay must be a folder of this machine"]),
        ([RUN, *at["good"], "--to", str(tmp_path / "a*")], ["none of * ? [ ]"]),
        ([RUN, *at["good"], "--to", str(tmp_path / "file")], [f"cannot use {tmp_path}/file", "--to"]),
        ([RUN, *at["good"], "--to", str(tmp_path)], ["neither empty nor a former replay"]),
    ]  # fmt: skip
    told = answers("pipeline.__main__", [["replay", *words] for words, _ in cases])
    for (words, wanted), answer in zip(cases, told, strict=True):
        assert (answer.status, answer.out, answer.loaded) == (1, "", []), words
        assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
        for text in wanted:
            assert text in answer.err, (text, answer.err)
    assert not pathlib.Path(good.places.store, "replays").exists()


def test_a_replay_without_a_run_shows_the_usage(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["replay"])
    assert "RUN_ID" in capsys.readouterr().err


def test_image_shards_that_were_deleted_are_named(new_store, trained, tmp_path, capsys):
    week = make_week(tmp_path / "week", shards=4)
    written = Store(tmp_path / "store", week).train(trained)
    week.shards[2].unlink()
    assert asked(written) == 1
    err = capsys.readouterr().err
    assert str(week.shards[2]) in err and "where it was then, as it was" in err and "Traceback" not in err
