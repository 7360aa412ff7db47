"""Why a candidate is pushed, or not, with its provenance beside it, and that a push that fails leaves nothing behind."""

import dataclasses
import json

import pytest
import tensorflow as tf
from tfx.types import standard_artifacts

from pipeline import files
from pipeline.artifacts import GateReport, ImageShards, LabelSnapshot, RunManifest
from pipeline.components import facts
from pipeline.components.release_pusher import Executor, reason_to_hold
from pipeline.provenance import statement
from pipeline.release.ledger import Entry

SERVING = Entry(
    number=3,
    at="2026-03-09T05:30:00.000+00:00",
    endpoint="default",
    from_version="6",
    to_version="7",
    path="/versions/7",
    share=1.0,
    run_id="20260309-20260309T053000Z",
    snapshot="labels_20260309",
    snapshot_date="2026-03-09",
    weights_sha256="a" * 64,
    previous="0" * 64,
)


def hold(blessed, date, weights, serving):
    """As `reason_to_hold` of a candidate that was compared with what serves."""
    return reason_to_hold(blessed, date, weights, serving.to_version if serving else "", [serving] if serving else [])


@pytest.mark.parametrize(
    ("serving", "date"),
    [
        (None, "2026-03-02"),  # nothing served before
        (SERVING, "2026-03-16"),
        (SERVING, "2026-03-09"),  # the same week with other weights, say after a change of the settings
        (SERVING, "2027-01-04"),
    ],
)
def test_a_blessed_model_that_is_new_is_pushed(serving, date):
    assert hold(True, date, "b" * 64, serving) == ""


@pytest.mark.parametrize("serving", [None, SERVING])
def test_a_model_that_was_not_blessed_is_held(serving):
    assert hold(False, "2026-03-16", "b" * 64, serving) == "the evaluation did not bless it"


@pytest.mark.parametrize("date", ["2026-03-02", "2026-03-09", "2026-03-16"])
def test_the_same_weights_are_not_released_twice(date):
    reason = hold(True, date, "a" * 64, SERVING)
    assert reason == "these very weights serve already, as version 7 of run 20260309-20260309T053000Z"


@pytest.mark.parametrize("date", ["2026-03-02", "2026-03-08", "2025-12-29"])
def test_an_older_week_never_replaces_a_newer_one(date):
    reason = hold(True, date, "b" * 64, SERVING)
    assert reason == f"it is of {date}, and a model of 2026-03-09 serves (run 20260309-20260309T053000Z)"


def test_what_was_compared_with_another_model_than_serves_by_now_is_held():
    reason = reason_to_hold(True, "2026-03-16", "b" * 64, "6", [SERVING])
    assert reason.startswith("it was compared with version 6, and since then version 7 serves")


def test_weights_that_a_person_rolled_back_return_by_a_person_only():
    bad = dataclasses.replace(SERVING, to_version="8", weights_sha256="b" * 64)
    back = dataclasses.replace(SERVING, action="rollback", actor="ana", reason="flowers")
    entries = [SERVING, bad, back]
    reason = reason_to_hold(True, "2026-03-16", "b" * 64, "7", entries)
    assert "were rolled back" in reason and "by ana: flowers" in reason and "release promote" in reason
    assert reason_to_hold(True, "2026-03-16", "c" * 64, "7", entries) == ""
    promoted = dataclasses.replace(bad, action="promote")
    assert "serve already" in reason_to_hold(True, "2026-03-16", "b" * 64, "8", [*entries, promoted])


def as_vertex_gives_it(each):
    """Makes every custom property the JSON that TFX makes of it in a container on Vertex (kubeflow_v2_entrypoint_utils)."""
    for name, value in [(name, each.get_custom_property(name)) for name in each.mlmd_artifact.custom_properties]:
        known = float(value) if isinstance(value, int) else value
        each.mlmd_artifact.custom_properties[name].struct_value.update({"__value__": known})


@pytest.fixture
def push(tmp_path):
    """Pushes a blessed model beside an older version, into the folder that is given for the archive."""
    tf.train.Checkpoint(weights=tf.Variable([1.0])).write(str(tmp_path / "model" / "Format-Serving" / "variables" / "variables"))
    (tmp_path / "model" / "Format-Serving" / "saved_model.pb").write_text("graph")
    (tmp_path / "versions" / "7").mkdir(parents=True)
    snapshot, model, blessing = LabelSnapshot(), standard_artifacts.Model(), standard_artifacts.ModelBlessing()
    smoke_test, serving_model = standard_artifacts.InfraBlessing(), standard_artifacts.Model()
    facts.record(snapshot, {"date": "2026-03-16", "table": "labels_20260316", "checksum": "5" * 64, "rows": 7})
    manifest, shards, gate, labels = RunManifest(), ImageShards(), GateReport(), standard_artifacts.Examples()
    facts.record(manifest, {"run_id": "20260316-20260316T053000Z", "snapshot_date": "2026-03-16", "commit": "c" * 40})
    facts.record(shards, {"number": 3, "digest": "d" * 64})
    facts.record(gate, {"accepted": 1, "bootstrap": 0, "verdict": "accepted", "override": "", "report_sha256": "f" * 64})
    hyperparameters, model_run = standard_artifacts.HyperParameters(), standard_artifacts.ModelRun()
    hyperparameters.uri, model_run.uri = str(tmp_path / "hyperparameters"), str(tmp_path / "model_run")
    blessing.uri = str(tmp_path / "blessing")
    files.write_atomically(tmp_path / "hyperparameters" / "best.txt", json.dumps({"values": {"dropout": 0.5}}))
    files.write_atomically(tmp_path / "model_run" / "training.json", json.dumps({"seed": 7}))
    files.write_atomically(tmp_path / "blessing" / "evaluation.json", json.dumps({"blessed": True}))
    model.uri = str(tmp_path / "model")
    blessing.set_int_custom_property("blessed", 1)

    def push(uri, smoke=1, vertex="", as_vertex_gives=False):
        for each in (snapshot, manifest, shards, gate) if as_vertex_gives else ():
            as_vertex_gives_it(each)
        smoke_test.set_int_custom_property("blessed", smoke)
        pushed = standard_artifacts.PushedModel()
        pushed.uri = str(uri)
        Executor().Do(
            {
                "snapshot": [snapshot], "model": [model], "model_blessing": [blessing], "infra_blessing": [smoke_test],
                "serving_model": [serving_model], "manifest": [manifest], "shards": [shards], "gate": [gate], "labels": [labels],
                "hyperparameters": [hyperparameters], "model_run": [model_run],
            },
            {"pushed_model": [pushed]},
            {
                "push_destination": json.dumps({"filesystem": {"base_directory": str(tmp_path / "versions")}}),
                "ledger": str(tmp_path / "ledger.jsonl"),
                "endpoint": "default",
                "vertex": vertex,
            },
        )
        push.reason, push.recorded = facts.text(pushed, "reason"), pushed
        return sorted(str(path.relative_to(tmp_path / "versions")) for path in (tmp_path / "versions").rglob("saved_model.pb"))

    return push


def test_a_push_that_fails_midway_leaves_the_versions_as_they_were(push, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises((OSError, tf.errors.OpError)):
        push(tmp_path / "file" / "pushed")  # the archive comes after the version
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["7"]
    (pushed,) = push(tmp_path / "pushed")
    assert pushed.endswith("/saved_model.pb") and (tmp_path / "versions" / "7").is_dir()


@pytest.mark.parametrize("as_vertex_gives", [False, True])
def test_a_pushed_model_has_its_provenance_beside_it_and_the_lineage_its_digest(push, tmp_path, as_vertex_gives):
    (pushed,) = push(tmp_path / "pushed", as_vertex_gives=as_vertex_gives)
    content = (tmp_path / "versions" / f"{pushed.split('/')[0]}.intoto.json").read_bytes()
    assert facts.text(push.recorded, "provenance_sha256") == files.sha256(content)
    made = json.loads(content)
    statement.check(made)
    assert {each["name"] for each in made["subject"]} >= {"model", "model/saved_model.pb"}
    definition, details = (made["predicate"][name] for name in ("buildDefinition", "runDetails"))
    assert definition["internalParameters"] == {"hyperparameters": {"dropout": 0.5}, "seed": 7}
    assert [each["name"] for each in definition["resolvedDependencies"]] == ["labels_20260316", "image shards", "source code"]
    assert definition["resolvedDependencies"][0]["annotations"]["rows"] == 7
    gate = {"accepted": True, "bootstrap": False, "verdict": "accepted"}
    assert (details["byproducts"][0]["name"], details["byproducts"][0]["annotations"]) == ("gate.json", gate)
    assert details["metadata"]["invocationId"] == "20260316-20260316T053000Z"
    assert facts.text(push.recorded, "pushed_at").startswith(details["metadata"]["finishedOn"][:-1])
    # No more than the model and its statement: nothing of it is in the model.
    assert len(list((tmp_path / "versions").iterdir())) == 3


def test_an_export_that_the_smoke_test_refused_is_not_pushed_whatever_the_evaluation_says(push, tmp_path):
    assert push(tmp_path / "pushed", smoke=0) == []
    assert push.reason == "the smoke test refused its export"
    # Nor does anybody ask Vertex AI, or note it for a person to promote.
    assert push(tmp_path / "pushed", smoke=0, vertex="{}") == [] and push.reason == "the smoke test refused its export"
