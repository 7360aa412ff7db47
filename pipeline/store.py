"""The store's lock and the ids of runs: one run at a time, and none that ended is thought to be running."""

import _thread
import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import re
import signal
import sys
import threading
from collections.abc import Iterator

from pipeline.errors import PipelineError, StoreBusy
from pipeline.places import Places


def new_run_id(snapshot_date: str) -> str:
    """An id that sorts by snapshot and by start: `20260302-20261201T053000Z`."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{snapshot_date.replace('-', '')}-{now:%Y%m%dT%H%M%SZ}"


@contextlib.contextmanager
def exclusive(places: Places, run_id: str) -> Iterator[None]:
    """Holds the store for one run.

    The kernel lets go of the lock when the process ends, however it ends. What the lock file says
    tells who holds it, and after a kill which run was cut off: its unfinished steps are marked as
    cancelled in the lineage. Why a run ended early is recorded there too.

    Raises:
        StoreBusy: Another run holds the store.
        PipelineError: The store cannot be made or written, or its path means a pattern to TensorFlow.
    """
    if re.search(r"[*?[\]]", places.store):
        raise PipelineError(
            f"--store {places.store} has one of * ? [ ] in its path, which TensorFlow takes for a pattern: rename it"
        )
    with _lock_file(places) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(places)
            raise StoreBusy(
                f"another run uses the store {places.store}: run {holder.get('run_id', 'unknown')}, process "
                f"{holder.get('pid', 'unknown')}, since {holder.get('since', 'unknown')}. Wait for it to end, or "
                "choose another store with --store"
            ) from error
        cut_off = _holder(places).get("run_id")
        if cut_off:
            _end(places, cut_off, killed=True)
        since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        _rewrite(stream, json.dumps({"run_id": run_id, "pid": os.getpid(), "since": since}))
        error = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            _end(places, run_id, error)
            _rewrite(stream, "")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes sure that Ctrl-C ends a run, and lets SIGTERM do the same: steps marked, store released.

    Python can only report an exception in a destructor or in the callback of a weak reference, of which
    TensorFlow has many; an interrupt that falls into one would be lost, so it is sent again.
    """

    again = []

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    def report(unraisable):
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # As SIGTERM: a shell may have started this process with SIGINT ignored.
            again.append(threading.Timer(0.05, _thread.interrupt_main, [signal.SIGTERM]))
            again[-1].start()
        else:
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, report
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


def _end(places: Places, run_id: str, error: BaseException | None = None, killed: bool = False) -> None:
    """Brings the lineage of a run that does not run any more up to date."""
    if not pathlib.Path(places.metadata).is_file():
        return
    # Here: whoever only asks for a run id need not load ML Metadata.
    from pipeline.lineage import mlmd_writer

    failure = mlmd_writer.KILLED if killed else mlmd_writer.Failure.of(error) if error else None
    mlmd_writer.end(places.metadata, run_id, failure)


def _lock_file(places: Places):
    try:
        os.makedirs(places.store, exist_ok=True)
        return open(places.lock, "a+", encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PipelineError(
            f"cannot use the store {places.store}: {error.strerror}. Choose another place with --store"
        ) from error


def _holder(places: Places) -> dict:
    try:
        holder = json.loads(pathlib.Path(places.lock).read_text(encoding="utf-8") or "{}")
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _rewrite(stream, text: str) -> None:
    stream.seek(0)
    stream.truncate()
    stream.write(text)
    stream.flush()
