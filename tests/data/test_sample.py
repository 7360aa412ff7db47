"""The committed sample data: the photographs, their sources, and the story that the label edits tell, Monday by Monday.

The snapshots are computed here by a query of the test's own, so that the data is checked and not the pipeline.
The photographs are rebuilt and compared when SAMPLE_STAMPS names the unpacked Debian package.
"""

import collections
import csv
import datetime
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import duckdb
import numpy
import PIL
import pytest
from PIL import Image

SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "sample"
SCRIPT = SAMPLE / "make_sample.py"
CLASSES = {"bird", "coin", "flower", "hoofed", "produce", "tool", "vehicle"}
GOOD_MONDAYS = ("2026-03-02", "2026-03-09", "2026-03-16", "2026-03-23", "2026-04-06")
NEIGHBOURS = tuple(zip(GOOD_MONDAYS, GOOD_MONDAYS[1:]))
BAD_MONDAY = "2026-03-30"
MIB = 2**20


def read(name):
    with open(SAMPLE / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def selection():
    return read("selection.csv")


@pytest.fixture(scope="module")
def truth(selection):
    return {row["image_id"]: row["label"] for row in selection}


@pytest.fixture(scope="module")
def snapshots():
    """Monday -> rows (image_id, product_id, label): the latest edits before it, 00:00 UTC, without the withdrawn."""
    query = """
        WITH past AS (SELECT * FROM edits WHERE updated_at < CAST(? AS TIMESTAMP)),
             ranked AS (SELECT *, rank() OVER (PARTITION BY image_id ORDER BY updated_at DESC) AS age FROM past)
        SELECT image_id, product_id, label FROM ranked WHERE age = 1 AND label <> '' ORDER BY image_id, label
    """
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE edits (image_id TEXT, product_id TEXT, label TEXT, source TEXT, updated_at TIMESTAMP)"
        )
        connection.executemany(
            "INSERT INTO edits VALUES (?, ?, ?, ?, ?)",
            [[*list(row.values())[:4], row["updated_at"].removesuffix("Z")] for row in read("labels.csv")],
        )
        return {day: connection.execute(query, [day]).fetchall() for day in (*GOOD_MONDAYS, BAD_MONDAY)}


def labels_of(rows):
    return {image_id: label for image_id, _, label in rows}


def shares(rows):
    counts = collections.Counter(label for *_, label in rows)
    return {label: count / len(rows) for label, count in counts.items()}


# --- photographs ---


def test_every_photograph_opens_as_an_rgb_jpeg_of_300_to_1200_pixels(truth):
    for image_id in truth:
        with Image.open(SAMPLE / "images" / f"{image_id}.jpg") as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB"), image_id
            assert 300 <= min(image.size) and max(image.size) <= 1200, (image_id, image.size)


def test_sizes_vary_and_a_few_photographs_are_progressive(truth):
    sizes, progressive = set(), 0
    for image_id in truth:
        with Image.open(SAMPLE / "images" / f"{image_id}.jpg") as image:
            sizes.add(image.size)
            progressive += bool(image.info.get("progressive"))
    assert len(sizes) > 50
    assert 5 <= progressive <= len(truth) // 4


def test_the_photographs_stand_on_white(truth):
    for image_id in truth:
        with Image.open(SAMPLE / "images" / f"{image_id}.jpg") as image:
            right, bottom = image.width - 1, image.height - 1
            for corner in ((0, 0), (right, 0), (0, bottom), (right, bottom)):
                assert min(image.getpixel(corner)) >= 250, (image_id, corner)


def test_the_folder_is_at_most_10_mib():
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) <= 10 * MIB


def test_about_200_photographs_in_7_classes_of_at_least_15(truth):
    counts = collections.Counter(truth.values())
    assert set(counts) == CLASSES
    assert 180 <= len(truth) <= 220
    assert min(counts.values()) >= 15


def test_no_photograph_appears_twice(selection):
    for column in ("image_id", "source", "source_sha256"):
        assert len({row[column] for row in selection}) == len(selection), column
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (SAMPLE / "images").iterdir()}
    assert len(digests) == len(selection)


def test_an_image_id_tells_its_product_and_not_its_class(selection):
    for row in selection:
        assert re.fullmatch(r"p\d{4}-[a-f]", row["image_id"])
        assert row["image_id"].startswith(row["product_id"] + "-")
    in_order = [row["label"] for row in sorted(selection, key=lambda row: row["image_id"])]
    runs = 1 + sum(left != right for left, right in zip(in_order, in_order[1:]))
    assert runs > len(in_order) // 2, "ids of one class stand together"


def test_no_product_has_two_labels(selection):
    labels = collections.defaultdict(set)
    for row in selection:
        labels[row["product_id"]].add(row["label"])
    assert {product: names for product, names in labels.items() if len(names) > 1} == {}
    photographs = collections.Counter(row["product_id"] for row in selection)
    assert sum(count > 1 for count in photographs.values()) >= 15, "grouping needs products with several photographs"


# --- sources and licence ---


def test_each_photograph_has_its_source_licence_and_digest_and_no_file_is_unlisted(selection):
    rows = {row["file"]: row for row in read("SOURCES.csv")}
    assert set(rows) == {f"images/{path.name}" for path in (SAMPLE / "images").iterdir()}
    sources = {f"images/{row['image_id']}.jpg": (row["source"], row["source_sha256"]) for row in selection}
    assert set(rows) == set(sources)
    for name, row in rows.items():
        assert row["sha256"] == hashlib.sha256((SAMPLE / name).read_bytes()).hexdigest(), name
        assert (row["source"], row["source_sha256"]) == sources[name]
        assert row["licence"] == "GPL-2.0-or-later" and row["copyright"] and row["version"]


def test_the_licence_names_the_copyright_holder_and_holds_the_whole_gpl():
    text = (SAMPLE / "LICENSE-photographs").read_text(encoding="utf-8")
    assert "Bill Kendrick" in text
    assert "GNU GENERAL PUBLIC LICENSE" in text and "END OF TERMS AND CONDITIONS" in text


def test_the_sample_folder_holds_nothing_else():
    assert {path.name for path in SAMPLE.iterdir()} - {"__pycache__"} == {
        "images",
        "labels.csv",
        "backbone.npz",
        "selection.csv",
        "pretraining_selection.csv",
        "make_sample.py",
        "SOURCES.csv",
        "LICENSE-photographs",
        "README.md",
    }


@pytest.mark.parametrize("name", ["selection.csv", "pretraining_selection.csv"])
def test_selections_take_photographs_only(name):
    drawn = ("cartoon", "roadsigns", "flags", "alphabets", "chess", "shapes", "math", "00_symbols", "faces")
    for row in read(name):
        folders = row["source"].split("/")[:-1]
        assert not set(drawn) & set(folders), row["source"]
        assert row["source"].endswith(".png"), "an SVG file is a drawing"


def test_pretraining_shares_no_photograph_and_no_class_with_the_sample(selection):
    rows = read("pretraining_selection.csv")
    assert len(rows) > 100
    assert not {row["coarse_class"] for row in rows} & CLASSES
    for column in ("source", "source_sha256"):
        values = [row[column] for row in rows]
        assert len(set(values)) == len(values)
        assert not set(values) & {row[column] for row in selection}


# --- the log of edits ---


def test_the_log_is_in_order_with_utc_times_and_known_columns():
    rows = read("labels.csv")
    assert list(rows[0]) == ["image_id", "product_id", "label", "source", "updated_at"]
    moments = [row["updated_at"] for row in rows]
    assert moments == sorted(moments)
    for moment in moments:
        datetime.datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ")
    assert {row["source"] for row in rows} == {"import", "analyst-ana", "analyst-ben", "analyst-cleo"}


def test_every_photograph_comes_by_one_import_before_anyone_edits_it(truth):
    first, imports = {}, collections.Counter()
    for row in read("labels.csv"):
        first.setdefault(row["image_id"], row["source"])
        imports[row["image_id"]] += row["source"] == "import"
    assert {image_id for image_id, source in first.items() if source == "import"} == set(truth)
    assert {imports[image_id] for image_id in truth} == {1}


@pytest.mark.parametrize("monday", GOOD_MONDAYS)
def test_a_good_snapshot_has_each_image_once_every_class_and_a_photograph_for_each_row(snapshots, truth, monday):
    rows = snapshots[monday]
    assert len(labels_of(rows)) == len(rows)
    assert {label for *_, label in rows} == CLASSES
    assert set(labels_of(rows)) <= set(truth)


def test_the_first_snapshot_has_about_150_images(snapshots):
    assert 145 <= len(snapshots[GOOD_MONDAYS[0]]) <= 165


@pytest.mark.parametrize("before, after", NEIGHBOURS)
def test_each_good_week_adds_photographs_and_corrects_labels(snapshots, truth, before, after):
    old, new = labels_of(snapshots[before]), labels_of(snapshots[after])
    assert set(old) < set(new)
    assert 8 <= len(set(new) - set(old)) <= 20
    corrected = [image_id for image_id in old if new[image_id] != old[image_id]]
    assert all(new[image_id] == truth[image_id] for image_id in corrected)
    assert corrected


@pytest.mark.parametrize("monday", GOOD_MONDAYS)
def test_at_most_3_percent_of_a_good_snapshot_is_mislabelled(snapshots, truth, monday):
    labels = labels_of(snapshots[monday])
    wrong = sum(label != truth[image_id] for image_id, label in labels.items())
    assert wrong <= 0.03 * len(labels)
    assert wrong >= 1 or monday == GOOD_MONDAYS[-1]


@pytest.mark.parametrize("before, after", NEIGHBOURS)
def test_a_good_week_moves_no_class_share_by_more_than_3_points(snapshots, before, after):
    old, new = shares(snapshots[before]), shares(snapshots[after])
    assert max(abs(new[label] - old[label]) for label in CLASSES) <= 0.03


def test_an_edit_at_midnight_on_monday_belongs_to_the_next_snapshot(snapshots):
    by_moment = {row["updated_at"]: row for row in read("labels.csv")}
    last_second, midnight = by_moment["2026-03-15T23:59:59Z"], by_moment["2026-03-16T00:00:00Z"]
    sixteenth, later = labels_of(snapshots["2026-03-16"]), labels_of(snapshots["2026-03-23"])
    assert sixteenth[last_second["image_id"]] == last_second["label"]
    assert sixteenth[midnight["image_id"]] != midnight["label"] == later[midnight["image_id"]]


def test_in_the_bad_week_flower_became_produce(snapshots):
    rows = snapshots[BAD_MONDAY]
    assert "flower" not in shares(rows)
    assert shares(rows)["produce"] - shares(snapshots["2026-03-23"])["produce"] > 0.08


def test_the_bad_week_has_6_orphans_5_duplicates_and_a_label_that_is_no_class(snapshots, truth):
    rows = snapshots[BAD_MONDAY]
    counts = collections.Counter(image_id for image_id, *_ in rows)
    assert len(set(counts) - set(truth)) == 6
    twice = {image_id for image_id, count in counts.items() if count > 1}
    assert len(twice) == 5 and twice <= set(truth)
    labels = {image_id: {label for name, _, label in rows if name == image_id} for image_id in twice}
    assert sorted(len(names) for names in labels.values()) == [1, 1, 2, 2, 2]
    assert [label for *_, label in rows if label not in CLASSES] == ["vehical"]


def test_the_repaired_snapshot_is_the_truth(snapshots, selection):
    expected = sorted((row["image_id"], row["product_id"], row["label"]) for row in selection)
    assert sorted(snapshots["2026-04-06"]) == expected


# --- the script ---


def run_script(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


def fake_package(folder, version="2022.06.04-1"):
    documents = folder / "usr/share/doc/tuxpaint-stamps-default"
    documents.mkdir(parents=True)
    (documents / "copyright").write_text("a copyright file")
    with gzip.open(documents / "changelog.Debian.gz", "wt") as file:
        file.write(f"tuxpaint-stamps ({version}) unstable; urgency=medium\n")
    return folder


def no_folder(tmp_path):
    return ["--stamps", tmp_path / "absent"], ["absent is not a folder", "dpkg-deb -x"]


def no_deb(tmp_path):
    return ["--deb", tmp_path / "absent.deb"], ["absent.deb is not a file", "apt-get download"]


def broken_deb(tmp_path):
    if not shutil.which("dpkg-deb"):
        pytest.skip("dpkg-deb is not installed")
    (tmp_path / "cut.deb").write_bytes(b"!<arch>\n")
    return ["--deb", tmp_path / "cut.deb"], ["dpkg-deb -x", "failed", "Get it again"]


def no_licence_text(tmp_path):
    arguments = ["--stamps", fake_package(tmp_path / "p"), "--licence", tmp_path / "absent"]
    return arguments, ["absent is not there", "--licence FILE"]


def another_folder(tmp_path):
    return ["--stamps", tmp_path], ["does not hold tuxpaint-stamps-default", "dpkg-deb -x"]


def another_version(tmp_path):
    return ["--stamps", fake_package(tmp_path / "p", "1999-1")], ["version 1999-1", "2022.06.04-1", "--any-version"]


def missing_photograph(tmp_path):
    return ["--stamps", fake_package(tmp_path / "p")], ["no photograph", ".png", "Unpack it again"]


def changed_photograph(tmp_path):
    package = fake_package(tmp_path / "p")
    for row in read("selection.csv"):
        path = package / "usr/share/tuxpaint/stamps" / row["source"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"another picture")
    return ["--stamps", package], ["is not the one that was selected", "SHA-256"]


@pytest.mark.parametrize(
    "mistake",
    [
        no_folder,
        no_deb,
        broken_deb,
        no_licence_text,
        another_folder,
        another_version,
        missing_photograph,
        changed_photograph,
    ],
)
def test_a_mistake_is_told_with_its_remedy_and_leaves_nothing_behind(tmp_path, mistake):
    arguments, expected = mistake(tmp_path)
    output = tmp_path / "output"
    result = run_script(*arguments, "--output", output)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    for words in expected:
        assert words in result.stderr
    assert not output.exists() or not list(output.iterdir())


def test_an_output_that_cannot_be_written_is_told_and_left_alone(tmp_path):
    output = tmp_path / "output"
    output.write_text("a file, not a folder")
    result = run_script("--stamps", fake_package(tmp_path / "p"), "--output", output)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert str(output) in result.stderr and "Nothing was replaced" in result.stderr
    assert output.read_text() == "a file, not a folder"


def test_a_failed_rebuild_leaves_the_old_files_as_they_were(tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    (output / "labels.csv").write_text("old")
    result = run_script("--stamps", fake_package(tmp_path / "p"), "--output", output)
    assert result.returncode != 0
    assert [path.name for path in output.iterdir()] == ["labels.csv"]
    assert (output / "labels.csv").read_text() == "old"


@pytest.fixture
def stamps():
    folder = os.environ.get("SAMPLE_STAMPS")
    if not folder:
        pytest.skip("SAMPLE_STAMPS does not name the folder of `dpkg-deb -x tuxpaint-stamps-default_*.deb FOLDER`")
    return folder


def test_the_photographs_for_pretraining_are_written_or_none_is(tmp_path):
    package = fake_package(tmp_path / "p")
    result = run_script("--stamps", package, "--pretraining", tmp_path / "outside")
    assert result.returncode != 0 and "no photograph" in result.stderr
    assert not list((tmp_path / "outside").iterdir())


def test_the_backbone_was_pretrained_on_just_these_photographs(tmp_path, stamps):
    result = run_script("--stamps", stamps, "--pretraining", tmp_path)
    assert result.returncode == 0, result.stderr
    digest = hashlib.sha256()
    for path in sorted(tmp_path.glob("*.jpg")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    about = json.loads(str(numpy.load(SAMPLE / "backbone.npz")["about"]))
    assert about["photographs"] == {"number": len(read("pretraining_selection.csv")), "sha256": digest.hexdigest()}


def test_rebuilding_gives_the_committed_files(tmp_path, stamps):
    for name in ("first", "second"):
        result = run_script("--stamps", stamps, "--output", tmp_path / name)
        assert result.returncode == 0, result.stderr
    files = sorted(path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*") if path.is_file())
    assert len(files) == len(read("selection.csv")) + 3
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes(), file
    assert (tmp_path / "first/labels.csv").read_bytes() == (SAMPLE / "labels.csv").read_bytes()
    made_with = re.search(r"Pillow (\S+)", (SAMPLE / "README.md").read_text(encoding="utf-8")).group(1).rstrip(".,;)")
    if PIL.__version__ != made_with:
        pytest.skip(f"the JPEG files were made with Pillow {made_with}; this is {PIL.__version__}: bytes may differ")
    for file in (file for file in files if file.name != "LICENSE-photographs"):  # base-files may word the GPL anew
        assert (tmp_path / "first" / file).read_bytes() == (SAMPLE / file).read_bytes(), file
