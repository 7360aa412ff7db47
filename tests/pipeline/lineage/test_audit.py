"""What served on a day, and what produced it; what is told of runs of every kind."""

import datetime
import json

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import audit, moment, text, timeline
from pipeline.lineage import facts as audit_facts
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.conftest import GATE, MANIFEST, SHARDS, SNAPSHOT, at, release_facts


@pytest.fixture
def lineage(written):
    return MLMDLineage(written.places.metadata)


def serving(lineage, written, day, time=None, endpoint=None):
    known = timeline.read(lineage, written.places.ledger)
    return audit.serving(lineage, known, moment.span(day, time), endpoint)


def served(lineage, written, *words) -> list[str]:
    return [answer.interval.run_id for answer in serving(lineage, written, *words)]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (("2026-03-02",), ["run-1"]),  # from noon on
        (("2026-03-05",), ["run-1"]),
        (("2026-03-08",), ["run-1"]),
        (("2026-03-09",), ["run-1", "run-2"]),  # a day of change has both
        (("2026-03-09", "11:59"), ["run-1"]),
        (("2026-03-09", "12:00"), ["run-2"]),
        (("2026-03-09", "11:59:59"), ["run-1"]),
        (("2026-03-09", "14:00+02:00"), ["run-2"]),
        (("2026-03-10",), ["run-2"]),
        (("2026-03-16",), ["run-2", "run-3"]),
        (("2026-11-30",), ["run-3"]),  # and still serves
    ],
)
def test_what_served(three_releases, lineage, words, runs):
    assert served(lineage, three_releases, *words) == runs


@pytest.mark.parametrize(("moment", "that_day"), [("00:00:00.000", ["run-2"]), ("23:59:59.999", ["run-1", "run-2"])])
def test_a_day_ends_at_midnight_utc(written, lineage, moment, that_day):
    written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00"))
    written.whole_run("run-2", release_facts("run-2", 2, f"2026-03-09 {moment}"))
    assert served(lineage, written, "2026-03-08") == ["run-1"]
    assert served(lineage, written, "2026-03-09") == that_day
    assert served(lineage, written, "2026-03-10") == ["run-2"]


def test_a_minute_in_which_traffic_moved_has_both(written, lineage):
    written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00"))
    written.whole_run("run-2", release_facts("run-2", 2, "2026-03-09 12:00:30"))
    assert served(lineage, written, "2026-03-09", "12:00") == ["run-1", "run-2"]
    assert served(lineage, written, "2026-03-09", "12:00:29") == ["run-1"]
    assert served(lineage, written, "2026-03-09", "12:00:30") == ["run-2"]


def test_one_endpoint_of_several(written, lineage):
    for number, endpoint in enumerate(("default", "trial"), start=1):
        written.whole_run(f"run-{number}", release_facts(f"run-{number}", number, "2026-03-02 12:00", endpoint))
    assert served(lineage, written, "2026-03-05") == ["run-1", "run-2"]
    assert served(lineage, written, "2026-03-05", None, "trial") == ["run-2"]
    with pytest.raises(PipelineError, match="nothing has ever served at endpoint 'trail'; there are releases at trial"):
        served(lineage, written, "2026-03-05", None, "trail")


def test_a_time_in_which_nothing_served_is_told_with_what_is_known(three_releases, lineage):
    with pytest.raises(PipelineError, match=r"nothing served on 2026-03-01 \(UTC\): the first release was at 2026-03-02 12:00 UTC"):
        served(lineage, three_releases, "2026-03-01")
    tomorrow = datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=1)
    with pytest.raises(PipelineError, match=rf"{tomorrow} \(UTC\) lies in the future"):
        served(lineage, three_releases, str(tomorrow))


def test_a_gap_is_told_with_both_ends(written, lineage):
    for number, (day, version, share) in enumerate([("02", "1", 1.0), ("09", "1", 0.0), ("16", "3", 1.0)], start=1):
        written.whole_run(f"run-{number}", release_facts(f"run-{number}", number, f"2026-03-{day} 12:00", version=version, share=share))
    with pytest.raises(PipelineError, match=r"2026-03-12 .*version 1 ceased at 2026-03-09 12:00 UTC, and the next .* 2026-03-16 12:00"):
        served(lineage, written, "2026-03-12")


def test_a_store_in_which_nothing_was_released(written, lineage):
    written.whole_run("run-1", None)
    with pytest.raises(PipelineError, match=r"nothing served on 2026-03-01 \(UTC\): nothing was released yet"):
        served(lineage, written, "2026-03-01")


def test_the_facts_of_a_released_run(three_releases, lineage):
    facts = audit.run_facts(lineage.run("run-2"))
    assert facts["state"] == "COMPLETE" and facts["run_id"] == "run-2"
    assert [facts[name] for name in ("snapshot", "checksum", "rows", "as_of", "snapshot_uri")] == [
        SNAPSHOT[name] for name in ("table", "checksum", "rows", "as_of", "table_uri")
    ]
    for name in ("commit", "tree", "image", "lock", "lock_sha256", "python", "platform", "launched_by", "snapshot_date"):
        assert facts[name] == MANIFEST[name]
    assert facts["settings"] == {"name": "x"} and facts["shards"] == SHARDS | {"folder": None}
    assert facts["hyperparameters"] == {"dropout": 0.5} and facts["training"]["training"] == {"seed": 7}
    assert facts["gate"] == {
        "accepted": True,
        "verdict": GATE["verdict"],
        "bootstrap": True,
        "rules": {"max_orphans": "0 (allowed: 0)"},
        "failed": None,
        "override": None,
        "report_sha256": None,
    }
    assert facts["evaluation"] == {
        "blessed": True,
        "accuracy": 0.75,
        "baseline_accuracy": None,
        "log_loss": 0.5,
        "examples": 40,
        "weakest_class": "cup",
        "weakest_accuracy": 0.5,
        "by_class": {"cup": [0.5, 20], "hat": [1.0, 20]},
        "failures": [],
    }
    assert facts["release"] == {
        "released": True,
        "reason": "",
        "released_at": at("2026-03-09 12:00"),
        "endpoint": "default",
        "version": "2",
        "share": 1.0,
        "path": "/versions/2",
        "weights_sha256": "2" * 64,
        "export_sha256": None,
        "ledger_number": 2,
        "ledger_line_sha256": None,
    }
    started, ended = (datetime.datetime.fromisoformat(facts[name]) for name in ("started", "ended"))
    assert started <= ended and started.tzinfo == datetime.timezone.utc


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("RUNNING", "RUNNING"),
        ("FAILED", "FAILED at SnapshotGate"),
        ("CANCELED", "CANCELED at SnapshotGate"),
        ("COMPLETE", "RUNNING"),  # between two steps
    ],
)
def test_the_facts_of_a_run_that_did_not_reach_its_end(written, lineage, state, told):
    context = written.run("run-1")
    written.step(context, "SnapshotGen", outputs={"snapshot": [written.artifact("pipeline.LabelSnapshot", SNAPSHOT)]})
    written.step(context, "SnapshotGate", state)
    facts = audit.run_facts(lineage.run("run-1"))
    assert facts["state"] == told and facts["snapshot"] == "labels_20260302"
    for name in ("commit", "settings", "shards", "hyperparameters", "training", "gate", "evaluation", "release", "reason"):
        assert facts[name] is None
    json.dumps(facts)
    shown = run_text(lineage, written, "run-1")
    assert f"  state       {told}" in shown and "labels_20260302" in shown and "served      never" in shown
    assert ("reason      not recorded" in shown) == (state in ("FAILED", "CANCELED"))


REJECTED = {
    "accepted": 0,
    "bootstrap": 0,
    "verdict": "labels_20260330 is rejected: 1 of 19 rules failed (max_orphans)",
    "findings": '{"max_orphans": "6 (allowed: 0)", "min_rows": "203 (allowed: at least 100)"}',
    "failed": '["max_orphans"]',
    "override": "",
    "report_sha256": "e" * 64,
}


def test_a_rejected_run_tells_the_verdict_and_what_was_told(written, lineage):
    failure = {
        "failure": "labels_20260330 is rejected\n  what to do: \x1b[2Jlook", "failure_kind": "SnapshotRejected",
        "failure_facts": json.dumps(REJECTED),
    }  # fmt: skip
    written.step(written.run("run-1"), "SnapshotGate", "FAILED", parameters=failure | {"bootstrap": 1, "override": "own"})
    facts = audit_facts.of_run(lineage.run("run-1"))
    assert (facts.reason_kind, facts.gate.accepted, facts.gate.bootstrap) == ("SnapshotRejected", False, False)
    assert facts.gate.failed == ["max_orphans"] and facts.gate.override is None and facts.gate.report_sha256 == "e" * 64
    shown = run_text(lineage, written, "run-1").splitlines()
    assert "  reason      labels_20260330 is rejected" in shown and "                what to do: \\x1b[2Jlook" in shown
    assert "              max_orphans: 6 (allowed: 0)" in shown and not any("min_rows" in line for line in shown)


def test_the_facts_of_a_run_that_recorded_nothing(written, lineage):
    written.run("run-1")
    facts = audit.run_facts(lineage.run("run-1"))
    assert (facts["state"], facts["started"], facts["ended"], facts["snapshot"]) == ("RUNNING", None, None, None)
    assert "none began" in run_text(lineage, written, "run-1")


def test_the_facts_of_a_run_whose_model_was_held(written, lineage):
    held = release_facts("run-1", 1, "2026-03-02 12:00", blessed=0, released=0, reason="the evaluation did not bless it")
    held |= {"evaluation_failures": '["too weak"]', "baseline_accuracy": 0.875}
    for name in ("released_at", "to_version", "path", "share", "ledger_number"):
        del held[name]
    written.whole_run("run-1", held)
    facts = audit_facts.of_run(lineage.run("run-1"))
    assert facts.state == "COMPLETE" and facts.release.released_at is None and facts.release.version is None
    assert not facts.evaluation.blessed and facts.evaluation.baseline_accuracy == 0.875
    shown = run_text(lineage, written, "run-1")
    for words in ["held        the evaluation did not bless it", "missed: too weak", "not blessed", "served      never"]:
        assert words in shown


@pytest.mark.parametrize(("name", "value"), [("by_class", "{"), ("accuracy", None), ("eval_examples", "many")])
def test_facts_of_another_making_are_an_error_that_names_the_run(written, lineage, name, value):
    changed = release_facts("run-1", 1, "2026-03-02 12:00")
    changed |= {name: value} if value else {}
    if value is None:
        del changed[name]
    written.whole_run("run-1", changed)
    with pytest.raises(PipelineError, match="run run-1 holds facts that this code cannot read"):
        audit_facts.of_run(lineage.run("run-1"))


def run_text(lineage, written, run_id) -> str:
    run = lineage.run(run_id)
    return text.of_run(run, audit_facts.of_run(run), timeline.read(lineage, written.places.ledger))


def text_of(lineage, written, day) -> str:
    return text.of_serving(moment.span(day), serving(lineage, written, day), ())


def test_the_text_names_everything_that_an_auditor_asks(three_releases, lineage):
    three_releases.write_ledger()
    shown = text_of(lineage, three_releases, "2026-03-09")
    assert shown.startswith("On 2026-03-09 (UTC) served 2 model(s):\n\nrun run-1\n") and "\n\nrun run-2\n" in shown
    for words in [
        "100% of endpoint default as version 1, from 2026-03-02 12:00:00 UTC until 2026-03-09 12:00:00\n",
        "from 2026-03-09 12:00:00 UTC until 2026-03-16 12:00:00",
        "labels_20260302: 152 rows as of 2026-03-02T00:00:00+00:00", "5" * 64, "duckdb:w#labels_20260302",
        "generation 3, 199 photographs, digest " + "d" * 64, "commit c0ffee, tree clean", "tfx-1.16.txt sha256 " + "1" * 64,
        "none: ran outside a container", "Linux x86_64, Python 3.11.7, launched by ana", '{"seed": 7}',
        "backbone sha256 " + "b" * 64, '{"dropout": 0.5}', "weights     sha256 " + "2" * 64, GATE["verdict"],
        "accuracy 0.750 on 40 examples, nothing served before", "python -m pipeline replay run-2",
    ]:  # fmt: skip
        assert words in shown
    assert "from 2026-03-16 12:00:00 UTC and still serves" in text_of(lineage, three_releases, "2026-05-01")


def test_what_is_not_known_is_said_to_be_unknown(written, lineage):
    release = release_facts("run-1", 1, "2026-03-02 12:00", hyperparameters="", training="", baseline_accuracy=0.7)
    context = written.run("run-1")
    nothing = dict.fromkeys(MANIFEST, "") | {"platform": "Linux", "python": "3", "tree": "unknown"}
    for kind, facts in [
        ("RunManifest", nothing),
        ("ImageShards", SHARDS),
        ("LabelSnapshot", SNAPSHOT),
        ("GateReport", GATE),
        ("ServingRelease", release),
    ]:
        written.step(context, kind, outputs={"out": [written.artifact(f"pipeline.{kind}", facts)]})
    shown = text_of(lineage, written, "2026-03-03")
    for words in [
        "commit unknown, tree unknown", "packages    unknown sha256 unknown", "launched by unknown",
        "against 0.700 of the model that served before", "(only in the lineage)",
    ]:  # fmt: skip
        assert words in shown
    assert "  training" not in shown and "  tuned" not in shown


def test_a_release_whose_run_the_lineage_does_not_know_is_told(three_releases, lineage):
    three_releases.artifact("pipeline.ServingRelease", release_facts("run-9", 4, "2026-03-23 12:00"))
    (answer,) = serving(lineage, three_releases, "2026-03-25")
    assert answer.facts is None and answer.interval.run_id == "run-9"
    assert "  unknown     the lineage has no such run" in text_of(lineage, three_releases, "2026-03-25")


def test_where_hyperparameters_come_from_is_told(written, lineage):
    context = written.run("run-1")
    known = {"origin": "tuned by run run-0", "values": '{"dropout": 0.25}', "tfx_version": "1", "is_external": 0}
    written.step(context, "TuningDecision", outputs={"h": [written.artifact("HyperParameters", known)]})
    facts = audit_facts.of_run(lineage.run("run-1"))
    assert facts.hyperparameters == {"dropout": 0.25} and facts.tuned_by == {"origin": "tuned by run run-0"}
    assert "origin tuned by run run-0" in "\n".join(text.of_facts(facts))


def test_steps_are_told_with_inputs_and_outputs(written, lineage):
    context = written.run("run-1")
    snapshot = written.artifact("pipeline.LabelSnapshot", {"table": "x"}, uri="/a/1")
    written.step(context, "SnapshotGen", outputs={"snapshot": [snapshot]}, parameters={"snapshot_date": "2026-03-02"})
    written.step(context, "Trainer", "FAILED", inputs={"examples": [snapshot]}, parameters={"failure": "no\nmore"})
    gen, trainer = json.loads(json.dumps(audit.steps_as_json(lineage.run("run-1"))))
    put = {"id": snapshot, "type": "pipeline.LabelSnapshot", "uri": "/a/1", "facts": {"table": "x"}}
    assert gen["outputs"] == {"snapshot": [put]} and gen["parameters"] == {"snapshot_date": "2026-03-02"} and gen["reason"] is None
    assert trainer["inputs"] == {"examples": [put]} and (trainer["state"], trainer["reason"]) == ("FAILED", "no\nmore")
    shown = run_text(lineage, written, "run-1")
    assert f"    out snapshot              {snapshot} pipeline.LabelSnapshot /a/1" in shown and "\n    no\n" in shown + "\n"
