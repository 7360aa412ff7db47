"""Processes of this project that one of its own starts, hears and ends: `models.started` is their side. No TensorFlow."""

import json
import logging
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

_PROJECT = pathlib.Path(__file__).resolve().parent.parent


class Process:
    """One process, and the thread that hears it.

    Args:
        name: What it is called in errors, such as `worker 1 of the training`.
        module: What it runs, with `models.started.run`.
        arguments: The file of its arguments.
        environment: What is set beside this process's own environment; None takes a name away.
        hears: Called with each log record that it sends: logger's name, level, message.
        ended: Where it puts itself when it has ended.
    """

    def __init__(
        self, name: str, module: str, arguments: str | os.PathLike, environment: Mapping[str, str | None],
        hears: Callable[[str, int, str], None], ended: queue.Queue,
    ):  # fmt: skip
        self.name = name
        self.error = ""
        variables = {**os.environ, "TF_USE_LEGACY_KERAS": "1", **environment}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PROJECT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={key: value for key, value in variables.items() if value is not None},
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        threading.Thread(target=self._hear, args=(hears, ended), daemon=True).start()

    def _hear(self, hears, ended):
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a library's print
            if not isinstance(said, dict):
                continue
            if "error" in said:
                self.error = said["error"]
            elif "message" in said:
                hears(said["name"], said["level"], said["message"])
        self.process.wait()
        ended.put(self)

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return (self.process.returncode or 0) < 0

    def failure(self) -> str:
        """Why it ended, as a sentence that its name begins or as what it said itself; "" if it ended well."""
        code = self.process.returncode
        if code == 0:
            return ""
        return self.error or f"{self.name} {told(code)}"

    def end(self) -> None:
        """Ends it if it runs, and waits until it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()


def told(code: int) -> str:
    """What an exit status other than 0 says.

    >>> told(-9), told(3)
    ('was ended by SIGKILL (the kernel does so when memory runs out)', 'ended with status 3; the log says why')
    """
    if code >= 0:
        return f"ended with status {code}; the log says why"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    memory = " (the kernel does so when memory runs out)" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{memory}"


def pass_on(name: str, level: int, message: str) -> None:
    """Logs what a process sent as if it happened in this one."""
    logging.getLogger(name).log(level, "%s", message)
