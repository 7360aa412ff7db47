"""The serving ledger: what serves where, and that nobody changed what was written."""

import dataclasses
import datetime
import errno
import json
import os

import pytest

from pipeline import files
from pipeline.errors import PipelineError
from pipeline.release import ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "serving" / "ledger.jsonl"


@pytest.fixture
def append(path):
    def append(version, endpoint="default", **changes):
        facts = {
            "model": f"/versions/{version}",
            "run_id": f"run-{version}",
            "snapshot": "labels_20260302",
            "snapshot_date": "2026-03-02",
            "weights_sha256": version * 64,
        }
        return ledger.append(path, endpoint=endpoint, to_version=version, **{**facts, **changes})

    return append


def refusal(path) -> str:
    with pytest.raises(PipelineError) as raised:
        ledger.read(path)
    return str(raised.value)


def test_a_ledger_that_does_not_exist_is_empty(path):
    assert ledger.read(path) == [] and ledger.serving(path, "default") is None
    assert not path.exists()


def test_the_first_entry_follows_nothing(path, append):
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
    entry = append("1")
    assert dataclasses.replace(entry, at="") == ledger.Entry(
        number=1,
        at="",
        endpoint="default",
        from_version="",
        to_version="1",
        path="/versions/1",
        share=1.0,
        run_id="run-1",
        snapshot="labels_20260302",
        snapshot_date="2026-03-02",
        weights_sha256="1" * 64,
        previous="0" * 64,
    )
    assert before <= datetime.datetime.fromisoformat(entry.at) <= datetime.datetime.now(datetime.timezone.utc)
    assert ledger.read(path) == [entry] and ledger.serving(path, "default") == entry


def test_each_entry_names_the_version_before_and_the_newest_serves(path, append):
    entries = [append(version) for version in "123"]
    assert [entry.number for entry in entries] == [1, 2, 3]
    assert [(entry.from_version, entry.to_version) for entry in entries] == [("", "1"), ("1", "2"), ("2", "3")]
    assert ledger.read(path) == entries and ledger.serving(path, "default") == entries[-1]
    assert entries[0].at <= entries[1].at <= entries[2].at


def test_what_was_written_stays_byte_for_byte(path, append):
    append("1")
    first = path.read_bytes()
    append("2")
    assert path.read_bytes().startswith(first)


def test_endpoints_are_served_apart_in_one_chain(path, append):
    append("1")
    other = append("2", endpoint="trial")
    third = append("3")
    assert (other.number, other.from_version, third.from_version) == (2, "", "1")
    assert ledger.serving(path, "default").to_version == "3"
    assert ledger.serving(path, "trial").to_version == "2"
    assert ledger.serving(path, "nowhere") is None


def test_text_of_any_kind_comes_back(path, append):
    models = ['/föld er/☃ "quoted"\n', "/line\u2028separator", "/next\x85line"]
    entries = [append(str(number), model=model) for number, model in enumerate(models)]
    assert ledger.read(path) == entries and [entry.path for entry in entries] == models


def changed(lines):
    lines[1] = lines[1].replace("/versions/2", "/elsewhere")


def removed(lines):
    del lines[1]


def first_removed(lines):
    del lines[0]


def swapped(lines):
    lines[1], lines[2] = lines[2], lines[1]


def doubled(lines):
    lines.insert(1, lines[0])


def renumbered(lines):
    lines[3] = lines[3].replace('"number": 4', '"number": 5')


def respaced(lines):
    lines[0] = json.dumps(json.loads(lines[0]), separators=(",", ":"))


@pytest.mark.parametrize(
    ("damage", "line"),
    [(changed, 3), (removed, 2), (first_removed, 1), (swapped, 2), (doubled, 2), (renumbered, 4), (respaced, 2)],
)
def test_a_line_that_was_changed_lost_or_moved_is_noticed(path, append, damage, line):
    for version in "1234":
        append(version)
    lines = path.read_text().splitlines()
    damage(lines)
    path.write_text("\n".join(lines) + "\n")
    text = refusal(path)
    for words in [str(path), f"line {line} does not follow line {line - 1}", "restore the file from its backup"]:
        assert words in text
    # Nothing is written behind a broken chain.
    before = path.read_bytes()
    with pytest.raises(PipelineError):
        append("5")
    assert path.read_bytes() == before


def test_the_newest_line_is_vouched_for_by_no_other(path, append):
    append("1")
    path.write_text(path.read_text().replace("/versions/1", "/elsewhere"))
    assert ledger.serving(path, "default").path == "/elsewhere"


@pytest.mark.parametrize("line", ["no json", "", "[]", "7", "{}", '{"number": 2, "colour": "red"}', '{"number": 2', b"\xff\xfe"])
def test_a_line_that_is_no_entry_is_named(path, append, line):
    append("1")
    with open(path, "ab") as stream:
        stream.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    text = refusal(path)
    assert f"{path}, line 2 is no ledger entry" in text and "restore the file from its backup" in text


def test_a_last_line_that_is_cut_short_is_no_empty_ledger(path, append):
    append("1")
    for cut in (1, 20):
        path.write_bytes(path.read_bytes()[:-cut])
        assert f"{path} ends in the middle of a line: restore the file from its backup" in refusal(path)


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_full_disk_leaves_the_ledger_as_it_was(path, append, monkeypatch, step):
    append("1")
    before = path.read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, {"write": "fsync", "replace": "replace"}[step], full)
    with pytest.raises(OSError, match="No space left"):
        append("2")
    monkeypatch.undo()
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]
    assert append("2").number == 2


def test_a_step_that_is_tried_again_after_others_released_finds_its_own_entry(path, append):
    """It must not take what it released for held, and remove a folder that a rollback may need."""
    first, second = append("1", from_version=""), append("2", from_version="1")
    content = path.read_bytes()
    assert append("1", from_version="") == first and path.read_bytes() == content
    assert ledger.serving(path, "default") == second


def test_people_may_return_to_a_version_time_and_again(path, append):
    append("1")
    for _ in range(2):
        append("2", action="promote")
        append("1", action="rollback")
    assert [entry.to_version for entry in ledger.read(path)] == ["1", "2", "1", "2", "1"]


def canary(append, version="2", **changes):
    return append(version, action="canary", share=0.1, actor=ledger.actor_of(f"run-{version}"), **changes)


def test_a_canary_serves_beside_what_serves_until_it_is_promoted(path, append):
    first = append("1")
    assert ledger.canary(ledger.read(path)) is None and ledger.shares(ledger.read(path)) == {"1": 1.0}
    beside = canary(append, from_version="1")
    entries = ledger.read(path)
    assert ledger.serving(path, "default") == ledger.now(entries) == first and ledger.canary(entries) == beside
    assert ledger.shares(entries) == {"1": 0.9, "2": 0.1} and (beside.from_version, beside.share) == ("1", 0.1)
    promoted = append("2", action="promote", actor="run run-2", from_version="1", reason="no errors")
    entries = ledger.read(path)
    assert promoted.from_version == "1" and ledger.now(entries) == promoted and ledger.canary(entries) is None
    assert ledger.shares(entries) == {"2": 1.0}


def test_a_canary_that_is_rolled_back_was_withdrawn_and_may_not_return_by_a_run(path, append):
    append("1")
    canary(append)
    back = append("1", action="rollback", actor="run run-2", reason="5 % errors", from_version="1")
    entries = ledger.read(path)
    assert back.from_version == "2" and ledger.shares(entries) == {"1": 1.0}
    assert ledger.withdrawal(entries, "2" * 64) == back and ledger.withdrawal(entries, "1" * 64) is None


def test_beside_a_canary_nothing_else_is_released(path, append):
    append("1")
    canary(append)
    for again in (lambda: canary(append, "3"), lambda: append("3")):
        with pytest.raises(ledger.Held, match="version 2 of run run-2 is a canary .* one release at a time"):
            again()
    assert len(ledger.read(path)) == 2 and canary(append) == ledger.read(path)[-1]


def test_what_a_run_did_it_does_not_do_again_and_a_person_may(path, append):
    append("1")
    for _ in range(2):
        canary(append)
        append("1", action="rollback", actor="run run-2")
    assert len(ledger.read(path)) == 3
    append("2", action="promote", actor="ana")
    append("1", action="rollback", actor="run run-2")
    assert [entry.actor for entry in ledger.read(path)][2:] == ["run run-2", "ana"]


def test_a_canary_before_anything_serves_has_its_share_alone(append, path):
    assert ledger.shares([]) == {} and ledger.now([]) is None
    canary(append)
    assert ledger.shares(ledger.read(path)) == {"2": 0.1} and ledger.serving(path, "default") is None
