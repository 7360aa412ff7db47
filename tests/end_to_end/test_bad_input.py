"""What a person can get wrong, told by `local_runner.py`: the thing, the value, the remedy; no traceback, nothing kept.

In this process, so that TFX is imported once; that the command says the same shows in test_weeks.py.
"""

import io
import os
import shutil
import struct
import subprocess
import sys

import pytest
from PIL import Image

import local_runner
from tests.end_to_end.conftest import ROOT

pytestmark = pytest.mark.timeout(600)

SAMPLE = ROOT / "data" / "sample"
HEADER = "image_id,product_id,label,source,updated_at\n"


@pytest.fixture
def data(tmp_path):
    """A copy of the sample that a test may spoil."""
    folder = tmp_path / "data"
    shutil.copytree(SAMPLE / "images", folder / "images")
    shutil.copy(SAMPLE / "labels.csv", folder / "labels.csv")
    return folder


@pytest.fixture
def run(tmp_path, data, capsys):
    """Runs a week of `data` and gives the exit status and what standard error says."""

    def runs(date="2026-03-02"):
        status = local_runner.main(["--snapshot-date", date, "--data", str(data), "--store", str(tmp_path / "store")])
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert not (tmp_path / "store" / "serving").exists() and not (tmp_path / "store" / "accepted").exists()
        return status, err

    return runs


def jpeg(mode="RGB", size=(300, 300)) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, 128 if mode == "L" else None).save(stream, "JPEG")
    return stream.getvalue()


def bomb() -> bytes:
    """A small JPEG whose header claims 60000 x 60000 pixels."""
    content = bytearray(jpeg())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", 60000, 60000)
    return bytes(content)


@pytest.mark.parametrize(
    ("date", "words"),
    [
        ("2099-01-05", ["2099-01-05 cannot be made yet", "edits until 2099-01-05 00:00 UTC"]),
        ("2026-02-23", ["no label was edited before 2026-02-23", "the first snapshot date is 2026-0"]),
    ],
)
def test_a_date_without_a_snapshot(run, date, words):
    status, err = run(date)
    assert status == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (HEADER, ["labels.csv is empty"]),
        ("image_id,label\np0001-a,coin\n", ["lacks the column(s) product_id, source, updated_at"]),
        (HEADER + "p0001-a,p0001,coin,import,next Monday\n", ["cannot read the label table", "next Monday"]),
        (HEADER + ",p0001,coin,import,2026-02-01T00:00:00Z\n", ["1 edit(s) without image_id or updated_at"]),
        (HEADER + "p0001-a,p0001,,import,2026-02-01T00:00:00Z\n", ["every label", "withdrawn as of 2026-03-02"]),
        (None, ["there is no label table", "--data"]),
    ],
)
def test_a_label_table_that_cannot_be_used(run, data, labels, words):
    (data / "labels.csv").unlink() if labels is None else (data / "labels.csv").write_text(labels)
    status, err = run()
    assert status == 1
    for word in words:
        assert word in err


def test_two_photographs_of_one_id(run, data):
    first = sorted((data / "images").iterdir())[0]
    (data / "images" / "more").mkdir()
    shutil.copy(first, data / "images" / "more" / first.name)
    status, err = run()
    assert status == 1 and "belong to more than one photograph" in err and repr(first.stem) in err and "rename one" in err


def test_more_bad_photographs_than_allowed_are_named_each(run, data):
    paths = sorted((data / "images").iterdir())[:4]
    whole = paths[0].read_bytes()
    bmp = io.BytesIO()
    Image.new("RGB", (300, 300)).save(bmp, "BMP")
    reasons = {
        b"": "the file is empty",
        whole[: len(whole) // 2]: "it cannot be decoded: image file is truncated",
        bmp.getvalue(): "the content is no JPEG, PNG, GIF or WebP",
        bomb(): "60000 x 60000 pixels exceed shards.max_pixels 50000000",
    }
    for path, content in zip(paths, reasons, strict=True):
        path.write_bytes(content)
    status, err = run()
    assert status == 1
    assert "4 of 199 photographs cannot be used, more than shards.max_quarantine_share 0.02 allows" in err
    for path, reason in zip(paths, reasons.values(), strict=True):
        assert f"{path.name}: {reason}" in err


def test_the_gate_names_labels_of_a_missing_and_of_a_quarantined_photograph(run, data):
    """Greyscale and CMYK photographs are as good as any: the week fails for the other two alone."""
    ids = [line.split(",")[0] for line in (SAMPLE / "labels.csv").read_text().splitlines()[1:5]]
    missing, empty, grey, cmyk = (data / "images" / f"{image_id}.jpg" for image_id in ids)
    missing.unlink()
    empty.write_bytes(b"")
    grey.write_bytes(jpeg("L"))
    cmyk.write_bytes(jpeg("CMYK"))
    status, err = run()
    assert status == 3
    assert "1 of 19 rules failed (max_orphans)" in err and "max_orphans: 2, allowed: 0" in err
    for path in (missing, empty):
        assert f"- {path.stem} (" in err
    for path in (grey, cmyk):
        assert path.stem not in err


def test_a_full_disk_says_so_and_the_store_works_once_there_is_room(tmp_path):
    """On a file system of a few MiB, mounted where nobody else sees it."""
    store = tmp_path / "store"
    store.mkdir()
    script = f"""
import os, subprocess, sys, local_runner

def mount(*options):
    return subprocess.run(["mount", *options, {str(store)!r}]).returncode

def run():
    return local_runner.main(["--snapshot-date", "2026-03-30", "--store", {str(store)!r}])

if mount("-t", "tmpfs", "-o", "size=3m", "none"):
    sys.exit("no mount")
print("FULL", run(), file=sys.stderr)
mount("-o", "remount,size=200m")
print("ROOM", run(), file=sys.stderr)
print("LEFT", os.listdir({str(store / "shards")!r}), file=sys.stderr)
"""
    # Root needs no name space of its own for users, and in a chroot gets none.
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    command = [*alone, sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    if "FULL" not in done.stderr and ("unshare" in done.stderr or "no mount" in done.stderr):
        pytest.skip(f"this machine lets nobody mount a small file system: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr
    full, rest = done.stderr.split("FULL 1\n")
    assert "error: the disk is full (" in full and "--store" in full
    rejected, left = rest.split("ROOM 3\n")
    assert "max_orphans: 6, allowed: 0" in rejected, "with room, the bad week reaches the gate"
    assert "'generation-000001'" in left and "'." not in left
