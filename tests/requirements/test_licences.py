"""Each installed package has a licence that lets a company run, change and pass on what it builds with it."""

import functools
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Permissive ones, and MPL-2.0, which asks only that changes to its own files be published.
_ALLOWED = re.compile(
    r"\(?(Apache([ -](Software )?License)?(,? ?(Version )?-?2\.0)?|(3-Clause )?BSD( License|-[23]-Clause)?|MIT( License|-0|-CMU)?"
    r"|0BSD|Zlib|CC0-1\.0|ISC( License \(ISCL\))?|PSF-2\.0|Python Software Foundation License|CNRI-Python"
    r"|(The )?Unlicense( \(Unlicense\))?|MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\))\)?"
)
# Say nothing in their metadata, and this in their repositories.
_READ_BY_HAND = {"namex": "Apache-2.0", "sigstore-models": "MIT"}
_NO_LICENCE = {"DFSG approved", "OSI Approved"}  # classifiers that stand beside the licence


@functools.cache
def installed() -> dict[str, str]:
    """The licence of each package of this environment, as its metadata has it."""
    words = [sys.executable, "-m", "piplicenses", "--from=mixed", "--format=json", "--with-system"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return {row["Name"].lower().replace("_", "-"): row["License"] for row in json.loads(done.stdout)}


def _accepted(licence: str) -> bool:
    """Of what a package offers to choose from, one is enough."""
    return licence in _NO_LICENCE or any(map(_ALLOWED.fullmatch, licence.split(" OR ")))


def test_of_two_licences_one_is_enough_and_of_two_that_hold_both_must_be():
    assert _accepted("CC0-1.0 OR Apache-2.0") and not _accepted("GPL-3.0 OR AGPL-3.0")
    assert [_accepted(part) for part in re.split(r"; | AND ", "MIT AND GPL-3.0")] == [True, False]


def test_every_licence_is_one_that_we_accept():
    licences = {**installed(), **_READ_BY_HAND}
    assert len(licences) > 150
    refused = {
        name: licence
        for name, licence in licences.items()
        if not all(map(_accepted, re.split(r"; | AND ", licence)))
    }
    assert refused == {}


def test_the_docs_name_each_direct_dependency_with_its_licence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    direct = [*project["project"]["dependencies"], *groups["tfx-1-16"], *groups["tfx-1-21"], *groups["test"]]
    names = {re.match(r"[\w-]+", each)[0] for each in direct}
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "dependencies.md").read_text("utf-8"), re.M)
    assert {name for name, *_ in rows} == names
    licences = installed()
    family = re.compile("Apache|BSD|MIT")
    written = {name: family.match(licence)[0] for name, _, _, licence in rows if name in licences}
    assert {name: licence for name, licence in written.items() if licence not in family.findall(licences[name])} == {}


def test_the_held_back_versions_that_the_docs_explain_are_those_that_are_locked():
    """A release of a line that moves one of these makes the page's account of it old."""
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\*\*([\w-]+) ([\d.]+)\*\*", page, re.M))
    locked = (ROOT / "requirements" / "tfx-1.16.txt").read_text(encoding="utf-8")
    assert named
    assert {name: re.search(rf"^{name}==([\d.]+)", locked, re.M)[1] for name in named} == named
    assert importlib.metadata.version("pyarrow-hotfix")
