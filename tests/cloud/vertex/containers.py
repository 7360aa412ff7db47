"""Containers as processes of this machine: a command of its own, an environment of its own, a log, an exit status.

An image is what it holds that counts here: the interpreter and packages of this environment, the project's code. A command
`python -m tfx...` need not wait half a minute for imports: it is forked from a process that has them behind it (forks.py),
and sees what a fresh one would see, as test_vertex_forks.py shows.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence

from tests.cloud import google_apis

REGISTRY = f"us-central1-docker.pkg.dev/{google_apis.PROJECT}/retrain"

IMAGE = f"{REGISTRY}/pipeline@sha256:{hashlib.sha256(b'the image of the tests').hexdigest()}"
"""The project's image: components, trainer and the rest."""

REDUCTION_SERVER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"

SERVING_IMAGE = "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"
"""A prebuilt image that serves a SavedModel; any of its kind does."""

_SERVING = re.compile(
    r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/prediction/tf2-(cpu|gpu)\.2-\d+(:latest|@sha256:[0-9a-f]{64})"
)

_START_SECONDS = 180

_NOT_FOUND = 127
"""What a shell's exit status is for a command that is not there."""


@dataclasses.dataclass(frozen=True)
class Image:
    """What a container is started from.

    Attributes:
        entrypoint: What runs if the container has no command.
        environment: What it sets, beside what every container has.
        forks: Packages of which `python -m` modules are forked.
    """

    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    forks: tuple[str, ...] = ()


_ENVIRONMENT = {"PYTHONPATH": str(google_apis.ROOT), "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

IMAGES = {
    IMAGE: Image(environment=_ENVIRONMENT, forks=("tfx",)),
    SERVING_IMAGE: Image(("python", "-m", "tests.cloud.vertex.predictor"), _ENVIRONMENT, ("tests",)),
    # Has no Python: whoever gives it another command than its own learns it here.
    REDUCTION_SERVER: Image(("/usr/bin/tail", "-f", "/dev/null"), {"PATH": "/nowhere"}),
}


class Container:
    """A container that was started.

    Attributes:
        status: Its exit status, as a shell tells it (128 and the number of the signal that killed it); None while it runs.
    """

    def __init__(self):
        self.status: int | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._actions: list[Callable[[], None]] = []
        self._ended = threading.Event()

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits until it ends, at most so long; returns its exit status."""
        self._ended.wait(seconds)
        return self.status

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal to all its processes; to none when it has ended."""
        if self.status is None and self._pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def stop(self, grace: float) -> None:
        """Ends it: asks, waits so many seconds, kills."""
        self.signal(signal.SIGTERM)
        if self.wait(grace) is None:
            self.signal(signal.SIGKILL)
            self.wait()

    def when_ended(self, action: Callable[[], None]) -> None:
        """Does something once it has ended, at once if it has."""
        with self._lock:
            if self.status is None:
                self._actions.append(action)
                return
        action()

    def _watch(self, waits: Callable[[], int]) -> None:
        def watch():
            code = waits()
            with self._lock:
                self.status = code if code >= 0 else 128 - code
            self._ended.set()
            for action in self._actions:
                action()

        threading.Thread(target=watch, daemon=True).start()


class Containers:
    """Starts containers and ends them.

    Args:
        google: The environment by which clients find Google's hosts.
        forks: Who forks.

    Attributes:
        images: By address. A test may add its own, and put others in the place of these.
        environment: What every container gets in addition, such as the address of another emulator.
    """

    def __init__(self, google: Mapping[str, str], forks: "Forks"):
        self.images = dict(IMAGES)
        self.environment: dict[str, str] = {}
        self._google = dict(google)
        self._forks = forks
        self._lock = threading.Lock()
        self._started: list[Container] = []
        self._closed = False

    def has(self, image: str) -> bool:
        """Whether there is such an image."""
        return self._about(image) is not None

    def start(self, image: str, command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str],
              log: pathlib.Path) -> Container:  # fmt: skip
        """Starts a container.

        Args:
            image: The image's address, one of `images`.
            command: Replaces the image's entrypoint, unless it is empty.
            arguments: What follows it.
            environment: What it sets.
            log: The file to which it writes; what is there stays.

        Returns:
            The container. A command that cannot be started ends with status 127.
        """
        about = self._about(image)
        argv = [*(command or about.entrypoint), *arguments]
        usual = {**self._base(), **about.environment, **self.environment}
        variables = {**usual, **environment}
        log.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="container-", dir=log.parent)
        is_forked = _module_package(argv) in about.forks and self._forks.suit(usual, variables)
        with self._lock:
            if self._closed:
                container = Container()
                container._watch(lambda: -signal.SIGKILL)
                return container
            starts = self._forks.start if is_forked else _start_process
            self._started.append(starts(argv, variables, folder, log))
            return self._started[-1]

    def close(self) -> None:
        """Kills what runs; what is started from now on is dead at once."""
        with self._lock:
            self._closed = True
        for container in self._started:
            container.signal(signal.SIGKILL)
        for container in self._started:
            container.wait(10)

    def _about(self, image: str) -> Image | None:
        return self.images.get(SERVING_IMAGE if is_prebuilt(image) else image)

    def _base(self) -> dict[str, str]:
        return {
            "PATH": f"{pathlib.Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": tempfile.gettempdir(),
            "TMPDIR": tempfile.gettempdir(),
            "LANG": "C.UTF-8",
            **self._google,
        }


def is_prebuilt(image: str) -> bool:
    """Whether it is one of the images that serve a SavedModel."""
    return bool(_SERVING.fullmatch(image))


def _module_package(argv: Sequence[str]) -> str:
    is_module = len(argv) > 2 and re.fullmatch(r"python3?", argv[0]) and argv[1] == "-m"
    return argv[2].partition(".")[0] if is_module else ""


def _start_process(argv: list[str], environment: Mapping[str, str], folder: str, log: pathlib.Path) -> Container:
    container = Container()
    with open(log, "ab") as out:
        try:
            process = subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )  # fmt: skip
        except (OSError, IndexError) as error:
            out.write(f"the container's command {argv[:1]} cannot be started: {error}\n".encode())
            container._watch(lambda: _NOT_FOUND)
            return container
    container._pid = process.pid
    container._watch(process.wait)
    return container


class Forks:
    """Forks interpreters from one that has TFX imported, which starts when it is first needed.

    Args:
        folder: For its socket and its log.
    """

    # Read while modules are imported: one with others than the process that forks must be fresh.
    _READ_EARLY = re.compile(
        r"PYTHON|TF_(?!CONFIG$)|TFX_|KERAS|GRPC_|ABSL_|OMP_|MKL_|OPENBLAS_|LD_|XLA_|CUDA_|PROTOCOL_BUFFERS|HTTPLIB2_|BEAM_"
        r"|LANG|LC_"
    )

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._early: dict[str, str] = {}

    def suit(self, usual: Mapping[str, str], environment: Mapping[str, str]) -> bool:
        """Whether a fork can have an environment.

        Args:
            usual: What the image's containers have in common, in which the process that forks starts.
            environment: That of the container.
        """
        with self._lock:
            if self._process is None:
                self._early = self._early_of(usual)
                self._start(usual)
            return self._early_of(environment) == self._early

    def start(self, argv: list[str], environment: Mapping[str, str], folder: str, log: pathlib.Path) -> Container:
        """Forks; the arguments are those of a process."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_START_SECONDS)
        connection.connect(self._address)
        request = {"argv": argv, "environment": dict(environment), "folder": folder, "log": str(log)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        answers = connection.makefile("r")
        container = Container()
        container._pid = int(answers.readline())
        connection.settimeout(None)

        def wait() -> int:
            with connection, answers:
                # No answer: the process that forks is gone, and has taken its children with it.
                return int(answers.readline() or -signal.SIGKILL)

        container._watch(wait)
        return container

    def close(self) -> None:
        """Ends the process, and what it forked."""
        if self._process:
            self._process.stdin.close()
            self._process.wait(30)

    @property
    def _address(self) -> str:
        return str(self._folder / "socket")

    def _early_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if self._READ_EARLY.match(name)}

    def _start(self, environment: Mapping[str, str]) -> None:
        with open(self._folder / "forks.log", "w+b") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cloud.vertex.forks", self._address],
                cwd=google_apis.ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
            if not self._process.stdout.readline():
                log.seek(0)
                raise RuntimeError(f"the process that forks did not start:\n{log.read()[-4000:].decode()}")
