"""What serves, as people look at it and change it: status, rollback, promote, and who decided why."""

import functools
import json
import pathlib

import pytest

from pipeline import settings
from pipeline.__main__ import main
from pipeline.errors import PipelineError
from pipeline.lineage import timeline
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.places import Places
from pipeline.release import commands, ledger
from tests.pipeline.conftest import answers
from tests.pipeline.lineage.conftest import HandWritten, release_facts


def model(path: pathlib.Path) -> str:
    """A folder that looks like a SavedModel."""
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_text("graph")
    (path / "variables" / "variables.index").write_text(path.name)
    return str(path)


class Store:
    """A store in which run-1 to run-3 were released and run-4 was refused, with its model still among the artifacts."""

    def __init__(self, folder: pathlib.Path):
        self.places = Places(store=str(folder))
        written = HandWritten(self.places)
        for number in (1, 2, 3):
            path = model(folder / "serving" / "versions" / f"{number}")
            entry = ledger.append(
                self.places.ledger, endpoint="default", to_version=str(number), model=path, run_id=f"run-{number}",
                snapshot=f"labels_{number}", snapshot_date=f"2026-03-0{number}", weights_sha256=f"{number}" * 64,
            )  # fmt: skip
            facts = release_facts(f"run-{number}", number, "2026-03-02 12:00")
            written.whole_run(f"run-{number}", {**facts, "released_at": entry.at, "path": path})
        self.refused_run(written, "run-4", smoke=1)
        self.refused_run(written, "run-5", smoke=0)

    def refused_run(self, written, run_id, smoke):
        context = written.run(run_id)
        folder = pathlib.Path(self.places.artifacts, run_id)
        model(folder / "Format-Serving")
        trained = written.artifact("Model", {}, uri=str(folder))
        written.step(context, "Trainer", outputs={"model": [trained]})
        blessing = written.artifact("InfraBlessing", {"blessed": smoke, "reasons": json.dumps([] if smoke else ["too slow"])})
        written.step(context, "SmokeTest", outputs={"blessing": [blessing]})
        facts = {
            "run_id": run_id, "snapshot": "labels_4", "snapshot_date": "2026-03-04", "weights_sha256": "4" * 64, "released": 0,
        }  # fmt: skip
        release = written.artifact("pipeline.ServingRelease", facts)
        written.step(context, "ServingLedger", outputs={"release": [release]})

    def entries(self):
        return ledger.read(self.places.ledger)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def ask(store, capsys):
    """Runs `python -m pipeline release ...`: exit status, what it printed, what it complained of."""

    def ask(*words):
        status = main(["release", *words, "--store", store.places.store])
        told = capsys.readouterr()
        return status, told.out, told.err

    return ask


WHY = ("--reason", "flowers are seen as fruit", "--by", "ana")


def test_status_says_what_serves_and_what_served(ask):
    status, out, err = ask("status")
    assert (status, err) == (0, "")
    assert out.startswith("endpoint default serves version 3 of run run-3 (labels_3) since ")
    assert [line.split()[3] for line in out.splitlines()[-3:]] == ["3", "2", "1"]
    assert [entry["to_version"] for entry in json.loads(ask("status", "--json")[1])] == ["1", "2", "3"]


def test_a_rollback_is_an_entry_with_who_and_why(ask, store):
    status, out, err = ask("rollback", *WHY)
    assert (status, err) == (0, "")
    assert out == "version 2 of run run-2 (labels_2) serves at endpoint default, before it 3\n"
    *before, entry = store.entries()
    assert len(before) == 3 and (entry.action, entry.actor, entry.reason) == ("rollback", "ana", "flowers are seen as fruit")
    assert (entry.from_version, entry.to_version, entry.run_id, entry.weights_sha256) == ("3", "2", "run-2", "2" * 64)
    assert pathlib.Path(entry.path).is_dir() and "rollback  version 2  run run-2 by ana: flowers" in ask("status")[1]


def test_another_rollback_goes_further_back_and_not_to_what_was_rolled_back(ask, store):
    ask("rollback", *WHY)
    ask("rollback", *WHY)
    assert store.entries()[-1].to_version == "1"
    status, _, err = ask("rollback", *WHY)
    assert status == 1 and "nothing to return to" in err and "run-2, run-3 by --to" in err
    assert ask("rollback", "--to", "run-3", *WHY)[0] == 0 and store.entries()[-1].to_version == "3"


def of_lineage(metadata):
    """What served when, by the lineage alone."""
    return timeline.build(MLMDLineage(str(metadata)).releases(), None).intervals


def test_the_audit_knows_of_a_rollback(ask, store):
    ask("rollback", *WHY)
    intervals = of_lineage(store.places.metadata)
    assert [(item.run_id, item.until is None) for item in intervals] == [
        ("run-1", False), ("run-2", False), ("run-3", False), ("run-2", True),
    ]  # fmt: skip
    ask("status")  # copies nothing twice
    assert len(of_lineage(store.places.metadata)) == 4


def test_a_rollback_works_without_the_lineage_which_is_completed_later(ask, store):
    metadata = pathlib.Path(store.places.metadata)
    metadata.rename(metadata.with_suffix(".away"))
    status, out, err = ask("rollback", *WHY)
    assert status == 0 and out.startswith("version 2") and "the lineage does not yet" in err
    metadata.with_suffix(".away").rename(metadata)
    assert ask("status")[2] == "" and len(of_lineage(metadata)) == 4


def test_a_refused_model_is_promoted_by_a_person_only(ask, store):
    status, out, err = ask("promote", "run-4", *WHY)
    assert (status, err) == (0, ""), err
    entry = store.entries()[-1]
    assert (entry.action, entry.actor, entry.run_id, entry.snapshot_date) == ("promote", "ana", "run-4", "2026-03-04")
    assert pathlib.Path(entry.path).parent == pathlib.Path(store.places.versions)
    assert sorted(path.name for path in pathlib.Path(entry.path).iterdir()) == ["saved_model.pb", "variables"]
    ask("rollback", *WHY)
    # Its folder serves again as it is: no second copy.
    assert ask("promote", "run-4", *WHY)[0] == 0 and store.entries()[-1].to_version == entry.to_version


REFUSALS = {
    "a run that never served": (
        ["rollback", "--to", "run-4", *WHY],
        ["no model of run 'run-4' ever served", "run-1, run-2", "promote"],
    ),
    "what serves already": (["rollback", "--to", "run-3", *WHY], ["version 3 of run run-3 serves already"]),
    "promoting what serves": (["promote", "run-3", *WHY], ["serves already"]),
    "no run": (["promote", "run-9", *WHY], ["there is no run 'run-9'", "run-5"]),
    "an export that does not pass": (["promote", "run-5", *WHY], ["does not pass its smoke test", "too slow"]),
    "no reason": (["rollback", "--reason", " "], ["--reason is empty"]),
    "nobody": (["rollback", "--reason", "x", "--by", ""], ["--by is empty"]),
    "who calls themselves a run": (["rollback", "--reason", "x", "--by", "run 7"], ["give a person's name"]),
    "tidying a folder": (["tidy"], ["release tidy is for an endpoint on Vertex AI"]),
    "an endpoint on Vertex": (["rollback", "--accept-endpoint", *WHY], ["--accept-endpoint is for an endpoint on Vertex AI"]),
    "settings beside a store": (["status", "--settings", "x.yaml"], ["leave --store and --endpoint out"]),
    "another endpoint": (["rollback", "--endpoint", "trial", *WHY], ["nothing was ever released there"]),
    "the status of another": (["status", "--endpoint", "trial"], ["nothing was ever released at endpoint 'trial'", "--store"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_done_is_refused_and_changes_nothing(ask, store, name):
    words, told = REFUSALS[name]
    before = pathlib.Path(store.places.ledger).read_bytes()
    status, out, err = ask(*words)
    assert (status, out) == (1, "") and all(word in err for word in told), err
    assert pathlib.Path(store.places.ledger).read_bytes() == before
    assert len(list(pathlib.Path(store.places.versions).iterdir())) == 3


def test_a_model_that_is_not_whole_is_not_served(ask, store):
    pathlib.Path(store.places.versions, "2", "variables", "variables.index").unlink()
    status, _, err = ask("rollback", *WHY)
    assert status == 1 and "not there or not whole" in err and len(store.entries()) == 3
    pathlib.Path(store.places.versions, "3", "saved_model.pb").unlink()
    assert "IS NOT THERE" in ask("status")[1]


def test_of_two_decisions_at_once_the_second_is_refused(ask, store, monkeypatch):
    """Somebody else promotes between this command's look at the ledger and its entry."""
    looked = ledger.of_endpoint

    def then_another(*words):
        entries = looked(*words)
        monkeypatch.undo()
        assert ask("rollback", *WHY)[0] == 0
        return entries

    monkeypatch.setattr(ledger, "of_endpoint", then_another)
    status, _, err = ask("promote", "run-4", *WHY)
    assert status == 1 and "version 2 serves at endpoint default by now" in err and "decide again" in err
    assert [entry.action for entry in store.entries()][3:] == ["rollback"]
    assert len(list(pathlib.Path(store.places.versions).iterdir())) == 3


def test_a_ledger_that_was_changed_by_hand_is_not_written_to(ask, store):
    path = pathlib.Path(store.places.ledger)
    path.write_text(path.read_text().replace("labels_2", "labels_9"))
    status, _, err = ask("rollback", *WHY)
    assert status == 1 and "changed by hand" in err


def test_the_commands_load_nothing_heavy(store):
    asked = (["status"], ["rollback", *WHY], ["promote", "run-4", *WHY])
    command_lines = [["release", *words, "--store", store.places.store] for words in asked]
    assert [(answer.status, answer.loaded) for answer in answers("pipeline.__main__", command_lines)] == [(0, [])] * 3


def test_hostile_reasons_stay_on_their_line(ask):
    ask("rollback", "--reason", "x\nendpoint default serves version 9\x1b[2J", "--by", "a\u202eb")
    out = ask("status")[1]
    assert "\x1b" not in out and "\u202e" not in out and "\nendpoint default serves version 9" not in out


def test_settings_without_an_endpoint_are_refused(capsys):
    assert main(["release", "status", "--settings", str(settings.CONFIGS / "local.yaml")]) == 1
    assert "has no vertex.release" in capsys.readouterr().err


def test_a_rollback_returns_to_nothing_that_only_was_a_canary(store):
    append = functools.partial(
        ledger.append, store.places.ledger, endpoint="default", model="/m", snapshot="labels_6", snapshot_date="2026-03-06"
    )
    append(to_version="6", run_id="run-6", weights_sha256="6" * 64, action="canary", share=0.1, actor="run run-6")
    assert commands.returning(store.entries(), None, "default").to_version == "3"  # the canary ends
    append(to_version="3", run_id="run-3", weights_sha256="3" * 64, action="rollback", actor="run run-6")
    append(to_version="7", run_id="run-7", weights_sha256="7" * 64)
    assert commands.previous(store.entries()).to_version == "3"
    with pytest.raises(PipelineError, match="no model of run 'run-6' ever served .* name one of run-1, run-2, run-3"):
        commands.returning(store.entries(), "run-6", "default")
