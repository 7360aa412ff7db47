"""Image shards from and to Cloud Storage, and the emulator that stands for it here."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core import exceptions
from google.cloud import storage as google_storage
from google.cloud.storage.retry import DEFAULT_RETRY

from pipeline import storage
from pipeline.__main__ import main
from pipeline.errors import PipelineError
from pipeline.settings import BEAM_HERE
from pipeline.shards import generations, packing, sharder
from tests.pipeline.conftest import ROOT
from tests.pipeline.shards.conftest import jpeg, shard_settings

HERE = PipelineOptions(list(BEAM_HERE))

IMAGES, SHARDS = "gs://photos/in", "gs://out/deep/shards"

LARGE = os.urandom(9 * 2**20)  # more than goes up in one piece


class TestTheEmulator:
    """It answers as Cloud Storage documents, to Google's own client."""

    @pytest.fixture
    def bucket(self, cloud):
        return google_storage.Client().bucket("photos")

    @pytest.mark.parametrize("content", [b"small", LARGE], ids=["multipart", "resumable"])
    def test_an_upload_for_no_generation_creates_and_never_replaces(self, cloud, bucket, content):
        blob = bucket.blob("a b/é#?%.jpg")
        blob.upload_from_string(content, if_generation_match=0)
        first = bucket.get_blob(blob.name).generation
        with pytest.raises(exceptions.PreconditionFailed):
            blob.upload_from_string(content[::-1], if_generation_match=0)
        assert bucket.get_blob(blob.name).generation == first and blob.download_as_bytes() == content
        way = "multipart" if content == b"small" else "resumable"
        assert {call.upload for call in cloud.calls if call.kind == "write"} == {way}

    @pytest.mark.parametrize("content", [b"small", LARGE], ids=["multipart", "resumable"])
    def test_an_upload_for_a_generation_replaces_that_one_only(self, cloud, bucket, content):
        generation = cloud.put("gs://photos/a", b"one")
        blob = bucket.blob("a")
        for wrong in (generation + 1, 1):
            with pytest.raises(exceptions.PreconditionFailed):
                blob.upload_from_string(content, if_generation_match=wrong)
        assert cloud.content("gs://photos/a") == b"one"
        blob.upload_from_string(content, if_generation_match=generation)
        assert cloud.content("gs://photos/a") == content and bucket.get_blob("a").generation > generation

    def test_an_upload_in_pieces_is_judged_at_its_end_too(self, cloud, bucket):
        cloud.before(
            lambda call: call.kind == "write" and cloud.count("write") == 2,
            lambda: cloud.put("gs://photos/a", b"faster"),
        )
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("a").upload_from_string(LARGE, if_generation_match=0)
        assert cloud.content("gs://photos/a") == b"faster"

    def test_a_simple_upload_has_preconditions_too(self, cloud):
        post = google_storage.Client()._http.post
        address = f"{cloud.endpoint}/upload/storage/v1/b/photos/o?uploadType=media&name=a&ifGenerationMatch=0"
        assert [post(address, data=content).status_code for content in (b"one", b"two")] == [200, 412]
        assert cloud.content("gs://photos/a") == b"one"

    def test_a_download_of_a_generation_gives_that_one_or_none(self, cloud, bucket):
        generation = cloud.put("gs://photos/a", b"one")
        assert bucket.blob("a").download_as_bytes(if_generation_match=generation) == b"one"
        cloud.put("gs://photos/a", b"two")
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("a").download_as_bytes(if_generation_match=generation)
        with pytest.raises(exceptions.NotFound):
            bucket.blob("a", generation=generation).download_as_bytes()
        cloud.delete("gs://photos/a")
        with pytest.raises(exceptions.NotFound):
            bucket.blob("a").download_as_bytes(if_generation_match=generation)

    def test_a_deletion_of_a_generation_leaves_another(self, cloud, bucket):
        cloud.put("gs://photos/a", b"one")
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("a").delete(if_generation_match=1)
        assert cloud.content("gs://photos/a") == b"one"

    def test_a_precondition_that_it_does_not_know_fails(self, cloud, bucket):
        cloud.put("gs://photos/a", b"one")
        with pytest.raises(exceptions.MethodNotImplemented):
            bucket.blob("a").reload(if_metageneration_match=1)

    def test_a_range_behind_the_end_cannot_be_satisfied(self, cloud, bucket):
        cloud.put("gs://photos/a", b"0123456789")
        assert bucket.blob("a").download_as_bytes(start=8, end=100) == b"89"
        with pytest.raises(exceptions.RequestRangeNotSatisfiable):
            bucket.blob("a").download_as_bytes(start=10, end=100)

    def test_a_listing_comes_in_pages_and_has_the_fields_that_were_asked_for(self, cloud):
        cloud.page = 2
        for name in ("b", "a", "c", "d/1", "d/2", "e"):
            cloud.put(f"gs://photos/{name}", b"x")
        client = google_storage.Client()
        listing = client.list_blobs("photos", delimiter="/", fields="items(name),prefixes,nextPageToken")
        blobs = list(listing)
        assert ([blob.name for blob in blobs], listing.prefixes) == (["a", "b", "c", "e"], {"d/"})
        assert cloud.count("list") == 3 and {blob.size for blob in blobs} == {None}
        # Whoever does not ask for the token gets the first page only.
        assert len(list(client.list_blobs("photos", fields="items(name)"))) == 2

    def test_what_a_killed_client_sent_of_an_upload_is_not_kept(self, cloud, bucket):
        port = int(cloud.endpoint.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(
                b"POST /upload/storage/v1/b/photos/o?uploadType=media&name=half HTTP/1.1\r\n"
                b"Content-Length: 10\r\n\r\nhalf"
            )
        assert not bucket.blob("half").exists()

    def test_faults_last_as_long_as_a_test_wants(self, cloud, bucket):
        cloud.put("gs://photos/a", b"one")
        cloud.answer(404, lambda call: call.kind == "read" and call.name == "a", times=1)
        with pytest.raises(exceptions.NotFound):
            bucket.blob("a").download_as_bytes()
        cloud.answer(503, lambda call: call.kind == "stat", times=2)
        assert bucket.blob("a").exists() and cloud.count("stat") == 3
        cloud.answer(403, lambda call: call.bucket == "photos")
        with pytest.raises(exceptions.Forbidden):
            bucket.blob("a").download_as_bytes()
        cloud.heal()
        assert bucket.blob("a").download_as_bytes() == b"one"


@pytest.fixture(scope="session")
def photographs() -> dict[str, bytes]:
    return {f"p{n:02d}.jpg": jpeg(seed=n, width=80 + n, colour=(15 * n, 120, 150)) for n in range(12)}


@pytest.fixture
def images(cloud, photographs):
    """Twelve photographs, p00 to p11, in two folders."""
    for name, content in photographs.items():
        cloud.put(f"{IMAGES}/{'deeper/' * (name > 'p07')}{name}", content)
    return IMAGES


@pytest.fixture
def pack(images):
    def pack(images=images, root=SHARDS, **changes):
        return sharder.pack_folder(images, root, shard_settings(**changes), HERE)

    return pack


@pytest.fixture
def no_patience(monkeypatch):
    """The client gives up soon, not after two minutes."""
    for name in ("_timeout", "_deadline"):
        monkeypatch.setattr(DEFAULT_RETRY, name, 0.2)


@pytest.fixture
def config(tmp_path):
    """A settings file for the command, with about two photographs a shard."""
    path = tmp_path / "settings.yaml"
    path.write_text(
        "name: x\nwarehouse: {kind: duckdb}\nnetwork: {image_size: 32}\n"
        "shards: {short_side: 32, min_side: 16, target_bytes: 1500, readers: 1, max_quarantine_share: 0.0}\n"
    )
    return str(path)


def rows_of(generation) -> dict[str, dict]:
    rows = [pq.read_table(pa.BufferReader(storage.read(uri))).to_pylist() for uri in generation.index_files()]
    return {row["image_id"]: row for row in itertools.chain.from_iterable(rows)}


def shards_below(cloud, root=SHARDS) -> dict[str, bytes]:
    return {name: content for name, content in cloud.below(root).items() if name.startswith("shard-")}


def sealed(cloud, root=SHARDS) -> list[str]:
    return [name for name in cloud.below(root) if name.endswith("manifest.json")]


def pack_here(buckets, root, settings, options) -> None:
    """In place of Beam, in this thread."""
    for bucket in buckets:
        packing.pack_bucket(bucket, root, settings)


def test_generation_and_shards_are_those_of_a_disk(cloud, pack, photographs, tmp_path):
    (tmp_path / "images").mkdir()
    for name, content in photographs.items():
        (tmp_path / "images" / name).write_bytes(content)
    here, there = pack(str(tmp_path / "images"), str(tmp_path / "shards")), pack()
    assert (there.number, there.images, there.folder) == (1, 12, f"{SHARDS}/generation-000001")
    assert there.digest == here.digest and there.shard_facts() == here.shard_facts()
    of_disk = {path.name: path.read_bytes() for path in (tmp_path / "shards").glob("shard-*")}
    assert shards_below(cloud) == of_disk and len(of_disk) >= 3
    assert rows_of(there).keys() == rows_of(here).keys()
    for image_id, row in rows_of(there).items():
        place = {name: row[name] for name in ("source_uri", "source_version")}
        assert row == rows_of(here)[image_id] | place
        listed = storage.Listed(row["source_uri"], row["source_bytes"], row["source_version"])
        assert storage.stat(row["source_uri"]) == listed
    # From a disk to Cloud Storage, and the other way.
    assert pack(str(tmp_path / "images"), "gs://out/other").digest == here.digest
    assert pack(root=str(tmp_path / "other")).digest == here.digest


def test_nothing_but_shards_and_the_generation_is_left(cloud, pack):
    generation = pack()
    assert set(cloud.below(SHARDS)) == set(generation.shard_facts()) | {
        f"generation-000001/{name}"
        for name in ("index-00000-of-00001.parquet", "quarantine.json", "changes.parquet", "manifest.json")
    }
    assert cloud.below("gs://out").keys() == {f"deep/shards/{name}" for name in cloud.below(SHARDS)}


def test_a_second_run_lists_and_reads_no_photograph(cloud, pack):
    first, before = pack(), cloud.below("gs://out")
    cloud.calls.clear()
    assert pack() == first and cloud.below("gs://out") == before
    assert {call.kind for call in cloud.calls if call.bucket == "photos"} == {"list"}
    assert cloud.count("write") == cloud.count("delete") == 0


def test_a_new_photograph_is_read_and_packed_alone(cloud, pack):
    first, before = pack(), shards_below(cloud)
    cloud.put(f"{IMAGES}/new.jpg", jpeg(seed=99))
    cloud.calls.clear()
    second = pack()
    assert {call.name for call in cloud.calls if call.kind == "read" and call.bucket == "photos"} == {"in/new.jpg"}
    assert (second.number, second.images, second.packed, second.changed) == (2, 13, 1, 0)
    assert before.items() < shards_below(cloud).items() and len(shards_below(cloud)) == len(before) + 1
    assert {image_id: row for image_id, row in rows_of(second).items() if image_id != "new"} == rows_of(first)


def test_a_changed_object_is_a_new_revision(cloud, pack):
    first = rows_of(pack())
    generation = cloud.put(f"{IMAGES}/p03.jpg", jpeg(seed=77))
    second = pack()
    assert (second.number, second.images, second.packed, second.changed) == (2, 12, 1, 1)
    row = rows_of(second)["p03"]
    assert (row["revision"], row["source_version"]) == (2, generation) and row["sha256"] != first["p03"]["sha256"]
    assert pack() == second


def test_an_object_that_was_written_again_with_the_same_bytes_is_the_same_photograph(cloud, pack, photographs):
    first, before = pack(), shards_below(cloud)
    generation = cloud.put(f"{IMAGES}/p03.jpg", photographs["p03.jpg"])
    second = pack()
    assert (second.packed, second.digest) == (0, first.digest) and shards_below(cloud) == before
    row = rows_of(second)["p03"]
    assert (row["revision"], row["source_version"]) == (1, generation)
    cloud.calls.clear()
    assert pack() == second and cloud.count("read", "in/") == 0


def test_a_removed_object_leaves_the_index(cloud, pack):
    pack()
    cloud.delete(f"{IMAGES}/p03.jpg")
    second = pack()
    assert (second.images, second.packed, second.gone) == (11, 0, 1) and "p03" not in rows_of(second)


def test_what_is_no_photograph_is_in_quarantine_with_its_uri(cloud, pack):
    cloud.put(f"{IMAGES}/bad.jpg", b"no picture")
    cloud.put(f"{IMAGES}/.jpg", jpeg())
    with pytest.raises(PipelineError, match=f"(?s)2 of 14 photographs .*{IMAGES}/bad.jpg: the content is no"):
        pack()
    generation = pack(max_quarantine_share=0.5)
    assert (generation.number, generation.images, generation.quarantined) == (1, 12, 2)
    assert {row["source_uri"] for row in generation.quarantine()} == {f"{IMAGES}/bad.jpg", f"{IMAGES}/.jpg"}
    cloud.calls.clear()
    assert pack(max_quarantine_share=0.5) == generation and cloud.count("read", "in/") == 0


@pytest.mark.parametrize("when", ["before the shards are planned", "after"])
@pytest.mark.parametrize("how", ["gone", "replaced"])
def test_an_object_that_goes_or_changes_between_listing_and_reading(cloud, pack, how, when):
    uri = f"{IMAGES}/p03.jpg"
    reads = iter(range(100))

    def is_it(call):
        return call.kind == "read" and call.uri == uri and next(reads) == (when == "after")

    cloud.before(is_it, lambda: cloud.delete(uri) if how == "gone" else cloud.put(uri, jpeg(seed=77)))
    generation = pack()
    counts = generation.manifest()["counts"]
    if how == "gone":
        assert (generation.images, generation.quarantined, counts["vanished"]) == (11, 0, 1)
    else:
        assert (generation.images, counts["vanished"]) == (12, 0)
        row = rows_of(generation)["p03"]
        assert (row["source_version"], row["revision"]) == (storage.stat(uri).version, 1)
    cloud.calls.clear()
    assert pack() == generation and cloud.count("read", "in/") == 0


def test_one_answer_that_there_is_no_such_object_does_not_lose_it(cloud, pack):
    """What was answered so and is there is packed at once, or by the next run."""
    cloud.answer(404, lambda call: call.kind in ("read", "stat") and call.uri == f"{IMAGES}/p03.jpg", times=4)
    pack()
    assert "p03" in rows_of(pack())


@pytest.mark.parametrize("kind", ["list", "stat", "read", "write", "delete"])
def test_a_server_that_is_busy_a_few_times_costs_seconds_and_nothing_else(cloud, pack, monkeypatch, kind):
    monkeypatch.setattr(DEFAULT_RETRY, "_initial", 0.01)
    cloud.answer(503, lambda call: call.kind == kind, times=2)
    generation = pack()
    assert (generation.images, generation.quarantined) == (12, 0)
    assert sealed(cloud) == ["generation-000001/manifest.json"]


def test_a_manifest_whose_answer_got_lost_is_this_runs_own(cloud, pack):
    cloud.answer(503, lambda call: call.kind == "write" and call.name.endswith("manifest.json"), times=1, late=True)
    generation = pack()
    assert (generation.number, generation.images) == (1, 12) and pack() == generation


def fails(capsys, *words: str) -> str:
    """What a command complains of that fails as it should: one error for people, and no traceback."""
    capsys.readouterr()
    assert main(["shard", *words]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "error: " in err and "Traceback" not in err
    return err


@pytest.mark.parametrize("kinds", ["list stat read write delete", "write", "list", "write delete"])
def test_an_output_that_may_not_be_written(cloud, images, config, capsys, kinds):
    cloud.answer(403, lambda call: call.bucket == "out" and call.kind in kinds.split())
    err = fails(capsys, "--images", images, "--output", SHARDS, "--settings", config)
    assert SHARDS in err and "Cloud Storage refuses access" in err
    cloud.heal()
    assert main(["shard", "--images", images, "--output", SHARDS, "--settings", config]) == 0


def test_a_shard_that_may_not_be_written(cloud, images, config, capsys):
    cloud.answer(403, lambda call: call.kind == "write" and call.name.endswith(".tfrecord"))
    err = fails(capsys, "--images", images, "--output", SHARDS, "--settings", config)
    assert SHARDS in err and "Cloud Storage refuses access" in err


@pytest.mark.parametrize("kind", ["list", "read"])
def test_photographs_that_may_not_be_read(cloud, images, config, capsys, kind):
    cloud.answer(403, lambda call: call.bucket == "photos" and call.kind == kind)
    err = fails(capsys, "--images", images, "--output", SHARDS, "--settings", config)
    assert images in err and ("refuses access" in err if kind == "list" else "cannot be read" in err)


@pytest.mark.parametrize("words", [["--images", IMAGES], ["--status"], ["--verify"]], ids=["pack", "status", "verify"])
def test_an_output_in_a_bucket_that_is_not_there(images, capsys, words):
    assert "gs://nowhere/shards" in fails(capsys, *words, "--output", "gs://nowhere/shards")


@pytest.mark.parametrize("words", [["--status"], ["--verify"]], ids=["status", "verify"])
def test_an_output_that_may_not_be_read(cloud, pack, capsys, words):
    pack()
    cloud.answer(403, lambda call: call.bucket == "out")
    err = fails(capsys, *words, "--output", SHARDS)
    assert SHARDS in err and "Cloud Storage refuses access" in err


@pytest.mark.parametrize("words", [["--images", IMAGES], ["--status"], ["--verify"]], ids=["pack", "status", "verify"])
def test_a_server_that_stays_busy(cloud, pack, capsys, no_patience, words):
    pack()
    cloud.answer(503, lambda call: True)
    assert "gs://" in fails(capsys, *words, "--output", SHARDS)


def test_a_server_that_stays_busy_with_shards(cloud, images, config, capsys, no_patience):
    cloud.answer(503, lambda call: call.kind == "write" and call.name.endswith(".tfrecord"))
    assert SHARDS in fails(capsys, "--images", images, "--output", SHARDS, "--settings", config)


def test_status_tells_generations_for_people_and_machines(cloud, pack, capsys):
    assert f"{SHARDS} holds no image shards" in fails(capsys, "--status", "--output", SHARDS)
    pack()
    cloud.put(f"{IMAGES}/new.jpg", jpeg(seed=99))
    pack()
    capsys.readouterr()
    for output in (SHARDS, f"{SHARDS}/"):
        assert main(["shard", "--status", "--output", output]) == 0
        lines = capsys.readouterr().out.splitlines()
        columns = [line.split()[:3] for line in lines]
        assert columns == [["generation", "images", "packed"], ["1", "12", "12"], ["2", "13", "1"]]
    assert main(["shard", "--status", "--json", "--output", SHARDS]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["folder"] for one in told["generations"]] == [f"{SHARDS}/generation-00000{number}" for number in (1, 2)]
    assert told["unfinished"] is None


def test_verify_proves_what_is_there_and_writes_nothing(cloud, pack, capsys):
    generation, before = pack(), cloud.below("gs://out")
    cloud.calls.clear()
    capsys.readouterr()
    assert main(["shard", "--verify", "--output", SHARDS]) == 0
    out, err = capsys.readouterr()
    assert f"generation 1 of {SHARDS} is whole: 12 photographs" in out and err == ""
    assert {call.kind for call in cloud.calls} <= {"list", "stat", "read"} and cloud.below("gs://out") == before
    damaged, missing = sorted(generation.shard_facts())[:2]
    content = bytearray(cloud.content(f"{SHARDS}/{damaged}"))
    content[len(content) // 2] ^= 1
    cloud.put(f"{SHARDS}/{damaged}", bytes(content))
    cloud.delete(f"{SHARDS}/{missing}")
    assert main(["shard", "--verify", "--json", "--output", SHARDS]) == 1
    found = json.loads(capsys.readouterr().out)["problems"]
    assert len(found) == 2 and found[0].startswith(f"image shard {SHARDS}/{damaged} is damaged: ")
    assert found[1].startswith(f"image shard {SHARDS}/{missing} cannot be read: there is no such object")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_uris_in_place_of_a_prefix(cloud, pack, tmp_path, ending):
    whole = pack()
    uris = [row["source_uri"] for row in rows_of(whole).values()]
    uris[0] = uris[0].removeprefix(f"{IMAGES}/")
    path = tmp_path / f"uris.{ending}"
    if ending == "csv":
        path.write_text("\n".join(["uri", *uris, ""]))
    else:
        pq.write_table(pa.table({"uri": uris}), path)
    table = f"{IMAGES}/uris.{ending}"
    cloud.put(table, path.read_bytes())
    cloud.calls.clear()
    assert pack(table) == whole  # nothing is new: they are the same objects
    read = {call.name for call in cloud.calls if call.kind == "read" and call.bucket == "photos"}
    assert read == {f"in/uris.{ending}"}
    assert pack(table, "gs://out/other").digest == whole.digest


def command(*words: str) -> subprocess.Popen:
    """The command as its users start it; it finds the emulator by the environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", "shard", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def test_kill_9_in_the_middle_and_a_rerun_give_the_generation_of_an_unbroken_run(cloud, images, config, capsys):
    words = ["--images", images, "--settings", config, "--output"]
    process = command(*words, SHARDS)
    results = iter(range(100))
    cloud.before(
        lambda call: call.kind == "write" and call.name.endswith(".packed.parquet") and next(results) == 2,
        lambda: os.kill(process.pid, signal.SIGKILL),
    )
    assert ended(process)[0] == -signal.SIGKILL
    assert generations.latest(SHARDS) is None and not sealed(cloud)
    assert main(["shard", "--status", "--json", "--output", SHARDS]) == 0
    unfinished = json.loads(capsys.readouterr().out)["unfinished"]
    assert 2 <= unfinished["shards_done"] <= 3 < unfinished["shards"]

    done = {call.name for call in cloud.calls if call.kind == "write" and call.name.endswith(".tfrecord")}
    cloud.calls.clear()
    assert main(["shard", *words, SHARDS]) == 0
    assert "generation 1 of" in capsys.readouterr().out
    again = {call.name for call in cloud.calls if call.kind == "write" and call.name.endswith(".tfrecord")}
    assert len(done & again) <= 1  # what is packed stays packed
    assert main(["shard", *words, "gs://out/unbroken"]) == 0
    broken, unbroken = generations.latest(SHARDS), generations.latest("gs://out/unbroken")
    assert broken.digest == unbroken.digest and shards_below(cloud) == shards_below(cloud, "gs://out/unbroken")
    assert cloud.below(SHARDS).keys() == cloud.below("gs://out/unbroken").keys()


def test_two_packings_at_once_end_with_one_generation(cloud, images, config, capsys):
    words = ["--images", images, "--settings", config, "--output"]
    both = [ended(process) for process in [command(*words, SHARDS), command(*words, SHARDS)]]
    assert "Traceback" not in "".join(err for _, _, err in both)
    assert sorted(status for status, _, _ in both) in ([0, 0], [0, 1])
    assert all(err.count("error: ") == (status == 1) for status, _, err in both)
    assert main(["shard", *words, "gs://out/alone"]) == 0
    assert sealed(cloud) == ["generation-000001/manifest.json"]
    assert generations.latest(SHARDS).digest == generations.latest("gs://out/alone").digest
    assert main(["shard", "--verify", "--output", SHARDS]) == 0


@pytest.mark.parametrize("generation", [1, 2])
def test_a_packing_that_another_overtakes_at_any_step_ends_well_or_says_so(cloud, photographs, monkeypatch, generation):
    """At its `step`th reading, writing or removing in the output, another machine packs the same from start to end."""
    monkeypatch.setattr(packing, "run", pack_here)
    config = shard_settings(target_bytes=1500)
    for name in sorted(photographs)[:3]:
        cloud.put(f"{IMAGES}/{name}", photographs[name])
    alone = sharder.pack_folder(IMAGES, "gs://out/alone", config, HERE)
    first = cloud.below("gs://out/alone")
    if generation == 2:
        cloud.put(f"{IMAGES}/new.jpg", jpeg(seed=99))
        cloud.put(f"{IMAGES}/p00.jpg", jpeg(seed=98))
        alone = sharder.pack_folder(IMAGES, "gs://out/alone", config, HERE)
    wrong, steps = {}, 0
    for step in range(1, 100, 2):
        root, count = f"gs://out/{step}", 0
        if generation == 2:
            for name, content in first.items():
                cloud.put(f"{root}/{name}", content.replace(b"gs://out/alone", root.encode()))

        def overtaken(original, step=step, root=root):
            def call(uri, *arguments, **options):
                nonlocal count
                if root in (uri, *arguments)[-1 if original.__name__ == "publish" else 0]:
                    count += 1
                    if count == step:
                        sharder.pack_folder(IMAGES, root, config, HERE)
                return original(uri, *arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("exists", "read", "write", "create", "publish", "names", "remove_folder"):
                patch.setattr(storage, name, overtaken(getattr(storage, name)))
            try:
                assert sharder.pack_folder(IMAGES, root, config, HERE).digest == alone.digest
            except PipelineError:
                pass
            except Exception as error:
                wrong[step] = f"{type(error).__name__}: {error}"
        found = generations.latest(root)
        if (found.number, found.digest) != (generation, alone.digest) or len(sealed(cloud, root)) != generation:
            wrong[step] = f"sealed: {sealed(cloud, root)}, {found}"
        if count < step:
            break
        steps = step
    assert steps > 10
    assert not wrong, "\n".join(f"step {step}: {what}" for step, what in wrong.items())
