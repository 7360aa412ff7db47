"""What a person sees of a run, and what goes to the log instead."""

import ctypes
import io
import logging
import os
import re
import sys
import warnings

import pytest

from pipeline import console


@pytest.fixture
def shown():
    return io.StringIO()


@pytest.fixture
def progress(shown):
    return console.Progress(shown)


def record(name, text, level=logging.INFO, *arguments):
    return logging.LogRecord(name, level, __file__, 1, text, arguments, None)


def test_a_step_is_a_line_with_its_time(progress, shown):
    progress.begin("[ 1/17] RunManifest")
    assert shown.getvalue() == f"{'[ 1/17] RunManifest':<34}"  # at once, before it ends
    progress.end()
    assert re.fullmatch(r"\[ 1/17\] RunManifest {15} {4}0\.\d s\n", shown.getvalue())


def test_times_of_all_steps_stand_below_each_other(progress, shown):
    for step in ("[ 1/17] RunManifest", "[10/17] SnapshotGate", "loading TFX and TensorFlow"):
        progress.begin(step)
        progress.end()
    assert len({len(line) for line in shown.getvalue().splitlines()}) == 1


def test_what_a_step_reports_stands_below_it_and_its_time_closes_it(progress, shown):
    progress.begin("[13/17] Trainer")
    progress.handle(record("models.training", "epoch %d/%d", logging.INFO, 1, 3))
    progress.handle(record("models.training", "epoch 2/3"))
    progress.end()
    lines = shown.getvalue().splitlines()
    assert [line.rstrip() for line in lines[:3]] == ["[13/17] Trainer", "        epoch 1/3", "        epoch 2/3"]
    assert re.fullmatch(r"\[13/17\] Trainer +0\.\d s", lines[3]) and len(lines) == 4


def test_a_step_that_fails_leaves_no_open_line(progress, shown):
    progress.begin("[13/17] Trainer")
    progress.close_line()
    progress.close_line()
    assert shown.getvalue().count("\n") == 1


def test_progress_goes_to_standard_output_unless_told_otherwise(capsys):
    console.Progress().begin("step")
    assert capsys.readouterr().out.startswith("step")


@pytest.fixture
def log(tmp_path):
    return tmp_path / "logs" / "run.log"


def test_logs_go_to_the_file_and_only_what_concerns_people_is_shown(log, progress, shown):
    with console.quiet_logs(str(log), progress):
        logging.getLogger("models.training").info("epoch 1/3")
        logging.getLogger("models.training").debug("a detail")
        logging.getLogger("pipeline.release").info("nothing new")
        logging.getLogger("pipeline.shards.packing").info("100 of 200 photographs")
        logging.getLogger("pipeline.shards").warning("photograph é goes to quarantine")
        logging.getLogger("tensorflow").error("sounds bad and is not")
        logging.getLogger().info("root")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("deprecated since long ago", FutureWarning, stacklevel=1)
    assert shown.getvalue() == "        epoch 1/3\n        100 of 200 photographs\n        photograph é goes to quarantine\n"
    text = log.read_text(encoding="utf-8")
    for words in [
        "INFO models.training: epoch 1/3", "INFO pipeline.release: nothing new", "WARNING pipeline.shards: photograph é",
        "ERROR tensorflow: sounds bad", "INFO root: root", "deprecated since long ago",
    ]:  # fmt: skip
        assert words in text
    assert "a detail" not in text


def test_logging_is_as_before_afterwards(log, progress, shown):
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.getLogger("models").handlers[:])
    with pytest.raises(ZeroDivisionError), console.quiet_logs(str(log), progress):
        raise ZeroDivisionError
    assert (root.handlers[:], root.level, logging.getLogger("models").handlers[:]) == before
    logging.getLogger("models").warning("after the run")
    assert shown.getvalue() == "" and "after the run" not in log.read_text()


def test_a_log_that_is_there_is_continued(log, progress):
    for word in ("first", "second"):
        with console.quiet_logs(str(log), progress):
            logging.getLogger("pipeline").info(word)
    assert "first" in log.read_text() and "second" in log.read_text()


def test_what_libraries_print_on_standard_error_is_in_the_log(tmp_path, capfd):
    path = tmp_path / "run.log"
    path.write_text("before\n")
    libc = ctypes.CDLL(None)
    with console.stderr_in_log(str(path)):
        os.write(2, b"from C++\n")
        libc.write(2, b"from C\n", 7)
    os.write(2, b"for people\n")
    assert path.read_text() == "before\nfrom C++\nfrom C\n"
    assert capfd.readouterr().err == "for people\n"


def test_pythons_own_standard_error_follows(tmp_path, capfd):
    path = tmp_path / "run.log"
    with capfd.disabled(), console.stderr_in_log(str(path)):
        print("from Python", file=sys.__stderr__)
    assert "from Python" in path.read_text()


def test_standard_error_comes_back_after_an_error(tmp_path, capfd):
    with pytest.raises(KeyboardInterrupt), console.stderr_in_log(str(tmp_path / "run.log")):
        raise KeyboardInterrupt
    os.write(2, b"for people\n")
    assert capfd.readouterr().err == "for people\n"


def test_no_file_descriptor_is_left_open(tmp_path, progress):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with console.quiet_logs(str(tmp_path / "logs" / "a.log"), progress), console.stderr_in_log(str(tmp_path / "b.log")):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
