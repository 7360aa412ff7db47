"""One worker of a training, in a process of its own: `python -m models.worker FILE`, which `pipeline.workers` starts.

FILE holds the fields of TFX's FnArgs as JSON; TF_CONFIG says which worker this is. Standard output has one JSON object a
line: a log record of this package (`name`, `level`, `message`), or at the end `error`, what went wrong. Standard input
stays open as long as somebody wants the training: when it closes, the worker ends at once.
"""

import json
import logging
import os
import sys
import threading
import types

from models.errors import TrainingError


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


def main() -> int:
    """Trains; returns the exit status."""
    threading.Thread(target=_end_with_starter, daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        arguments = json.load(file)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("models").addHandler(_ToStarter())
    # Late: loading TensorFlow takes seconds, in which the starter may end.
    from models import training

    try:
        training.run_fn(types.SimpleNamespace(**arguments))
    except TrainingError as error:
        logging.getLogger(__name__).debug("the training failed", exc_info=True)
        say({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
