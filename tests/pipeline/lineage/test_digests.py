"""Digests that standard tools compute as well."""

import hashlib
import pathlib
import subprocess

import pytest

from pipeline.lineage import digests


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    for name, content in {"b.bin": b"\0" * 3_000_000, "a/deep/x y.txt": b"x", "a.txt": b"", "A.txt": "ä".encode()}.items():
        path = tmp_path / "export" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "export"


def test_a_folder_has_the_digest_that_coreutils_compute(folder):
    words = "find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    done = subprocess.run(["sh", "-c", words], cwd=folder, capture_output=True, text=True, check=True)
    assert digests.of_folder(str(folder)) == digests.of_folder(f"{folder}/") == done.stdout.split()[0]


def test_every_change_of_a_folder_is_another_digest(folder):
    found = {digests.of_folder(str(folder))}
    (folder / "a.txt").write_bytes(b"1")
    found.add(digests.of_folder(str(folder)))
    (folder / "a.txt").rename(folder / "c.txt")
    found.add(digests.of_folder(str(folder)))
    (folder / "c.txt").unlink()
    found.add(digests.of_folder(str(folder)))
    assert len(found) == 4


def test_a_file(folder):
    assert digests.of_file(str(folder / "b.bin")) == hashlib.sha256(b"\0" * 3_000_000).hexdigest()


@pytest.mark.parametrize("name", ["none", "empty"])
def test_what_holds_no_file_has_no_digest(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        digests.of_folder(str(tmp_path / name))
