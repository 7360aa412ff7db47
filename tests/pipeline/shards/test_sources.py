"""Photographs are found in a folder, below a prefix, or by a table, and each has one id or a reason why not."""

import os
import pathlib
import pickle
import re
import shutil
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.shards import sources
from tests.cloud import storage_emulator

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))

NO_ID = "its name leaves no id: rename it"
CONTROL = "its name has a control character: rename it"
MISSING = "there is no such file"


def found(images) -> dict[str, sources.Source]:
    """Source by URI; each URI is found once."""
    listed = list(sources.find(str(images)))
    by_uri = {source.uri: source for source in listed}
    assert len(by_uri) == len(listed)
    return by_uri


def ids(images) -> list[str]:
    return sorted(source.image_id for source in sources.find(str(images)) if not source.problem)


class InFiles:
    """Inherit, and give `root`: an empty place. The names of files decide."""

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def put(self, root: str, *names: str) -> list[str]:
        uris = [f"{root}/{name}" for name in names]
        for uri in uris:
            storage.write(uri, uri.encode())
        return uris

    def test_photographs_at_any_depth_and_nothing_else(self, root):
        wanted = self.put(root, "a.jpg", "x/b.JPG", "x/y/c.jpeg", "x/y/z/d.JPEG", "z/e.Jpg", "x.jpg/f.jpg")
        self.put(root, "a.png", "jpg", "b.jpg.txt", "c.jpg~", "x/readme.md", "djpg", "x/y.csv")
        sources_found = found(root)
        assert sorted(sources_found) == sorted(wanted) and ids(root) == list("abcdef")
        for uri, source in sources_found.items():
            listed = storage.stat(uri)
            assert (source.bytes, source.version, source.problem) == (listed.bytes, listed.version, "")

    @pytest.mark.parametrize(
        "name", ["two words", "it's", 'say "x"', "a..b", "..a", "a.b.c", "#1", "a?b", "50%25", "Ärmel ☃", "x;--", ".x"]
    )
    def test_an_id_is_the_name_without_its_ending(self, root, name):
        (uri,) = self.put(root, f"in/{name}.jpg")
        (source,) = found(root).values()
        assert (source.image_id, source.uri, source.problem) == (name, uri, "")

    @pytest.mark.parametrize("name", [COMPOSED, DECOMPOSED])
    def test_an_id_is_composed_and_the_uri_is_as_it_is(self, root, name):
        (uri,) = self.put(root, f"{name}/{name}.jpg")
        (source,) = found(root).values()
        assert (source.image_id, source.uri, source.problem) == (COMPOSED, uri, "")

    @pytest.mark.parametrize("name", [".jpg", "..jpg", "...jpg", ". .jpg", " .jpg", ".JPEG"])
    def test_a_name_that_leaves_no_id(self, root, name):
        (uri,) = self.put(root, f"in/{name}")
        (source,) = found(root).values()
        assert (source.uri, source.problem) == (uri, NO_ID)

    @pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x1b", "\x7f", "\x01"])
    def test_a_name_with_a_control_character(self, root, character):
        (uri,) = self.put(root, f"in/a{character}b.jpg")
        (source,) = found(root).values()
        assert (source.uri, source.problem) == (uri, CONTROL)

    def test_one_place_has_one_name(self, root):
        self.put(root, "a.jpg", "x/b.jpg")
        assert found(root) == found(f"{root}/")

    def test_only_what_is_below_counts(self, root):
        (inside, _) = self.put(root, "in/a.jpg", "inside/b.jpg")
        assert list(found(f"{root}/in")) == [inside]

    def test_what_is_not_there_says_what_may_be_given(self, root):
        self.put(root, "a.jpg")
        for name in ("nowhere", "a.jpg", "a.jpg/b", "uris.csv", "uris.parquet"):
            with pytest.raises(PipelineError, match=rf"no folder of photographs .*/{name}: give a folder, a gs://"):
                list(sources.find(f"{root}/{name}"))

    def test_a_folder_whose_name_ends_like_a_table(self, root):
        wanted = self.put(root, "set.csv/a.jpg", "set.parquet/b.jpg")
        assert [uri for name in ("csv", "parquet") for uri in found(f"{root}/set.{name}")] == wanted


class TestInAFolder(InFiles):
    @pytest.fixture
    def root(self, tmp_path):
        folder = tmp_path / "images"
        folder.mkdir()
        return str(folder)

    def test_a_relative_folder(self, root, monkeypatch):
        wanted = self.put(root, "x/a.jpg")
        monkeypatch.chdir(root)
        assert list(found("x")) == list(found("./x/../x/")) == wanted

    @pytest.mark.parametrize("name", [b"caf\xe9.jpg", b"caf\xe9/a.jpg"])
    def test_a_name_that_is_no_utf8_is_written_with_escapes(self, root, name):
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(os.fsdecode(path)).write_bytes(b"photo")
        (source,) = found(root).values()
        assert source.uri == f"{root}/{name.decode(errors='backslashreplace')}" and r"\xe9" in source.image_id
        assert (source.bytes, source.problem) == (5, "its name is not UTF-8: rename it")

    def test_links_to_photographs_are_photographs_and_no_loop_is_followed(self, root):
        (uri,) = self.put(root, "x/a.jpg")
        os.symlink(uri, f"{root}/link.jpg")
        os.symlink(root, f"{root}/x/up")
        os.makedirs(f"{root}/folder.jpg")
        assert ids(root) == ["a", "link"]

    def test_an_empty_folder_has_none(self, root):
        assert found(root) == {}

    def test_a_folder_that_cannot_be_listed_is_named_with_the_reason(self, root):
        loop = f"{root}/loop"
        os.symlink(loop, loop)
        reason = rf"cannot list the photographs in {loop}: Too many levels .*\({loop}\)"
        with pytest.raises(PipelineError, match=reason):
            list(sources.find(loop))

    def test_a_folder_below_that_cannot_be_listed_is_named(self, root):
        """Nobody, not even root, lists a path that is longer than the system takes."""
        self.put(root, "a.jpg")
        folder = os.open(root, os.O_DIRECTORY)
        try:
            for _ in range(20):
                os.mkdir("x" * 250, dir_fd=folder)
                deeper = os.open("x" * 250, os.O_DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = deeper
            reason = rf"cannot list the photographs in {root}: File name too long \({root}/xxx"
            with pytest.raises(PipelineError, match=reason):
                list(sources.find(root))
        finally:
            os.close(folder)
            shutil.rmtree(root)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
    def test_a_folder_that_may_not_be_listed_is_named(self, root):
        self.put(root, "x/a.jpg")
        os.chmod(f"{root}/x", 0)
        try:
            with pytest.raises(PipelineError, match=rf"Permission denied \({root}/x\)"):
                list(sources.find(root))
        finally:
            os.chmod(f"{root}/x", 0o700)


class TestBelowAPrefix(InFiles):
    @pytest.fixture
    def cloud(self):
        with storage_emulator.running("photos") as emulator:
            yield emulator

    @pytest.fixture(params=["gs://photos", "gs://photos/deep/images"])
    def root(self, cloud, request):
        return request.param

    def test_many_folders_side_by_side_and_many_pages(self, cloud):
        cloud.page = 4
        wanted = [f"gs://photos/in/{folder:02d}/{number}.jpg" for folder in range(30) for number in range(6)]
        for uri in [*wanted, "gs://photos/in/", "gs://photos/in/00/"]:
            cloud.put(uri, b"")
        assert sorted(found("gs://photos/in")) == wanted
        assert cloud.count("stat") == cloud.count("read") == 0

    @pytest.mark.parametrize("name", ["in//a.jpg", "in///x//a.jpg", "in/x//a.jpg"])
    def test_a_name_with_two_slashes_is_found_once_and_readable(self, cloud, name):
        wanted = [f"gs://photos/{name}", "gs://photos/in/b.jpg", "gs://photos/in/y/c.jpg"]
        for uri in wanted:
            cloud.put(uri, b"photo")
        assert sorted(found("gs://photos/in")) == sorted(wanted)
        assert storage.read(f"gs://photos/{name}") == b"photo"

    def test_a_bucket_that_is_not_there(self, cloud):
        with pytest.raises(PipelineError, match="no folder of photographs gs://nowhere/in: give"):
            list(sources.find("gs://nowhere/in"))

    @pytest.mark.parametrize("images", ["gs://photos/in", "gs://photos/uris.csv"])
    def test_a_bucket_that_refuses_says_so(self, cloud, images):
        cloud.answer(403, lambda call: True)
        reason = rf"cannot list the photographs in {images}: Cloud Storage refuses access: .*\({images}\)"
        with pytest.raises(PipelineError, match=reason):
            list(sources.find(images))


def write_table(path, columns: dict[str, list]) -> None:
    """A CSV or Parquet file, by the ending of `path`."""
    if str(path).endswith(".csv"):
        rows = [columns.keys(), *zip(*columns.values())]
        quoted = (",".join('"' + str(value or "").replace('"', '""') + '"' for value in row) for row in rows)
        pathlib.Path(path).write_text("\n".join(quoted) + "\n", encoding="utf-8")
    else:
        pq.write_table(pa.table(columns), str(path))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
class TestByATable:
    @pytest.fixture
    def table(self, tmp_path, ending):
        """A table in a folder with the photographs a.jpg, x/b.jpg and outside of it c.jpg."""
        for name in ("set/a.jpg", "set/x/b.jpg", "c.jpg"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(name.encode())
        return tmp_path / "set" / f"uris.{ending}"

    def test_a_relative_uri_counts_from_the_table(self, table, tmp_path, monkeypatch):
        write_table(table, {"uri": ["a.jpg", "x/b.jpg", f"{tmp_path}/c.jpg"]})
        monkeypatch.chdir(tmp_path)
        for name in (table, f"set/{table.name}"):
            by_uri = found(name)
            assert list(by_uri) == [f"{table.parent}/a.jpg", f"{table.parent}/x/b.jpg", f"{tmp_path}/c.jpg"]
            assert [source.image_id for source in by_uri.values()] == ["a", "b", "c"]
            for uri, source in by_uri.items():
                assert (storage.stat(uri).bytes, storage.stat(uri).version) == (source.bytes, source.version)

    def test_the_table_may_give_ids(self, table):
        columns = {"image_id": ["first", "", DECOMPOSED], "uri": ["a.jpg", "x/b.jpg", "a.jpg"], "more": ["1", "2", "3"]}
        write_table(table, columns)
        assert [source.image_id for source in sources.find(str(table))] == ["first", "b", COMPOSED]

    def test_ids_of_digits_are_what_they_look_like(self, table):
        """A zero is an id like any other."""
        write_table(table, {"uri": ["a.jpg", "x/b.jpg"], "image_id": [7, 0]})
        if table.suffix == ".csv":
            table.write_text("uri,image_id\na.jpg,7\nx/b.jpg,0\n")
        assert [source.image_id for source in sources.find(str(table))] == ["7", "0"]

    @pytest.mark.parametrize("name", ["it's, a \"name\"", "Ärmel ☃", "a..b", "50%", "a#b", COMPOSED, DECOMPOSED])
    def test_a_name_that_means_something_to_somebody_is_just_a_name(self, table, name):
        (table.parent / f"{name}.jpg").write_bytes(b"photo")
        write_table(table, {"uri": [f"{name}.jpg"]})
        (source,) = sources.find(str(table))
        assert (source.uri, source.image_id, source.problem) == (
            f"{table.parent}/{name}.jpg", unicodedata.normalize("NFC", name), "",
        )  # fmt: skip

    def test_a_file_that_is_not_there_is_told_and_the_others_are_found(self, table):
        write_table(table, {"uri": ["none.jpg", "a.jpg", "a.jpg/below.jpg", "file:///a.jpg"]})
        assert [source.problem for source in sources.find(str(table))] == [MISSING, "", MISSING, MISSING]
        missing = next(sources.find(str(table)))
        assert (missing.image_id, missing.uri, missing.bytes) == ("none", f"{table.parent}/none.jpg", 0)

    @pytest.mark.parametrize("name", ["..", " ", "a\nb"])
    def test_an_id_that_can_be_none(self, table, name):
        write_table(table, {"uri": ["a.jpg"], "image_id": [name]})
        (source,) = sources.find(str(table))
        assert source.problem == (CONTROL if "\n" in name else NO_ID)

    def test_without_the_column_its_columns_are_named(self, table):
        write_table(table, {"url": ["a.jpg"], "id": ["a"]})
        with pytest.raises(PipelineError, match=rf"table of URIs {table} has no column uri; its columns are url, id"):
            list(sources.find(str(table)))

    @pytest.mark.parametrize("empty", ["", None])
    def test_an_empty_uri_is_told_with_its_row(self, table, empty):
        write_table(table, {"uri": ["a.jpg", empty, "x/b.jpg"], "image_id": ["a", "b", "c"]})
        with pytest.raises(PipelineError, match=rf"row 2 of the table of URIs {table} has no uri"):
            list(sources.find(str(table)))

    @pytest.mark.parametrize("uri", ["../c.jpg", "x/../a.jpg", "..", "x/..", "/tmp/../c.jpg", "gs://photos/../c.jpg"])
    def test_a_uri_that_leaves_its_folder_is_refused_with_its_row(self, table, uri):
        write_table(table, {"uri": ["a.jpg", "x/b.jpg", uri]})
        with pytest.raises(PipelineError, match="row 3 of the table of URIs .* leaves its folder by '..'") as raised:
            list(sources.find(str(table)))
        assert repr(uri) in str(raised.value) and str(table) in str(raised.value)

    def test_a_long_table_is_read_to_its_end_in_order(self, table):
        names = [f"{number:05d}" for number in range(9000)]
        write_table(table, {"uri": ["a.jpg"] * 9000, "image_id": names})
        assert [source.image_id for source in sources.find(str(table))] == names

    def test_an_empty_table_has_none(self, table):
        write_table(table, {"uri": pa.array([], pa.string())} if table.suffix == ".parquet" else {"uri": []})
        assert list(sources.find(str(table))) == []

    @pytest.mark.parametrize("content", [b"", b"\xff\xfe\0\0", b"no table\n", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
    def test_another_kind_of_file_is_named(self, table, content):
        table.write_bytes(content)
        with pytest.raises(PipelineError, match=f"the table of URIs {table}"):
            list(sources.find(str(table)))

    def test_a_table_and_photographs_in_cloud_storage(self, table):
        with storage_emulator.running("photos") as cloud:
            elsewhere = ["gs://photos/c.jpg", "gs://nowhere/d.jpg", str(table.parent / "a.jpg")]
            write_table(table, {"uri": ["a.jpg", "x/b.jpg", *elsewhere]})
            cloud.put(f"gs://photos/in/{table.name}", table.read_bytes())
            generations = [cloud.put(f"gs://photos/{name}", b"p") for name in ("in/a.jpg", "in/x/b.jpg", "c.jpg")]
            listed = list(sources.find(f"gs://photos/in/{table.name}"))
        assert [source.uri for source in listed[:4]] == [
            "gs://photos/in/a.jpg", "gs://photos/in/x/b.jpg", "gs://photos/c.jpg", "gs://nowhere/d.jpg",
        ]  # fmt: skip
        assert [source.version for source in listed[:3]] == generations
        assert [source.problem for source in listed] == ["", "", "", MISSING, ""]


@pytest.mark.parametrize("encoding, newline", [("utf-8", "\n"), ("utf-8-sig", "\n"), ("utf-8", "\r\n")])
def test_a_csv_file_as_programs_write_it(tmp_path, encoding, newline):
    (tmp_path / "é.jpg").write_bytes(b"photo")
    text = newline.join(['"uri",image_id', '"é.jpg","one, ""two"""', ""])
    (tmp_path / "uris.csv").write_bytes(text.encode(encoding))
    (source,) = sources.find(str(tmp_path / "uris.csv"))
    assert (source.image_id, source.problem) == ('one, "two"', "")


@pytest.mark.parametrize(
    "content",
    ["uri\né.jpg\n".encode("latin-1"), b"uri\n" + b"x" * 200_000 + b"\n", "uri\n".encode("utf-16")],
    ids=["latin-1", "a long field", "utf-16"],
)
def test_a_csv_file_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / "uris.csv").write_bytes(content)
    with pytest.raises(PipelineError, match=f"the table of URIs {tmp_path}/uris.csv"):
        list(sources.find(str(tmp_path / "uris.csv")))


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_a_parquet_file_is_cut_or_damaged(tmp_path, compression):
    """It is named, unless what was hit was nothing that tells; no damage looks like a folder that cannot be listed."""
    path = tmp_path / "uris.parquet"
    pq.write_table(pa.table({"uri": [f"{number}.jpg" for number in range(2000)]}), path, compression=compression)
    content = path.read_bytes()
    cuts = [content[:length] for length in range(0, len(content), len(content) // 7)]
    spots = [content[:at] + bytes(20) + content[at + 20 :] for at in range(4, len(content), len(content) // 20)]
    told = []
    for damaged in [*cuts, *spots]:
        path.write_bytes(damaged)
        try:
            list(sources.find(str(path)))
        except PipelineError as error:
            told.append(str(error))
    assert len(told) > len(cuts)
    # Of a file without compression a newer PyArrow reads what is left of a damaged page.
    table = f"the table of URIs {re.escape(str(path))}"
    wanted = re.compile(rf"cannot read {table}: |row \d+ of {table} has no uri")
    assert [text for text in told if not wanted.match(text)] == []


@pytest.mark.parametrize("kind", [pa.large_string(), "dictionary", pa.binary()])
def test_a_parquet_file_may_hold_text_in_any_way(tmp_path, kind):
    """Many writers leave text as bytes without saying that it is UTF-8."""
    (tmp_path / "é.jpg").write_bytes(b"photo")
    text = pa.array(["é.jpg"])
    column = text.dictionary_encode() if kind == "dictionary" else text.cast(kind)
    pq.write_table(pa.table({"uri": column}), tmp_path / "uris.parquet")
    (source,) = sources.find(str(tmp_path / "uris.parquet"))
    assert (source.uri, source.image_id, source.problem) == (f"{tmp_path}/é.jpg", "é", "")


class _Runs:
    """What an attacker pickles into the schema of a Parquet file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_parquet_file_that_brings_code_is_refused_and_runs_nothing(tmp_path):
    """CVE-2023-47248: PyArrow before 14.0.1 unpickles the type that a column names."""
    mark = tmp_path / "it ran"
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_Runs(str(mark))),
    }
    schema = pa.schema([pa.field("uri", pa.string(), metadata=metadata)])
    pq.write_table(pa.table({"uri": ["a.jpg"]}, schema=schema), tmp_path / "uris.parquet")
    with pytest.raises(PipelineError, match=r"uris\.parquet holds a column of a pickled Python type.*write its columns as strings"):
        list(sources.find(str(tmp_path / "uris.parquet")))
    assert not mark.exists()
