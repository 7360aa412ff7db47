"""`python -m pipeline`: the answers, the refusals, and that neither loads TensorFlow without need."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from pipeline.places import Places
from pipeline.release import ledger
from tests.pipeline.conftest import ROOT, answers, command
from tests.pipeline.lineage.conftest import HandWritten, release_facts

AUDIT = ["audit", "serving", "--on"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """`full` served from 2 March on, `idle` released nothing, `moved` lost its model and its lineage, `none` is no store."""
    folder = tmp_path_factory.mktemp("stores")
    for name in ("full", "idle"):
        (folder / name).mkdir()
        written = HandWritten(Places(store=str(folder / name)))
        written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00") if name == "full" else None)
    moved = Places(store=str(folder / "moved"))
    release(moved.ledger, "1", model=str(folder / "moved" / "1"))
    pathlib.Path(moved.metadata).write_text("no database\n" * 100)
    return folder


def release(path, version, model="/m"):
    ledger.append(
        path, endpoint="default", to_version=version, model=model, run_id="r", snapshot="s",
        snapshot_date="2026-03-02", weights_sha256="0",
    )  # fmt: skip


REFUSALS = {
    "a month that is none": ([*AUDIT, "2026-13-01", "--store", "full"], ["'2026-13-01'", "YYYY-MM-DD", "2026-03-02"]),
    "a word for a date": ([*AUDIT, "yesterday", "--store", "full"], ["'yesterday'", "YYYY-MM-DD"]),
    "no store": ([*AUDIT, "2026-03-05", "--store", "none"], ["no lineage store", "none/metadata.sqlite", "--store"]),
    "before the first release": (
        [*AUDIT, "2026-03-01", "--store", "full"],
        ["nothing served on 2026-03-01 (UTC)", "2026-03-02 12:00 UTC"],
    ),
    "nothing released": ([*AUDIT, "2026-03-05", "--json", "--store", "idle"], ["nothing was released yet"]),
    "the future": ([*AUDIT, "2999-01-01", "--store", "full"], ["2999-01-01 (UTC) lies in the future"]),
    "a time that is none": ([*AUDIT, "2026-03-05", "--at", "noon", "--store", "full"], ["'noon'", "14:00"]),
    "an endpoint that is none": ([*AUDIT, "2026-03-05", "--endpoint", "x", "--store", "full"], ["'x'", "default"]),
    "a run that is none": (["audit", "run", "run", "--store", "full"], ["no run 'run'", "the closest: run-1"]),
    "a run of no store": (["audit", "run", "run-1", "--store", "none"], ["no lineage store"]),
    "predict without a store": (
        ["predict", "a.jpg", "--store", "none"],
        ["nothing serves at endpoint 'default' of the store none", "run the pipeline first", "--store"],
    ),
    "predict without its model": (["predict", "a.jpg", "--store", "moved"], ["the model that serves, moved/1, is not there"]),
    "drift without a store": (
        ["drift", "a.jsonl", "--store", "none"],
        ["nothing serves at endpoint 'default' of the store none", "run the pipeline first", "--store"],
    ),
    "drift without its model": (
        ["drift", "a.jsonl", "--store", "moved"], ["version 1 of run r serves, says the ledger", "moved/1 is not there"],
    ),
    "no lineage": ([*AUDIT, "2026-03-05", "--store", "moved"], ["moved/metadata.sqlite is no lineage store", "backup"]),
    "no study": (["tune", "status", "--store", "idle"], ["no study was searched in the store", "idle", "--tune", "--store"]),
    "a ranking of no run": (
        ["tune", "verify-ranking", "run-9", "3", "--store", "full"],
        ["there is no run 'run-9' in the lineage store full/metadata.sqlite", "run-1"],
    ),
    "predict at another endpoint": (["predict", "a.jpg", "--endpoint", "trial", "--store", "full"], ["'trial'"]),
}

USAGE = {
    "no command": ([], "COMMAND"),
    "no question": (["audit"], "QUESTION"),
    "no question of tune": (["tune"], "QUESTION"),
    "no day": (["audit", "serving"], "--on"),
    "no count of trials": (["tune", "verify-ranking", "run-1"], "K"),
    "words for a count": (["tune", "verify-ranking", "run-1", "three"], "'three'"),
    "no photograph": (["predict"], "IMAGE"),
    "drift of nothing": (["drift"], "REQUESTS"),
    "no number to draw": (["drift", "a.jsonl", "--most", "0"], "'0' is no number of photographs"),
    "another command": (["train"], "'train'"),
    "another option": (["predict", "a.jpg", "--speed", "9"], "--speed"),
}


@pytest.fixture(scope="module")
def told(stores):
    """Every command line of this file that is not asked in a process of its own."""
    lines = {name: words for name, (words, _) in {**REFUSALS, **USAGE}.items()}
    lines |= {"run": ["audit", "run", "run-1", "--store", "full"], "run in json": ["audit", "run", "run-1", "--json", "--store", "full"]}
    lines |= {"text": [*AUDIT, "2026-03-05", "--store", "full"], "json": [*AUDIT, "2026-03-05", "--json", "--store", "full"]}
    folders = {name: str(stores / name) for name in ("full", "idle", "moved", "none")}
    with_folders = [[folders.get(word, word) for word in words] for words in lines.values()]
    return dict(zip(lines, answers("pipeline.__main__", with_folders), strict=True))


def test_nothing_of_this_loads_tensorflow_or_tfx(told):
    assert [answer.loaded for answer in told.values()] == [[]] * len(told)


def test_the_audit_answers_in_text(told):
    assert told["text"].status == 0 and told["text"].err == ""
    assert told["text"].out.startswith("On 2026-03-05 (UTC) served 1 model(s):\n\n")
    # This store has no ledger: that is told, and the lineage answers.
    assert "\n\nwarning: release 1 (run run-1) is in the lineage and not in the ledger\n\nrun run-1\n" in told["text"].out


def test_the_audit_answers_in_json(told):
    assert told["json"].status == 0 and told["json"].err == ""
    answers = json.loads(told["json"].out)
    (answer,) = answers["served"]
    assert answer["run_id"] == "run-1" and answer["serving"]["until"] is None and answer["rows"] == 152
    assert (answers["from"], answers["to"]) == ("2026-03-05T00:00:00+00:00", "2026-03-06T00:00:00+00:00")
    assert len(answers["problems"]) == 1


def test_a_run_is_told_in_text_and_json(told):
    assert told["run"].status == 0 and told["run"].out.startswith("run run-1\n  state       COMPLETE\n")
    answer = json.loads(told["run in json"].out)
    assert answer["checksum"] == "5" * 64 and len(answer["steps"]) == 6 and answer["serving"][0]["version"] == "1"


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_answered_is_a_sentence(told, stores, name):
    answer = told[name]
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
    for words in REFUSALS[name][1]:
        assert words in answer.err.replace(f"{stores}/", "")


@pytest.mark.parametrize("name", USAGE)
def test_a_command_line_that_is_none_shows_the_usage(told, name):
    answer = told[name]
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("usage: python -m pipeline") and USAGE[name][1] in answer.err


def test_as_a_person_calls_it(stores):
    done = command("-m", "pipeline", *AUDIT, "2026-03-05", "--store", str(stores / "full"))
    assert done.returncode == 0 and "run run-1" in done.stdout and done.stderr == ""
    refused = command("-m", "pipeline", *AUDIT, "2026-03-05", "--store", str(stores / "none"))
    assert refused.returncode == 1 and refused.stdout == ""
    assert refused.stderr.startswith("error: there is no lineage store") and "Traceback" not in refused.stderr


def test_a_reader_that_has_seen_enough_is_no_error(stores):
    words = [sys.executable, "-m", "pipeline", *AUDIT, "2026-03-05", "--json", "--store", str(stores / "full")]
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does, here before the first line
    try:
        done = subprocess.run(words, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_broken_ledger_is_told_and_not_guessed_around(tmp_path):
    path = tmp_path / "serving" / "ledger.jsonl"
    for version in "12":
        release(path, version)
    path.write_text(path.read_text().splitlines()[1] + "\n")
    (answer,) = answers("pipeline.__main__", [["predict", "a.jpg", "--store", str(tmp_path)]])
    assert answer.status == 1 and "line 1 does not follow line 0" in answer.err and answer.loaded == []
