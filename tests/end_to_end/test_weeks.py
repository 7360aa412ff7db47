"""The story of the README, as its commands tell it."""

import json
import pathlib
import re

import pytest

from pipeline.lineage import audit
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.provenance import statement
from pipeline.release import ledger
from tests.end_to_end.conftest import ROOT, command

pytestmark = pytest.mark.timeout(1500)


def run_id(done) -> str:
    return re.search(r"^Run (\S+)$", done.out, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def lineage(story):
    return MLMDLineage(str(story.store / "metadata.sqlite"))


@pytest.fixture(scope="module")
def facts(story, lineage):
    """Facts of each run by its name in the story."""
    names = ("first", "interrupted", "second", "bad", "again")
    return {name: audit.run_facts(lineage.run(run_id(story.runs[name]))) for name in names}


@pytest.mark.parametrize("name", ["first", "second", "again"])
def test_a_good_week_ends_well(story, name):
    done = story.runs[name]
    assert done.status == 0, done.out + done.err
    assert done.err == ""


def test_the_terminal_shows_every_step_with_its_time_and_the_epochs(story):
    out = story.runs["first"].out
    # A step that reports progress in between is named twice, at its start and with its time.
    steps = list(dict.fromkeys(re.findall(r"^\[ *(\d+)/(\d+)\] (\w+)", out, re.MULTILINE)))
    assert [int(position) for position, _, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) == int(steps[0][1]) == 20
    assert {"ImageSharder", "SnapshotGate", "Trainer", "Evaluator", "ReleasePusher", "ServingLedger"} <= {step for *_, step in steps}
    assert len(re.findall(r"\d+\.\d s$", out, re.MULTILINE)) >= len(steps)
    assert re.search(r"epoch 1/3", out)


def test_the_summary_says_what_a_person_wants_to_know(story, facts):
    out = story.runs["second"].out
    known = facts["second"]
    for word in [
        known["run_id"],
        f"labels_20260309, checksum {known['checksum'][:16]}, 163 labels",
        "is accepted",
        f"accuracy {known['evaluation']['accuracy']:.3f} on {known['evaluation']['examples']} photographs",
        "weakest class",
        "blessed    yes",
        "serves     version",
        "python -m pipeline predict",
        "python -m pipeline audit serving --on",
    ]:
        assert word in out


def test_the_first_week_is_a_recorded_bootstrap_and_the_second_is_not(facts):
    assert facts["first"]["gate"]["bootstrap"] and not facts["second"]["gate"]["bootstrap"]
    assert facts["first"]["evaluation"]["baseline_accuracy"] is None
    assert facts["second"]["evaluation"]["baseline_accuracy"] is not None


def test_the_candidate_is_judged_against_the_model_that_serves(facts, lineage):
    serving = lineage.run(facts["second"]["run_id"]).output("Model", key="model")
    executions = {execution.step: execution for execution in lineage.run(facts["second"]["run_id"]).executions}
    (baseline,) = executions["Evaluator"].inputs["baseline_model"]
    assert baseline.facts["run_id"] == facts["first"]["run_id"]
    assert serving is not None and baseline.id != executions["Evaluator"].inputs["model"][0].id


def test_what_is_served_is_compared_with_what_the_run_left(story):
    done = command("-m", "pipeline", "drift", "data/sample/images", "--store", str(story.store), "--json")
    report = json.loads(done.out)
    assert report["run_id"] == json.loads(story.ledger().splitlines()[-1])["run_id"] and report["answered"] == 199
    # Of a few epochs nobody knows what they say; the photographs are those that were trained on.
    assert done.status == (3 if report["drifted"] else 0)
    assert not {"min_images", "max_unusable_share", "drift.width", "drift.height", "drift.bytes"} & set(report["failed"])


def test_a_second_run_on_the_same_store_is_refused_at_once(story):
    done = story.runs["second at once"]
    assert done.status == 4
    assert run_id(story.runs["interrupted"]) in done.err and "--store" in done.err
    assert "Traceback" not in done.err


def test_ctrl_c_in_training_leaves_what_was_pushed_and_marks_the_step(story, facts):
    done = story.runs["interrupted"]
    assert done.status == 130
    assert "interrupted" in done.err and "Traceback" not in done.err
    assert story.after_interrupt == story.after_first != ""
    assert facts["interrupted"]["state"] == "CANCELED at Trainer" and facts["interrupted"]["reason_kind"] == "interrupted"
    assert facts["interrupted"]["release"] is None


def test_the_bad_week_stops_at_the_gate_and_names_each_rule(story, facts):
    done = story.runs["bad"]
    assert done.status == 3
    for words in [
        "max_class_share_change: ", "flower: 21 of 163 -> 0 of 203", "max_duplicates: 5, allowed: 0", "p0l33-a (produce)",
        "max_orphans: 6, allowed: 0", "'vehical' on 1 image(s)", "what to do:", "gate.html",
    ]:  # fmt: skip
        assert words in done.err
    assert "Traceback" not in done.err
    assert facts["bad"]["state"] == "FAILED at SnapshotGate" and facts["bad"]["reason_kind"] == "SnapshotRejected"
    assert "max_duplicates" in facts["bad"]["reason"] and "max_duplicates" in facts["bad"]["gate"]["failed"]
    reports = story.store / "reports" / facts["bad"]["run_id"]
    assert not json.loads((reports / "gate.json").read_text())["accepted"]
    assert "is rejected" in (reports / "gate.html").read_text()


def test_the_bad_week_trains_nothing_and_becomes_no_baseline(story, facts, lineage):
    run = lineage.run(facts["bad"]["run_id"])
    assert run.step("Trainer") is None and run.step("LabelJoin") is None
    assert sorted(path.name for path in (story.store / "accepted").iterdir()) == ["labels_20260302", "labels_20260309"]


def test_the_last_good_model_goes_on_serving(story):
    assert story.ledger() == story.after_second
    assert [entry.snapshot for entry in ledger.read(story.store / "serving" / "ledger.jsonl")] == [
        "labels_20260302", "labels_20260309",
    ]  # fmt: skip


def test_a_week_run_again_gives_the_same_snapshot_and_the_same_weights(facts):
    one, other = facts["second"], facts["again"]
    for name in ("snapshot", "checksum", "rows", "as_of", "shards"):
        assert one[name] == other[name]
    assert one["release"]["weights_sha256"] == other["release"]["weights_sha256"]
    assert one["evaluation"]["accuracy"] == other["evaluation"]["accuracy"]


def test_different_weeks_give_different_weights(facts):
    assert facts["first"]["release"]["weights_sha256"] != facts["second"]["release"]["weights_sha256"]


def test_what_is_not_released_says_why(story, facts):
    out = story.runs["again"].out
    assert "did not bless" in facts["again"]["release"]["reason"]
    assert not facts["again"]["evaluation"]["blessed"]
    assert re.search(r"blessed    no: accuracy: .* wanted: at least 1", out)
    assert "serves     unchanged" in out


def test_only_released_models_are_on_disk_to_be_served(story):
    entries = ledger.read(story.store / "serving" / "ledger.jsonl")
    versions = sorted(path.name for path in (story.store / "serving" / "versions").iterdir())
    released = [entry.to_version for entry in entries]
    assert versions == sorted([*released, *(f"{version}.intoto.json" for version in released)])


def test_nothing_half_written_is_left(story):
    leftovers = [path for path in story.store.rglob(".*") if path.name not in (".temp", ".system")]
    assert leftovers == []


def test_predict_answers_for_good_files_and_for_bad_ones(story, tmp_path):
    bad = {"empty.jpg": b"", "text.jpg": b"no picture", "cut.jpg": b""}
    photograph = sorted((ROOT / "data" / "sample" / "images").glob("*.jpg"))[0]
    bad["cut.jpg"] = photograph.read_bytes()[:3000]
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(photograph), *(str(tmp_path / name) for name in bad), str(tmp_path / "none.jpg"), str(photograph)]
    done = command("-m", "pipeline", "predict", *paths, "--store", str(story.store))
    assert done.status == 1
    answers = done.out.splitlines()
    assert len(answers) == 2 and answers[0] == answers[1]
    assert re.fullmatch(r".*\.jpg  (bird|coin|flower|hoofed|produce|tool|vehicle)  [01]\.\d{3}", answers[0])
    for name in [*bad, "none.jpg"]:
        assert f"{tmp_path / name}: " in done.err
    assert "4 of 6 files" in done.err and "Traceback" not in done.err


def test_predict_succeeds_on_good_files(story):
    photographs = [str(path) for path in sorted((ROOT / "data" / "sample" / "images").glob("*.jpg"))[:3]]
    done = command("-m", "pipeline", "predict", *photographs, "--store", str(story.store))
    assert done.status == 0 and len(done.out.splitlines()) == 3


def test_the_audit_names_what_produced_the_model_that_served(story, facts):
    served = [facts["first"], facts["second"]]
    day = served[0]["release"]["released_at"][:10]
    done = command("-m", "pipeline", "audit", "serving", "--on", day, "--json", "--store", str(story.store))
    assert done.status == 0, done.err
    answers = {answer["run_id"]: answer for answer in json.loads(done.out)["served"]}
    for known in served:
        if known["release"]["released_at"][:10] != day:
            continue
        answer = answers[known["run_id"]]
        for key in ("run_id", "snapshot", "checksum", "commit", "training", "shards", "lock_sha256"):
            assert answer[key] == known[key]
        assert answer["training"]["seed"] == answer["training"]["training"]["seed"]
    text = command("-m", "pipeline", "audit", "serving", "--on", day, "--store", str(story.store))
    assert text.status == 0 and served[0]["checksum"] in text.out


def test_all_that_the_runs_recorded_is_still_there_and_as_it_was(story, facts):
    for name in ("first", "second", "bad", "again"):
        done = command("-m", "pipeline", "audit", "verify", facts[name]["run_id"], "--json", "--store", str(story.store))
        answer = json.loads(done.out)
        assert (done.status, done.err) == (0, "") and {check["status"] for check in answer["checks"]} == {"intact"}
    served = facts["second"]["release"]["path"]
    done = command("-m", "pipeline", "audit", "verify", served, "--json", "--skip", "shards", "--store", str(story.store))
    assert done.status == 0 and json.loads(done.out)["run_id"] == facts["second"]["run_id"]


def test_a_released_model_carries_its_provenance_and_an_auditor_gets_it(story, facts, tmp_path):
    known = facts["second"]
    made = json.loads(pathlib.Path(f"{known['release']['path']}.intoto.json").read_text())
    statement.check(made)
    assert made["subject"][0]["digest"]["sha256"] == known["release"]["export_sha256"]
    assert made["predicate"]["runDetails"]["metadata"]["invocationId"] == known["run_id"]
    dependencies = {each["name"]: each["digest"] for each in made["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert dependencies[known["snapshot"]] == {"sha256": known["checksum"]}
    assert dependencies["backbone weights"] == {"sha256": known["training"]["backbone_sha256"]}
    to = str(tmp_path / "to")
    done = command("-m", "pipeline", "audit", "export", known["run_id"], "--to", to, "--store", str(story.store))
    assert (done.status, done.err) == (0, "") and "note:" not in done.out
    assert json.loads((tmp_path / "to" / "provenance.intoto.json").read_text()) == made


@pytest.mark.parametrize(("name", "end", "step"), [
    ("second", "COMPLETE", "ServingLedger"), ("bad", "FAIL", "SnapshotGate"), ("interrupted", "ABORT", "Trainer"),
])  # fmt: skip
def test_a_run_ends_with_its_events_for_catalogs_however_it_ended(story, facts, name, end, step):
    path = story.store / "openlineage" / f"{facts[name]['run_id']}.ndjson"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert (told[0]["eventType"], told[-1]["eventType"]) == ("START", end)
    ends = {event["job"]["name"]: event["eventType"] for event in told if event["eventType"] != "START"}
    assert ends[f"product-photographs.{step}"] == end and ends["product-photographs.SnapshotGen"] == "COMPLETE"


def test_a_run_has_a_dossier(story, facts, tmp_path):
    page = tmp_path / "run.html"
    done = command("-m", "pipeline", "audit", "report", facts["second"]["run_id"], "--html", str(page), "--store", str(story.store))
    assert (done.status, done.err) == (0, "") and page.read_text().count('class="step complete"') == 20


def test_a_run_is_trained_again_to_the_same_weights(story, facts, tmp_path):
    known = facts["second"]
    done = command("-m", "pipeline", "replay", known["run_id"], "--store", str(story.store), "--to", str(tmp_path / "replay"))
    assert (done.status, done.err) == (0, ""), done.out + done.err
    assert done.out.splitlines()[-1] == f"identical  {known['release']['weights_sha256']}"
    refused = command("-m", "pipeline", "replay", facts["bad"]["run_id"], "--store", str(story.store))
    assert refused.status == 1 and "it ended at SnapshotGate (FAILED)" in refused.err and refused.out == ""


def test_lineage_has_an_edge_from_every_released_model_to_its_labels(lineage, facts):
    """Walks from the release upwards by inputs and outputs alone."""
    run = lineage.run(facts["second"]["run_id"])
    producers = {artifact.id: execution for execution in run.executions for group in execution.outputs.values() for artifact in group}
    release = run.output("pipeline.ServingRelease")
    reached, front = set(), [release.id]
    while front:
        execution = producers.get(front.pop())
        if execution is None or execution.step in reached:
            continue
        reached.add(execution.step)
        front += [artifact.id for group in execution.inputs.values() for artifact in group]
    assert reached == {execution.step for execution in run.executions}
