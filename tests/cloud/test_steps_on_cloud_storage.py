"""The steps that find, record and release, with everything that they read and write in Cloud Storage."""

import json
import subprocess

import pytest
import tensorflow as tf
from tfx.types import standard_artifacts

from pipeline import storage
from pipeline.artifacts import BestKnownConfiguration, GateReport, ImageShards, LabelSnapshot, RunManifest, ServingRelease
from pipeline.components import (
    facts, last_accepted, run_manifest, serving_ledger, serving_model, snapshot_gen, tuner, tuning_decision,
)  # fmt: skip
from pipeline.components.release_pusher import Executor as Pusher
from pipeline.errors import PipelineError, SnapshotRejected
from pipeline.provenance import beside, signing, statement
from pipeline.release import ledger, profiles, quality
from pipeline.tuning import results
from pipeline.validation import acceptance
from tests.pipeline.components.test_snapshot_gate import EDITS, Weeks

LEDGER, ACCEPTED, CONFIGURATIONS = "gs://out/serving/ledger.jsonl", "gs://out/accepted", "gs://out/configurations"

QUALITY = "gs://out/quality"

PROFILE = "gs://out/profiles/newest.json"

VERSIONS = "gs://out/serving/versions"


def artifact(kind, uri: str, **properties):
    new = kind()
    new.uri = uri
    facts.record(new, properties)
    return new


def append(version: str, date: str = "2026-03-02", **changes) -> ledger.Entry:
    known = {
        "endpoint": "default", "to_version": version, "model": f"{VERSIONS}/{version}", "run_id": f"run-{version}",
        "snapshot": "labels", "snapshot_date": date, "weights_sha256": version * 64,
    }  # fmt: skip
    return ledger.append(LEDGER, **known | changes)


class TestTheLedger:
    def test_it_grows_by_whole_lines(self, cloud):
        assert ledger.read(LEDGER) == []
        entries = [append(version) for version in "123"]
        assert ledger.read(LEDGER) == entries and ledger.serving(LEDGER, "default") == entries[-1]
        assert [entry.from_version for entry in entries] == ["", "1", "2"]

    def test_of_two_releases_at_once_the_second_follows_the_first(self, cloud):
        append("1")
        before = cloud.content(LEDGER)
        append("2")
        faster = cloud.content(LEDGER)
        cloud.put(LEDGER, before)
        cloud.before(lambda call: call.kind == "write", lambda: cloud.put(LEDGER, faster))
        assert append("3").from_version == "2"
        assert [entry.to_version for entry in ledger.read(LEDGER)] == ["1", "2", "3"]

    def test_what_came_to_serve_meanwhile_can_hold_a_release(self, cloud):
        append("2", date="2026-03-09")
        newer = cloud.content(LEDGER)
        cloud.delete(LEDGER)
        cloud.before(lambda call: call.kind == "write", lambda: cloud.put(LEDGER, newer))
        with pytest.raises(ledger.Held, match="version 2 serves at endpoint default by now.*while version none did"):
            append("1", from_version="")
        assert cloud.content(LEDGER) == newer

    @pytest.mark.parametrize("lost", [False, True])
    def test_a_step_that_is_tried_again_finds_its_own_entry(self, cloud, lost):
        if lost:
            cloud.answer(503, lambda call: call.kind == "write", times=1, late=True)
        entry, content = append("1"), cloud.content(LEDGER)
        assert append("1") == entry and cloud.content(LEDGER) == content and ledger.read(LEDGER) == [entry]


@pytest.fixture
def statistics(cloud):
    for split in ("train", "eval"):
        cloud.put(f"gs://out/statistics/Split-{split}/FeatureStats.pb", split.encode())
    return "gs://out/statistics"


def accept(date: str, statistics: str, checksum: str = "c" * 64, run_id: str = "run1") -> None:
    acceptance.record(ACCEPTED, f"labels_{date.replace('-', '')}", date, checksum, run_id, statistics)


def test_the_baseline_is_the_newest_accepted_of_an_earlier_date(cloud, statistics):
    def baseline(date):
        output = artifact(standard_artifacts.ExampleStatistics, f"gs://out/baseline/{date}")
        snapshot = artifact(LabelSnapshot, "", date=date)
        last_accepted.LastAccepted.test_call(snapshot=snapshot, accepted=ACCEPTED, statistics=output)
        return output

    assert facts.number(baseline("2026-03-02"), "bootstrap") == 1
    for date in ("2026-03-02", "2026-03-09"):
        accept(date, statistics)
    found = baseline("2026-03-16")
    assert facts.text(found, "table") == "labels_20260309" and json.loads(found.split_names) == ["eval", "train"]
    assert cloud.below(found.uri) == {f"Split-{split}/FeatureStats.pb": split.encode() for split in ("train", "eval")}
    assert facts.text(baseline("2026-03-09"), "table") == "labels_20260302"


def test_of_two_runs_that_accept_one_snapshot_at_once_the_first_is_recorded(cloud, statistics):
    def faster():
        cloud.put(f"{ACCEPTED}/labels_20260302/statistics-fast/Split-train/FeatureStats.pb", b"fast")
        cloud.put(
            f"{ACCEPTED}/labels_20260302/accepted.json",
            json.dumps({
                "table": "labels_20260302", "date": "2026-03-02", "checksum": "c" * 64, "run_id": "fast",
                "statistics": "statistics-fast",
            }).encode(),
        )  # fmt: skip

    cloud.before(lambda call: call.kind == "write" and call.name.endswith("accepted.json"), faster)
    accept("2026-03-02", statistics)
    found = acceptance.newest_before(ACCEPTED, "2026-03-09")
    assert (found.run_id, found.statistics) == ("fast", f"{ACCEPTED}/labels_20260302/statistics-fast")
    with pytest.raises(PipelineError, match="was accepted with checksum cccccccccccc by run fast"):
        accept("2026-03-02", statistics, checksum="d" * 64)


def test_statistics_that_cannot_be_copied_accept_nothing(cloud, statistics):
    with pytest.raises(FileNotFoundError):
        accept("2026-03-02", "gs://out/nowhere")
    assert acceptance.newest_before(ACCEPTED, "2026-03-09") is None


def test_the_gate_judges_what_lies_in_cloud_storage(cloud, tmp_path):
    weeks = Weeks(tmp_path, "gs://out/store")
    assert weeks.run("2026-03-02")["bootstrap"] == 1
    second = weeks.run("2026-03-09", bootstrap=0)
    assert second["baseline"] == "labels_20260302"
    assert json.loads(second["findings"])["distribution_validator"].startswith("bytes 0.0")
    report = cloud.below(weeks.reports)
    assert report.keys() == {"gate.json", "gate.html"} and cloud.below(weeks.verdict.uri) == report
    assert b"<svg" in report["gate.html"]
    weeks.label([(image, product, "cup", *rest) for image, product, _, *rest in EDITS])
    with pytest.raises(SnapshotRejected, match="gs://out/store/reports/run-3/gate.html"):
        weeks.run("2026-03-16", bootstrap=0)
    assert not weeks.report()["accepted"]
    assert storage.names("gs://out/store/accepted") == ["labels_20260302", "labels_20260309"]


def test_manifest_and_snapshot_are_written(cloud, tmp_path):
    manifest, snapshot = artifact(RunManifest, "gs://out/manifest"), artifact(LabelSnapshot, "gs://out/snapshot")
    run_manifest.RunManifest.test_call(
        run_id="run-1", snapshot_date="2026-03-02", window_end="", window_hours=0.0, created_at="", scheduled_at="",
        origin='{"commit": "c0ffee"}', settings="{}", manifest=manifest
    )
    where = Weeks(tmp_path).where
    snapshot_gen.SnapshotGen.test_call(
        manifest=manifest, warehouse=json.dumps(vars(where)), snapshot=snapshot
    )
    assert json.loads(cloud.content("gs://out/manifest/manifest.json"))["commit"] == "c0ffee"
    assert json.loads(cloud.content("gs://out/snapshot/snapshot.json"))["table"] == "labels_20260302"


@pytest.fixture
def release(cloud, tmp_path):
    """Runs the steps from the evaluation's verdict on for a model of the given weights."""
    slices = [{"kind": "label", "name": "cup", "accuracy": 0.5, "examples": 4, "judged": True}]
    judged = {
        "evaluated": True, "blessed": True, "failures": [], "examples": 8, "slices": slices, "serving_metrics": None,
        "metrics": {"accuracy": 0.75, "log_loss": 0.5},
    }  # fmt: skip

    def run(date: str, weights: float) -> dict:
        here, root = tmp_path / date, f"gs://out/{date}"
        tf.train.Checkpoint(weights={"w": tf.Variable([weights])}).write(str(here / "variables" / "variables"))
        (here / "saved_model.pb").write_text("graph")
        storage.copy_folder(str(here), f"{root}/model/Format-Serving")
        for name, content in [
            ("model_run/training.json", b'{"epochs": 2, "val_accuracy": 0.875}'),
            ("hyperparameters/best_hyperparameters.txt", b'{"space": [], "values": {"dropout": 0.5}}'),
            ("verdict/evaluation.json", json.dumps(judged).encode()),
        ]:
            cloud.put(f"{root}/{name}", content)
        snapshot = artifact(LabelSnapshot, "", date=date, table=f"labels_{date.replace('-', '')}")
        model, pushed = artifact(standard_artifacts.Model, f"{root}/model"), artifact(standard_artifacts.PushedModel, f"{root}/push")
        verdict = artifact(standard_artifacts.ModelBlessing, f"{root}/verdict", blessed=1)
        smoke_test = artifact(standard_artifacts.InfraBlessing, "", blessed=1)
        serves = ledger.serving(LEDGER, "default")
        serving = artifact(standard_artifacts.Model, "", version=serves.to_version if serves else "")
        destination = json.dumps({"filesystem": {"base_directory": VERSIONS}})
        Pusher().Do(
            {
                "snapshot": [snapshot], "model": [model], "model_blessing": [verdict], "infra_blessing": [smoke_test],
                "serving_model": [serving],
                "manifest": [artifact(RunManifest, "", run_id=f"run-{date}", snapshot_date=date)],
                "shards": [artifact(ImageShards, "", digest="d" * 64, folder="gs://out/shards/generation-000001")],
                "gate": [artifact(GateReport, "")],
                "labels": [artifact(standard_artifacts.Examples, f"{root}/labels", sha256="1" * 64)],
                "hyperparameters": [artifact(standard_artifacts.HyperParameters, f"{root}/hyperparameters")],
                "model_run": [artifact(standard_artifacts.ModelRun, f"{root}/model_run")],
            },
            {"pushed_model": [pushed]},
            {"push_destination": destination, "ledger": LEDGER, "endpoint": "default"},
        )
        output = artifact(ServingRelease, f"{root}/release")
        serving_ledger.ServingLedger.test_call(
            manifest=artifact(RunManifest, "", run_id=f"run-{date}"),
            snapshot=snapshot,
            decision=artifact(standard_artifacts.HyperParameters, "", tune=1),
            hyperparameters=artifact(
                standard_artifacts.HyperParameters, f"{root}/hyperparameters", tune=1, study="studies/7", trial=3, metric=0.5
            ),
            model=model,
            model_run=artifact(standard_artifacts.ModelRun, f"{root}/model_run"),
            serving_model=serving,
            verdict=verdict,
            pushed_model=pushed,
            ledger_path=LEDGER,
            endpoint="default",
            configuration_folder=CONFIGURATIONS,
            profile_pointer=PROFILE,
            quality_folder=QUALITY,
            release=output,
            configuration=artifact(BestKnownConfiguration, f"{root}/configuration"),
        )
        return json.loads(cloud.content(f"{root}/release/release.json"))

    return run


def test_a_blessed_model_is_released_and_is_what_the_next_is_judged_against(cloud, release):
    first = release("2026-03-09", 1.0)
    assert first["released"] and first["path"].startswith(f"{VERSIONS}/") and first["accuracy"] == 0.75
    assert cloud.below(first["path"]) == cloud.below("gs://out/2026-03-09/model/Format-Serving")
    model = artifact(standard_artifacts.Model, "gs://out/serving-model")
    serving_model.ServingModel.test_call(verdict=GateReport(), ledger_path=LEDGER, endpoint="default", model=model)
    assert cloud.below("gs://out/serving-model/Format-Serving") == cloud.below(first["path"])
    # An older week's does not replace it; a newer one's does, in a folder of its own in the same second too.
    assert release("2026-03-02", 2.0)["reason"].startswith("it is of 2026-03-02, and a model of 2026-03-09 serves")
    assert release("2026-03-16", 1.0)["reason"].startswith("these very weights serve already")
    second = release("2026-03-23", 3.0)
    assert second["from_version"] == first["to_version"] != second["to_version"] and second["path"] != first["path"]

    assert profiles.find(PROFILE) == profiles.Newest(
        "run-2026-03-23", "2026-03-23", "gs://out/2026-03-23/model_run/training.json"
    )  # not that of the older week, which ran later

    output = artifact(standard_artifacts.HyperParameters, "gs://out/known")
    tuning_decision.TuningDecision.test_call(
        verdict=GateReport(), manifest=artifact(RunManifest, "", snapshot_date="2026-03-30"), asked=0, retune="{}",
        configuration_folder=CONFIGURATIONS, quality_folder=QUALITY, hyperparameters=output,
    )  # fmt: skip
    assert facts.number(output, "tune") == 0 and "val_accuracy 0.875 then" in facts.text(output, "reason")
    assert facts.text(output, "origin") == "tuned by run run-2026-03-23"
    assert json.loads(cloud.content("gs://out/known/best_hyperparameters.txt"))["values"] == {"dropout": 0.5}
    best = json.loads(cloud.content("gs://out/2026-03-23/configuration/configuration.json"))
    assert (best["study"], best["trial"], best["trial_value"], best["value"]) == ("studies/7", 3, 0.5, 0.875)
    trained = [(each.snapshot_date, each.released, each.tuned) for each in quality.before(QUALITY, "2026-03-30")]
    assert trained == [
        ("2026-03-02", False, True), ("2026-03-09", True, True), ("2026-03-16", False, True), ("2026-03-23", True, True)
    ]  # fmt: skip


def test_a_released_model_has_its_provenance_beside_it_and_is_signed_there(cloud, release, tmp_path):
    released = release("2026-03-09", 1.0)
    made = json.loads(cloud.content(f"{released['path']}.intoto.json"))
    statement.check(made)
    assert made["subject"][0]["digest"]["sha256"] == released["export_sha256"]
    assert made["predicate"]["buildDefinition"]["internalParameters"]["hyperparameters"] == {"dropout": 0.5}
    key, public = str(tmp_path / "key.pem"), str(tmp_path / "key.pub.pem")
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key], check=True)
    subprocess.run(["openssl", "ec", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    for each in (released["path"], beside.statement(released["path"])):
        assert signing.sign(each, key) == f"{each}.sig"
    assert [check.status for check in signing.checks(released["path"], public, stated=True)] == ["intact", "intact"]
    cloud.put(f"{released['path']}/saved_model.pb", b"another graph")
    cloud.delete(f"{beside.statement(released['path'])}.sig")
    assert [check.status for check in signing.checks(released["path"], public, stated=True)] == ["ALTERED", "LOST"]


def test_a_week_that_does_not_search_hands_the_known_values_on(cloud):
    cloud.put("gs://out/known/best_hyperparameters.txt", b'{"space": [], "values": {"dropout": 0.5}}')
    told = {"reason": "it holds", "warning": "it is old", "origin": "tuned by run run-1", "values": '{"dropout": 0.5}'}
    known = artifact(standard_artifacts.HyperParameters, "gs://out/known", tune=0, **told)
    best = artifact(standard_artifacts.HyperParameters, "gs://out/best")
    found = artifact(standard_artifacts.TunerResults, "gs://out/found")
    tuner.Executor().Do(
        {"hyperparameters": [known]}, {"best_hyperparameters": [best], "tuner_results": [found]}, {"custom_config": "{}"}
    )
    name = "best_hyperparameters.txt"
    assert cloud.content(f"gs://out/best/{name}") == cloud.content(f"gs://out/known/{name}")
    assert {field: facts.text(best, field) for field in told} == told and facts.number(best, "tune") == 0
    assert results.read("gs://out/found").trials == () and cloud.content("gs://out/found/tuner_results.json") == b"[]"


def test_a_newer_release_between_push_and_ledger_holds_the_older(cloud, release):
    append("9", date="2026-03-30")
    newer = cloud.content(LEDGER)
    cloud.delete(LEDGER)
    cloud.before(
        lambda call: call.kind == "write" and call.name.endswith("ledger.jsonl"),
        lambda: cloud.put(LEDGER, newer),
    )
    held = release("2026-03-23", 1.0)
    assert not held["released"] and held["reason"].startswith("version 9 serves at endpoint default by now")
    assert cloud.content(LEDGER) == newer and cloud.below(VERSIONS) == {}


def test_a_push_that_fails_midway_leaves_the_versions_as_they_were(cloud, release):
    cloud.answer(403, lambda call: "/push/" in call.uri or call.kind == "other")
    with pytest.raises(PermissionError):
        release("2026-03-09", 1.0)
    assert cloud.below(VERSIONS) == {} and ledger.read(LEDGER) == []
