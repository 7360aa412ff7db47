"""The workers of one training: who they are, how they find each other, and what they do together.

One process, with a GPU or none, is a worker alone; several GPUs of one machine are its replicas; several processes are the
cluster that TF_CONFIG names (https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver),
as Vertex sets it, and pass sums on by MultiWorkerMirroredStrategy. Worker 0 is the chief: it alone writes.

Each worker holds its own copy of every variable, and all copies are equal after each step. So reading and assigning
touches a worker's own copy and needs no other worker; only `total` and the steps themselves wait for all.
"""

import dataclasses
import ipaddress
import json
import logging
import os
import socket
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models.errors import TrainingError

_log = logging.getLogger(__name__)

MEET_SECONDS = 600.0
"""How long workers wait for each other at the start: machines of one job start minutes apart."""

_SECONDS_BETWEEN_TRIES = 0.2


@dataclasses.dataclass(frozen=True)
class Workers:
    """This process among the workers of a training.

    Attributes:
        strategy: TensorFlow's part of it.
        index: Number of this process, from 0, the chief.
        count: Number of processes.
    """

    strategy: tf.distribute.Strategy
    index: int = 0
    count: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what all have learnt."""
        return self.index == 0

    @property
    def replicas(self) -> int:
        """Copies of the network that compute at once, over all processes: one for each GPU, or one for each process."""
        return self.strategy.num_replicas_in_sync

    @property
    def local_replicas(self) -> int:
        """Copies in this process."""
        return self.replicas // self.count

    def values(self, variables: Sequence[tf.Variable]) -> list[np.ndarray]:
        """This worker's values of variables; no other worker takes part, so the chief can read when it likes."""
        return [self.strategy.experimental_local_results(variable)[0].numpy() for variable in variables]

    def assign(self, variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> None:
        """Sets this worker's copies; all workers set the same, each for itself."""
        for variable, value in zip(variables, values, strict=True):
            for copy in self.strategy.experimental_local_results(variable):
                copy.assign(value)

    def spread(self, values: Sequence):
        """One value for each replica of this process, as `strategy.run` takes them."""
        if self.local_replicas == 1:
            return values[0]
        first = self.index * self.local_replicas
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - first]
        )

    def total(self, numbers: Sequence[float]) -> np.ndarray:
        """Sums over workers; waits for all of them, and all get the same.

        Args:
            numbers: This worker's.

        Returns:
            float64, as many as there were.
        """
        own = np.asarray(numbers, np.float64)
        if self.count == 1:
            return own
        # The other replicas of this process add nothing.
        spread = self.spread([tf.constant(own), *[tf.zeros_like(own)] * (self.local_replicas - 1)])
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, spread, axis=None).numpy()

    def wait(self) -> None:
        """Waits until every worker has come to the same point."""
        self.total([0.0])


def alone() -> Workers:
    """One process, one replica."""
    return Workers(tf.distribute.get_strategy())


def join(wanted: int, meet_seconds: float = MEET_SECONDS) -> Workers:
    """Joins the workers that the environment names. To be called before TensorFlow has run anything.

    Args:
        wanted: How many workers the settings ask for.
        meet_seconds: How long to wait for those that are missing.

    Returns:
        This process among them.

    Raises:
        TrainingError: TF_CONFIG is damaged or names another number of workers, or one does not come in time.
    """
    tasks, index = _cluster()
    if len(tasks) != wanted:
        raise TrainingError(
            f"training.workers is {wanted}, and TF_CONFIG names {len(tasks)} (chief and workers): "
            + ("start as many processes" if tasks[1:] else "start them by local_runner.py --workers, or on Vertex by its settings")
            + ", or change training.workers"
        )
    if wanted == 1:
        several = len(tf.config.list_physical_devices("GPU")) > 1
        return Workers(tf.distribute.MirroredStrategy()) if several else alone()
    _leave_others_out()
    meet([address for _, address in tasks], index, meet_seconds)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    _log.info("worker %d of %d is connected, %d replicas in all", index, wanted, strategy.num_replicas_in_sync)
    return Workers(strategy, index, wanted)


def _cluster() -> tuple[list[tuple[str, str]], int]:
    """The (kind, address) of each worker, chief first, and which one this process is."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        cluster = config.get("cluster") or {}
        if not cluster:
            return [("chief", "")], 0
        tasks = [(kind, index, address) for kind in ("chief", "worker") for index, address in enumerate(cluster.get(kind, ()))]
        kind, number = config["task"]["type"], int(config["task"]["index"])
        index = [task[:2] for task in tasks].index((kind, number))
        return [(kind, str(address)) for kind, _, address in tasks], index
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"TF_CONFIG cannot be used: {text!r} must be JSON with cluster (chief and worker, lists of host:port) and task "
            "(type and index of this process among them)"
        ) from error


def _leave_others_out() -> None:
    """Takes from TF_CONFIG who is neither chief nor worker: Vertex lists the reduction servers there, as `ps`.

    They answer no TensorFlow, and TensorFlow would wait for them for ever.
    """
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = {kind: addresses for kind, addresses in config["cluster"].items() if kind in ("chief", "worker")}
    os.environ["TF_CONFIG"] = json.dumps({**config, "cluster": cluster})


def meet(addresses: Sequence[str], index: int, seconds: float) -> None:
    """Waits until all workers are there, so that one that is missing is named, which TensorFlow would wait for in silence.

    The chief listens where TensorFlow will, every worker says its number to it, and when all have, the chief lets them go.

    Args:
        addresses: host:port of every worker, the chief's first.
        index: This process's.
        seconds: How long to wait.

    Raises:
        TrainingError: Not all came in time; the chief names those that did not.
    """
    deadline = time.monotonic() + seconds
    if index == 0:
        _wait_for(addresses, deadline, seconds)
    else:
        _report_to(addresses[0], index, deadline, seconds)


def _wait_for(addresses, deadline, seconds):
    missing, met = set(range(1, len(addresses))), []
    try:
        with _listening(addresses[0]) as server:
            while missing:
                server.settimeout(max(0.01, min(30.0, deadline - time.monotonic())))
                try:
                    connection, _ = server.accept()
                except TimeoutError as error:
                    named = ", ".join(f"worker {number} ({addresses[number]})" for number in sorted(missing))
                    if time.monotonic() < deadline:
                        _log.info("waiting for %s", named)
                        continue
                    raise TrainingError(
                        f"{len(missing)} of {len(addresses)} workers did not come within {seconds:g} s: {named}. Their own "
                        "logs say why; start the training again when all can start"
                    ) from error
                number = _number(connection)
                if number in missing:
                    missing.discard(number)
                    met.append(connection)
                else:
                    connection.close()
        # Closed before it says so: the address is TensorFlow's now.
        for connection in met:
            connection.sendall(b"!")
    finally:
        for connection in met:
            connection.close()


def _listening(address):
    host, port = _host_and_port(address)
    try:
        # All interfaces, as TensorFlow's own server does, for hosts may have names that lead elsewhere here.
        return socket.create_server((host if _is_loopback(host) else "", port))
    except OSError as error:
        raise TrainingError(
            f"the chief cannot listen on {address}: {error.strerror or error}. Is another training running there?"
        ) from error


def _number(connection):
    """What a worker says it is; None for a connection that is none of a worker."""
    try:
        connection.settimeout(5)
        return int(connection.recv(8))
    except (OSError, ValueError):
        return None


def _report_to(chief, index, deadline, seconds):
    reached = False
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(_host_and_port(chief), timeout=5) as connection:
                reached = True
                connection.sendall(b"%-8d" % index)
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                if connection.recv(1):
                    return
        except OSError:
            pass
        # Not there yet, or it ended and may be started again.
        time.sleep(_SECONDS_BETWEEN_TRIES)
    raise TrainingError(
        f"worker {index} waited {seconds:g} s for the chief at {chief}, which "
        + ("did not let it go: another worker is missing, or the chief ended" if reached else "did not answer")
        + ". The chief's own log says why; start the training again when all can start"
    )


def _host_and_port(address):
    host, _, port = address.rpartition(":")
    try:
        return host.strip("[]"), int(port)
    except ValueError as error:
        raise TrainingError(f"TF_CONFIG names {address!r}, which must be host:port") from error


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_lost(error: tf.errors.OpError) -> bool:
    """Whether an error means that another worker has ended, or cannot be reached."""
    gone = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)
    return isinstance(error, gone) or "Collective ops is aborted" in (error.message or "")
