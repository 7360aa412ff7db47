"""A folder of photographs becomes generations of image shards; only what is new is packed."""

import errno
import hashlib
import json
import os
import pathlib
import shutil
import struct

import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.shards import sharder
from tests.pipeline.shards.conftest import jpeg, shard_settings


def rows_of(generation) -> list[dict]:
    return pq.read_table(generation.index).to_pylist()


def shard_files(root) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pathlib.Path(root).glob("shard-*")}


def hidden(root) -> list[str]:
    return [path.name for path in pathlib.Path(root).glob(".*")]


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
    return lambda **settings: sharder.pack_folder(images, root, shard_settings(**settings))


def test_a_missing_folder_names_it_and_the_flag(tmp_path, root):
    with pytest.raises(PipelineError, match=r"no folder of photographs .*nowhere.*--data"):
        sharder.pack_folder(tmp_path / "nowhere", root, shard_settings())


def test_a_folder_without_a_jpeg_file(tmp_path, root):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "p1.png").write_bytes(jpeg(format="PNG"))
    with pytest.raises(PipelineError, match=r"photos holds no photograph: .*\.jpg or \.jpeg"):
        sharder.pack_folder(tmp_path / "photos", root, shard_settings())


@pytest.mark.parametrize("second", ["p03.jpeg", "p03.JPG", "deeper/p03.jpg"])
def test_two_files_with_one_id_are_both_named(images, pack, second):
    (images / second).parent.mkdir(exist_ok=True)
    (images / second).write_bytes(jpeg())
    with pytest.raises(PipelineError) as raised:
        pack()
    for words in ["'p03'", str(images / "p03.jpg"), str(images / second), "rename one"]:
        assert words in str(raised.value)


@pytest.mark.parametrize("name", [b"caf\xe9.jpg", b"caf\xe9/cup.jpg"])
def test_a_file_name_that_is_not_utf_8_is_named(images, pack, name):
    path = os.path.join(os.fsencode(images), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(jpeg())
    with pytest.raises(PipelineError, match=r"caf\\udce9.*' is not UTF-8: rename it"):
        pack()


def test_folders_are_searched_at_any_depth_and_only_for_jpeg_files(images, pack):
    (images / "a" / "b").mkdir(parents=True)
    (images / "a" / "b" / "deep.JPEG").write_bytes(jpeg())
    (images / "notes.txt").write_text("no photograph")
    (images / "folder.jpg").mkdir()
    rows = {row["image_id"]: row["source_file"] for row in rows_of(pack())}
    assert len(rows) == 13 and rows["deep"] == os.path.join("a", "b", "deep.JPEG")


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
        source = images / row["source_file"]
        assert hashlib.sha256(source.read_bytes()).hexdigest() == row["source_sha256"]
        assert (source.stat().st_size, source.stat().st_mtime_ns) == (row["source_bytes"], row["source_mtime_ns"])
        assert feature["source/sha256"].bytes_list.value[0].decode() == row["source_sha256"]


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
    assert manifest["index_sha256"] == hashlib.sha256(pathlib.Path(generation.index).read_bytes()).hexdigest()
    assert generation.table == f"image_index_{generation.digest[:16]}"


@pytest.mark.parametrize("target", [1024, 4096, 6000, 10**6])
def test_a_shard_is_closed_before_it_exceeds_its_size(pack, target):
    generation = pack(target_bytes=target)
    lengths = {}
    for row in sorted(rows_of(generation), key=lambda row: (row["shard"], row["ordinal"])):
        lengths.setdefault(row["shard"], []).append(row["length"] - 16)
    assert all(len(records) == 1 or sum(records) <= target for records in lengths.values())
    total = sum(sum(records) for records in lengths.values())
    largest = max(max(records) for records in lengths.values())
    # Closed no earlier than needed: all but the last are filled to within one record.
    assert generation.shards <= total // max(target - largest, 1) + 1 if target > largest else generation.shards == 12
    assert generation.shards >= total / max(target, largest)


def test_neighbours_in_the_folder_are_spread_over_the_shards(pack):
    shards = [row["shard"] for row in rows_of(pack(target_bytes=8192))]
    assert shards != sorted(shards) and shards != sorted(shards, reverse=True)


def test_another_root_gives_the_same_bytes_and_the_same_digest(images, root, pack, tmp_path):
    other = sharder.pack_folder(images, tmp_path / "other", shard_settings())
    assert other.digest == pack().digest
    assert shard_files(tmp_path / "other") == shard_files(root)


def test_a_second_call_returns_the_same_generation_and_reads_no_photograph(images, root, pack):
    first = pack()
    for path in images.iterdir():
        spoil(path)
    assert pack() == first
    assert [path.name for path in sorted(root.glob("generation-*"))] == ["generation-000001"]


def test_a_touched_file_is_the_same_photograph(images, pack):
    first = pack()
    os.utime(images / "p00.jpg", ns=(1, 1))
    assert pack() == first


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


def test_a_removed_file_leaves_the_index_and_nothing_is_packed(images, root, pack):
    pack()
    before = shard_files(root)
    (images / "p05.jpg").unlink()
    generation = pack()
    assert (generation.number, generation.images, generation.packed) == (2, 11, 0)
    assert "p05" not in {row["image_id"] for row in rows_of(generation)}
    assert shard_files(root) == before


def test_a_shard_that_no_photograph_needs_any_more_is_not_listed(images, pack):
    first = pack(target_bytes=1024)
    assert first.shards == 12
    (images / "p05.jpg").unlink()
    assert pack(target_bytes=1024).shards == 11


def test_changed_settings_pack_everything_again(pack):
    first, second = pack(), pack(short_side=24)
    assert (second.number, second.packed) == (2, 12)
    assert {row["height"] for row in rows_of(second)} == {24}
    assert {row["shard"] for row in rows_of(second)}.isdisjoint(row["shard"] for row in rows_of(first))


def test_the_share_of_quarantine_packs_nothing_again(pack):
    assert pack(max_quarantine_share=0.5) == pack()


def test_a_lost_shard_is_named(root, pack):
    first = pack()
    lost = min(root.glob("shard-*"))
    lost.unlink()
    with pytest.raises(PipelineError) as raised:
        pack()
    for words in ["1 image shard(s)", first.folder, str(lost), "backup"]:
        assert words in str(raised.value)


def test_quarantine_up_to_its_share_is_recorded_with_reasons(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    (images / "p01.jpg").write_bytes(jpeg(8, 8))
    generation = pack(max_quarantine_share=2 / 12)
    assert (generation.images, generation.quarantined) == (10, 2)
    listed = json.loads(pathlib.Path(generation.folder, "quarantine.json").read_text())
    assert {row["source_file"]: row["reason"] for row in listed} == {
        "p00.jpg": "the content is no image",
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
    (listed,) = json.loads(pathlib.Path(generation.folder, "quarantine.json").read_text())
    assert generation.number == 2 and listed["reason"] == "8 x 8 pixels are below shards.min_side 16"


def test_another_bad_file_in_the_place_of_a_removed_one_is_listed(images, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    pack(max_quarantine_share=0.1)
    (images / "p00.jpg").unlink()
    (images / "q00.jpg").write_bytes(b"")
    generation = pack(max_quarantine_share=0.1)
    listed = json.loads(pathlib.Path(generation.folder, "quarantine.json").read_text())
    assert generation.number == 2 and [row["source_file"] for row in listed] == ["q00.jpg"]


def test_more_quarantine_than_allowed_names_each_file_with_its_reason(images, root, pack):
    (images / "p00.jpg").write_bytes(b"no picture")
    (images / "p01.jpg").write_bytes(b"")
    with pytest.raises(PipelineError) as raised:
        pack(max_quarantine_share=0.16)
    for words in [
        "2 of 12 photographs", "shards.max_quarantine_share 0.16", "p00.jpg: the content is no image",
        "p01.jpg: the file is empty", "Replace or remove",
    ]:  # fmt: skip
        assert words in str(raised.value)
    assert sharder.latest(root) is None


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


def test_a_failure_while_packing_leaves_no_generation_and_no_temporary_file(root, pack, monkeypatch):
    encode, calls = sharder.records.encode_image, []

    def fail_late(**fields):
        calls.append(fields["image_id"])
        if len(calls) == 9:
            raise KeyboardInterrupt
        return encode(**fields)

    monkeypatch.setattr(sharder.records, "encode_image", fail_late)
    with pytest.raises(KeyboardInterrupt):
        pack()
    assert shard_files(root) and hidden(root) == [] and sharder.latest(root) is None


@pytest.mark.parametrize("broken", ["sharder.os.replace", "sharder.pq.write_table", "sharder.files.sha256_of"])
def test_a_full_disk_leaves_nothing_half_written_and_the_next_call_mends_it(images, root, pack, monkeypatch, tmp_path, broken):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"pipeline.shards.{broken}", full)
        with pytest.raises(OSError, match="No space left"):
            pack()
    assert hidden(root) == [] and list(root.glob("generation-*")) == []
    generation = pack()
    assert generation.number == 1
    assert generation.digest == sharder.pack_folder(images, tmp_path / "untroubled", shard_settings()).digest


def test_the_newest_generation_is_the_one_of_the_highest_number(root, pack):
    pack()
    for number in (9, 10, 1_000_000):  # the last is longer than its name's padding
        folder = root / f"generation-{number:06d}"
        shutil.copytree(root / "generation-000001", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"number": number}))
    assert sharder.latest(root).number == 1_000_000


def test_a_folder_without_a_manifest_is_no_generation(root, pack):
    first = pack()
    (root / "generation-000002").mkdir()
    assert sharder.latest(root) == first


def test_a_generation_of_another_format_is_refused(root, pack):
    path = pathlib.Path(pack().folder, "manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(PipelineError, match="written in format 99, this version reads 1: pack the photographs again"):
        pack()
