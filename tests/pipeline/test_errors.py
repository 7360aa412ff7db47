"""What a user meets when something goes wrong."""

import errno
import sqlite3

import pytest

from pipeline import errors


def chained(*exceptions):
    for outer, inner in zip(exceptions, exceptions[1:]):
        outer.__cause__ = inner
    return exceptions[0]


def test_our_error_is_found_inside_what_a_framework_wrapped_around_it():
    wrapped = chained(RuntimeError("beam"), ValueError("tfx"), errors.SnapshotRejected("why"))
    assert str(errors.user_error(wrapped)) == "why"
    assert errors.user_error(wrapped).exit_status == 3


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
        RuntimeError("store/x.tfrecord; No space left on device [Op:WriteFile]"),
    ],
)
def test_a_full_disk_is_told_as_one_whichever_library_met_it(error):
    found = errors.user_error(chained(RuntimeError("outer"), error))
    assert "disk is full" in str(found) and "--store" in str(found)


def test_a_defect_of_ours_is_no_user_error():
    assert errors.user_error(KeyError("x")) is None


def test_every_exit_status_differs_from_zero_and_from_the_others():
    kinds = [errors.PipelineError, errors.SettingsError, errors.SnapshotRejected, errors.StoreBusy]
    assert sorted(kind.exit_status for kind in kinds) == [1, 2, 3, 4]
