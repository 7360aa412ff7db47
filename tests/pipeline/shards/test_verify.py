"""`python -m pipeline shard --verify` proves a generation, or names the file that is not as it was."""

import hashlib
import json
import pathlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from models import tfrecords
from pipeline.__main__ import main
from pipeline.settings import BEAM_HERE
from pipeline.shards import commands, generations, planning, sharder, verify
from tests.pipeline.shards.conftest import jpeg, shard_settings

HERE = PipelineOptions(list(BEAM_HERE))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Twelve photographs, packed: the folders of images and of shards, which every test copies."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "images").mkdir()
    for number in range(12):
        (folder / "images" / f"p{number:02d}.jpg").write_bytes(jpeg(seed=number, width=80 + number))
    (folder / "images" / "bad.jpg").write_bytes(b"no picture")
    sharder.pack_folder(folder / "images", folder / "shards", shard_settings(max_quarantine_share=0.2), HERE)
    return folder


@pytest.fixture
def root(packed, tmp_path):
    return pathlib.Path(shutil.copytree(packed / "shards", tmp_path / "shards"))


@pytest.fixture
def shards(root) -> list[pathlib.Path]:
    """At least three, each of several records."""
    return sorted(root.glob("shard-*"))


@pytest.fixture
def folder(root) -> pathlib.Path:
    return root / "generation-000001"


@pytest.fixture
def check(root, capsys):
    """Verifies by the command, which may change nothing: its exit status, what it prints, what it complains of."""

    def run(*options: str):
        before = states(root)
        capsys.readouterr()
        status = main(["shard", "--output", str(root), "--verify", *options])
        assert states(root) == before
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


@pytest.fixture
def problems(check):
    """Verifies what is not whole; the problems."""

    def run() -> list[str]:
        status, out, _ = check("--json")
        assert status == 1
        return json.loads(out)["problems"]

    return run


def states(root: pathlib.Path) -> dict:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(root.rglob("*"))
    }


def flip(path: pathlib.Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def index_of(folder: pathlib.Path) -> pathlib.Path:
    return folder / "index-00000-of-00001.parquet"


def change_index(folder: pathlib.Path, change, tell_manifest: bool) -> None:
    """Rewrites the index with `change(rows)`; an attacker, or a defect of ours, tells the manifest its digest too."""
    path = index_of(folder)
    rows = pq.read_table(path).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=planning.INDEX_SCHEMA), path)
    if tell_manifest:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        change_manifest(folder, lambda manifest: manifest["index"].update({path.name: digest}))


def change_manifest(folder: pathlib.Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_whole_generation(check, shards):
    assert len(shards) >= 3
    status, out, err = check()
    assert (status, err) == (0, "") and "generation 1 of" in out and "is whole: 12 photographs" in out
    assert "records are of" not in out and "other shards" not in out
    status, out, _ = check("--json")
    told = json.loads(out)
    assert status == 0 and told["problems"] == [] and told["unused"] == []
    assert (told["images"], told["shards"], told["superseded"]) == (12, len(shards), 0)


def test_there_is_nothing_to_verify(tmp_path, capsys):
    for place in (tmp_path, tmp_path / "nowhere"):
        assert main(["shard", "--output", str(place), "--verify"]) == 1
        assert f"error: {place} holds no image shards" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Of the first record: length, its checksum, payload; then the middle, and the end of the last record's checksum.
@pytest.mark.parametrize("place", [0, 7, 8, 11, 12, 40, 0.3, 0.5, 0.9, -5, -4, -1])
def test_a_flipped_byte_of_a_shard(problems, shards, place):
    flip(shards[1], int(place * shards[1].stat().st_size) if isinstance(place, float) else place)
    (problem,) = problems()
    assert problem.startswith(f"image shard {shards[1]} is damaged: ") and " record " in problem


@pytest.mark.parametrize("length", [0, 1, 12, 0.5, -1])
def test_a_shard_that_is_cut(problems, shards, length):
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[: int(length * len(content)) if isinstance(length, float) else length])
    found = problems()
    assert found and all(problem.startswith(f"image shard {shards[0]} ") for problem in found)


def test_a_shard_that_is_cut_between_records_lacks_some(problems, shards):
    with open(shards[0], "rb") as stream:
        last = list(tfrecords.read(stream))[-1]
    shards[0].write_bytes(shards[0].read_bytes()[: last.offset])
    found = problems()
    assert any(f"image shard {shards[0]} was altered" in problem for problem in found)
    assert any(f"image shard {shards[0]} lacks 1 records of the index" in problem for problem in found)


def test_a_shard_with_a_record_too_many(problems, shards):
    with open(shards[0], "rb") as stream:
        first = next(iter(tfrecords.read(stream)))
    shards[0].write_bytes(shards[0].read_bytes() + shards[0].read_bytes()[: first.length])
    assert problems() == [f"image shard {shards[0]} was altered: its digest is not the manifest's"]


def test_a_shard_that_is_missing(problems, shards):
    shards[2].unlink()
    assert problems() == [f"image shard {shards[2]} cannot be read: No such file or directory"]


def test_a_folder_in_place_of_a_shard(problems, shards):
    shards[2].unlink()
    shards[2].mkdir()
    assert problems() == [f"image shard {shards[2]} cannot be read: Is a directory"]


def test_a_shard_in_place_of_another(problems, shards):
    shards[0].write_bytes(shards[1].read_bytes())
    found = problems()
    assert found and all(problem.startswith(f"image shard {shards[0]}") for problem in found)
    assert any("was altered" in problem for problem in found)


def test_two_shards_that_changed_places_are_both_named(problems, shards):
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    shards[0].write_bytes(second)
    shards[1].write_bytes(first)
    found = problems()
    for shard in shards[:2]:
        assert any(str(shard) in problem for problem in found)
    assert not any(str(shard) in problem for shard in shards[2:] for problem in found)


def test_records_that_changed_places_in_a_shard(problems, shards):
    with open(shards[0], "rb") as stream:
        payloads = [record.payload for record in tfrecords.read(stream)]
    with open(shards[0], "wb") as stream:
        writer = tfrecords.Writer(stream)
        for payload in reversed(payloads):
            writer.write(payload)
    found = problems()
    assert any(f"image shard {shards[0]}: record 0, photograph" in problem for problem in found)


def test_each_of_several_damages_is_told_to_people_and_machines(check, problems, shards):
    flip(shards[0], 20)
    shards[1].unlink()
    found = problems()
    assert [problem.partition(" is damaged")[0].partition(" cannot")[0] for problem in found] == [
        f"image shard {shard}" for shard in shards[:2]
    ]
    status, out, err = check()
    assert (status, out) == (1, "") and all(problem in err for problem in found)
    assert "generation 1 of" in err and "is not whole" in err and "from a backup" in err


@pytest.mark.parametrize("place", [0, 0.2, 0.5, -1])
def test_an_index_file_that_was_altered(problems, folder, place):
    path = index_of(folder)
    flip(path, int(place * path.stat().st_size) if isinstance(place, float) else place)
    assert problems() == [f"index file {path} was altered: its digest is not the manifest's"]


def test_an_index_file_that_is_missing(problems, folder):
    index_of(folder).unlink()
    assert problems() == [f"index file {index_of(folder)} cannot be read: No such file or directory"]


def test_an_index_of_other_rows(problems, folder):
    change_index(folder, lambda rows: rows.pop(), tell_manifest=False)
    assert problems() == [f"index file {index_of(folder)} was altered: its digest is not the manifest's"]


@pytest.mark.parametrize(
    "column, value, words",
    [
        ("width", 1, "the index 1 x "),
        ("height", 1, " x 1"),
        ("offset", 1, "the index says 1"),
        ("length", 1, "it lies at byte"),
        ("source_sha256", "0" * 64, "it was made of another file than the index says"),
        ("bytes", 1, "1"),
        ("sha256", "0" * 64, "its stored bytes are not those of the index"),
    ],
)
def test_a_manifest_that_agrees_with_a_false_index_does_not_help_it(problems, folder, column, value, words):
    """The records say of themselves what the index says of them."""
    row = pq.read_table(index_of(folder)).to_pylist()[3]
    change_index(folder, lambda rows: rows[3].update({column: value}), tell_manifest=True)
    wanted = [words, str(folder.parent / row["shard"]), repr(row["image_id"])]
    assert any(all(word in problem for word in wanted) for problem in problems())


def test_an_index_without_a_photograph_is_not_that_of_the_digest(problems, folder):
    change_index(folder, lambda rows: rows.pop(3), tell_manifest=True)
    assert problems() == [f"the index of {folder} is not the one that its manifest's digest is of"]


def test_an_index_that_points_to_a_shard_that_the_manifest_does_not_name(problems, folder, shards):
    shard = shards[0]
    change_manifest(folder, lambda manifest: manifest["shards"].pop(shard.name))
    assert problems() == [f"the index points to {shard}, which the manifest does not name"]


def test_a_manifest_that_names_a_shard_to_which_nothing_points(problems, folder, shards):
    other = shards[0].with_name("shard-other.tfrecord")
    shutil.copy(shards[0], other)
    change_manifest(folder, lambda content: content["shards"].update({other.name: content["shards"][shards[0].name]}))
    assert problems() == [f"the manifest names {other}, to which the index does not point"]


@pytest.mark.parametrize("where", ["digest", "sha256 of a shard", "records of a shard", "packing"])
def test_a_manifest_of_another_digest(problems, folder, shards, where):
    facts = {"sha256 of a shard": {"sha256": "0" * 64}, "records of a shard": {"records": 99}}

    def change(manifest):
        if where in facts:
            manifest["shards"][shards[0].name] |= facts[where]
        else:
            manifest[where] = "0" * 64

    change_manifest(folder, change)
    (problem,) = problems()
    assert (str(shards[0]) if where in facts else str(folder)) in problem


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_a_manifest_that_is_none_is_named(check, folder, content):
    (folder / "manifest.json").write_bytes(content)
    status, out, err = check()
    assert (status, out) == (1, "") and err.startswith("error: ") and str(folder / "manifest.json") in err


def test_only_the_newest_generation_is_proved_and_what_it_left_behind_is_counted(packed, root, check, tmp_path):
    images = pathlib.Path(shutil.copytree(packed / "images", tmp_path / "images"))
    (images / "p03.jpg").write_bytes(jpeg(seed=77))
    (images / "p04.jpg").unlink()
    settings = shard_settings(max_quarantine_share=0.2)
    second = sharder.pack_folder(images, root, settings, HERE)
    assert (second.number, second.changed, second.gone) == (2, 1, 1)
    # A copy of the photographs has other times, but none was packed again for it.
    assert second.packed == 1
    status, out, _ = check()
    assert status == 0 and "generation 2 of" in out and "is whole: 11 photographs" in out
    assert "2 records are of photographs that changed or are gone" in out
    told = json.loads(check("--json")[1])
    assert (told["images"], told["superseded"], told["unused"]) == (11, 2, [])
    # A superseded record is still part of a shard that is needed.
    first = generations.every(str(root))[0]
    rows = {row["image_id"]: row for uri in first.index_files() for row in pq.read_table(uri).to_pylist()}
    flip(root / rows["p03"]["shard"], rows["p03"]["offset"] + 40)
    status, _, err = check()
    assert status == 1 and rows["p03"]["shard"] in err


def test_shards_that_no_photograph_needs_are_listed_and_not_read(root, check):
    for name in ("shard-cut-off.tfrecord", "shard-a.tfrecord"):
        (root / name).write_bytes(b"whatever")
    status, out, _ = check()
    assert status == 0 and "2 other shards are in the folder" in out
    assert json.loads(check("--json")[1])["unused"] == ["shard-a.tfrecord", "shard-cut-off.tfrecord"]


def test_a_long_list_of_problems_is_cut_for_people_and_whole_for_machines(shards, check, monkeypatch):
    monkeypatch.setattr(commands, "_SHOWN", 2)
    for shard in shards:
        shard.unlink()
    status, _, err = check()
    assert status == 1 and f"and {len(shards) - 2} more (--json lists them)" in err
    assert str(shards[1]) in err and str(shards[2]) not in err
    assert len(json.loads(check("--json")[1])["problems"]) == len(shards)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_find_the_same(root, shards, threads):
    flip(shards[0], 20)
    flip(shards[2], 20)
    generation = generations.latest(str(root))
    assert verify.verify(generation, threads) == verify.verify(generation)
    assert len(verify.verify(generation, threads).problems) == 2
