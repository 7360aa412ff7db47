"""What the product asks of a disk and of Cloud Storage: one class of tests that both pass."""

import itertools
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
import unicodedata

import pytest
from google.cloud.storage.retry import DEFAULT_RETRY

from pipeline import storage
from tests.cloud import storage_emulator

AWKWARD = [
    "two words", "it's", 'say "x"', "a#b", "a?b", "50%", "a%2Fb", "100%25", "a+b", "a&b=c", "x;--", "-x", "[1]*", "~a",
    "a..b", ".hidden", "a:b", "back\\slash", "line\nbreak", "Ärmel ☃", unicodedata.normalize("NFD", "café"), "日本",
]  # fmt: skip

LARGE = random.Random(7).randbytes(20 * 2**20)  # more than one piece, up and down


class StorageConformance:
    """Inherit, and give `root`: a place that exists as far as places do there, and holds nothing."""

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def fill(self, root: str, *names: str) -> None:
        for name in names:
            storage.write(storage.join(root, *name.split("/")), name.encode())

    def test_walk_finds_files_at_any_depth_as_stat_tells_them(self, root):
        self.fill(root, "a", "x/b", "x/y/z/c")
        found = {listed.uri: listed for listed in storage.walk(root)}
        assert set(found) == {f"{root}/a", f"{root}/x/b", f"{root}/x/y/z/c"}
        assert all(storage.stat(uri) == listed for uri, listed in found.items())
        assert found[f"{root}/x/y/z/c"].bytes == len("x/y/z/c")

    def test_children_are_what_lies_directly_in_a_folder(self, root):
        self.fill(root, "in/a", "in/b", "in/x/c", "in/x/d", "in/y/z/e", "inside/f")
        listed, folders = storage.children(f"{root}/in")
        assert sorted(listed, key=lambda file: file.uri) == [storage.stat(f"{root}/in/a"), storage.stat(f"{root}/in/b")]
        assert sorted(folders) == [f"{root}/in/x", f"{root}/in/y"]

    def test_names_are_those_of_files_and_folders_in_order(self, root):
        self.fill(root, "in/b", "in/c/d", "in/a", "inside/f")
        assert storage.names(f"{root}/in") == ["a", "b", "c"]

    @pytest.mark.parametrize("name", ["nowhere", "nowhere/deeper", "file", "file/below"])
    def test_what_is_no_folder_has_no_names(self, root, name):
        self.fill(root, "file")
        assert storage.names(f"{root}/{name}") == []

    @pytest.mark.parametrize("name", AWKWARD)
    def test_a_name_that_means_something_to_somebody_is_just_a_name(self, root, name):
        folder = storage.join(root, name)
        uri = storage.join(folder, f"{name}.jpg")
        assert storage.name_of(uri) == f"{name}.jpg" and not storage.exists(uri)
        storage.create(uri, name.encode())
        listed = storage.stat(uri)
        assert list(storage.walk(root)) == list(storage.walk(folder)) == [listed] and listed.uri == uri
        assert storage.children(folder) == ([listed], []) and storage.children(root) == ([], [folder])
        assert storage.names(root) == [name] and storage.names(folder) == [f"{name}.jpg"]
        assert storage.read(uri, listed.version) == name.encode()
        with storage.opened(uri) as stream:
            assert stream.read(100) == name.encode()
        with pytest.raises(FileExistsError):
            storage.create(uri, b"")
        storage.remove_folder(folder)
        assert storage.names(root) == []

    @pytest.mark.parametrize("content", [b"", b"\r\n", b"\0\xff\n--x", bytes(range(256)), b"PAR1"])
    def test_content_comes_back_byte_for_byte(self, root, content):
        for write in (storage.write, storage.create):
            uri = storage.join(root, write.__name__)
            write(uri, content)
            assert storage.read(uri) == content and storage.stat(uri).bytes == len(content)

    def test_write_goes_over_what_is_there(self, root):
        uri = storage.join(root, "deep", "er", "file")
        storage.write(uri, b"first and longer")
        storage.write(uri, b"second")
        assert storage.read(uri) == b"second" and storage.names(f"{root}/deep/er") == ["file"]

    def test_another_content_is_another_version(self, root):
        uri = storage.join(root, "file")
        storage.write(uri, b"one")
        first = storage.stat(uri)
        time.sleep(0.02)  # a disk tells times in ticks
        storage.write(uri, b"two")
        second = storage.stat(uri)
        assert (first.uri, first.bytes) == (second.uri, second.bytes) and first.version != second.version
        assert list(storage.walk(root)) == [second]

    def test_read_of_a_version_gives_that_one_or_none(self, root):
        uri = storage.join(root, "file")
        storage.write(uri, b"one")
        version = storage.stat(uri).version
        assert storage.read(uri, version) == b"one"
        time.sleep(0.02)
        storage.write(uri, b"two")
        with pytest.raises(FileNotFoundError, match="changed since it was listed") as raised:
            storage.read(uri, version)
        assert raised.value.filename == uri
        assert storage.read(uri) == storage.read(uri, storage.stat(uri).version) == b"two"

    def test_create_refuses_what_is_there(self, root):
        uri = storage.join(root, "deep", "file")
        storage.create(uri, b"first")
        with pytest.raises(FileExistsError):
            storage.create(uri, b"second")
        assert storage.read(uri) == b"first" and storage.names(f"{root}/deep") == ["file"]
        storage.remove_folder(f"{root}/deep")
        storage.create(uri, b"third")
        assert storage.read(uri) == b"third"

    def test_of_many_that_create_at_once_one_wins(self, root):
        for attempt in range(5):
            uri, barrier, won, lost = storage.join(root, f"file-{attempt}"), threading.Barrier(4), [], []

            def create(content, uri=uri, barrier=barrier, won=won, lost=lost):
                barrier.wait(10)
                try:
                    storage.create(uri, content)
                    won.append(content)
                except FileExistsError:
                    lost.append(content)

            threads = [threading.Thread(target=create, args=(bytes([number]) * 100,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert (len(won), len(lost)) == (1, 3) and storage.read(uri) == won[0]
        assert storage.names(root) == [f"file-{attempt}" for attempt in range(5)]

    @pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
    def test_publish_brings_a_file_whole(self, root, content):
        uri = storage.join(root, "new", "file")
        for content in (content, content + b"more"):
            with storage.scratch(root) as folder:
                path = pathlib.Path(folder, "local")
                path.write_bytes(content)
                storage.publish(str(path), uri)
            assert storage.read(uri) == content and not os.path.exists(folder)
        assert storage.names(root) == ["new"] and storage.names(f"{root}/new") == ["file"]

    def test_scratch_is_removed_after_an_error_too(self, root):
        with pytest.raises(KeyError), storage.scratch(root) as folder:
            pathlib.Path(folder, "half").write_bytes(b"half")
            raise KeyError
        assert not os.path.exists(folder) and storage.names(root) == []

    def test_a_large_file_is_read_in_pieces(self, root):
        uri = storage.join(root, "large")
        storage.write(uri, LARGE)
        sizes, pieces = random.Random(3), []
        with storage.opened(uri) as stream:
            while piece := stream.read(sizes.randrange(1, 5 * 2**20)):
                pieces.append(piece)
        assert b"".join(pieces) == LARGE and len(pieces) > 4

    def test_every_piece_but_the_last_is_as_long_as_was_asked(self, root):
        """Whoever reads a frame at a time takes a short piece for the end."""
        uri = storage.join(root, "large")
        storage.write(uri, LARGE)
        with storage.opened(uri) as stream:
            lengths = [len(stream.read(3 * 2**20 + 1)) for _ in range(7)]
        assert lengths == [3 * 2**20 + 1] * 6 + [len(LARGE) - 6 * (3 * 2**20 + 1)]

    def test_a_stream_can_be_sought(self, root):
        uri = storage.join(root, "large")
        storage.write(uri, LARGE)
        with storage.opened(uri) as stream:
            end, middle = len(LARGE) - 8, 9 * 2**20
            for offset, whence, place in [(-8, 2, end), (100, 0, 100), (middle, 1, middle + 108), (5, 0, 5)]:
                stream.seek(offset, whence)
                assert stream.tell() == place and stream.read(8) == LARGE[place : place + 8]

    def test_an_empty_file_is_read_as_one(self, root):
        uri = storage.join(root, "empty")
        storage.write(uri, b"")
        with storage.opened(uri) as stream:
            assert stream.read(8) == b""

    def test_what_is_not_there(self, root):
        uri = storage.join(root, "nothing")
        assert not storage.exists(uri)
        for call in (storage.stat, storage.read, lambda uri: storage.read(uri, 1), read_opened):
            with pytest.raises(FileNotFoundError) as raised:
                call(uri)
            assert raised.value.filename == uri and raised.value.strerror

    def test_an_update_sees_what_is_there_and_leaves_it_when_it_fails(self, root):
        uri, seen = storage.join(root, "deep", "file"), []

        def append(content):
            seen.append(content)
            return (content or b"") + b"x"

        for _ in range(3):
            storage.update(uri, append)
        with pytest.raises(KeyError):
            storage.update(uri, lambda content: {}["no"])
        assert seen == [None, b"x", b"xx"] and storage.read(uri) == b"xxx" and storage.names(f"{root}/deep") == ["file"]

    def test_an_update_that_changes_nothing_writes_nothing(self, root):
        self.fill(root, "file")
        before = storage.stat(storage.join(root, "file"))
        storage.update(storage.join(root, "file"), lambda content: content)
        assert storage.stat(storage.join(root, "file")) == before

    def test_of_many_that_update_at_once_none_is_lost(self, root):
        uri, barrier = storage.join(root, "file"), threading.Barrier(4)

        def update(number):
            barrier.wait(10)
            for _ in range(3):
                storage.update(uri, lambda content: (content or b"") + bytes([number]))

        threads = [threading.Thread(target=update, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(storage.read(uri)) == sorted([0, 1, 2, 3] * 3)

    def test_a_copied_folder_has_all_files_and_leaves_others(self, root, tmp_path):
        self.fill(root, "in/a", "in/x/y/b", "in/saved_model.pb", "inside/c", "out/kept", "out/a")
        expected = {name: name.replace("out/", "in/").encode() for name in ("out/a", "out/x/y/b", "out/saved_model.pb")}
        storage.copy_folder(f"{root}/in/", f"{root}/out", last="saved_model.pb")
        found = {uri.removeprefix(f"{root}/"): storage.read(uri) for uri in (file.uri for file in storage.walk(f"{root}/out"))}
        assert found == expected | {"out/kept": b"out/kept"}
        # To a disk and back again.
        storage.copy_folder(f"{root}/in", str(tmp_path / "copy"), last="saved_model.pb")
        storage.copy_folder(str(tmp_path / "copy"), f"{root}/back", last="saved_model.pb")
        assert listed_on_disk(f"{root}/back") == listed_on_disk(f"{root}/in") == {
            name.removeprefix("out/"): content for name, content in expected.items()
        }

    def test_a_folder_that_is_not_there_is_not_copied(self, root, tmp_path):
        with pytest.raises(FileNotFoundError):
            storage.copy_folder(f"{root}/nowhere", str(tmp_path / "copy"))
        assert not (tmp_path / "copy").exists()

    def test_a_folder_is_no_file(self, root):
        self.fill(root, "in/a")
        assert [storage.exists(f"{root}/{name}") for name in ("in/a", "in", "in/a/b")] == [True, False, False]

    def test_remove_folder_takes_all_of_it_and_nothing_else(self, root):
        self.fill(root, "in/a", "in/x/y/b", "inside/c", "other")
        storage.remove_folder(f"{root}/in")
        assert storage.names(root) == ["inside", "other"] and storage.names(f"{root}/in") == []
        storage.remove_folder(f"{root}/in")
        assert sorted(listed.uri for listed in storage.walk(root)) == [f"{root}/inside/c", f"{root}/other"]

    def test_a_place_has_one_name(self, root):
        assert storage.absolute(root) == storage.absolute(f"{root}/") == storage.absolute(f"{root}//") == root
        assert storage.join(root, "a", "b.c") == f"{root}/a/b.c" and storage.name_of(f"{root}/a/b.c") == "b.c"

    def test_whoever_holds_a_place_lets_go_of_it(self, root):
        for _ in range(2):
            with storage.locked(root):
                self.fill(root, "file")
        with pytest.raises(KeyError), storage.locked(root):
            raise KeyError
        with storage.locked(root):
            assert storage.read(storage.join(root, "file")) == b"file"


def listed_on_disk(folder: str) -> dict[str, bytes]:
    with storage.on_disk(folder) as here:
        return {path.relative_to(here).as_posix(): path.read_bytes() for path in pathlib.Path(here).rglob("*") if path.is_file()}


def read_opened(uri: str) -> bytes:
    with storage.opened(uri) as stream:
        return stream.read(1)


class TestOnADisk(StorageConformance):
    @pytest.fixture
    def root(self, tmp_path):
        folder = tmp_path / "root"
        folder.mkdir()
        return str(folder)

    def test_it_is_not_the_cloud(self, root):
        assert not storage.is_cloud(root) and not storage.is_cloud("gs:/x") and not storage.is_cloud("x/gs://y")

    def test_a_relative_path_counts_from_here(self, root, monkeypatch):
        monkeypatch.chdir(root)
        assert storage.absolute("a/../b/") == f"{root}/b"

    @pytest.mark.parametrize("call", [storage.children, lambda uri: list(storage.walk(uri))])
    @pytest.mark.parametrize("name", ["nowhere", "file"])
    def test_what_is_no_folder_cannot_be_listed(self, root, name, call):
        self.fill(root, "file")
        with pytest.raises(OSError):
            call(f"{root}/{name}")

    def test_links_to_files_are_files_and_links_to_folders_are_not_followed(self, root):
        self.fill(root, "x/a")
        os.symlink(f"{root}/x/a", f"{root}/link")
        os.symlink(root, f"{root}/x/loop")
        os.symlink(f"{root}/nothing", f"{root}/broken")
        os.mkfifo(f"{root}/pipe")
        assert {storage.name_of(listed.uri): listed.bytes for listed in storage.walk(root)} == {"a": 3, "link": 3}

    @pytest.mark.parametrize("what", ["file", "folder"])
    def test_what_goes_while_it_is_listed_is_not_there(self, root, monkeypatch, what):
        self.fill(root, "a", "b/c", "d")
        scandir = os.scandir

        def slow(folder):
            entries = sorted(scandir(folder), key=lambda entry: entry.name)
            if folder == root:
                os.unlink(f"{root}/b/c" if what == "folder" else f"{root}/a")
                if what == "folder":
                    os.rmdir(f"{root}/b")
            return Entries(entries)

        monkeypatch.setattr(os, "scandir", slow)
        names = [storage.name_of(listed.uri) for listed in storage.walk(root)]
        assert sorted(names) == (["a", "d"] if what == "folder" else ["c", "d"])

    def test_nothing_half_written_is_seen_or_left(self, root, monkeypatch):
        uri = storage.join(root, "file")
        storage.write(uri, b"before")

        def fail(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        for call in (storage.write, storage.create):
            with pytest.raises(OSError, match="No space"):
                call(uri, b"after")
        assert storage.read(uri) == b"before" and os.listdir(root) == ["file"]

    def test_a_place_is_held_by_one(self, root):
        again = f"from pipeline import storage\nwith storage.locked({root!r}): pass"
        command = [sys.executable, "-c", again]
        with storage.locked(root):
            with pytest.raises(BlockingIOError), storage.locked(root):
                pass
            refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert refused.returncode == 1 and "BlockingIOError" in refused.stderr
        assert subprocess.run(command, timeout=60).returncode == 0

    def test_whoever_holds_a_place_sweeps_up_temporary_folders_only(self, root):
        self.fill(root, ".tmp-killed/half", "shard", "tmp-x/a", "plan/.tmp-deep/b", "a.tmp-/c")
        with storage.locked(root):
            assert sorted(os.listdir(root)) == ["a.tmp-", "lock", "plan", "shard", "tmp-x"]
            assert os.listdir(f"{root}/plan") == [".tmp-deep"]

    def test_one_that_is_refused_sweeps_up_nothing(self, root):
        with storage.locked(root):
            self.fill(root, ".tmp-working/half")
            with pytest.raises(BlockingIOError), storage.locked(root):
                pass
            assert storage.names(f"{root}/.tmp-working") == ["half"]


class Entries(list):
    """A listing that `os.scandir` would give."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def every_call(uri: str, path: str) -> dict:
    """A call of each function that speaks with Cloud Storage."""
    return {
        "walk": lambda: list(storage.walk(f"{uri}-folder")),
        "children": lambda: storage.children(f"{uri}-folder"),
        "names": lambda: storage.names(f"{uri}-folder"),
        "stat": lambda: storage.stat(uri),
        "exists": lambda: storage.exists(uri),
        "read": lambda: storage.read(uri),
        "read of a version": lambda: storage.read(uri, storage.stat(uri).version),
        "opened": lambda: read_opened(uri),
        "write": lambda: storage.write(uri, b"new"),
        "create": lambda: storage.create(f"{uri}-created", b"new"),
        "publish": lambda: storage.publish(path, uri),
        "update": lambda: storage.update(uri, lambda content: b"new"),
        "copy_folder to it": lambda: storage.copy_folder(os.path.dirname(path), f"{uri}-copied"),
        "copy_folder from it": lambda: storage.copy_folder(f"{uri}-folder", f"{path}-copied"),
        "copy_folder within it": lambda: storage.copy_folder(f"{uri}-folder", f"{uri}-copied"),
        "on_disk": lambda: listed_on_disk(f"{uri}-folder"),
        "remove_folder": lambda: storage.remove_folder(f"{uri}-folder"),
    }


CALLS = sorted(every_call("", ""))


class TestInCloudStorage(StorageConformance):
    @pytest.fixture
    def cloud(self):
        with storage_emulator.running("bucket") as emulator:
            yield emulator

    @pytest.fixture(params=["gs://bucket", "gs://bucket/deep/root"])
    def root(self, cloud, request):
        return request.param

    @pytest.fixture
    def uri(self, cloud):
        """An object, with a folder beside it."""
        cloud.put("gs://bucket/file", b"content")
        cloud.put("gs://bucket/file-folder/a", b"a")
        cloud.put("gs://bucket/file-folder/b", b"b")
        return "gs://bucket/file"

    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "local").write_bytes(b"local")
        return str(tmp_path / "local")

    @pytest.fixture
    def no_patience(self, monkeypatch):
        """The client gives up soon, not after two minutes."""
        for name in ("_timeout", "_deadline"):
            monkeypatch.setattr(DEFAULT_RETRY, name, 0.2)

    def test_it_is_the_cloud(self, root):
        assert storage.is_cloud(root)

    def test_a_version_is_the_generation(self, cloud):
        generation = cloud.put("gs://bucket/file", b"one")
        assert storage.stat("gs://bucket/file") == storage.Listed("gs://bucket/file", 3, generation)

    def test_listings_of_many_pages_are_read_to_their_end(self, cloud):
        cloud.page = 3
        uris = [f"gs://bucket/in/{'deep/' * (number % 3)}{number:02d}/{name}" for number in range(8) for name in "ab"]
        for uri in uris:
            cloud.put(uri, b"")
        assert sorted(listed.uri for listed in storage.walk("gs://bucket/in")) == sorted(uris)
        assert cloud.count("list") == -(-len(uris) // 3)
        listed, folders = storage.children("gs://bucket/in")
        assert listed == [] and folders == [f"gs://bucket/in/{name}" for name in ["00", "03", "06", "deep"]]
        assert storage.names("gs://bucket/in") == ["00", "03", "06", "deep"]
        storage.remove_folder("gs://bucket/in")
        assert cloud.below("gs://bucket") == {}

    def test_what_consoles_make_to_show_a_folder_is_no_file(self, cloud):
        for uri in ("gs://bucket/in/", "gs://bucket/in/empty/", "gs://bucket/in/a"):
            cloud.put(uri, b"")
        assert [listed.uri for listed in storage.walk("gs://bucket/in")] == ["gs://bucket/in/a"]
        assert storage.names("gs://bucket/in") == ["a", "empty"] and storage.names("gs://bucket/in/empty") == []
        storage.remove_folder("gs://bucket/in")
        assert cloud.below("gs://bucket") == {}

    def test_a_stream_asks_for_what_it_needs_and_no_more(self, cloud):
        cloud.put("gs://bucket/large", LARGE)
        with storage.opened("gs://bucket/large") as stream:
            stream.read(1)
            assert cloud.count("read") == 1
            for _ in range(7):
                stream.read(1000_000)
        ranges = [call.range.removeprefix("bytes=").split("-") for call in cloud.calls if call.kind == "read"]
        assert len(ranges) == 1 and int(ranges[0][1]) - int(ranges[0][0]) <= 8 * 2**20

    @pytest.mark.parametrize("size", [10, len(LARGE)], ids=["small", "large"])
    def test_two_uploads_that_create_are_decided_whatever_way_they_go(self, cloud, size):
        """A large one goes in pieces, and another may be there before its last."""
        storage.create("gs://bucket/a", LARGE[:size])
        with pytest.raises(FileExistsError):
            storage.create("gs://bucket/a", LARGE[:size])
        last = itertools.count()
        cloud.before(
            lambda call: call.kind == "write" and call.name == "b" and next(last) == (size > 8 * 2**20),
            lambda: cloud.put("gs://bucket/b", b"faster"),
        )
        with pytest.raises(FileExistsError):
            storage.create("gs://bucket/b", LARGE[:size])
        assert cloud.content("gs://bucket/b") == b"faster"

    @pytest.mark.parametrize("name", [name for name in CALLS if name != "exists"])
    def test_a_bucket_that_is_not_there(self, cloud, path, name):
        with pytest.raises(FileNotFoundError, match="no such object or bucket") as raised:
            every_call("gs://missing/file", path)[name]()
        assert str(raised.value.filename).startswith("gs://missing")

    @pytest.mark.parametrize("name", CALLS)
    def test_a_bucket_that_refuses(self, cloud, uri, path, name):
        cloud.answer(403, lambda call: call.bucket == "bucket")
        with pytest.raises(PermissionError, match="Cloud Storage refuses access: .*told so") as raised:
            every_call(uri, path)[name]()
        assert raised.value.filename.startswith(uri)

    def test_a_refused_deletion(self, cloud, uri):
        cloud.answer(403, lambda call: call.kind == "delete")
        with pytest.raises(PermissionError) as raised:
            storage.remove_folder(f"{uri}-folder")
        assert raised.value.filename.startswith("gs://bucket/")

    @pytest.mark.parametrize("name", CALLS)
    def test_a_server_that_is_busy_is_asked_again(self, cloud, uri, path, name):
        cloud.answer(503, lambda call: True, times=1)
        every_call(uri, path)[name]()

    def test_a_deletion_that_meets_a_busy_server_is_tried_again(self, cloud, uri):
        cloud.answer(503, lambda call: call.kind == "delete", times=1)
        storage.remove_folder(f"{uri}-folder")
        assert list(cloud.below("gs://bucket")) == ["file"]

    @pytest.mark.parametrize("name", CALLS)
    def test_a_server_that_stays_busy_is_an_error_of_input_and_output(self, cloud, uri, path, name, no_patience):
        cloud.answer(503, lambda call: True)
        with pytest.raises(OSError) as raised:
            every_call(uri, path)[name]()
        assert raised.value.strerror and raised.value.filename

    def test_no_server_at_all_is_an_error_of_input_and_output(self, cloud, uri, path, no_patience):
        cloud.stop()
        for call in every_call(uri, path).values():
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.strerror and raised.value.filename

    def test_an_update_that_another_overtakes_is_made_of_what_that_one_wrote(self, cloud):
        cloud.put("gs://bucket/file", b"a")
        cloud.before(lambda call: call.kind == "write", lambda: cloud.put("gs://bucket/file", b"ab"))
        storage.update("gs://bucket/file", lambda content: content + b"c")
        assert cloud.content("gs://bucket/file") == b"abc" and cloud.count("write") == 2

    def test_an_update_that_others_overtake_time_and_again_gives_up(self, cloud):
        cloud.before(lambda call: call.kind == "write", lambda: cloud.put("gs://bucket/file", b"theirs"), times=None)
        with pytest.raises(BlockingIOError, match="others change it all the time"):
            storage.update("gs://bucket/file", lambda content: b"mine")
        assert cloud.content("gs://bucket/file") == b"theirs"

    def test_an_update_whose_answer_got_lost_is_made_once(self, cloud):
        cloud.put("gs://bucket/file", b"a")
        cloud.answer(503, lambda call: call.kind == "write", times=1, late=True)
        storage.update("gs://bucket/file", lambda content: content + b"b")
        assert cloud.content("gs://bucket/file") == b"ab"

    def test_the_file_that_readers_wait_for_is_copied_last(self, cloud, tmp_path):
        for name in ("saved_model.pb", "variables/index", "a", "z"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name)
        storage.copy_folder(str(tmp_path), "gs://bucket/v", last="saved_model.pb")
        written = [call.name for call in cloud.calls if call.kind == "write"]
        assert len(written) == 4 and written[-1] == "v/saved_model.pb"

    def test_an_answer_that_got_lost_does_not_write_twice(self, cloud):
        """The second attempt then meets the object of the first: to whom that happens is told that it is there."""
        cloud.answer(503, lambda call: call.kind == "write", times=1, late=True)
        with pytest.raises(FileExistsError):
            storage.create("gs://bucket/new", b"mine")
        assert cloud.content("gs://bucket/new") == b"mine"

    def test_without_credentials_it_says_how_to_get_them(self, monkeypatch, tmp_path):
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
            monkeypatch.delenv(name, raising=False)
        storage._client.cache_clear()
        try:
            with pytest.raises(PermissionError, match="no credentials for Cloud Storage .*gcloud auth") as raised:
                storage.read("gs://bucket/file")
            assert raised.value.filename == "gs://bucket/file"
        finally:
            storage._client.cache_clear()

    def test_to_hold_a_place_is_no_claim(self, root):
        with storage.locked(root), storage.locked(root):
            pass
        assert storage.names(root) == []
