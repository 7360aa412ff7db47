"""Starts Vizier's service on this machine, for as long as a block lasts, and Google's client for it."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import grpc
from google.cloud import aiplatform_v1 as v1
from google.cloud.aiplatform_v1.services.vizier_service.transports import VizierServiceGrpcTransport

from pipeline.errors import PipelineError

ROOT = pathlib.Path(__file__).resolve().parents[2]

PYTHON = ROOT / ".venv-vizier" / "bin" / "python"
"""The environment of the service, requirements/vizier.py."""

PARENT = "projects/local/locations/local"
"""Where studies of this machine are, in Vertex's words."""

_END_SECONDS = 10
_RECONNECT_MS = 1000


@dataclasses.dataclass(frozen=True)
class Service:
    """A service that runs.

    Attributes:
        address: Host and port.
        process: Its process.
    """

    address: str
    process: subprocess.Popen = dataclasses.field(repr=False)

    @property
    def port(self) -> int:
        """Its port of the loopback, for one that takes its place."""
        return int(self.address.rpartition(":")[2])

    def client(self) -> v1.VizierServiceClient:
        """Google's client for it."""
        return client_of(self.address)

    def end(self) -> None:
        """Ends it, if it still runs, and waits until it is gone."""
        _end(self.process)


@contextlib.contextmanager
def running(
    database: str | os.PathLike, algorithm: str = "gaussian_process", seed: int = 0, port: int = 0
) -> Iterator[Service]:
    """Runs the service while the block lasts; arguments, result and errors as of `start`."""
    service = start(database, algorithm, seed, port)
    try:
        yield service
    finally:
        service.end()


def start(database: str | os.PathLike, algorithm: str = "gaussian_process", seed: int = 0, port: int = 0) -> Service:
    """Starts the service. It ends when this process does, however that ends.

    Args:
        database: The file of studies. What the service has to say goes to the file of the same name with `.log`.
        algorithm: Of new studies: `gaussian_process`, which takes seconds for a suggestion, `eagle` or `quasi_random`.
        seed: Of new studies' suggestions, 0 to 2**31 - 1.
        port: Port of the loopback, 0 for a free one.

    Returns:
        The service; whoever starts it calls its `end`.

    Raises:
        PipelineError: It does not start; the text has its own reason.
    """
    require_environment()
    words = [PYTHON, "-m", "pipeline.vizier.service", "--database", os.path.abspath(database), "--with-stdin"]
    words += ["--algorithm", algorithm, "--seed", str(seed), "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    log = pathlib.Path(f"{os.path.abspath(database)}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a+", encoding="utf-8") as stream:
        said_before = stream.tell()
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True
        )
        try:
            line = process.stdout.readline()
            if not line:
                process.wait()
                stream.seek(said_before)
                raise PipelineError(
                    f"Vizier's service did not start (status {process.returncode}): {stream.read().strip()}"
                )
            return Service(json.loads(line)["address"], process)
        except BaseException:
            _end(process)
            raise


def require_environment() -> None:
    """Makes sure that the service can be started. Raises PipelineError."""
    if not PYTHON.exists():
        raise PipelineError(
            f"the environment of Vizier's service is not built ({PYTHON} is not there): run .venv/bin/python "
            "requirements/vizier.py, then the same command again"
        )


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
    process.stdout.close()


def client_of(address: str) -> v1.VizierServiceClient:
    """Google's client for a service on this machine.

    Args:
        address: Host and port, as `Service.address`.
    """
    # After a restart of the service a channel would else wait for up to two minutes before it connects again.
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS)]
    # A new client would else inherit the connection of an old one, broken or not.
    options += [("grpc.use_local_subchannel_pool", 1)]
    # The loopback needs no proxy, whatever the environment says.
    channel = grpc.insecure_channel(address, options=[*options, ("grpc.enable_http_proxy", 0)])
    return v1.VizierServiceClient(transport=VizierServiceGrpcTransport(channel=channel))
