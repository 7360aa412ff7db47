"""`python -m pipeline audit`: every question as a person asks it, light, read-only, with its exit status."""

import json
import pathlib
import shutil

import pytest

from pipeline import files
from tests.pipeline.conftest import answers
from tests.pipeline.lineage.weeks import STEPS


def files_of(folder) -> dict:
    return {str(path): path.stat().st_mtime_ns for path in pathlib.Path(folder).rglob("*")}


@pytest.fixture(scope="module")
def told(weeks, tmp_path_factory):
    """Every command line of this file, asked in one interpreter, and what was in the store before and after."""
    written, runs = weeks
    folder, first, second = pathlib.Path(written.places.store), runs["first"], runs["second"]
    altered = shutil.copytree(pathlib.Path(written.places.versions, "1"), tmp_path_factory.mktemp("altered") / "model")
    (altered / "saved_model.pb").write_text("another graph")
    lines = {
        "serving": ["serving", "--on", "2026-03-03"],
        "serving at": ["serving", "--on", "2026-03-09", "--at", "13:00+01:00", "--json"],
        "serving in Berlin": ["serving", "--on", "2026-03-09", "--at", "13:00", "--zone", "Europe/Berlin", "--json"],
        "run": ["run", runs["bad"]],
        "run json": ["run", second, "--json"],
        "verify": ["verify", first],
        "verify json": ["verify", str(pathlib.Path(written.places.versions, "2")), "--json"],
        "verify another": ["verify", str(altered)],
        "verify nothing": ["verify", str(folder)],
        "verify without a part": ["verify", first, "--skip", "shards, export"],
        "verify without what is none": ["verify", first, "--skip", "shard"],
        "diff": ["diff", first, second],
        "diff json": ["diff", first, second, "--ids", "--json"],
        "diff of nothing": ["diff", first, "2026"],
        "image": ["image", "p1-a"],
        "image json": ["image", "p1-a", "--json"],
        "image of nothing": ["image", "none"],
        "report": ["report", first, "--html", str(altered.parent / "first.html")],
        "report with verify": ["report", first, "--html", str(altered.parent / "first.html"), "--verify", "--json"],
        "report over a model": ["report", first, "--html", str(altered / "saved_model.pb")],
        "snapshot": ["snapshot", "labels_20260302"],
        "snapshot json": ["snapshot", "labels_20260302", "--json"],
        "snapshot of nothing": ["snapshot", "labels"],
    }
    before = files_of(folder)
    found = answers("pipeline.__main__", [["audit", *words, "--store", str(folder)] for words in lines.values()])
    return dict(zip(lines, found, strict=True)), before, files_of(folder)


def test_no_question_loads_tensorflow_or_tfx_or_changes_the_store(told):
    found, before, after = told
    assert [answer.loaded for answer in found.values()] == [[]] * len(found)
    assert before == after


GOOD = {
    "serving": "On 2026-03-03 (UTC) served 1 model(s):",
    "run": "is rejected: <script>",
    "verify": "nothing that was checked was altered or lost",
    "verify without a part": "nothing that was checked was altered or lost; 2 skipped",
    "diff": "2 added, 1 removed, 1 changed",
    "image": "label 'hat', product 'p1', from 'ben'",
    "snapshot": "trained a model",
    "report": "first.html, sha256 ",
}


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_in_text(told, name):
    answer = told[0][name]
    assert (answer.status, answer.err) == (0, "") and GOOD[name] in answer.out


JSON = {
    "serving at": lambda answer, runs: [item["run_id"] for item in answer["served"]] == [runs["second"]],
    "serving in Berlin": lambda answer, runs: answer["from"] == "2026-03-09T12:00:00+00:00",
    "run json": lambda answer, runs: len(answer["steps"]) == len(STEPS) and answer["serving"][0]["since"] == "2026-03-09T12:00:00+00:00",
    "verify json": lambda answer, runs: answer["intact"] and answer["run_id"] == runs["second"] and len(answer["checks"]) == 16,
    "diff json": lambda answer, runs: answer["labels"]["counts"]["changed"] == 1 and len(answer["labels"]["images"]) == 4,
    "image json": lambda answer, runs: answer["snapshots"][0]["runs"][0]["run"]["served"][0]["since"] == "2026-03-02T12:00:00+00:00",
    "report with verify": lambda answer, runs: answer["bad"] == 0 and answer["sha256"] == files.sha256_of(answer["html"]),
    "snapshot json": lambda answer, runs: answer["runs"][0]["trained"] is True and answer["problems"] == [],
}


@pytest.mark.parametrize("name", JSON)
def test_an_answer_in_json(told, weeks, name):
    answer = told[0][name]
    assert (answer.status, answer.err) == (0, "") and JSON[name](json.loads(answer.out), weeks[1])


REFUSED = {
    "verify another": "no run of this store recorded a model with the digest",
    "verify nothing": "is no model, it holds no saved_model.pb",
    "verify without what is none": "--skip names 'shard': the parts are records, snapshot, shards",
    "diff of nothing": "there is no run '2026'",
    "image of nothing": "no snapshot holds a label of the image 'none'",
    "report over a model": "saved_model.pb is there and is no report of an audit",
    "snapshot of nothing": "no run took a snapshot 'labels'; the closest: ",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_is_one_sentence(told, name):
    answer = told[0][name]
    assert (answer.status, answer.out) == (1, "") and answer.err.count("\n") == 1
    assert answer.err.startswith("error: ") and REFUSED[name] in answer.err
