"""What a person sees of a run: steps and their times on the terminal, everything else in a log file."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator


class Progress(logging.Handler):
    """Shows on the terminal which step runs, what it reports, and how long it took."""

    def __init__(self, stream=None):
        super().__init__()
        self._stream = stream or sys.stdout
        self._open_line = False
        self._what, self._started = "", 0.0

    def begin(self, what: str) -> None:
        """A step starts."""
        self._what, self._started = what, time.monotonic()
        self._write(f"{what:<34}")
        self._open_line = True

    def end(self) -> None:
        """The step that began last ended well."""
        seconds = time.monotonic() - self._started
        self._write(f"{seconds:7.1f} s\n" if self._open_line else f"{self._what:<34}{seconds:7.1f} s\n")
        self._open_line = False

    def close_line(self) -> None:
        """Ends a line that a step left open, before somebody else writes."""
        if self._open_line:
            self._write("\n")
        self._open_line = False

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a log record below the step that it belongs to."""
        self.close_line()
        self._write(f"        {record.getMessage()}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextlib.contextmanager
def quiet_logs(path: str, progress: Progress) -> Iterator[None]:
    """Sends all logs to a file; the terminal shows steps, training progress and our warnings only."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    to_file = logging.FileHandler(path, encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [to_file]
    root.setLevel(logging.INFO)
    shown = {"pipeline": logging.WARNING} | dict.fromkeys(("models", "pipeline.shards", "pipeline.tuning"), logging.INFO)
    progress.addFilter(lambda record: any(record.name.startswith(name) and record.levelno >= at for name, at in shown.items()))
    loggers = [logging.getLogger("models"), logging.getLogger("pipeline")]
    for logger in loggers:
        logger.addHandler(progress)
    # Python warnings of the libraries belong in the log too.
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger in loggers:
            logger.removeHandler(progress)
        root.handlers[:] = before
        root.setLevel(level)
        to_file.close()


@contextlib.contextmanager
def stderr_in_log(path: str) -> Iterator[None]:
    """Sends what libraries print on standard error, their C++ included, to the log file.

    TensorFlow greets with a dozen lines that sound like errors and are none, and warns at the end of
    every data set. What a person must read is printed after this block.
    """
    sys.stderr.flush()
    before = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.dup2(log, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        os.close(log)
