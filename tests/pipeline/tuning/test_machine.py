"""How many workers a machine bears."""

import doctest
import os

import pytest

from models.config import NetworkConfig
from pipeline.tuning import machine
from pipeline.tuning.machine import Machine, here, worker_bytes


@pytest.mark.parametrize(
    "found, parallel, expected",
    [
        (Machine(2, 20e9), 8, 2),  # a processor each
        (Machine(64, 9e9), 8, 2),  # what memory holds
        (Machine(64, 600e9), 8, 8),  # no more than are wanted
        (Machine(64, 600e9, gpus=2), 8, 2),  # a GPU each: TensorFlow takes all of its memory
        (Machine(1, 1e9), 8, 1),  # one is always tried
    ],
)
def test_workers(found, parallel, expected):
    assert found.workers(parallel, worker_bytes=4e9) == expected


def test_a_larger_network_or_batch_needs_more():
    small = NetworkConfig(blocks=(1, 1, 1, 1), width=32, image_size=96, bottleneck=False)
    assert worker_bytes(small, 32) < worker_bytes(small, 64) < worker_bytes(NetworkConfig(), 64)
    # The sample's worker as measured: 0.7 to 1.1 GB.
    assert 1.0e9 < worker_bytes(small, 32) < 1.5e9


def files(root, **contents):
    for path, text in contents.items():
        file = root / path.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_container_s_limits_count(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    files(tmp_path, proc__meminfo="MemTotal: 9 kB\nMemAvailable:   1000000 kB\n")
    assert here(tmp_path) == Machine(16, 1024e6)
    files(
        tmp_path, sys__fs__cgroup__cpu_dot_max="350000 100000\n", sys__fs__cgroup__memory_dot_max="800000000\n",
        sys__fs__cgroup__memory_dot_current="300000000\n",
    )  # fmt: skip
    assert here(tmp_path) == Machine(3, 500e6)
    files(tmp_path, sys__fs__cgroup__cpu_dot_max="max 100000\n", sys__fs__cgroup__memory_dot_max="max\n")
    assert here(tmp_path) == Machine(16, 1024e6)


def test_gpus_are_those_that_the_driver_has_and_the_environment_shows(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert here(tmp_path).gpus == 3 and [machine.gpu_of(index, 3) for index in range(4)] == ["0", "1", "2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    assert here(tmp_path).gpus == 2 and [machine.gpu_of(index, 2) for index in range(2)] == ["5", "7"]
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert here(tmp_path).gpus == 0
    assert machine.gpu_of(0, 0) is None


def test_this_machine_bears_something():
    assert here().cores >= 1 and here().memory_bytes > 0


def test_examples_in_docstrings():
    found = doctest.testmod(machine)
    assert found.attempted and not found.failed
