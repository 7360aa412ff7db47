"""Makes the sample data: photographs, their sources and licence, and the log of label edits.

The photographs come from Debian's package tuxpaint-stamps-default; which ones, and what they show, is in
selection.csv beside this script, chosen by eye. Run it with Pillow installed:

    python data/sample/make_sample.py                    # apt-get download, dpkg-deb -x (Debian, Ubuntu)
    python data/sample/make_sample.py --deb FILE.deb     # a package file that is already here
    python data/sample/make_sample.py --stamps FOLDER    # what `dpkg-deb -x FILE.deb FOLDER` wrote

    python data/sample/make_sample.py --pretraining FOLDER   # the other photographs, for python -m models.pretrain

It takes about 5 s and writes 5 MB. The same package and the same Pillow give the same bytes. Everything is written
to a temporary folder first and moved into place at the end, so an interrupted run leaves the old data whole.
The snapshots that the edits add up to, Monday by Monday, are told in README.md.
"""

import argparse
import contextlib
import csv
import dataclasses
import datetime
import gzip
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

PACKAGE = "tuxpaint-stamps-default"
VERSION = "2022.06.04-1"  # the version whose photographs were looked at
LICENCE = "GPL-2.0-or-later"
COPYRIGHT = "2002-2022 Bill Kendrick"

JPEG_QUALITY = 88
LONGER_SIDES = (400, 480, 640, 800, 1000, 1200)  # pixels; the target of each image is drawn from its id
SHORTEST_SIDE = 300  # pixels; a smaller photograph is padded with white
MARGIN = 0.04  # white on each side, as a share of the longer side
# Enlarging adds bytes but no detail. Below 100 pixels it is needed for the object to fill the frame at all.
LARGEST_ENLARGEMENT, LARGEST_ENLARGEMENT_OF_THUMBNAIL, THUMBNAIL = 3.0, 4.0, 100
PROGRESSIVE_ONE_IN = 8

FIRST_MONDAY = "2026-03-02"
EDIT_COLUMNS = ("image_id", "product_id", "label", "source", "updated_at")

# Wrong labels that an import brought: source photograph -> (wrong label, who corrects it, when).
MISLABELS = {
    "household/tools/cementmixer.png": ("tool", "analyst-ana", "2026-03-04T10:21:47Z"),
    "plants/trees/rambutan.png": ("flower", "analyst-ben", "2026-03-05T14:02:33Z"),
    # The last second of a Sunday, and the first of a Monday: the first counts for 03-16, the second only for 03-23.
    "household/key.png": ("coin", "analyst-cleo", "2026-03-15T23:59:59Z"),
    "food/fruit/pineapple.png": ("flower", "analyst-cleo", "2026-03-16T00:00:00Z"),
    "plants/flowers/anthoorium.png": ("produce", "analyst-ana", "2026-03-12T09:13:05Z"),
    "food/vegetables/pattypan_squash.png": ("flower", "analyst-ben", "2026-03-19T11:40:18Z"),
    "plants/mushrooms/cep-1.png": ("flower", "analyst-ana", "2026-03-18T09:02:57Z"),
    "vehicles/flight/planes/747.png": ("bird", "analyst-ben", "2026-04-02T13:11:26Z"),
}
# An analyst changed a right label by mistake and took it back at once; no snapshot sees it.
SECOND_THOUGHTS = {
    "animals/birds/ostrich.png": ("hoofed", "analyst-ben", "2026-03-10T15:20:04Z", "2026-03-10T15:21:36Z"),
    "food/vegetables/corn.png": ("flower", "analyst-ana", "2026-03-18T08:55:12Z", "2026-03-18T08:55:40Z"),
}
# Right labels that an analyst looked at and confirmed: the label stays, updated_at moves.
CONFIRMATIONS = (
    ("food/fruit/lemon.png", "analyst-ana", "2026-03-04T10:25:02Z"),
    ("animals/birds/penguin.png", "analyst-ben", "2026-03-11T13:37:29Z"),
    ("vehicles/cycle/pink_tricycle.png", "analyst-cleo", "2026-03-19T16:04:51Z"),
)

# The bad week, 2026-03-23 to 03-29, and its repair in the week after.
COLLAPSED, COLLAPSED_INTO = "flower", "produce"
COLLAPSE_BY, COLLAPSE_AT = "analyst-ben", "2026-03-27T16:42:10Z"
RESTORE_BY, RESTORE_AT = "analyst-ana", "2026-03-31T08:30:00Z"
# image_id as typed -> label. None of these is a photograph; product_id is the part before the hyphen.
ORPHANS = {
    "p0012-a.jpeg": "coin",
    "p0057-a.jpg": "coin",
    "p0104-A": "tool",
    "p0l33-a": "produce",
    "p0088-z": "bird",
    "p9120-a": "vehicle",
}
ORPHANS_BY, ORPHANS_AT = "analyst-cleo", "2026-03-26T11:05:00Z"
ORPHANS_WITHDRAWN_AT = "2026-03-31T09:10:00Z"
# A form sent twice: both rows carry the same second, and the second label may differ from the first.
DUPLICATES = {
    "household/tools/toolbox.png": "vehicle",
    "animals/birds/pelican.png": "bird",
    "symbols/money/japanese/yen005.png": "tool",
    "animals/mammals/giraffe.png": "hoofed",
    "food/vegetables/eggplant.png": "tool",
}
DUPLICATES_BY, DUPLICATES_AT = "analyst-cleo", "2026-03-26T14:48:00Z"
DUPLICATES_SETTLED_AT = "2026-04-01T10:00:00Z"
TYPO = ("vehicles/garbagetruck.png", "vehical", "analyst-cleo", "2026-03-26T15:02:19Z", "2026-04-01T10:20:00Z")


class SampleError(Exception):
    """A mistake that the user can mend; its message says what was wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Photograph:
    """One row of selection.csv."""

    image_id: str
    product_id: str
    label: str
    first_monday: str  # the first snapshot that has it
    source: str  # below usr/share/tuxpaint/stamps
    source_sha256: str


def read_selection(path: pathlib.Path = HERE / "selection.csv") -> list[Photograph]:
    """The photographs of the sample, in the order of their ids."""
    with open(path, newline="", encoding="utf-8") as file:
        photographs = [Photograph(**row) for row in csv.DictReader(file)]
    return sorted(photographs, key=lambda photograph: photograph.image_id)


# --- the package ---------------------------------------------------------------------------------------------------


def run(command: list[str], cwd: pathlib.Path, remedy: str) -> str:
    """Runs a command and returns what it prints; SampleError with the remedy when it is absent or fails."""
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise SampleError(f"{command[0]} is not installed. {remedy}") from None
    except subprocess.CalledProcessError as error:
        raise SampleError(f"`{' '.join(command)}` failed: {error.stderr.strip()}\n{remedy}") from None


@contextlib.contextmanager
def unpacked_package(deb: pathlib.Path | None = None, stamps: pathlib.Path | None = None):
    """The folder that holds the unpacked package: `stamps` itself, or a temporary one from `deb` or apt."""
    if stamps is not None:
        if not stamps.is_dir():
            raise SampleError(f"{stamps} is not a folder. Make it with: dpkg-deb -x {PACKAGE}_{VERSION}_all.deb FOLDER")
        yield stamps
        return
    with tempfile.TemporaryDirectory(prefix="make_sample-") as temporary:
        folder = pathlib.Path(temporary)
        if deb is None:
            run(
                ["apt-get", "download", PACKAGE],
                folder,
                "Run `apt-get update` first, or fetch the package elsewhere and pass it with --deb FILE.",
            )
            deb = next(folder.glob("*.deb"), None)
            if deb is None:
                raise SampleError("apt-get downloaded nothing. Fetch the package elsewhere; pass it with --deb FILE.")
        elif not deb.is_file():
            raise SampleError(f"{deb} is not a file. Get it with: apt-get download {PACKAGE}")
        run(
            ["dpkg-deb", "-x", str(deb.resolve()), "unpacked"],
            folder,
            f"Is {deb.name} the whole package file? Get it again with: apt-get download {PACKAGE}",
        )
        yield folder / "unpacked"


def package_version(package: pathlib.Path) -> str:
    """The version in the first line of the package's Debian changelog."""
    path = package / "usr/share/doc" / PACKAGE / "changelog.Debian.gz"
    if not path.is_file():
        raise SampleError(
            f"{package} does not hold {PACKAGE}: {path.relative_to(package)} is not there. "
            f"Pass the folder that `dpkg-deb -x {PACKAGE}_{VERSION}_all.deb FOLDER` wrote."
        )
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.readline().split("(")[1].split(")")[0]
    except (OSError, EOFError, IndexError, UnicodeDecodeError) as error:
        raise SampleError(f"{path} cannot be read ({error}). Unpack the package again.") from None


def read_source(package: pathlib.Path, source: str, sha256: str) -> bytes:
    """The bytes of one photograph of the package, checked against the digest of what was looked at."""
    path = package / "usr/share/tuxpaint/stamps" / source
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SampleError(
            f"the package has no photograph {source} ({error.strerror}). "
            f"Unpack it again, or use version {VERSION}: the selection was made from that one."
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise SampleError(
            f"the photograph {source} is not the one that was selected: its SHA-256 is {found}, not {sha256}. "
            f"Use version {VERSION} of {PACKAGE}, or look at the photograph and put its digest into the selection."
        )
    return data


# --- photographs ---------------------------------------------------------------------------------------------------


def draw(image_id: str, purpose: str, n: int) -> int:
    """A number in 0..n-1 that depends on the image's id and the purpose only."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{image_id}".encode()).digest()[:8], "big") % n


def on_white(data: bytes, longer_side: int):
    """The photograph as an RGB Pillow image on white, with a margin.

    Args:
      data: an image file, with or without transparency.
      longer_side: pixels to aim at, margin included; kept smaller where the photograph would be enlarged too much.

    Returns:
      An image with both sides in SHORTEST_SIDE..max(LONGER_SIDES).
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as file:
        cut_out = file.convert("RGBA")
    photograph = Image.new("RGBA", cut_out.size, "white")
    photograph.alpha_composite(cut_out)
    photograph = photograph.convert("RGB")
    longest = max(photograph.size)
    limit = LARGEST_ENLARGEMENT if longest >= THUMBNAIL else LARGEST_ENLARGEMENT_OF_THUMBNAIL
    scale = min(limit, longer_side * (1 - 2 * MARGIN) / longest)
    size = tuple(max(1, round(side * scale)) for side in photograph.size)
    photograph = photograph.resize(size, Image.Resampling.LANCZOS)
    margin = round(max(size) * MARGIN)
    canvas = tuple(max(SHORTEST_SIDE, side + 2 * margin) for side in size)
    image = Image.new("RGB", canvas, "white")
    image.paste(photograph, tuple((outer - inner) // 2 for outer, inner in zip(canvas, size, strict=True)))
    return image


def jpeg(image, progressive: bool) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True, progressive=progressive)
    return buffer.getvalue()


# --- labels --------------------------------------------------------------------------------------------------------


def later(moment: str, seconds: int) -> str:
    instant = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00")) + datetime.timedelta(seconds=seconds)
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def import_moment(first_monday: str, position: int) -> str:
    """The import job runs at 05:30 UTC on the Wednesday before, a few seconds an image."""
    wednesday = datetime.date.fromisoformat(first_monday) - datetime.timedelta(days=5)
    return later(f"{wednesday.isoformat()}T05:30:00Z", 3 * position)


def label_edits(photographs: list[Photograph]) -> list[tuple[str, str, str, str, str]]:
    """The whole log of edits, oldest first: (image_id, product_id, label, source, updated_at).

    An empty label withdraws the image: from then on no snapshot has it. Two rows of one image with the same latest
    updated_at both count, which is how duplicates come about.
    """
    by_source = {photograph.source: photograph for photograph in photographs}
    edits = []

    def edit(photograph: Photograph, label: str, who: str, moment: str) -> None:
        edits.append((photograph.image_id, photograph.product_id, label, who, moment))

    arrivals: dict[str, int] = {}
    for photograph in photographs:
        position = arrivals.setdefault(photograph.first_monday, 0)
        arrivals[photograph.first_monday] += 1
        imported = MISLABELS[photograph.source][0] if photograph.source in MISLABELS else photograph.label
        edit(photograph, imported, "import", import_moment(photograph.first_monday, position))

    for source, (_, who, moment) in MISLABELS.items():
        edit(by_source[source], by_source[source].label, who, moment)
    for source, (wrong, who, changed, taken_back) in SECOND_THOUGHTS.items():
        edit(by_source[source], wrong, who, changed)
        edit(by_source[source], by_source[source].label, who, taken_back)
    for source, who, moment in CONFIRMATIONS:
        edit(by_source[source], by_source[source].label, who, moment)

    collapsed = [p for p in photographs if p.label == COLLAPSED and import_moment(p.first_monday, 0) < COLLAPSE_AT]
    for position, photograph in enumerate(collapsed):
        edit(photograph, COLLAPSED_INTO, COLLAPSE_BY, COLLAPSE_AT)
        edit(photograph, COLLAPSED, RESTORE_BY, later(RESTORE_AT, 9 * position))
    for position, (image_id, label) in enumerate(ORPHANS.items()):
        product_id = image_id.split("-")[0]
        edits.append((image_id, product_id, label, ORPHANS_BY, later(ORPHANS_AT, 41 * position)))
        edits.append((image_id, product_id, "", RESTORE_BY, later(ORPHANS_WITHDRAWN_AT, 12 * position)))
    for position, (source, second_label) in enumerate(DUPLICATES.items()):
        photograph = by_source[source]
        for label in (photograph.label, second_label):
            edit(photograph, label, DUPLICATES_BY, later(DUPLICATES_AT, 53 * position))
        edit(photograph, photograph.label, RESTORE_BY, later(DUPLICATES_SETTLED_AT, 37 * position))
    source, typo, who, typed, corrected = TYPO
    edit(by_source[source], typo, who, typed)
    edit(by_source[source], by_source[source].label, RESTORE_BY, corrected)

    return sorted(edits, key=lambda row: (row[4], row[0]))


# --- files ---------------------------------------------------------------------------------------------------------


def write_table(path: pathlib.Path, columns, rows) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def licence_text(package: pathlib.Path, licence: pathlib.Path) -> str:
    """Where the photographs come from, the package's copyright file and the text of the GPL, in that order."""
    copyright_file = package / "usr/share/doc" / PACKAGE / "copyright"
    for path, remedy in (
        (copyright_file, "Unpack the package again."),
        (licence, "Pass a copy of the GNU General Public License, version 2, with --licence FILE."),
    ):
        if not path.is_file():
            raise SampleError(f"{path} is not there. {remedy}")
    return (
        f"The photographs in images/ are changed copies (put on white, resized, saved as JPEG) of pictures in the\n"
        f"Debian package {PACKAGE}; SOURCES.csv names the original of each.\n"
        f"They are under the GNU General Public License, version 2 or later.\n\n"
        f"----- the package's copyright file -----\n\n{copyright_file.read_text(encoding='utf-8').rstrip()}\n\n"
        f"----- GNU General Public License, version 2 -----\n\n{licence.read_text(encoding='utf-8').rstrip()}\n"
    )


def write_sample(package: pathlib.Path, version: str, licence: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes images/, SOURCES.csv, labels.csv and LICENSE-photographs into an empty folder."""
    (folder / "LICENSE-photographs").write_text(licence_text(package, licence), encoding="utf-8")
    photographs = read_selection()
    (folder / "images").mkdir()
    sources = []
    for photograph in photographs:
        data = read_source(package, photograph.source, photograph.source_sha256)
        image = on_white(data, LONGER_SIDES[draw(photograph.image_id, "size", len(LONGER_SIDES))])
        encoded = jpeg(image, progressive=draw(photograph.image_id, "progressive", PROGRESSIVE_ONE_IN) == 0)
        name = f"{photograph.image_id}.jpg"
        (folder / "images" / name).write_bytes(encoded)
        sha256 = hashlib.sha256(encoded).hexdigest()
        origin = (PACKAGE, version, photograph.source, photograph.source_sha256, COPYRIGHT, LICENCE)
        sources.append((f"images/{name}", sha256, *image.size, *origin))
    write_table(
        folder / "SOURCES.csv",
        ("file", "sha256", "width", "height", "package", "version", "source", "source_sha256", "copyright", "licence"),
        sources,
    )
    write_table(folder / "labels.csv", EDIT_COLUMNS, label_edits(photographs))


def write_pretraining(package: pathlib.Path, folder: pathlib.Path) -> int:
    """Writes the photographs of pretraining_selection.csv, none of the sample's classes; returns their number."""
    with open(HERE / "pretraining_selection.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        data = read_source(package, row["source"], row["source_sha256"])
        name = row["source"].removesuffix(".png").replace("/", "-") + ".jpg"
        (folder / name).write_bytes(jpeg(on_white(data, LONGER_SIDES[0]), progressive=False))
    return len(rows)


def move_into_place(new: pathlib.Path, output: pathlib.Path, old: pathlib.Path) -> None:
    """Puts each entry of `new` into `output`; what it replaces goes to `old`, and back if anything fails."""
    moved = []
    try:
        for entry in sorted(new.iterdir()):
            target = output / entry.name
            if target.exists():
                os.replace(target, old / entry.name)
            moved.append(target)
            os.replace(entry, target)
    except BaseException:
        for target in moved:
            if (old / target.name).exists():
                shutil.rmtree(target, ignore_errors=True)
                os.replace(old / target.name, target)
        raise


@contextlib.contextmanager
def checked_package(options: argparse.Namespace):
    """The folder of the unpacked package and its version, which is the one that was selected from."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise SampleError("Pillow is not installed in this Python. Use the project's: .venv/bin/python") from None
    with unpacked_package(options.deb, options.stamps) as package:
        version = package_version(package)
        if version != VERSION and not options.any_version:
            raise SampleError(
                f"the package is version {version}; the photographs were selected from {VERSION}. Get that version, or "
                "pass --any-version: each photograph is still compared with the selected one by its SHA-256."
            )
        yield package, version


def make(options: argparse.Namespace) -> str:
    """Makes what was asked for and returns a line about it."""
    output = options.pretraining or options.output
    with checked_package(options) as (package, version):
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".make_sample-", dir=output) as temporary:
            new, old = pathlib.Path(temporary, "new"), pathlib.Path(temporary, "old")
            new.mkdir()
            old.mkdir()
            if options.pretraining:
                written = f"{write_pretraining(package, new)} photographs"
            else:
                write_sample(package, version, options.licence, new)
                written = "images/, labels.csv, SOURCES.csv and LICENSE-photographs"
            move_into_place(new, output, old)
    return f"wrote {written} to {output}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=f"Makes the sample data from photographs of Debian's package {PACKAGE}.",
        epilog="With neither --deb nor --stamps the package is downloaded by apt-get.",
    )
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--deb", type=pathlib.Path, metavar="FILE", help="the package file")
    origin.add_argument("--stamps", type=pathlib.Path, metavar="FOLDER", help="the package, unpacked by dpkg-deb -x")
    parser.add_argument("--any-version", action="store_true", help=f"accept another version than {VERSION}")
    parser.add_argument(
        "--licence",
        type=pathlib.Path,
        metavar="FILE",
        default=pathlib.Path("/usr/share/common-licenses/GPL-2"),
        help="the text of the GPL, version 2 (default: %(default)s, which Debian has)",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="FOLDER",
        default=HERE,
        help="where to write (default: beside the script)",
    )
    parser.add_argument(
        "--pretraining",
        type=pathlib.Path,
        metavar="FOLDER",
        help="write the photographs of pretraining_selection.csv there, and nothing else",
    )
    options = parser.parse_args(arguments)
    try:
        done = make(options)
    except SampleError as error:
        print(f"make_sample: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"make_sample: {where}{error.strerror}. Nothing was replaced; make room or permit writing there.",
            file=sys.stderr,
        )
        return 1
    print(f"make_sample: {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
