"""Nobody ever reads half of a file or a folder."""

import hashlib

import pytest

from pipeline import files


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with files.new_folder(tmp_path / "made") as folder:
        (folder / "a").write_text("a")
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "a").read_text() == "a"


def test_a_failed_folder_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), files.new_folder(tmp_path / "made") as folder:
        (folder / "a").write_text("a")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_in_one_step_and_nothing_else_stays(tmp_path):
    files.write_atomically(tmp_path / "f", "one")
    files.write_atomically(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_digest_of_a_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert files.sha256_of(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()
