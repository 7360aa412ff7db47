"""What served on a day, and what produced it."""

import datetime
import json

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import audit
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.conftest import GATE, MANIFEST, SHARDS, SNAPSHOT, at, release_facts


def instant(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(at(text))


@pytest.fixture
def lineage(written):
    return MLMDLineage(written.places.metadata)


def served(lineage, day: str) -> list[str]:
    return [serving.run_id for serving, _ in audit.serving_on(lineage, datetime.date.fromisoformat(day))]


def test_each_release_ends_the_one_before_it(three_releases, lineage):
    intervals = audit.timeline(lineage)
    assert [(item.run_id, item.since, item.until) for item in intervals] == [
        ("run-1", instant("2026-03-02 12:00"), instant("2026-03-09 12:00")),
        ("run-2", instant("2026-03-09 12:00"), instant("2026-03-16 12:00")),
        ("run-3", instant("2026-03-16 12:00"), None),
    ]
    assert {(item.endpoint, item.share) for item in intervals} == {("default", 1.0)}


def test_endpoints_end_only_their_own(written, lineage):
    days = [("default", "2026-03-02"), ("trial", "2026-03-09"), ("default", "2026-03-16"), ("trial", "2026-03-23")]
    for number, (endpoint, day) in enumerate(days, start=1):
        written.whole_run(f"run-{number}", release_facts(f"run-{number}", number, f"{day} 12:00", endpoint))
    intervals = {item.run_id: (item.endpoint, item.until) for item in audit.timeline(lineage)}
    assert intervals == {
        "run-1": ("default", instant("2026-03-16 12:00")),
        "run-2": ("trial", instant("2026-03-23 12:00")),
        "run-3": ("default", None),
        "run-4": ("trial", None),
    }
    assert served(lineage, "2026-03-12") == ["run-1", "run-2"]


@pytest.mark.parametrize(
    ("day", "runs"),
    [
        ("2026-03-02", ["run-1"]),  # from noon on
        ("2026-03-05", ["run-1"]),
        ("2026-03-08", ["run-1"]),
        ("2026-03-09", ["run-1", "run-2"]),  # a day of change has both
        ("2026-03-10", ["run-2"]),
        ("2026-03-16", ["run-2", "run-3"]),
        ("2026-11-30", ["run-3"]),  # and still serves
    ],
)
def test_what_served_on_a_day(three_releases, lineage, day, runs):
    assert served(lineage, day) == runs


@pytest.mark.parametrize(("moment", "that_day"), [("00:00:00.000", ["run-2"]), ("23:59:59.999", ["run-1", "run-2"])])
def test_a_day_ends_at_midnight_utc(written, lineage, moment, that_day):
    written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00"))
    written.whole_run("run-2", release_facts("run-2", 2, f"2026-03-09 {moment}"))
    assert served(lineage, "2026-03-08") == ["run-1"]
    assert served(lineage, "2026-03-09") == that_day
    assert served(lineage, "2026-03-10") == ["run-2"]


def test_a_day_before_the_first_release(three_releases, lineage):
    with pytest.raises(PipelineError, match="nothing served on 2026-03-01: the first release was at 2026-03-02 12:00 UTC"):
        served(lineage, "2026-03-01")


def test_a_store_in_which_nothing_was_released(written, lineage):
    written.whole_run("run-1", None)
    with pytest.raises(PipelineError, match="nothing served on 2026-03-01: nothing was released yet"):
        served(lineage, "2026-03-01")


def test_the_future_is_not_told(three_releases, lineage):
    tomorrow = datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=1)
    with pytest.raises(PipelineError, match=f"{tomorrow} lies in the future"):
        served(lineage, str(tomorrow))


def test_the_facts_of_a_released_run(three_releases, lineage):
    facts = audit.run_facts(lineage.run("run-2"))
    assert facts["state"] == "COMPLETE" and facts["run_id"] == "run-2"
    assert [facts[name] for name in ("snapshot", "checksum", "rows", "as_of", "snapshot_uri")] == [
        SNAPSHOT[name] for name in ("table", "checksum", "rows", "as_of", "table_uri")
    ]
    for name in ("commit", "tree", "image", "lock", "lock_sha256", "python", "platform", "launched_by", "snapshot_date"):
        assert facts[name] == MANIFEST[name]
    assert facts["settings"] == {"name": "x"} and facts["shards"] == SHARDS
    assert facts["hyperparameters"] == {"dropout": 0.5} and facts["training"]["training"] == {"seed": 7}
    assert facts["gate"] == {"verdict": GATE["verdict"], "bootstrap": True, "rules": {"max_orphans": "0 (allowed: 0)"}}
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
        "path": "/versions/2",
        "weights_sha256": "2" * 64,
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
    for name in ("commit", "settings", "shards", "hyperparameters", "training", "gate", "evaluation", "release"):
        assert facts[name] is None
    json.dumps(facts)


def test_the_facts_of_a_run_that_recorded_nothing(written, lineage):
    written.run("run-1")
    facts = audit.run_facts(lineage.run("run-1"))
    assert (facts["state"], facts["started"], facts["ended"], facts["snapshot"]) == ("RUNNING", None, None, None)


def test_the_facts_of_a_run_whose_model_was_held(written, lineage):
    held = release_facts("run-1", 1, "2026-03-02 12:00", blessed=0, released=0, reason="the evaluation did not bless it")
    held |= {"evaluation_failures": '["too weak"]', "baseline_accuracy": 0.875}
    for name in ("released_at", "to_version", "path", "share", "ledger_number"):
        del held[name]
    written.whole_run("run-1", held)
    facts = audit.run_facts(lineage.run("run-1"))
    assert facts["state"] == "COMPLETE"
    assert not facts["evaluation"]["blessed"] and facts["evaluation"]["failures"] == ["too weak"]
    assert facts["evaluation"]["baseline_accuracy"] == 0.875
    assert facts["release"]["reason"] == "the evaluation did not bless it"
    assert facts["release"]["released_at"] is None and facts["release"]["version"] is None


def text_of(lineage, day) -> str:
    day = datetime.date.fromisoformat(day)
    return audit.as_text(day, audit.serving_on(lineage, day))


def test_the_text_names_everything_that_an_auditor_asks(three_releases, lineage):
    text = text_of(lineage, "2026-03-09")
    assert text.startswith("On 2026-03-09 (UTC) served 2 model(s):\n\nrun run-1\n") and "\n\nrun run-2\n" in text
    for words in [
        "100% of endpoint default as version 1, from 2026-03-02 12:00:00 UTC until 2026-03-09 12:00:00",
        "from 2026-03-09 12:00:00 UTC until 2026-03-16 12:00:00",
        "labels_20260302: 152 rows as of 2026-03-02T00:00:00+00:00", "5" * 64, "duckdb:w#labels_20260302",
        "generation 3, 199 photographs, digest " + "d" * 64, "commit c0ffee, tree clean", "tfx-1.16.txt sha256 " + "1" * 64,
        "none: ran outside a container", "Linux x86_64, Python 3.11.7, launched by ana", '{"seed": 7}',
        "backbone sha256 " + "b" * 64, '{"dropout": 0.5}', "weights     sha256 " + "2" * 64, GATE["verdict"],
        "accuracy 0.750 on 40 examples, nothing served before",
    ]:  # fmt: skip
        assert words in text


def test_the_text_of_what_still_serves(three_releases, lineage):
    assert "from 2026-03-16 12:00:00 UTC and still serves" in text_of(lineage, "2026-05-01")


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
    text = text_of(lineage, "2026-03-03")
    for words in [
        "commit unknown, tree unknown", "packages    unknown sha256 unknown", "launched by unknown", "backbone sha256 none",
        "no: the values of the settings", "against 0.700 of the model that served before",
    ]:  # fmt: skip
        assert words in text


def test_the_json_is_the_facts_beside_the_interval(three_releases, lineage):
    (first, facts), _ = audit.serving_on(lineage, datetime.date(2026, 3, 9))
    answer = json.loads(json.dumps(audit.as_json(first, facts)))
    assert answer.pop("serving") == {
        "endpoint": "default",
        "version": "1",
        "share": 1.0,
        "since": "2026-03-02T12:00:00+00:00",
        "until": "2026-03-09T12:00:00+00:00",
    }
    assert answer == json.loads(json.dumps(facts))
    last, facts = audit.serving_on(lineage, datetime.date(2026, 5, 1))[0]
    assert audit.as_json(last, facts)["serving"]["until"] is None
