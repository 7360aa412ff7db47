"""The components that only find or record something, run as functions."""

import datetime
import json
import pathlib
import tempfile

import pytest
from tfx.types import standard_artifacts

from pipeline import files, typed
from pipeline.artifacts import BestKnownConfiguration, GateReport, ImageShards, LabelSnapshot, RunManifest, ServingRelease
from pipeline.components import (
    facts, image_sharder, last_accepted, run_manifest, serving_ledger, serving_model, tuning_decision,
)  # fmt: skip
from pipeline.errors import PipelineError
from pipeline.release import configurations, ledger, quality
from pipeline.settings import RetuneSettings
from pipeline.shards.generations import Generation
from pipeline.validation import acceptance


@pytest.fixture
def new(tmp_path):
    """Makes an artifact with a folder of its own, as a launcher does."""

    def make(kind):
        artifact = kind()
        (tmp_path / "outputs").mkdir(exist_ok=True)
        artifact.uri = tempfile.mkdtemp(prefix=kind.__name__, dir=tmp_path / "outputs")
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
    def run(date, asked=0, **retune):
        output = new(standard_artifacts.HyperParameters)
        tuning_decision.TuningDecision.test_call(
            verdict=GateReport(),
            manifest=manifest(date),
            asked=asked,
            retune=json.dumps(typed.to_dict(RetuneSettings(**retune))),
            configuration_folder=str(tmp_path / "configurations"),
            quality_folder=str(tmp_path / "quality"),
            hyperparameters=output,
        )
        return output, json.loads(content(output)["best_hyperparameters.txt"])

    return run


def test_before_the_first_tuning_the_settings_hold(hyperparameters):
    output, config = hyperparameters("2026-03-02")
    assert config == {"space": [], "values": {}}
    assert (facts.text(output, "origin"), facts.text(output, "values")) == ("settings", "{}")
    assert facts.number(output, "tune") == 0 and "nothing was tuned" in facts.text(output, "reason")


def test_later_the_newest_earlier_tuning_holds(hyperparameters, tmp_path):
    for date, run_id, rate in [("2026-03-02", "run-1", 0.1), ("2026-03-16", "run-3", 0.3)]:
        found = {"space": [], "values": {"learning_rate": rate}}
        configurations.record(str(tmp_path / "configurations"), configurations.Configuration(date, run_id, found))
    output, config = hyperparameters("2026-03-16")  # not its own: a repeated week finds what it found
    assert config["values"] == {"learning_rate": 0.1}
    assert (facts.text(output, "origin"), facts.text(output, "configuration")) == ("tuned by run run-1", "run-1")
    assert hyperparameters("2026-03-23")[1]["values"] == {"learning_rate": 0.3}


def test_a_week_that_is_to_search_says_so_and_still_has_the_known_values(hyperparameters, tmp_path):
    found = {"space": [], "values": {"learning_rate": 0.1}}
    configurations.record(str(tmp_path / "configurations"), configurations.Configuration("2026-03-02", "run-1", found))
    output, config = hyperparameters("2026-04-06")
    assert facts.number(output, "tune") == 1
    assert facts.text(output, "reason").startswith("due: the last search was 5 weeks ago")
    assert config == found and json.loads(facts.text(output, "values")) == {"learning_rate": 0.1}
    output, _ = hyperparameters("2026-03-09", asked=1)
    assert (facts.number(output, "tune"), facts.text(output, "reason")) == (1, "asked for by --tune")


def test_an_old_configuration_is_warned_of_where_a_person_sees_it(hyperparameters, tmp_path, caplog):
    found = {"space": [], "values": {}}
    configurations.record(str(tmp_path / "configurations"), configurations.Configuration("2026-01-05", "run-1", found))
    output, _ = hyperparameters("2026-03-02", every_weeks=0)
    assert facts.number(output, "tune") == 0 and "8 weeks ago" in facts.text(output, "warning")
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.name.startswith("pipeline.") and "8 weeks ago" in record.getMessage()


@pytest.fixture
def released(tmp_path, new, monkeypatch):
    """Runs the last step of a week, and gives the best-known configuration that it put out."""
    judged = {
        "evaluated": True, "blessed": True, "failures": [], "examples": 40, "serving_metrics": None,
        "metrics": {"accuracy": 0.75, "log_loss": 0.5},
        "slices": [{"kind": "label", "name": "cup", "accuracy": 0.5, "examples": 20, "judged": True}],
    }  # fmt: skip
    monkeypatch.setattr(serving_ledger, "weights_digest", lambda folder: files.sha256_of(pathlib.Path(folder, "saved_model.pb")))

    def run(date, tune, pushed=True, searched=None, blessed=None, reason="it is worse", export="", used=""):
        run_id = f"{date.replace('-', '')}-run"
        made = {name: new(getattr(standard_artifacts, kind)) for name, kind in [
            ("decision", "HyperParameters"), ("hyperparameters", "HyperParameters"), ("model", "Model"),
            ("model_run", "ModelRun"), ("serving_model", "Model"), ("verdict", "ModelBlessing"), ("pushed_model", "PushedModel"),
        ]}  # fmt: skip
        values = '{"space": [], "values": {"dropout": 0.1}}'
        pathlib.Path(made["hyperparameters"].uri, "best_hyperparameters.txt").write_text(values)
        pathlib.Path(made["model_run"].uri, "training.json").write_text('{"val_accuracy": 0.875}')
        snapshot = LabelSnapshot()
        facts.record(snapshot, {"table": f"labels_{date.replace('-', '')}", "date": date})
        facts.record(made["decision"], {"configuration": used})
        facts.record(made["hyperparameters"], {"tune": tune, **(searched or {})})
        folder = pathlib.Path(made["model"].uri, "Format-Serving")
        folder.mkdir()
        (folder / "saved_model.pb").write_text(export or run_id)
        verdict = judged | {"blessed": pushed if blessed is None else blessed}
        pathlib.Path(made["verdict"].uri, "evaluation.json").write_text(json.dumps(verdict))
        serves = ledger.serving(str(tmp_path / "ledger.jsonl"), "default")
        facts.record(made["serving_model"], {"version": serves.to_version if serves else ""})
        known = manifest(date)
        facts.record(known, {"run_id": run_id})
        facts.record(
            made["pushed_model"],
            {"pushed": 1, "pushed_version": run_id, "pushed_destination": str(tmp_path / run_id)} if pushed
            else {"reason": reason},
        )
        output = new(BestKnownConfiguration)
        serving_ledger.ServingLedger.test_call(
            **made, manifest=known, snapshot=snapshot, ledger_path=str(tmp_path / "ledger.jsonl"), endpoint="default",
            configuration_folder=str(tmp_path / "configurations"), quality_folder=str(tmp_path / "quality"),
            profile_pointer=str(tmp_path / "profiles" / "newest.json"), release=new(ServingRelease), configuration=output,
        )  # fmt: skip
        return output

    return run


def test_what_a_released_search_found_becomes_the_best_known(released, tmp_path):
    output = released("2026-03-02", tune=True, searched={"study": "studies/7", "trial": 12, "metric": 0.8})
    known = configurations.newest_before(str(tmp_path / "configurations"), "2026-03-09")
    assert (known.value, known.study, known.trial, known.trial_value) == (0.875, "studies/7", 12, 0.8)
    assert (known.snapshot, known.snapshot_date, known.run_id) == ("labels_20260302", "2026-03-02", "20260302-run")
    assert known.accepted_at == ledger.read(tmp_path / "ledger.jsonl")[0].at
    assert facts.number(output, "known") == facts.number(output, "found_here") == 1
    assert output.get_float_custom_property("value") == 0.875 and facts.text(output, "study") == "studies/7"
    assert json.loads(facts.text(output, "values")) == {"dropout": 0.1}
    assert json.loads(content(output)["configuration.json"])["trial"] == 12


def test_a_search_that_says_nothing_of_itself_is_kept_without(released, tmp_path):
    output = released("2026-03-02", tune=True)
    known = configurations.newest_before(str(tmp_path / "configurations"), "2026-03-09")
    assert (known.value, known.study, known.trial, known.trial_value) == (0.875, "", None, None)
    assert not output.has_custom_property("trial") and not output.has_custom_property("trial_value")


def test_a_week_that_did_not_search_passes_the_best_known_on(released, tmp_path):
    assert facts.number(released("2026-02-23", tune=False), "known") == 0
    released("2026-03-02", tune=True)
    output = released("2026-03-09", tune=False)
    assert (facts.number(output, "known"), facts.number(output, "found_here")) == (1, 0)
    assert facts.text(output, "run_id") == "20260302-run"
    assert [path.name for path in (tmp_path / "configurations").iterdir()] == ["2026-03-02.json"]


def test_every_run_leaves_how_well_it_trained_and_a_refused_search_is_not_the_best_known(released, tmp_path):
    released("2026-03-02", tune=False)
    output = released("2026-03-09", tune=True, pushed=False)
    assert facts.number(output, "known") == 0 and not (tmp_path / "configurations").exists()
    assert quality.before(str(tmp_path / "quality"), "2026-03-16") == [
        quality.Quality("20260302-run", "2026-03-02", 0.875, True, False, configuration=""),
        quality.Quality("20260309-run", "2026-03-09", 0.875, False, True, "it is worse", configuration=""),
    ]


def test_a_search_that_a_weekly_release_overtook_is_the_best_known_by_its_own_merit(released, tmp_path):
    """The search of 1 March ends after the week of 2 March was released, which still used what was known before."""
    released("2026-02-02", tune=True)
    released("2026-03-02", tune=False, used="20260202-run")
    overtaken = "it is of 2026-03-01, and a model of 2026-03-02 serves"
    output = released("2026-03-01", tune=True, pushed=False, blessed=True, reason=overtaken, used="20260202-run")
    known = configurations.newest_before(str(tmp_path / "configurations"), "2026-03-09")
    assert (known.run_id, known.overtaken) == ("20260301-run", overtaken) and known.accepted_at > "2026"
    assert facts.number(output, "found_here") == 1 and facts.text(output, "overtaken") == overtaken
    assert ledger.serving(str(tmp_path / "ledger.jsonl"), "default").run_id == "20260302-run", "it serves nowhere all the same"
    # The week of 2 March says nothing of it: it trained with the one before.
    trained = quality.before(str(tmp_path / "quality"), "2026-03-09")
    assert [(each.snapshot_date, each.configuration) for each in trained][1:] == [
        ("2026-03-01", "20260202-run"), ("2026-03-02", "20260202-run"),
    ]  # fmt: skip


def test_a_search_whose_model_a_person_withdrew_is_not_the_best_known(released, tmp_path):
    first, found = released("2026-02-23", tune=False), released("2026-03-02", tune=True, export="found")
    assert facts.number(first, "known") == 0 and facts.number(found, "found_here") == 1
    (tmp_path / "configurations" / "2026-03-02.json").unlink()
    path = str(tmp_path / "ledger.jsonl")
    before = ledger.read(path)[0]
    ledger.append(
        path, endpoint="default", from_version="20260302-run", to_version=before.to_version, model=before.path,
        run_id=before.run_id, snapshot=before.snapshot, snapshot_date=before.snapshot_date,
        weights_sha256=before.weights_sha256, action="rollback", actor="anna", reason="it is wrong",
    )  # fmt: skip
    again = released("2026-03-02", tune=True, pushed=False, blessed=True, export="found", reason="these weights were rolled back")
    assert facts.number(again, "known") == 0 and not list((tmp_path / "configurations").iterdir())


def test_a_search_whose_weights_serve_already_changes_nothing(released, tmp_path):
    released("2026-03-02", tune=True, export="found")
    file = tmp_path / "configurations" / "2026-03-02.json"
    before = file.read_text()
    released("2026-03-02", tune=True, pushed=False, blessed=True, export="found", reason="these very weights serve already")
    assert file.read_text() == before


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
    written = json.loads(content(output)["manifest.json"])
    assert written.pop("started_at") == facts.text(output, "started_at")
    assert datetime.datetime.fromisoformat(facts.text(output, "started_at")).utcoffset() == datetime.timedelta(0)
    assert written == {
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
    assert known["started_at"] == "2026-03-02T22:05:00Z"


def test_a_generation_travels_on_its_artifact():
    generation = Generation(
        "/shards/generation-000002", 2, "d" * 64,
        images=199, bytes=10**12, shards=12, packed=11, changed=2, gone=3, quarantined=1,
    )  # fmt: skip
    artifact = ImageShards()
    facts.record(artifact, {**vars(generation), "index_table": generation.table})
    assert image_sharder.generation_of(artifact) == generation
    assert image_sharder.generation_of(artifact).shard_path("s") == "/shards/s"
