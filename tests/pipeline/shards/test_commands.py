"""`python -m pipeline shard`: what a person sees of packing."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from pipeline import storage
from pipeline.__main__ import main
from tests.pipeline.shards.conftest import jpeg


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(
        "name: x\nwarehouse: {kind: duckdb}\nnetwork: {image_size: 32}\n"
        "shards: {short_side: 32, min_side: 16, target_bytes: 4096, max_quarantine_share: 0.1}\n"
    )
    return path


@pytest.fixture
def shard(images, tmp_path, config, capsys):
    """Runs the command on the folder of twelve photographs; exit status, standard output and standard error."""

    def run(*arguments, images=images, output=tmp_path / "shards", settings=config):
        given = ["--images", str(images)] if images else []
        given += ["--settings", str(settings)] if settings else []
        status = main(["shard", *given, "--output", str(output), *arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return status, printed.out, printed.err

    return run


def test_packing_tells_what_it_did(shard, images):
    (images / "p01.jpg").write_bytes(b"")
    status, out, err = shard()
    assert status == 0 and "generation 1 of" in out and ": 11 photographs in " in out
    assert "11 new, 0 changed, 0 gone, 0 not packed again, 1 in quarantine" in out
    assert f"{images / 'p01.jpg'} is in quarantine: the file is empty" in err

    status, out, err = shard()
    assert status == 0 and out.startswith("nothing is new: generation 1 of ") and err == ""

    (images / "p00.jpg").unlink()
    (images / "p01.jpg").write_bytes(jpeg(seed=100))
    (images / "p02.jpg").write_bytes(jpeg(seed=101))
    status, out, err = shard()
    assert "1 new, 1 changed, 1 gone, 9 not packed again, 0 in quarantine" in out and "changes.parquet" in out


def test_json_for_machines(shard):
    _, out, _ = shard("--json")
    told = json.loads(out)
    assert told["sealed"] is True and (told["number"], told["images"], told["packed"]) == (1, 12, 12)
    assert told["index_table"] == f"image_index_{told['digest'][:16]}"
    _, out, _ = shard("--json")
    assert json.loads(out) == told | {"sealed": False}
    assert json.loads(shard("--status", "--json")[1])["generations"][0]["number"] == 1
    assert json.loads(shard("--verify", "--json")[1])["problems"] == []


def test_status_tells_generations_and_what_is_unfinished(shard, images, tmp_path):
    shard()
    (images / "new.jpg").write_bytes(jpeg(seed=100))
    shard()
    plan = tmp_path / "shards" / "plan"
    (plan / "abc").mkdir(parents=True)
    (plan / "plan.json").write_text(json.dumps({"folder": str(plan / "abc"), "buckets": ["bucket-0", "bucket-1"]}))
    for name in ("bucket-000000.parquet", "bucket-000000.packed.parquet", "bucket-000001.parquet"):
        (plan / "abc" / name).write_bytes(b"")
    status, out, _ = shard("--status")
    lines = out.splitlines()
    assert status == 0 and [line.split()[:3] for line in lines[1:3]] == [["1", "12", "12"], ["2", "13", "1"]]
    assert "a packing is unfinished: 1 of 2 shards" in lines[3]


def test_without_settings_those_of_the_newest_generation_hold(shard, images):
    shard()
    (images / "new.jpg").write_bytes(jpeg(seed=100))
    _, out, _ = shard(settings=None)
    assert "1 new, 0 changed, 0 gone, 12 not packed again" in out


def test_status_and_verify_answer_without_images(shard):
    shard()
    assert shard("--status", images=None)[0] == 0
    status, out, _ = shard("--verify", images=None)
    assert status == 0 and "generation 1 of" in out and "is whole: 12 photographs" in out


def test_a_damaged_shard_is_named_and_the_exit_status_is_not_0(shard, tmp_path):
    shard()
    path = sorted((tmp_path / "shards").glob("shard-*"))[1]
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    status, out, err = shard("--verify")
    assert status == 1 and out == "" and f"image shard {path} is damaged: record 0 at byte 0" in err and "Restore" in err


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ([], {"images": None}, "say by --images where the photographs are"),
        ([], {"images": "nowhere"}, "there is no folder of photographs"),
        ([], {"images": "notes.csv"}, "there is no folder of photographs"),
        (["--status"], {"output": "empty"}, "holds no image shards"),
        (["--verify"], {"output": "empty"}, "holds no image shards"),
        ([], {"settings": "none.yaml"}, "cannot read the settings file"),
        ([], {"output": "a[1]"}, r"one of * ? [ ]"),
        (["--", "--runner=NoSuchRunner"], {}, "NoSuchRunner"),
    ],
)
def test_a_mistake_is_one_clear_sentence(shard, tmp_path, arguments, options, words):
    options = {name: value and tmp_path / value for name, value in options.items()}
    status, out, err = shard(*arguments, **options)
    assert status != 0 and out == "" and err.startswith("error: ") and words in err


def test_an_output_that_is_a_file(shard, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = shard(output=tmp_path / "file")
    assert status == 1 and str(tmp_path / "file") in err


def test_an_image_folder_that_is_a_file(shard, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(jpeg())
    status, _, err = shard(images=tmp_path / "photo.jpg")
    assert status == 1 and "there is no folder of photographs" in err


def test_verify_and_status_without_shards_do_not_make_the_folder(shard, tmp_path):
    shard("--status", output=tmp_path / "none")
    shard("--verify", output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_status_is_quick_because_it_loads_neither_tensorflow_nor_beam(shard, tmp_path):
    shard()
    script = (
        "import sys\nfrom pipeline.__main__ import main\n"
        f"main(['shard', '--output', {str(tmp_path / 'shards')!r}, '--status'])\n"
        "print({'tensorflow', 'apache_beam', 'tfx', 'duckdb'} & sys.modules.keys() or 'light')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "light"


def test_a_full_disk_says_so(shard, tmp_path, images):
    """A real one, where this may be mounted."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("nobody may mount a file system here")
    try:
        for number in range(12, 300):
            (images / f"p{number}.jpg").write_bytes(jpeg(seed=number))
        status, _, err = shard(output=small / "shards")
        assert status == 1 and "the disk is full" in err
        subprocess.run(["mount", "-o", "remount,size=20m", str(small)], check=True)
        status, out, _ = shard(output=small / "shards")
        assert status == 0 and "300 new" in out
        assert shard("--verify", output=small / "shards")[0] == 0
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_packing_leaves_the_photographs_as_they_are(shard, images):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in images.iterdir()}
    shard()
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in images.iterdir()} == before
    assert not storage.names(str(images / "plan")) and os.path.isdir(images)
    shutil.rmtree(images)
