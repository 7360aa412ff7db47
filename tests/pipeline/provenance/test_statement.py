"""The provenance statement says what the lineage says, in the messages of in-toto and SLSA."""

import copy
import dataclasses
import json
import pathlib
import subprocess

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage.base import Artifact
from pipeline.provenance import beside, export, statement


@pytest.fixture(scope="module")
def pushed(weeks):
    """The statement that the push of the second week wrote."""
    written, runs = weeks
    return json.loads(pathlib.Path(written.places.versions, "2.intoto.json").read_text())


def test_it_is_a_statement_of_slsa_provenance_about_the_export(pushed, weeks, told):
    written, runs = weeks
    _, facts = told("second")
    assert (pushed["_type"], pushed["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    subjects = {each["name"]: each["digest"] for each in pushed["subject"]}
    assert subjects["model"]["sha256"] == facts.release.export_sha256
    assert set(subjects) == {"model", "model/saved_model.pb", "model/variables/variables.data"}
    # As in-toto's specification has them computed, by standard tools.
    model = pathlib.Path(written.places.versions, "2")
    command = "find . -type f | cut -c3- | LC_ALL=C sort | xargs -r sha256sum | sha256sum | cut -f1 -d' '"
    assert subjects["model"]["dirHash"] == subprocess.check_output(command, shell=True, cwd=model, text=True).strip()
    single = subprocess.check_output(["sha256sum", "saved_model.pb"], cwd=model, text=True)
    assert subjects["model/saved_model.pb"]["sha256"] == single.split()[0]


def test_it_names_what_the_model_was_made_of(pushed, told):
    _, facts = told("second")
    definition, details = (pushed["predicate"][name] for name in ("buildDefinition", "runDetails"))
    assert definition["externalParameters"] == {"snapshot_date": "2026-03-09", "settings": facts.settings}
    assert definition["internalParameters"] == {"seed": 0, "platform": "Linux x86_64", "launched_by": "ana"}
    digests = {each["name"]: each["digest"] for each in definition["resolvedDependencies"]}
    assert digests == {
        "labels_20260309": {"sha256": facts.checksum},
        "image shards": {"sha256": facts.shards.digest},
        "label records": {"sha256": facts.labels_sha256},
        "source code": {"gitCommit": "decade"},
        "tfx-1.16.txt": {"sha256": "1" * 64},
    }
    assert details["metadata"] == {"invocationId": facts.run_id, "finishedOn": "2026-03-09T12:00:00Z"}
    byproducts = {each["name"]: each for each in details["byproducts"]}
    assert byproducts["gate.json"]["digest"]["sha256"] == facts.gate.report_sha256
    assert byproducts["gate.json"]["annotations"] == {"accepted": True, "bootstrap": True, "verdict": facts.gate.verdict}
    assert byproducts["training.json"]["annotations"] == {"weights_sha256": facts.release.weights_sha256}
    assert byproducts["evaluation.json"]["annotations"]["blessed"] is True


def source(kind, facts, uri=""):
    return Artifact(1, kind, uri, facts)


def test_an_image_a_backbone_hyperparameters_and_an_override_are_named_too_whatever_vertex_makes_of_numbers(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "saved_model.pb").write_text("graph")
    training = {"seed": 3, "backbone_sha256": "b" * 64, "tensorflow": {"version": "2.16.2"}}
    (tmp_path / "training.json").write_text(json.dumps(training))
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "best_hyperparameters.txt").write_text(json.dumps({"space": [], "values": {"dropout": 0.1}}))
    image = f"europe-docker.pkg.dev/p/r/trainer@sha256:{'c' * 64}"
    override = {"rules": ["max_orphans"], "by": "ana", "reason": "known"}
    manifest = {"run_id": "r", "snapshot_date": "2026-03-02", "image": image, "tree": "changed", "commit": "0" * 40,
                "changes_sha256": "e" * 64, "started_at": "2026-03-02T19:00:00+01:00"}  # fmt: skip
    made = statement.build(
        {
            "manifest": source("pipeline.RunManifest", manifest),
            "snapshot": source("pipeline.LabelSnapshot", {"table": "labels_20260302", "checksum": "5" * 64, "rows": 152.0}),
            "shards": source("pipeline.ImageShards", {"number": 3.0, "digest": "d" * 64, "images": 9.0}),
            "gate": source("pipeline.GateReport", {"accepted": 1.0, "override": json.dumps(override), "report_sha256": "f" * 64}),
            "hyperparameters": source("HyperParameters", {}, str(tmp_path / "tuned")),
            "model_run": source("ModelRun", {}, str(tmp_path)),
        },
        str(tmp_path / "model"),
        finished="2026-03-02T20:00:00.750+00:00",
    )
    definition, details = (made["predicate"][name] for name in ("buildDefinition", "runDetails"))
    dependencies = {each["name"]: each for each in definition["resolvedDependencies"]}
    assert dependencies["container image"]["digest"] == {"sha256": "c" * 64} and dependencies["container image"]["uri"] == image
    assert dependencies["backbone weights"]["digest"] == {"sha256": "b" * 64}
    assert dependencies["source code"]["annotations"] == {"tree": "changed", "changes_sha256": "e" * 64}
    assert '"rows": 152\n' in statement.to_bytes(made).decode() and '"generation": 3,' in statement.to_bytes(made).decode()
    assert definition["externalParameters"]["gate_override"] == override
    assert definition["internalParameters"] == {"hyperparameters": {"dropout": 0.1}, "seed": 3}
    assert details["builder"]["id"].endswith(":builder:container") and details["builder"]["version"] == {"tensorflow": "2.16.2"}
    assert details["metadata"] == {
        "invocationId": "r", "startedOn": "2026-03-02T18:00:00Z", "finishedOn": "2026-03-02T20:00:00Z",
    }  # fmt: skip


def test_what_the_lineage_gives_has_the_bytes_that_the_push_wrote(weeks, told):
    written, _ = weeks
    content = pathlib.Path(written.places.versions, "2.intoto.json").read_bytes()
    assert statement.to_bytes(export.remade(*told("second"))) == content


BROKEN = {
    "no subject": lambda made: made.update(subject=[]),
    "a subject without a digest": lambda made: made["subject"][0].pop("digest"),
    "another kind": lambda made: made.update(predicateType="https://slsa.dev/provenance/v0.2"),
    "another type": lambda made: made.update(_type="https://in-toto.io/Statement/v0.1"),
    "a field that SLSA does not know": lambda made: made["predicate"].update(author="ana"),
    "no predicate": lambda made: made.pop("predicate"),
    "an instant that is none": lambda made: made["predicate"]["runDetails"]["metadata"].update(finishedOn="yesterday"),
    "no type of build": lambda made: made["predicate"]["buildDefinition"].pop("buildType"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_statement_is_refused(pushed, name):
    statement.check(pushed)
    broken = copy.deepcopy(pushed)
    BROKEN[name](broken)
    with pytest.raises(ValueError):
        statement.check(broken)


def test_differences_are_named_by_their_paths(pushed):
    other = copy.deepcopy(pushed)
    other["predicate"]["runDetails"]["metadata"]["finishedOn"] = "2026-01-01T00:00:00Z"
    other["subject"][1]["digest"]["sha256"] = "0"
    del other["predicate"]["buildDefinition"]["externalParameters"]["settings"]
    assert statement.differences(pushed, other) == [
        "predicate.buildDefinition.externalParameters.settings", "predicate.runDetails.metadata.finishedOn",
        "subject[1].digest.sha256",
    ]  # fmt: skip
    assert statement.differences(pushed, copy.deepcopy(pushed)) == []


def test_a_damaged_record_is_one_sentence(store, told):
    written, runs = store
    (written.folder(runs["second"], "Trainer.model_run") / "training.json").write_text("[]")
    with pytest.raises(PipelineError, match=r"training\.json is damaged: it holds no record; `audit verify` says"):
        export.remade(*told("second"))


@pytest.mark.parametrize(
    ("step", "key", "fact"), [("ReleasePusher", "pushed_model", "pushed"), ("ServingLedger", "release", "released")]
)
def test_a_run_without_a_push_or_whose_push_the_ledger_held_has_none_beside_a_model(told, step, key, fact):
    run, _ = told("bad")
    assert beside.pushed(run) is None and export.remade(*told("bad")) is None
    run, _ = told("second")
    (artifact,) = run.step(step).outputs[key]
    held = dataclasses.replace(artifact, facts={**artifact.facts, fact: 0})
    changed = dataclasses.replace(run.step(step), outputs={key: (held,)})
    kept = dataclasses.replace(run, executions=tuple(changed if each.step == step else each for each in run.executions))
    assert beside.pushed(kept) is None
    made = export.remade(kept, told("second")[1])
    assert made["subject"][0]["annotations"] == {"pushed": False}
