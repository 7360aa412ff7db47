"""Photographs become generations of image shards; only what is new is packed."""

import errno
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import unicodedata

import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline import errors, storage
from pipeline.errors import PipelineError
from pipeline.settings import BEAM_HERE
from pipeline.shards import generations, packing, planning, sharder
from tests.pipeline.shards.conftest import jpeg, shard_settings

HERE = PipelineOptions(list(BEAM_HERE))


def rows_of(generation) -> list[dict]:
    return [row for uri in generation.index_files() for row in pq.read_table(uri).to_pylist()]


def shard_files(root) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pathlib.Path(root).glob("shard-*")}


def leftovers(root) -> list[str]:
    """What a packing that ended must not leave: its plan, and temporary folders."""
    return [path.name for path in pathlib.Path(root).iterdir() if path.name.startswith(".tmp-") or path.name == "plan"]


def bytes_of(root) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(pathlib.Path(root).rglob("*")) if path.is_file()}


def sources_of(rows) -> dict[str, str]:
    return {pathlib.Path(row["source_uri"]).name: row["reason"] for row in rows}


def spoil(path: pathlib.Path) -> None:
    """Makes a file unusable in a way that only reading it can tell."""
    stat = path.stat()
    path.write_bytes(bytes(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "shards"


@pytest.fixture
def pack(images, root):
    return lambda **settings: sharder.pack_folder(images, root, shard_settings(**settings), HERE)


def test_a_missing_folder_names_it_and_the_flag(tmp_path, root):
    with pytest.raises(PipelineError, match=r"no folder of photographs .*nowhere: give a folder"):
        sharder.pack_folder(tmp_path / "nowhere", root, shard_settings(), HERE)


def test_a_folder_without_a_jpeg_file(tmp_path, root):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "p1.png").write_bytes(jpeg(format="PNG"))
    with pytest.raises(PipelineError, match=r"photos holds no photograph: .*\.jpg or \.jpeg"):
        sharder.pack_folder(tmp_path / "photos", root, shard_settings(), HERE)


@pytest.mark.parametrize("second", ["p03.jpeg", "p03.JPG", "deeper/p03.jpg"])
def test_two_files_with_one_id_are_both_named(images, pack, second):
    (images / second).parent.mkdir(exist_ok=True)
    (images / second).write_bytes(jpeg())
    with pytest.raises(PipelineError) as raised:
        pack()
    for words in ["1 image id(s)", "'p03'", str(images / "p03.jpg"), str(images / second), "rename one"]:
        assert words in str(raised.value)


def test_one_name_in_two_unicode_forms_is_one_id(images, pack):
    for form in ("NFC", "NFD"):
        (images / unicodedata.normalize(form, "caf\u00e9.jpg")).write_bytes(jpeg())
    with pytest.raises(PipelineError, match="(?s)rename one of.*'caf\u00e9'"):
        pack()


@pytest.mark.parametrize("name", [b"caf\xe9.jpg", b"caf\xe9/cup.jpg", b"two\nlines.jpg", b"..jpg"])
def test_a_file_whose_name_gives_no_id_is_in_quarantine(images, pack, name):
    path = os.path.join(os.fsencode(images), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(jpeg())
    with pytest.raises(PipelineError, match=r"1 of 13 photographs cannot be used.*\n.*rename it\n"):
        pack()
    generation = pack(max_quarantine_share=0.1)
    assert (generation.images, generation.quarantined) == (12, 1)
    assert pack(max_quarantine_share=0.1) == generation


@pytest.mark.parametrize("name", ["two words", "it's", 'say "x"', "a..b", "Ärmel ☃", "50%", "a#b", "-x", "x;--"])
def test_names_that_mean_something_to_somebody_are_just_names(images, pack, root, name):
    (images / f"{name}.jpg").write_bytes(jpeg(seed=77))
    rows = {row["image_id"]: row for row in rows_of(pack())}
    assert len(rows) == 13 and rows[name]["source_uri"] == str(images / f"{name}.jpg")


def test_folders_are_searched_at_any_depth_and_only_for_jpeg_files(images, pack):
    (images / "a" / "b").mkdir(parents=True)
    (images / "a" / "b" / "deep.JPEG").write_bytes(jpeg())
    (images / "notes.txt").write_text("no photograph")
    (images / "folder.jpg").mkdir()
    rows = {row["image_id"]: row["source_uri"] for row in rows_of(pack())}
    assert len(rows) == 13 and rows["deep"] == str(images / "a" / "b" / "deep.JPEG")


def test_the_index_agrees_with_the_records_in_the_shards(images, root, pack):
    generation = pack()
    rows = rows_of(generation)
    assert [row["image_id"] for row in rows] == [f"p{number:02d}" for number in range(12)]
    for row in rows:
        with open(generation.shard_path(row["shard"]), "rb") as stream:
            stream.seek(row["offset"])
            framed = stream.read(row["length"])
        assert struct.unpack("<Q", framed[:8])[0] == row["length"] - 16
        in_order = [record.numpy() for record in tf.data.TFRecordDataset(generation.shard_path(row["shard"]))]
        assert in_order[row["ordinal"]] == framed[12:-4]
        feature = tf.train.Example.FromString(framed[12:-4]).features.feature
        encoded = feature["image/encoded"].bytes_list.value[0]
        assert feature["image_id"].bytes_list.value[0].decode() == row["image_id"]
        assert hashlib.sha256(encoded).hexdigest() == row["sha256"] == feature["image/sha256"].bytes_list.value[0].decode()
        assert len(encoded) == row["bytes"]
        assert tuple(tf.io.decode_jpeg(encoded).shape) == (row["height"], row["width"], 3)
        source = pathlib.Path(row["source_uri"])
        assert hashlib.sha256(source.read_bytes()).hexdigest() == row["source_sha256"]
        assert (source.stat().st_size, source.stat().st_mtime_ns) == (row["source_bytes"], row["source_version"])
        assert feature["source/sha256"].bytes_list.value[0].decode() == row["source_sha256"]
        assert row["revision"] == 1
        assert json.loads(row["packing"]) == {
            "version": sharder.VERSION, "short_side": 32, "quality": 90, "min_side": 16, "max_pixels": 100_000_000,
        }  # fmt: skip


def test_the_manifest_tells_counts_and_digests_of_everything(root, pack):
    generation = pack()
    manifest = json.loads(pathlib.Path(generation.folder, "manifest.json").read_text())
    assert (generation.number, generation.images, generation.packed, generation.quarantined) == (1, 12, 12, 0)
    assert generation.shards == len(shard_files(root)) == len(manifest["shards"])
    for name, content in shard_files(root).items():
        digest = hashlib.sha256(content).hexdigest()
        assert name == f"shard-{digest[:32]}.tfrecord"
        records = sum(row["shard"] == name for row in rows_of(generation))
        assert manifest["shards"][name] == {"records": records, "bytes": len(content), "sha256": digest}
    assert generation.bytes == sum(map(len, shard_files(root).values()))
    assert manifest["index"] == {
        storage.name_of(uri): hashlib.sha256(pathlib.Path(uri).read_bytes()).hexdigest() for uri in generation.index_files()
    }
    assert manifest["settings"]["target_bytes"] == 4096
    counts = {"images": 12, "new": 12, "changed": 0, "gone": 0, "packed": 12, "kept": 0, "quarantined": 0, "vanished": 0}
    assert manifest["counts"] == counts
    assert generation.table == f"image_index_{generation.digest[:16]}"


@pytest.mark.parametrize("target", [4096, 8192, 10**6])
def test_shards_have_about_their_size(images, pack, target):
    for number in range(12, 60):
        (images / f"p{number:02d}.jpg").write_bytes(jpeg(seed=number))
    generation = pack(target_bytes=target)
    assert 0.6 * generation.bytes / target <= generation.shards <= generation.bytes / target + 1


def test_the_bytes_of_originals_decide_their_shards(pack):
    generation = pack(short_side="original", target_bytes=4096)
    assert 0.6 * generation.bytes / 4096 <= generation.shards <= generation.bytes / 4096 + 1
    assert {(row["height"], row["sha256"]) for row in rows_of(generation)} == {
        (60, row["source_sha256"]) for row in rows_of(generation)
    }


def test_neighbours_in_the_folder_are_spread_over_the_shards(pack):
    shards = [row["shard"] for row in rows_of(pack(target_bytes=8192))]
    assert shards != sorted(shards) and shards != sorted(shards, reverse=True)


@pytest.mark.parametrize("readers", [1, 3])
def test_another_root_and_other_threads_give_the_same_bytes_and_digest(images, root, pack, tmp_path, readers):
    other = sharder.pack_folder(images, tmp_path / "other", shard_settings(readers=readers), HERE)
    assert other.digest == pack().digest
    assert shard_files(tmp_path / "other") == shard_files(root)
    assert [pathlib.Path(uri).read_bytes() for uri in other.index_files()] == [
        pathlib.Path(uri).read_bytes() for uri in pack().index_files()
    ]


def test_a_second_call_returns_the_same_generation_and_reads_no_photograph(images, root, pack):
    first = pack()
    for path in images.iterdir():
        spoil(path)
    assert pack() == first
    assert [path.name for path in sorted(root.glob("generation-*"))] == ["generation-000001"]


@pytest.mark.parametrize("how", ["touched", "moved"])
def test_a_touched_or_moved_file_is_the_same_photograph_read_once(images, root, pack, how):
    (images / "deeper").mkdir()
    first, before = pack(), shard_files(root)
    if how == "touched":
        os.utime(images / "p00.jpg", ns=(1, 1))
    else:
        os.rename(images / "p00.jpg", images / "deeper" / "p00.jpg")
    second = pack()
    # What it holds is the same; that its source has another place or time is written down.
    assert (second.number, second.digest, second.packed) == (2, first.digest, 0) and shard_files(root) == before
    assert {row["image_id"] for row in rows_of(second) if row not in rows_of(first)} == {"p00"}
    for path in images.rglob("*.jpg"):
        spoil(path)
    assert pack() == second


def test_a_new_file_is_packed_alone_and_old_shards_stay(images, root, pack):
    first, before = pack(), shard_files(root)
    for path in images.iterdir():
        spoil(path)  # whoever reads an old file again will fail
    (images / "new.jpg").write_bytes(jpeg(seed=99))
    second = pack()
    assert (second.number, second.images, second.packed) == (2, 13, 1)
    assert second.digest != first.digest
    after = shard_files(root)
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 1
    old = {row["image_id"]: row for row in rows_of(first)}
    assert [row["image_id"] for row in rows_of(second) if row != old.get(row["image_id"])] == ["new"]
    assert second.shards == len(after)


def test_a_generation_stays_readable_after_the_next(images, pack):
    first = pack()
    rows, shards = rows_of(first), first.shard_facts()
    (images / "new.jpg").write_bytes(jpeg(seed=99))
    pack()
    assert rows_of(first) == rows and first.shard_facts() == shards


def test_a_changed_file_is_packed_again(images, pack):
    first = {row["image_id"]: row for row in rows_of(pack())}
    (images / "p05.jpg").write_bytes(jpeg(seed=1234, width=90))
    generation = pack()
    assert (generation.number, generation.images, generation.packed) == (2, 12, 1)
    changed = [row for row in rows_of(generation) if row != first[row["image_id"]]]
    assert [row["image_id"] for row in changed] == ["p05"] and changed[0]["sha256"] != first["p05"]["sha256"]
    assert (generation.changed, changed[0]["revision"]) == (1, 2)
    assert pq.read_table(f"{generation.folder}/changes.parquet").to_pylist() == [
        {
            "image_id": "p05",
            "change": "changed",
            "before_sha256": first["p05"]["source_sha256"],
            "after_sha256": changed[0]["source_sha256"],
        }
    ]


def test_a_removed_file_leaves_the_index_and_nothing_is_packed(images, root, pack):
    pack()
    before = shard_files(root)
    (images / "p05.jpg").unlink()
    generation = pack()
    assert (generation.number, generation.images, generation.packed) == (2, 11, 0)
    assert "p05" not in {row["image_id"] for row in rows_of(generation)}
    assert shard_files(root) == before
    (change,) = pq.read_table(f"{generation.folder}/changes.parquet").to_pylist()
    assert (generation.gone, change["image_id"], change["change"]) == (1, "p05", "gone")


def test_a_shard_that_no_photograph_needs_any_more_is_not_listed(images, pack):
    first = pack(target_bytes=1024)
    alone = next(shard for shard, facts in first.shard_facts().items() if facts["records"] == 1)
    (row,) = [row for row in rows_of(first) if row["shard"] == alone]
    pathlib.Path(row["source_uri"]).unlink()
    second = pack(target_bytes=1024)
    assert second.shards == first.shards - 1 and alone not in second.shard_facts()


def test_changed_settings_pack_everything_again(pack):
    first, second = pack(), pack(short_side=24)
    assert (second.number, second.packed) == (2, 12)
    assert {row["height"] for row in rows_of(second)} == {24}
    assert {row["shard"] for row in rows_of(second)}.isdisjoint(row["shard"] for row in rows_of(first))


@pytest.mark.parametrize("changes", [{"max_quarantine_share": 0.5}, {"target_bytes": 1024}, {"readers": 1}])
def test_settings_that_decide_about_no_stored_byte_pack_nothing_again(pack, changes):
    assert pack() == pack(**changes)


@pytest.mark.parametrize("how", ["lost", "cut"])
def test_a_shard_that_is_lost_or_of_another_size_is_named(root, pack, how):
    first = pack()
    shard = min(root.glob("shard-*"))
    if how == "lost":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(PipelineError) as raised:
        pack()
    for words in ["1 image shard(s)", first.folder, str(shard), "backup"]:
        assert words in str(raised.value)


def test_a_plan_of_another_version_is_made_anew(root, pack, monkeypatch):
    assert killed_at(monkeypatch, pack, 9)
    path = root / "plan" / "plan.json"
    path.write_text(json.dumps({"format": 99, "anything": 1}))
    assert pack().number == 1


def test_quarantine_up_to_its_share_is_recorded_with_reasons(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    (images / "p01.jpg").write_bytes(jpeg(8, 8))
    generation = pack(max_quarantine_share=2 / 12)
    assert (generation.images, generation.quarantined) == (10, 2)
    assert sources_of(generation.quarantine()) == {
        "p00.jpg": "the content is no JPEG, PNG, GIF or WebP that can be read",
        "p01.jpg": "8 x 8 pixels are below shards.min_side 16",
    }


def test_a_quarantined_file_is_not_read_again_but_goes_on_counting(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    first = pack(max_quarantine_share=0.1)
    spoil(images / "p00.jpg")
    assert pack(max_quarantine_share=0.1) == first
    (images / "new.jpg").write_bytes(jpeg())
    assert pack(max_quarantine_share=0.1).quarantined == 1


def test_a_quarantined_file_that_is_mended_is_packed(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    assert pack(max_quarantine_share=0.1).images == 11
    (images / "p00.jpg").write_bytes(jpeg())
    generation = pack(max_quarantine_share=0.1)
    assert (generation.images, generation.packed, generation.quarantined) == (12, 1, 0)


def test_a_quarantined_file_that_is_bad_in_another_way_has_its_new_reason(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    pack(max_quarantine_share=0.1)
    (images / "p00.jpg").write_bytes(jpeg(8, 8))
    generation = pack(max_quarantine_share=0.1)
    (listed,) = generation.quarantine()
    assert generation.number == 2 and listed["reason"] == "8 x 8 pixels are below shards.min_side 16"


def test_another_bad_file_in_the_place_of_a_removed_one_is_listed(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    pack(max_quarantine_share=0.1)
    (images / "p00.jpg").unlink()
    (images / "q00.jpg").write_bytes(b"")
    generation = pack(max_quarantine_share=0.1)
    assert generation.number == 2 and list(sources_of(generation.quarantine())) == ["q00.jpg"]


def test_more_quarantine_than_allowed_names_each_file_with_its_reason(images, root, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    (images / "p01.jpg").write_bytes(b"")
    with pytest.raises(PipelineError) as raised:
        pack(max_quarantine_share=0.16)
    for words in [
        "2 of 12 photographs", "shards.max_quarantine_share 0.16", "p00.jpg: the content is no",
        "p01.jpg: the file is empty", "Replace or remove",
    ]:  # fmt: skip
        assert words in str(raised.value)
    assert generations.latest(str(root)) is None and leftovers(root) == []


def test_a_long_list_of_quarantined_files_is_cut(images, pack):
    for path in images.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(PipelineError, match="(?s)12 of 12 photographs.*p09.jpg.*and 2 more"):
        pack()


def test_nothing_left_to_train_on(images, pack):
    for path in images.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(PipelineError, match="every photograph went to quarantine"):
        pack(max_quarantine_share=1.0)


def test_files_that_are_replaced_after_too_much_quarantine_cost_no_new_packing_of_the_others(images, root, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    with pytest.raises(PipelineError, match="what is packed stays packed"):
        pack()
    assert generations.latest(str(root)) is None and leftovers(root) == []
    before = shard_files(root)
    for path in images.iterdir():
        spoil(path)  # whoever reads an old file again will fail
    (images / "p00.jpg").write_bytes(jpeg(seed=5))
    generation = pack()
    assert (generation.number, generation.images, generation.packed, generation.quarantined) == (1, 12, 12, 0)
    assert len(shard_files(root)) == len(before) + 1
    assert {row["revision"] for row in rows_of(generation)} == {1}


def test_more_quarantine_is_allowed_later_without_a_new_packing(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    with pytest.raises(PipelineError, match="cannot be used"):
        pack()
    for path in images.iterdir():
        spoil(path)
    generation = pack(max_quarantine_share=0.1)
    assert (generation.number, generation.images, generation.quarantined) == (1, 11, 1)


def test_a_file_that_cannot_be_read_is_tried_again(images, pack, monkeypatch):
    read, broken = storage.read, True

    def fail(uri, version=None):
        if broken and uri.endswith("p00.jpg"):
            raise OSError(errno.EIO, "Input/output error", uri)
        return read(uri, version)

    monkeypatch.setattr(storage, "read", fail)
    first = pack(max_quarantine_share=0.1)
    assert sources_of(first.quarantine()) == {"p00.jpg": "it cannot be read: Input/output error"}
    assert pack(max_quarantine_share=0.1) == first  # still broken: nothing to tell
    broken = False
    second = pack(max_quarantine_share=0.1)
    assert (second.number, second.images, second.quarantined) == (2, 12, 0)


@pytest.mark.parametrize("how", ["gone", "replaced", "replaced by no image"])
def test_a_source_that_disappears_or_changes_while_it_is_read(images, root, pack, monkeypatch, how):
    read, path, met = storage.read, images / "p00.jpg", []

    def late(uri, version=None):
        if uri == str(path) and planning.read(str(root)) and not met:
            met.append(uri)
            if how == "gone":
                path.unlink()
            else:
                path.write_bytes(jpeg(seed=4321) if how == "replaced" else b"nothing")
                os.utime(path, ns=(7, 7))
        return read(uri, version)

    monkeypatch.setattr(storage, "read", late)
    first = pack(max_quarantine_share=0.1)
    row = {row["image_id"]: row for row in rows_of(first)}.get("p00")
    if how == "replaced":
        assert row["source_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest() and row["source_version"] == 7
        assert pack(max_quarantine_share=0.1) == first
    else:
        assert row is None and first.images == 11
        assert first.manifest()["counts"]["vanished"] == (how == "gone")
        assert first.quarantined == (how != "gone")


class Killed(BaseException):
    """Ends a packing as a kill does: nothing that the product catches."""


def killed_at(monkeypatch, pack, step: int) -> bool:
    """Packs until the `step`th time that something is about to be written or removed; whether it got so far."""
    count = 0

    def counting(original):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == step:
                raise Killed
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("write", "create", "publish", "remove_folder"):
            patch.setattr(storage, name, counting(getattr(storage, name)))
        # In this thread, where a kill is not dressed as an error of Beam's.
        patch.setattr(packing, "run", lambda buckets, root, settings, options: [
            packing.pack_bucket(bucket, root, settings) for bucket in buckets
        ])  # fmt: skip
        try:
            pack()
        except Killed:
            return True
    return False


def test_whatever_step_a_packing_is_killed_before_the_next_one_completes_it(images, tmp_path, monkeypatch):
    """First a generation, then one with a new, a changed, a gone and a quarantined photograph."""
    config = shard_settings(max_quarantine_share=0.5, target_bytes=8192)

    def change():
        (images / "p01.jpg").write_bytes(jpeg(seed=77))
        (images / "p02.jpg").unlink()
        (images / "p03.jpg").write_bytes(b"no picture")
        (images / "new.jpg").write_bytes(jpeg(seed=78))
        for path in images.iterdir():
            os.utime(path, ns=(1, 1))

    for path in images.iterdir():
        os.utime(path, ns=(0, 0))
    pristine = tmp_path / "pristine"
    shutil.copytree(images, pristine)
    first = tmp_path / "first"
    sharder.pack_folder(images, first, config, HERE)
    steps = {}
    for phase in (1, 2):
        straight = None
        for step in range(0, 100):
            shutil.rmtree(images)
            shutil.copytree(pristine, images)
            root = tmp_path / f"shards-{phase}-{step}"
            if phase == 2:
                shutil.copytree(first, root)
                change()
            reached = killed_at(monkeypatch, lambda: sharder.pack_folder(images, root, config, HERE), step)
            known = generations.latest(str(root))
            assert known is None or known.number <= phase and len(rows_of(known)) == known.images
            generation = sharder.pack_folder(images, root, config, HERE)
            assert generation.number == phase and leftovers(root) == []
            if step == 0:
                straight = bytes_of(root)
            assert {name: content for name, content in bytes_of(root).items() if "manifest" not in name} == {
                name: content for name, content in straight.items() if "manifest" not in name
            }
            shutil.rmtree(root)
            if step and not reached:
                steps[phase] = step
                break
    # Buckets, their results, shards, plan, index, manifest: many places to die at.
    assert steps[1] > 10 and steps[2] > 10


def test_what_comes_while_a_packing_is_cut_off_is_a_generation_of_its_own(images, root, pack, monkeypatch):
    assert killed_at(monkeypatch, pack, 9) and planning.read(str(root))
    (images / "late.jpg").write_bytes(jpeg(seed=55))
    generation = pack()
    assert (generation.number, generation.images, generation.packed) == (2, 13, 1)


def test_a_packing_that_was_cut_off_is_given_up_when_its_settings_change(root, pack, monkeypatch, caplog):
    assert killed_at(monkeypatch, pack, 9)
    generation = pack(short_side=24)
    assert generation.number == 1 and {row["height"] for row in rows_of(generation)} == {24}
    assert "a packing that was cut off is given up" in caplog.text


def test_kill_9_in_the_middle_and_a_rerun_give_the_bytes_of_an_unbroken_run(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for number in range(150):
        (images / f"p{number:03d}.jpg").write_bytes(jpeg(400, 300, seed=number))
    config = tmp_path / "settings.yaml"
    config.write_text(
        "name: x\nwarehouse: {kind: duckdb}\nnetwork: {image_size: 96}\n"
        "shards: {short_side: 96, target_bytes: 20000, readers: 1}\n"
    )
    command = [sys.executable, "-m", "pipeline", "shard", "--images", str(images), "--settings", str(config), "--output"]
    broken, straight = tmp_path / "broken", tmp_path / "straight"
    process = subprocess.Popen([*command, str(broken)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not list(broken.glob("plan/*/*.packed.parquet")) and time.monotonic() < deadline:
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert generations.latest(str(broken)) is None and planning.read(str(broken)) is not None
    for root in (broken, straight):
        done = subprocess.run([*command, str(root)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert leftovers(broken) == []
    of_broken, of_straight = bytes_of(broken), bytes_of(straight)
    assert of_broken == of_straight and len(of_broken) > 10


def test_a_second_packing_into_one_folder_is_refused_while_the_first_runs(root, pack):
    with storage.locked(str(root)), pytest.raises(errors.StoreBusy, match="another process packs photographs"):
        pack()
    assert pack().number == 1


def test_a_folder_whose_name_is_a_pattern_is_refused(images, tmp_path):
    with pytest.raises(PipelineError, match=r"one of \* \? \[ \]"):
        sharder.pack_folder(images, tmp_path / "a[1]", shard_settings(), HERE)


def test_what_a_killed_process_left_is_swept(root, pack):
    first = pack()
    for place in (root, pathlib.Path(first.folder)):
        (place / ".tmp-killed").mkdir()
        (place / ".tmp-killed" / "rows.parquet").write_bytes(b"half")
    pathlib.Path(first.folder, ".quarantine.json-x").write_bytes(b"half")
    assert pack() == first
    assert leftovers(root) == [] and not list(pathlib.Path(first.folder).glob(".*"))


def test_nothing_temporary_is_left_by_a_failure(root, pack, monkeypatch):
    def fail(path, uri):
        raise RuntimeError("a defect")

    monkeypatch.setattr(storage, "publish", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        pack()
    assert generations.latest(str(root)) is None and not [name for name in leftovers(root) if name != "plan"]


@pytest.mark.parametrize("broken", ["publish", "write", "create"])
def test_a_full_disk_says_so_and_the_next_call_completes(images, root, pack, monkeypatch, tmp_path, broken):
    original, calls = getattr(storage, broken), []

    def full(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2 or broken == "create":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(storage, broken, full)
        with pytest.raises(Exception, match="No space left") as raised:
            pack()
    assert "the disk is full" in str(errors.user_error(raised.value))
    assert generations.latest(str(root)) is None
    generation = pack()
    assert generation.number == 1
    assert generation.digest == sharder.pack_folder(images, tmp_path / "untroubled", shard_settings(), HERE).digest


def test_the_index_is_cut_into_files_and_read_as_one(images, pack, monkeypatch):
    monkeypatch.setattr(planning, "INDEX_ROWS", 5)
    generation = pack()
    assert [storage.name_of(uri) for uri in generation.index_files()] == [
        f"index-{part:05d}-of-00003.parquet" for part in range(3)
    ]
    assert [row["image_id"] for row in rows_of(generation)] == [f"p{number:02d}" for number in range(12)]
    (images / "new.jpg").write_bytes(jpeg(seed=99))
    assert (pack().images, pack().packed) == (13, 1)


def test_a_table_of_uris_in_place_of_a_folder(images, root, tmp_path):
    table = tmp_path / "uris.csv"
    table.write_text("uri,image_id\nimages/p00.jpg,first\n" + f"{images}/p01.jpg,\n" + "images/none.jpg,\n")
    with pytest.raises(PipelineError, match="(?s)1 of 3 .*none.jpg: there is no such file"):
        sharder.pack_folder(table, root, shard_settings(), HERE)
    generation = sharder.pack_folder(table, root, shard_settings(max_quarantine_share=0.5), HERE)
    assert {row["image_id"]: row["source_uri"] for row in rows_of(generation)} == {
        "first": str(images / "p00.jpg"),
        "p01": str(images / "p01.jpg"),
    }


def test_progress_is_reported_while_shards_are_packed(images, pack, monkeypatch, caplog):
    monkeypatch.setattr(sharder, "_SECONDS_BETWEEN_REPORTS", 0.01)
    original = packing.pack_bucket

    def slow(*arguments):
        time.sleep(0.1)
        original(*arguments)

    monkeypatch.setattr(packing, "pack_bucket", slow)
    with caplog.at_level("INFO", "pipeline"):
        pack(target_bytes=1024)
    assert "of" in caplog.text and "shards, about" in caplog.text and "s left" in caplog.text
    assert threading.active_count() < 50


def test_the_newest_generation_is_the_one_of_the_highest_number(root, pack):
    pack()
    for number in (9, 10, 1_000_000):  # the last is longer than its name's padding
        folder = root / f"generation-{number:06d}"
        shutil.copytree(root / "generation-000001", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"number": number}))
    assert generations.latest(str(root)).number == 1_000_000


def test_a_folder_without_a_manifest_is_no_generation(root, pack):
    first = pack()
    (root / "generation-000002").mkdir()
    assert generations.latest(str(root)) == first


def test_a_generation_of_another_format_is_refused(root, pack):
    path = pathlib.Path(pack().folder, "manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(PipelineError, match="written in format 99, this version reads 2: pack the photographs again"):
        pack()
