"""The components that only find or record something, run as functions."""

import json
import pathlib

import pytest
from tfx.types import standard_artifacts

from pipeline.artifacts import GateReport, ImageShards, LabelSnapshot, RunManifest
from pipeline.components import facts, image_sharder, known_hyperparameters, last_accepted, run_manifest, serving_model
from pipeline.errors import PipelineError
from pipeline.release import configurations, ledger
from pipeline.shards.generations import Generation
from pipeline.validation import acceptance


@pytest.fixture
def new(tmp_path):
    """Makes an artifact with a folder of its own, as a launcher does."""

    def make(kind):
        artifact = kind()
        folder = tmp_path / "outputs" / kind.__name__
        folder.mkdir(parents=True, exist_ok=True)
        artifact.uri = str(folder)
        return artifact

    return make


def manifest(date):
    known = RunManifest()
    facts.record(known, {"snapshot_date": date})
    return known


def content(artifact) -> dict[str, str]:
    root = pathlib.Path(artifact.uri)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def hyperparameters(tmp_path, new):
    def run(date, tune=0):
        output = new(standard_artifacts.HyperParameters)
        known_hyperparameters.KnownHyperparameters.test_call(
            verdict=GateReport(), manifest=manifest(date), folder=str(tmp_path / "configurations"), tune=tune,
            hyperparameters=output,
        )  # fmt: skip
        return output, json.loads(content(output)["best_hyperparameters.txt"])

    return run


def test_before_the_first_tuning_the_settings_hold(hyperparameters):
    output, config = hyperparameters("2026-03-02")
    assert config == {"space": [], "values": {}}
    assert (facts.text(output, "origin"), facts.text(output, "values")) == ("settings", "{}")
    assert facts.number(output, "tune") == 0 and facts.text(output, "reason") == "tuning was not asked for"


def test_a_run_that_was_asked_to_tune_says_so_beside_what_is_known(hyperparameters):
    output, config = hyperparameters("2026-03-02", tune=1)
    assert (facts.number(output, "tune"), facts.text(output, "reason")) == (1, "asked for by --tune")
    assert config == {"space": [], "values": {}} and facts.text(output, "origin") == "settings"


def test_later_the_newest_earlier_tuning_holds(hyperparameters, tmp_path):
    for date, run_id, rate in [("2026-03-02", "run-1", 0.1), ("2026-03-16", "run-3", 0.3)]:
        found = {"space": [], "values": {"learning_rate": rate}}
        configurations.record(str(tmp_path / "configurations"), configurations.Configuration(date, run_id, found))
    output, config = hyperparameters("2026-03-16")  # not its own: a repeated week finds what it found
    assert config["values"] == {"learning_rate": 0.1}
    assert facts.text(output, "origin") == "tuned by run run-1"
    assert hyperparameters("2026-03-23")[1]["values"] == {"learning_rate": 0.3}


@pytest.fixture
def baseline(tmp_path, new):
    def run(date):
        snapshot = LabelSnapshot()
        facts.record(snapshot, {"date": date})
        output = new(standard_artifacts.ExampleStatistics)
        last_accepted.LastAccepted.test_call(snapshot=snapshot, accepted=str(tmp_path / "accepted"), statistics=output)
        return output

    return run


def test_without_an_accepted_snapshot_the_baseline_is_a_recorded_bootstrap(baseline):
    output = baseline("2026-03-02")
    assert facts.number(output, "bootstrap") == 1 and output.split_names == "[]" and content(output) == {}


def test_the_baseline_is_a_copy_of_the_last_accepted_statistics(baseline, tmp_path):
    for split in ("train", "eval"):
        folder = tmp_path / "statistics" / f"Split-{split}"
        folder.mkdir(parents=True)
        (folder / "FeatureStats.pb").write_text(split)
    acceptance.record(
        str(tmp_path / "accepted"), "labels_20260302", "2026-03-02", "c" * 64, "run-1", str(tmp_path / "statistics")
    )
    output = baseline("2026-03-09")
    assert facts.number(output, "bootstrap") == 0
    assert json.loads(output.split_names) == ["eval", "train"]
    assert content(output) == {"Split-eval/FeatureStats.pb": "eval", "Split-train/FeatureStats.pb": "train"}
    known = [facts.text(output, name) for name in ("table", "checksum", "accepted_by")]
    assert known == ["labels_20260302", "c" * 64, "run-1"]


def test_a_week_that_is_run_again_does_not_meet_itself(baseline, tmp_path):
    (tmp_path / "statistics").mkdir()
    acceptance.record(str(tmp_path / "accepted"), "labels_20260302", "2026-03-02", "c", "run-1", str(tmp_path / "statistics"))
    assert facts.number(baseline("2026-03-02"), "bootstrap") == 1


@pytest.fixture
def serving(tmp_path, new):
    def run(endpoint="default"):
        output = new(standard_artifacts.Model)
        path = str(tmp_path / "ledger.jsonl")
        serving_model.ServingModel.test_call(verdict=GateReport(), ledger_path=path, endpoint=endpoint, model=output)
        return output

    return run


def test_before_the_first_release_there_is_no_model_to_be_judged_against(serving):
    output = serving()
    assert facts.number(output, "bootstrap") == 1 and content(output) == {}


def test_a_serving_model_that_is_gone_is_named_with_what_to_do(serving, tmp_path):
    ledger.append(
        tmp_path / "ledger.jsonl", endpoint="default", to_version="1", model=str(tmp_path / "gone"), run_id="run-1",
        snapshot="labels_20260302", snapshot_date="2026-03-02", weights_sha256="1" * 64,
    )  # fmt: skip
    with pytest.raises(PipelineError, match="version 1 of run run-1 serves.*gone is not there.*release rollback"):
        serving()


def test_the_model_that_the_ledger_names_is_the_one_to_be_judged_against(serving, tmp_path):
    for version, endpoint in [("1", "default"), ("2", "default"), ("3", "trial")]:
        (tmp_path / version).mkdir()
        (tmp_path / version / "saved_model.pb").write_text(version)
        ledger.append(
            tmp_path / "ledger.jsonl",
            endpoint=endpoint,
            to_version=version,
            model=str(tmp_path / version),
            run_id=f"run-{version}",
            snapshot="labels_20260302",
            snapshot_date="2026-03-02",
            weights_sha256=version * 64,
        )
    output = serving()
    assert content(output) == {"Format-Serving/saved_model.pb": "2"}
    assert facts.number(output, "bootstrap") == 0
    known = [facts.text(output, name) for name in ("version", "run_id", "snapshot", "snapshot_date", "weights_sha256")]
    assert known == ["2", "run-2", "labels_20260302", "2026-03-02", "2" * 64]


def test_the_manifest_says_the_same_to_people_and_to_the_lineage(new):
    output = new(RunManifest)
    run_manifest.RunManifest.test_call(
        run_id="run-1",
        snapshot_date="2026-03-02",
        window_end="",
        window_hours=0.0,
        created_at="",
        scheduled_at="",
        origin=json.dumps({"commit": "c0ffee", "tree": "clean"}),
        settings=json.dumps({"name": "x"}),
        manifest=output,
    )
    assert json.loads(content(output)["manifest.json"]) == {
        "run_id": "run-1", "snapshot_date": "2026-03-02", "commit": "c0ffee", "tree": "clean", "settings": {"name": "x"},
    }  # fmt: skip
    assert [facts.text(output, name) for name in ("run_id", "commit", "tree")] == ["run-1", "c0ffee", "clean"]
    assert json.loads(facts.text(output, "settings")) == {"name": "x"}


def test_what_an_orchestrator_filled_in_becomes_the_date_and_the_window(new):
    output = new(RunManifest)
    run_manifest.RunManifest.test_call(
        run_id="product-photographs-20260302",
        snapshot_date="scheduled",
        window_end="",
        window_hours=12.0,
        created_at="2026-03-02T22:05:00Z",
        scheduled_at="2026-03-02T22:00:00Z",
        origin="{}",
        settings="{}",
        manifest=output,
    )
    known = json.loads(content(output)["manifest.json"])
    assert known["snapshot_date"] == facts.text(output, "snapshot_date") == "2026-03-02"
    assert known["window_end"] == facts.real(output, "window_end") == 1772532000.0  # 2026-03-03T10:00Z
    assert facts.real(output, "window_hours") == 12.0


def test_a_generation_travels_on_its_artifact():
    generation = Generation(
        "/shards/generation-000002", 2, "d" * 64,
        images=199, bytes=10**12, shards=12, packed=11, changed=2, gone=3, quarantined=1,
    )  # fmt: skip
    artifact = ImageShards()
    facts.record(artifact, {**vars(generation), "index_table": generation.table})
    assert image_sharder.generation_of(artifact) == generation
    assert image_sharder.generation_of(artifact).shard_path("s") == "/shards/s"
