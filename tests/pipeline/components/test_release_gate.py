"""The gate before the release, and what the ledger's step makes of a refused candidate: recorded, and no failed run."""

import json
import pathlib

import pytest
import tensorflow as tf
from tfx.types import standard_artifacts

from pipeline import typed
from pipeline.artifacts import BestKnownConfiguration, LabelSnapshot, RunManifest, ServingRelease
from pipeline.components import facts, release_gate, serving_ledger, smoke_test
from pipeline.evaluation.thresholds import Thresholds
from tests.pipeline.conftest import ROOT


@pytest.fixture
def artifact(tmp_path):
    """Makes an artifact with a folder of its own and with facts."""

    def make(kind, name, **known):
        made = kind()
        made.uri = str(tmp_path / name)
        pathlib.Path(made.uri).mkdir()
        facts.record(made, known)
        return made

    return make


@pytest.fixture
def refused(artifact, tmp_path):
    """A run whose export has no smoke set: (verdict of SmokeTest, verdict of ReleaseGate)."""
    thresholds = typed.load(Thresholds, ROOT / "schema" / "release.yaml")
    reports = str(tmp_path / "reports")
    model = artifact(standard_artifacts.Model, "model")
    weights = str(tmp_path / "model" / "Format-Serving" / "variables" / "variables")
    tf.train.Checkpoint(weights={"w": tf.Variable([1.0])}).write(weights)
    blessing = artifact(standard_artifacts.InfraBlessing, "smoke")
    settings = json.dumps({"shards": {"short_side": 112}})
    manifest = artifact(RunManifest, "manifest", run_id="run-2", snapshot_date="2026-03-09", settings=settings)
    smoke_test.SmokeTest.test_call(
        manifest=manifest, model=model, thresholds=json.dumps(typed.to_dict(thresholds.smoke)), reports=reports,
        blessing=blessing,
    )  # fmt: skip
    verdict = artifact(standard_artifacts.ModelBlessing, "verdict")
    release_gate.ReleaseGate.test_call(
        manifest=manifest,
        snapshot=artifact(LabelSnapshot, "snapshot", table="labels_20260309", date="2026-03-09"),
        baseline=artifact(standard_artifacts.ExampleStatistics, "statistics", bootstrap=1),
        schema=artifact(standard_artifacts.Schema, "schema"),
        eval_examples=artifact(standard_artifacts.Examples, "examples", eval_images=38),
        serving_model=artifact(standard_artifacts.Model, "serving", bootstrap=0, version="7", run_id="run-1"),
        smoke_test=blessing,
        evaluation=artifact(standard_artifacts.ModelEvaluation, "evaluation", evaluated=0),
        tfma_blessing=artifact(standard_artifacts.ModelBlessing, "tfma", blessed=0),
        thresholds=json.dumps(typed.to_dict(thresholds)),
        bootstrap=0,
        reports=reports,
        warehouse="{}",
        verdict=verdict,
    )
    return model, blessing, verdict


def test_what_the_smoke_test_refuses_is_reported_and_not_evaluated(refused, tmp_path):
    _, blessing, verdict = refused
    assert facts.number(blessing, "blessed") == 0 and pathlib.Path(blessing.uri, "INFRA_NOT_BLESSED").is_file()
    assert facts.number(verdict, "blessed") == 0 and pathlib.Path(verdict.uri, "NOT_BLESSED").is_file()
    (failure,) = json.loads(facts.text(verdict, "failures"))
    assert failure.startswith("the smoke test refused the export: smoke_set is FileNotFoundError")
    assert {path.name for path in (tmp_path / "reports" / "run-2").iterdir()} == {"smoke.json", "release.json", "release.html"}
    assert failure[:40] in (tmp_path / "reports" / "run-2" / "release.html").read_text()
    assert json.loads((tmp_path / "reports" / "run-2" / "release.json").read_text())["shards"] == {"short_side": 112}


def test_the_run_ends_as_any_that_is_not_released(refused, artifact, tmp_path):
    model, _, verdict = refused
    model_run = artifact(standard_artifacts.ModelRun, "model_run")
    (tmp_path / "model_run" / "training.json").write_text('{"val_accuracy": 0.5}')
    hyperparameters = artifact(standard_artifacts.HyperParameters, "hyperparameters")
    (tmp_path / "hyperparameters" / "best_hyperparameters.txt").write_text("{}")
    release = artifact(ServingRelease, "release")
    serving_ledger.ServingLedger.test_call(
        manifest=artifact(RunManifest, "run", run_id="run-2"),
        decision=artifact(standard_artifacts.HyperParameters, "decision", tune=1),
        snapshot=artifact(LabelSnapshot, "labels", table="labels_20260309", date="2026-03-09"),
        hyperparameters=hyperparameters,
        model=model,
        model_run=model_run,
        serving_model=artifact(standard_artifacts.Model, "served", version="7"),
        verdict=verdict,
        pushed_model=artifact(standard_artifacts.PushedModel, "pushed", pushed=0, reason="the smoke test refused its export"),
        ledger_path=str(tmp_path / "ledger.jsonl"),
        endpoint="default",
        configuration_folder=str(tmp_path / "configurations"),
        quality_folder=str(tmp_path / "quality"),
        profile_pointer=str(tmp_path / "profiles" / "newest.json"),
        release=release,
        configuration=artifact(BestKnownConfiguration, "configuration"),
    )
    known = json.loads((tmp_path / "release" / "release.json").read_text())
    assert (known["released"], known["blessed"], known["evaluated"]) == (False, False, False)
    assert known["reason"] == "the smoke test refused its export" and "accuracy" not in known
    assert "smoke_set" in json.loads(facts.text(release, "evaluation_failures"))[0]
    assert not (tmp_path / "ledger.jsonl").exists() and not (tmp_path / "configurations").exists()
