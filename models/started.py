"""A process that another one started and hears: its log as JSON, and an end when the other one ends. No TensorFlow.

Standard output has one JSON object a line: a log record (`name`, `level`, `message`), or at the end `error`, what went wrong.
Standard input stays open as long as somebody wants the work: when it closes, the process ends at once.
`pipeline.processes` is the other side.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable


class _ToStarter(logging.Handler):
    """Sends log records to whoever started this process."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        say({"name": record.name, "level": record.levelno, "message": record.getMessage()})


def say(message: dict) -> None:
    """Writes one JSON object to standard output."""
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        os._exit(1)


def _end_with_starter() -> None:
    # The starter may be killed, which nobody can catch: the kernel then closes its end.
    # Not through `sys.stdin`, whose lock would be held when this process ends well.
    while os.read(0, 1):
        pass
    os._exit(1)


def run(work: Callable[[dict], None], known: tuple[type[Exception], ...], heard: tuple[str, ...]) -> int:
    """Does the work whose arguments the file holds that the command line names.

    Args:
        work: Takes what the file's JSON says.
        known: Errors that a person can act on: their text is told, without a traceback.
        heard: Loggers whose records the starter hears.

    Returns:
        The exit status.
    """
    threading.Thread(target=_end_with_starter, daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        arguments = json.load(file)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in heard:
        logging.getLogger(name).addHandler(_ToStarter())
    try:
        work(arguments)
    except known as error:
        logging.getLogger(__name__).debug("the work failed", exc_info=True)
        say({"error": str(error)})
        return 1
    return 0
