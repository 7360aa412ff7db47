"""A store that one line of TFX wrote, read by the line that is installed: the same answers, the same probabilities.

`make_store.py` made the stores, each on its line. A store knows its own paths, and what serves is under a chain of digests, so
nothing in it is rewritten: for as long as the tests read it, its place is a link to it, as the product tells who moved a store.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import tarfile

import pytest

from pipeline import files
from tests.lines import answers, make_store

LINES = ("1.16", "1.21")


@contextlib.contextmanager
def linked(place: pathlib.Path, folder: pathlib.Path):
    """Makes `place` a link to the folder, one user of it after the other."""
    held = os.open(f"{place}.lock", os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        if place.is_symlink():
            place.unlink()  # of a test that was killed: nobody else holds the lock
        place.symlink_to(folder, target_is_directory=True)
        try:
            yield
        finally:
            place.unlink()
    finally:
        os.close(held)


def content_of(folder: pathlib.Path) -> dict[str, str]:
    """Digest of each file below the folder."""
    return {str(path.relative_to(folder)): files.sha256_of(path) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=LINES)
def read(request, tmp_path_factory):
    """(what the line that wrote the store said, what this one says, the files before, the files after)"""
    archive = make_store.HERE / f"store-{request.param}.tar.xz"
    assert f"{files.sha256_of(archive)}  {archive.name}" == archive.with_name(f"{archive.name}.sha256").read_text().strip()
    folder, place = tmp_path_factory.mktemp("lines"), make_store.place(request.param)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    before = content_of(folder)
    with linked(place, folder):
        now = json.loads(files.to_json(answers.of(place)))
    return json.loads((folder / "answers.json").read_text(encoding="utf-8")), now, before, content_of(folder)


def test_an_auditor_gets_the_same_answers(read):
    then, now, *_ = read
    assert then["audit"].keys() == now["audit"].keys() and len(now["audit"]) >= 8
    for question, answer in now["audit"].items():
        assert answer == then["audit"][question], question


def test_all_of_it_is_still_what_was_recorded(read):
    verified = [answer for question, answer in read[1]["audit"].items() if question.startswith("audit verify")]
    assert len(verified) == 2
    for answer in verified:
        assert answer["status"] == 0 and {check["status"] for check in answer["says"]["checks"]} == {"intact"}


def test_the_model_that_serves_says_the_same(read):
    then, now, *_ = read
    assert then["probabilities"].keys() == now["probabilities"].keys() and len(now["probabilities"]) == 12
    for name, told in now["probabilities"].items():
        assert told == pytest.approx(then["probabilities"][name], abs=1e-5), name
    assert len({max(range(3), key=told.__getitem__) for told in now["probabilities"].values()}) > 1, "it tells them apart"


def test_the_next_week_finds_its_baseline_the_model_to_beat_and_the_best_known_configuration(read):
    then, now, *_ = read
    assert now["next week"] == then["next week"]
    assert now["next week"]["accepted"]["table"] == "labels_20260309" and now["next week"]["statistics"]
    assert now["next week"]["tuning"]["known"]["trial"] in (1, 2, 3) and not now["next week"]["tuning"]["tune"]


def test_reading_changes_nothing(read):
    *_, before, after = read
    assert after == before
