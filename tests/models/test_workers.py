"""Workers: how they find each other, what is refused, and what each of them reads."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline, loop, workers
from models.config import TrainingConfig
from models.errors import TrainingError


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def cluster(monkeypatch, kind="chief", index=0, workers=1):
    addresses = free_addresses(1 + workers)
    config = {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    return addresses


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_without_a_cluster_a_process_is_alone():
    team = workers.join(1)
    assert (team.index, team.count, team.replicas, team.local_replicas, team.is_chief) == (0, 1, 1, 1, True)
    assert team.total([1.5, 2]).tolist() == [1.5, 2.0]
    variable = tf.Variable([1.0, 2.0])
    team.assign([variable], [np.array([3.0, 4.0], np.float32)])
    assert team.values([variable])[0].tolist() == [3.0, 4.0]


def test_a_cluster_of_one_is_no_cluster(monkeypatch):
    cluster(monkeypatch, workers=0)
    assert workers.join(1).count == 1


@pytest.mark.parametrize(("there", "wanted"), [(1, 3), (1, 1), (2, 2)])
def test_another_number_of_workers_than_the_settings_say(monkeypatch, there, wanted):
    cluster(monkeypatch, workers=there)
    with pytest.raises(TrainingError, match=f"training.workers is {wanted}, and TF_CONFIG names {there + 1}"):
        workers.join(wanted)


def test_settings_for_several_in_a_process_alone():
    with pytest.raises(TrainingError, match="training.workers is 2, and TF_CONFIG names 1 .*local_runner.py --workers"):
        workers.join(2)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        '{"cluster": {"chief": ["a:1"]}}',
        '{"cluster": {"chief": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": "x"}}',
        '{"cluster": {"worker": 3}, "task": {"type": "worker", "index": 0}}',
    ],
)
def test_a_damaged_cluster_is_refused(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(TrainingError, match="TF_CONFIG cannot be used"):
        workers.join(1)


def test_an_address_without_a_port(monkeypatch):
    config = {"cluster": {"chief": ["127.0.0.1"], "worker": ["127.0.0.1:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(TrainingError, match="'127.0.0.1', which must be host:port"):
        workers.join(2)


def meeting(addresses, index, seconds, delay=0.0):
    """Meets in a thread; gives what came of it."""
    outcome = []

    def run():
        time.sleep(delay)
        try:
            workers.meet(addresses, index, seconds)
            outcome.append(None)
        except TrainingError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize("late", [0, 1, 2])
def test_all_meet_whoever_comes_last(late):
    addresses = free_addresses(3)
    meetings = [meeting(addresses, index, 20, delay=0.5 if index == late else 0.0) for index in range(3)]
    for thread, _ in meetings:
        thread.join(30)
    assert [outcome for _, outcome in meetings] == [[None]] * 3
    # The chief's address is free for TensorFlow.
    host, port = addresses[0].split(":")
    socket.create_server((host, int(port))).close()


def test_who_is_missing_is_named_by_the_chief():
    addresses = free_addresses(4)
    meetings = [meeting(addresses, index, 1.5) for index in (0, 2)]
    for thread, _ in meetings:
        thread.join(30)
    (chief,), (other,) = (outcome for _, outcome in meetings)
    assert "2 of 4 workers did not come within 1.5 s" in chief
    assert f"worker 1 ({addresses[1]}), worker 3 ({addresses[3]})" in chief and "worker 2" not in chief
    assert "worker 2 waited 1.5 s for the chief" in other and "did not let it go" in other


def test_a_chief_that_is_missing_is_named_by_the_others():
    addresses = free_addresses(2)
    with pytest.raises(TrainingError, match=f"for the chief at {addresses[0]}, which did not answer"):
        workers.meet(addresses, 1, 0.5)


def test_others_that_knock_are_no_workers():
    addresses = free_addresses(2)
    host, port = addresses[0].split(":")
    chief = meeting(addresses, 0, 20)
    time.sleep(0.3)
    for noise in (b"GET / HTTP/1.1\r\n", b"7       ", b""):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(noise)
    worker = meeting(addresses, 1, 20)
    for thread, outcome in (chief, worker):
        thread.join(30)
        assert outcome == [None]


def test_an_address_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TrainingError, match=f"cannot listen on {address}.*another training"):
            workers.meet([address, "127.0.0.1:1"], 0, 1)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_parts_of_all_workers_are_the_split(new_week, count):
    week = new_week(shards=9, each=16)
    split = input_pipeline.read_split("train", week.labels("train"), 3)
    parts = [split.part(index, count) for index in range(count)]
    assert sorted(shard.uri for part in parts for shard in part.shards) == [shard.uri for shard in split.shards]
    assert sum(part.examples for part in parts) == split.examples
    assert max(part.examples for part in parts) - min(part.examples for part in parts) <= 12  # one shard's
    starts = dict(zip((shard.uri for shard in split.shards), split.starts))
    for part in parts:
        assert part.starts == tuple(starts[shard.uri] for shard in part.shards)
    assert split.part(0, 1) is split


def pictures(split, **options):
    """Augmented pictures of an epoch without regard to their order."""
    arguments = {"image_size": 32, "short_side": 48, "augmentation": 0.7, "seed": 5, "epochs": range(2, 3), **options}
    data = input_pipeline.training_dataset(split, batch_size=1, **arguments)
    return sorted(image.tobytes() for images, *_ in data.as_numpy_iterator() for image in images)


def test_a_photograph_looks_the_same_whichever_worker_reads_it(week):
    split = input_pipeline.read_split("train", week.labels("train"), 3)
    whole = pictures(split)
    assert sorted(pictures(split.part(0, 2)) + pictures(split.part(1, 2))) == whole and len(set(whole)) == 36


def test_a_worker_without_a_photograph_reads_nothing(week):
    val = input_pipeline.read_split("val", week.labels("val"), 3)
    empty = val.part(5, 6)  # four shards
    assert empty.examples == 0
    assert list(input_pipeline.validation_dataset(empty, image_size=32, short_side=48, batch_size=4)) == []


def test_labelled_examples_cannot_be_divided(week):
    split = input_pipeline.read_labelled_split("train", week.labelled("train"), 3)
    with pytest.raises(ValueError, match="cannot be divided over 2 workers"):
        split.part(0, 2)


class Team(workers.Workers):
    """So many workers of so many replicas, for what is reckoned before they do anything."""

    def __init__(self, count, local):
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "index", 0)
        object.__setattr__(self, "local", local)

    @property
    def replicas(self):
        return self.count * self.local


@pytest.mark.parametrize(
    ("count", "local", "batch", "expected"),
    [(1, 1, 8, (8, 4)), (2, 1, 8, (8, 4)), (2, 2, 8, (8, 4)), (4, 1, 8, (8, 4)), (1, 1, 1000, (36, 1)), (2, 1, 1000, (36, 1))],
)
def test_a_batch_is_divided_over_replicas(week, count, local, batch, expected):
    split = input_pipeline.read_split("train", week.labels("train"), 3)
    assert loop._division(split, TrainingConfig(batch_size=batch), Team(count, local)) == expected


def test_a_batch_that_does_not_divide(week):
    split = input_pipeline.read_split("train", week.labels("train"), 3)
    with pytest.raises(TrainingError, match="batch_size 10 does not divide over 4 replicas.*multiple of 4, such as 12"):
        loop._division(split, TrainingConfig(batch_size=10), Team(2, 2))


def test_more_workers_than_shards(new_week):
    split = input_pipeline.read_split("train", new_week(shards=3).labels("train"), 3)
    with pytest.raises(TrainingError, match="3 image shards.*4 workers, and one of them has only 0.*shards.target_bytes"):
        loop._division(split, TrainingConfig(batch_size=8), Team(4, 1))


_REPLICAS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tensorflow as tf
from models import input_pipeline, loop, training, workers
from models.config import NetworkConfig, TrainingConfig

# Two devices of one machine, as GPUs are.
(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
training.set_threads(2, 2)
network = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=32)
config = TrainingConfig(
    batch_size=36, unfrozen_epochs=3, learning_rate=0.003, dropout=0.0, intra_op_threads=2, inter_op_threads=2
)
train, val = (input_pipeline.read_split(name, [f"{sys.argv[2]}/Split-{name}/labels*"], 3) for name in ("train", "val"))
for devices in (["CPU:0"], ["CPU:0", "CPU:1"], ["CPU:0", "CPU:1"]):
    team = workers.Workers(tf.distribute.MirroredStrategy(devices))
    training.prepare_tensorflow(config)
    with team.strategy.scope():
        model, _ = training.make_network(network, config, 3)
    result = loop.fit(model, train, val, 32, 48, config, workers=team)
    losses = [(epoch["loss"], epoch["val_loss"]) for phase in result.phases for epoch in phase["epochs"]]
    print(json.dumps([team.replicas, losses, float(sum(value.sum() for value in team.values(model.weights)))]))
"""


def test_replicas_of_one_machine_follow_one_and_repeat(week):
    root = str(pathlib.Path(workers.__file__).parents[1])
    command = [sys.executable, "-c", _REPLICAS, root, str(week.root)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TF_USE_LEGACY_KERAS": "1"})
    assert done.returncode == 0, done.stderr
    one, two, again = (json.loads(line) for line in done.stdout.splitlines())
    assert (one[0], two[0]) == (1, 2) and two == again
    # Every batch has all photographs, so only the order of the sums differs.
    assert np.allclose(one[1], two[1], rtol=1e-4)
