"""One run at a time, and none that ended is thought to be running."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline import store
from pipeline.errors import PipelineError, StoreBusy
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.places import Places
from tests.pipeline.conftest import ROOT
from tests.pipeline.lineage.conftest import HandWritten

# Holds a store until it is killed or told to end.
HOLDER = """
import sys
from pipeline import store
from pipeline.places import Places
with store.interruptible(), store.exclusive(Places(store=sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def places(tmp_path):
    return Places(store=str(tmp_path / "store"))


@contextlib.contextmanager
def holder(places, run_id):
    """Another process that holds the store."""
    words = [sys.executable, "-c", HOLDER, places.store, run_id]
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def lock(places) -> str:
    with open(places.lock, encoding="utf-8") as stream:
        return stream.read()


def test_a_run_id_sorts_by_snapshot_and_by_start():
    assert re.fullmatch(r"20260302-20\d{6}T\d{6}Z", store.new_run_id("2026-03-02"))
    assert store.new_run_id("2026-03-02") < store.new_run_id("2026-03-09")


def test_the_store_is_made_held_and_let_go(places):
    with store.exclusive(places, "run-1"):
        held = json.loads(lock(places))
        assert (held["run_id"], held["pid"]) == ("run-1", os.getpid()) and held["since"].endswith("+00:00")
    assert lock(places) == ""
    with store.exclusive(places, "run-2"):
        assert json.loads(lock(places))["run_id"] == "run-2"


def test_a_second_run_is_refused_and_told_who_holds_the_store(places):
    with holder(places, "run-1") as process:
        with pytest.raises(StoreBusy) as raised, store.exclusive(places, "run-2"):
            pass
        assert raised.value.exit_status == 4
        for words in [places.store, "run run-1", f"process {process.pid}", "since 20", "--store"]:
            assert words in str(raised.value)
        # The one who was refused changed nothing.
        assert json.loads(lock(places))["run_id"] == "run-1"


def test_two_stores_do_not_disturb_each_other(places, tmp_path):
    with store.exclusive(places, "run-1"), store.exclusive(Places(store=str(tmp_path / "other")), "run-2"):
        pass


def test_an_error_lets_go_of_the_store(places):
    with pytest.raises(ZeroDivisionError), store.exclusive(places, "run-1"):
        raise ZeroDivisionError
    with store.exclusive(places, "run-2"):
        pass


def states(places, run_id) -> list[str]:
    return [execution.state for execution in MLMDLineage(places.metadata).run(run_id).executions]


def reason(places, run_id) -> str:
    return MLMDLineage(places.metadata).run(run_id).step("Trainer").parameters["failure_kind"]


@pytest.fixture
def interrupted(places):
    """A lineage in which run-1 and run-2 have a step that is still recorded as running."""
    os.makedirs(places.store)
    written = HandWritten(places)
    for run_id in ("run-1", "run-2"):
        context = written.run(run_id)
        written.step(context, "SnapshotGen")
        written.step(context, "Trainer", "RUNNING")


def test_the_steps_of_a_killed_run_are_marked_by_the_next(places, interrupted):
    with holder(places, "run-1") as process:
        process.kill()
        process.wait()
        assert json.loads(lock(places))["run_id"] == "run-1" and states(places, "run-1")[1] == "RUNNING"
        with store.exclusive(places, "run-3"):
            assert states(places, "run-1") == ["COMPLETE", "CANCELED"] and reason(places, "run-1") == "killed"
            assert states(places, "run-2") == ["COMPLETE", "RUNNING"]


def test_a_run_that_ends_by_an_error_marks_its_own_steps(places, interrupted):
    with pytest.raises(KeyboardInterrupt), store.exclusive(places, "run-2"):
        raise KeyboardInterrupt
    assert states(places, "run-2") == ["COMPLETE", "CANCELED"] and states(places, "run-1") == ["COMPLETE", "RUNNING"]
    assert reason(places, "run-2") == "interrupted"
    with pytest.raises(PipelineError), store.exclusive(places, "run-1"):
        raise PipelineError("mend it")
    assert MLMDLineage(places.metadata).run("run-1").step("Trainer").parameters["failure"] == "mend it"


def test_a_refused_run_marks_nothing(places, interrupted):
    with holder(places, "run-1"), pytest.raises(StoreBusy), store.exclusive(places, "run-2"):
        pass
    assert states(places, "run-2") == ["COMPLETE", "RUNNING"]


def test_a_store_whose_path_means_a_pattern_is_refused_and_not_made(tmp_path):
    places = Places(store=str(tmp_path / "week[1]"))
    with pytest.raises(PipelineError, match=r"week\[1\] has one of .* pattern: rename it"), store.exclusive(places, "run-1"):
        pass
    assert not os.path.exists(places.store)


def test_a_lock_file_that_is_damaged_holds_nobody_up(places):
    os.makedirs(places.store)
    for text in ("{", '{"pid": 1}', "[]", "\0" * 20):
        with open(places.lock, "w") as stream:
            stream.write(text)
        with store.exclusive(places, "run-1"):
            pass
    assert lock(places) == ""


def test_sigterm_lets_go_of_the_store_like_ctrl_c(places, interrupted):
    with holder(places, "run-1") as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err and process.returncode != -signal.SIGTERM
    assert lock(places) == "" and states(places, "run-1") == ["COMPLETE", "CANCELED"]


def test_sigterm_has_its_old_meaning_again_afterwards():
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), store.interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_falls_into_a_destructor_is_not_lost(number):
    class Dying:
        def __del__(self):
            os.kill(os.getpid(), number)
            time.sleep(0.01)  # where the interrupt is raised, and lost

    # A shell starts what runs in the background with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    passed = 0
    try:
        with pytest.raises(KeyboardInterrupt), store.interruptible():
            Dying()
            for passed in range(1, 101):
                time.sleep(0.05)
    finally:
        signal.signal(signal.SIGINT, before)
    assert passed < 100
