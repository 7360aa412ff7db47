"""How many trials at once this machine bears: its processors, its memory, its GPUs. No TensorFlow."""

import dataclasses
import os
import pathlib

from models.config import NetworkConfig

_PROCESS_BYTES = 0.9 * 2**30
"""TensorFlow and this project, before the first photograph: 0.7 GiB on two cores, and room for the input's buffers."""

_IMAGE_BYTES = 90e6
"""Activations of one image in a training step of ResNet-50 at 224 pixels, 32 bits; they go with the square of the image's side
and with the network's width."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What there is for workers.

    Attributes:
        cores: Processors that this process may use.
        memory_bytes: Memory that is free, or that its container leaves it.
        gpus: GPUs.
    """

    cores: int
    memory_bytes: float
    gpus: int = 0

    def workers(self, parallel: int, worker_bytes: float) -> int:
        """How many workers to start: one a processor, one a GPU where there are any, as many as memory holds.

        >>> Machine(cores=16, memory_bytes=20e9).workers(parallel=8, worker_bytes=4e9)
        5
        >>> Machine(cores=96, memory_bytes=600e9, gpus=4).workers(parallel=8, worker_bytes=4e9)
        4

        Args:
            parallel: Trials at once, at most.
            worker_bytes: Memory of one.

        Returns:
            1 to `parallel`. One is always tried: what it needs is only estimated.
        """
        bound = int(min(parallel, self.cores, self.memory_bytes // worker_bytes))
        return max(1, min(bound, self.gpus) if self.gpus else bound)


def worker_bytes(network: NetworkConfig, batch_size: int) -> float:
    """What a worker needs at most, in bytes, estimated without a GPU.

    Args:
        network: What it trains.
        batch_size: The largest that a trial may have.
    """
    return _PROCESS_BYTES + batch_bytes(network, batch_size)


def batch_bytes(network: NetworkConfig, batch_size: int) -> float:
    """What the activations of a training step take, in bytes of 32-bit numbers, estimated.

    >>> round(batch_bytes(NetworkConfig(), 256) / 2**30, 1)
    21.5

    Args:
        network: What is trained.
        batch_size: Images of a step.
    """
    return batch_size * _IMAGE_BYTES * (network.image_size / 224) ** 2 * network.width / 64


def here(root: str | os.PathLike = "/") -> Machine:
    """This machine, or the container that this process is in.

    Args:
        root: Where proc/ and sys/ are.
    """
    return Machine(cores=_cores(pathlib.Path(root)), memory_bytes=_memory(pathlib.Path(root)), gpus=_gpus(pathlib.Path(root)))


def _cores(root: pathlib.Path) -> int:
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read(root / "sys/fs/cgroup/cpu.max").partition(" ")
    return max(1, min(cores, int(quota) // int(period))) if quota.isdecimal() and period.strip().isdecimal() else cores


def _memory(root: pathlib.Path) -> float:
    lines = _read(root / "proc/meminfo").splitlines()
    free = next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), float("inf"))
    limit, used = (_read(root / "sys/fs/cgroup" / name).strip() for name in ("memory.max", "memory.current"))
    return min(free, float(limit) - float(used)) if limit.isdecimal() and used.isdecimal() else free


def _gpus(root: pathlib.Path) -> int:
    # Of those that the driver knows, the environment may show fewer.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    folder = root / "proc/driver/nvidia/gpus"
    found = len(list(folder.iterdir())) if folder.is_dir() else 0
    # "-1" hides all.
    return found if visible is None else min(found, sum(name.strip() not in ("", "-1") for name in visible.split(",")))


def gpu_of(index: int, gpus: int) -> str | None:
    """CUDA_VISIBLE_DEVICES of the worker of that index; None where there is no GPU, or no need to choose one."""
    if not gpus:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    return names[index % gpus].strip()


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
