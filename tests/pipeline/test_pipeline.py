"""How the steps of a week are wired."""

import dataclasses
import json

import pytest
from tfx.dsl.compiler import compiler
from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner

from pipeline import local, settings, typed
from pipeline.console import Progress
from pipeline.origin import Origin
from pipeline.evaluation.thresholds import Thresholds
from pipeline.pipeline import create_pipeline, on_this_machine
from pipeline.places import Places
from pipeline.start import Start
from pipeline.validation.rules import Limits
from tests.pipeline.conftest import ROOT

ORIGIN = Origin("c0ffee", "clean", "tfx.txt", "0" * 64, "", "3.11", "Linux", "ana")


def whole(tune=False, **changes):
    """The pipeline of a week."""
    config = dataclasses.replace(settings.load(settings.CONFIGS / "local.yaml"), **changes)
    limits = typed.load(Limits, ROOT / "schema" / "gate.yaml")
    places = Places(store="/store", images="/data/images", labels="/data/labels.csv", schema="/data/schema")
    thresholds = typed.load(Thresholds, ROOT / "schema" / "release.yaml")
    start = Start("run-1", "2026-03-02")
    return create_pipeline(config, limits, thresholds, places, ORIGIN, start, tune, on_this_machine(places))


def nodes(tune=False, **changes) -> dict:
    """The steps as a runner sees them, in their order."""
    compiled = compiler.Compiler().compile(whole(tune, **changes))
    return {node.pipeline_node.node_info.id: node.pipeline_node for node in compiled.nodes}


@pytest.fixture(scope="module")
def week():
    return nodes()


def upstream(steps, name) -> set[str]:
    """Every step that must end before this one starts."""
    found, front = set(), [name]
    while front:
        for above in steps[front.pop()].upstream_nodes:
            if above not in found:
                found.add(above)
                front.append(above)
    return found


def parameter(step, name):
    value = step.parameters.parameters[name].field_value
    return getattr(value, value.WhichOneof("value"))


def test_the_steps_of_a_week(week):
    assert sorted(week) == sorted([
        "RunManifest", "ImageSharder", "SnapshotGen", "SnapshotExampleGen", "StatisticsGen", "ImportSchemaGen",
        "ExampleValidator", "LastAccepted", "DistributionValidator", "SnapshotGate", "LabelJoin", "TuningDecision",
        "Tuner", "Trainer", "SmokeTest", "ServingModel", "Evaluator", "ReleaseGate", "ReleasePusher", "ServingLedger",
    ])  # fmt: skip


def test_a_week_that_tunes_has_the_same_steps(week):
    tuning = nodes(tune=True)
    assert list(tuning) == list(week)
    assert [parameter(steps["TuningDecision"], "asked") for steps in (week, tuning)] == [0, 1]
    assert {"TuningDecision", "LabelJoin"} <= set(week["Tuner"].upstream_nodes)
    assert "Tuner" in week["Trainer"].upstream_nodes


def test_the_tuner_is_told_what_it_searches_and_where_studies_are(week):
    custom = json.loads(parameter(week["Tuner"], "custom_config"))
    assert custom["tuning"]["parallel"] == 2 and custom["tuning"]["algorithm"] == "quasi_random"
    told = {name: custom[name] for name in ("pipeline", "database", "records", "reports")}
    assert told == {
        "pipeline": "product-photographs", "database": "/store/studies.sqlite", "records": "/store/studies",
        "reports": "/store/reports",
    }  # fmt: skip


@pytest.mark.parametrize("tune", [False, True])
def test_nothing_behind_the_gate_starts_without_its_verdict(tune):
    steps = nodes(tune)
    behind = list(steps)[list(steps).index("SnapshotGate") + 1 :]
    assert len(behind) == 10
    for name in behind:
        assert "SnapshotGate" in upstream(steps, name), name


@pytest.mark.filterwarnings("ignore")
def test_compiled_for_vertex_every_task_behind_the_gate_starts_only_when_it_succeeded(tmp_path):
    output = tmp_path / "job.json"
    config = kubeflow_v2_dag_runner.KubeflowV2DagRunnerConfig(default_image="image@sha256:0", use_pipeline_spec_2_1=True)
    kubeflow_v2_dag_runner.KubeflowV2DagRunner(config, output_filename=str(output)).run(whole(tune=False))
    tasks = json.loads(output.read_text())["pipelineSpec"]["root"]["dag"]["tasks"]

    def behind(task):
        before = tasks[task].get("dependentTasks", [])
        return "SnapshotGate" in before or any(map(behind, before))

    assert [task for task in tasks if behind(task)] == [
        "Evaluator", "LabelJoin", "ReleaseGate", "ReleasePusher", "ServingLedger", "ServingModel", "SmokeTest", "Trainer",
        "Tuner", "TuningDecision",
    ]  # fmt: skip
    # A strategy of its own could start a task although what it depends on failed.
    assert not any("strategy" in task.get("triggerPolicy", {}) for task in tasks.values())


def test_the_gate_waits_for_everything_that_it_judges(week):
    assert set(week) - upstream(week, "SnapshotGate") == set(list(week)[list(week).index("SnapshotGate") :])


def test_the_ledger_is_written_last(week):
    assert upstream(week, "ServingLedger") == set(week) - {"ServingLedger"}
    assert set(week["Evaluator"].upstream_nodes) >= {"ServingModel", "Trainer", "SmokeTest"}
    assert set(week["ReleasePusher"].upstream_nodes) >= {"ReleaseGate", "SmokeTest", "ServingModel"}


def test_a_run_is_known_by_its_parameters(week):
    manifest = week["RunManifest"]
    assert (parameter(manifest, "run_id"), parameter(manifest, "snapshot_date")) == ("run-1", "2026-03-02")
    # They alone need to know more of the run than the artifacts before them say.
    readers = [
        "SnapshotGen", "SnapshotGate", "TuningDecision", "Tuner", "Trainer", "SmokeTest", "ReleaseGate", "ReleasePusher",
        "ServingLedger",
    ]  # fmt: skip
    assert [name for name, step in week.items() if "manifest" in step.inputs.inputs] == sorted(readers, key=list(week).index)
    assert json.loads(parameter(manifest, "origin"))["commit"] == "c0ffee"
    assert json.loads(parameter(manifest, "settings"))["name"] == "product-photographs"


def test_settings_reach_the_steps_that_they_are_for(week):
    limits = json.loads(parameter(week["SnapshotGate"], "limits"))
    assert limits["max_relabelled_share"] == 0.08 and parameter(week["SnapshotGate"], "bootstrap") == 1
    assert json.loads(parameter(week["ImageSharder"], "settings"))["short_side"] == 112
    assert parameter(week["LabelJoin"], "tuning_share") == 0.5
    thresholds = json.loads(parameter(week["ReleaseGate"], "thresholds"))
    assert thresholds["absolute"]["min_accuracy"] == 0.5 and parameter(week["ReleaseGate"], "bootstrap") == 1
    assert thresholds["smoke"] == json.loads(parameter(week["SmokeTest"], "thresholds"))
    assert parameter(week["Evaluator"], "batch_size") == 64
    assert json.loads(parameter(week["TuningDecision"], "retune"))["every_weeks"] == 0
    assert parameter(week["TuningDecision"], "quality_folder") == parameter(week["ServingLedger"], "quality_folder")
    custom = json.loads(parameter(week["Trainer"], "custom_config"))
    assert custom["short_side"] == 112 and custom["network"]["image_size"] == 96
    location = json.loads(parameter(week["SnapshotGen"], "warehouse"))
    assert location.items() >= {"kind": "duckdb", "labels": "/data/labels.csv", "database": "/store/warehouse.duckdb"}.items()


def test_a_bigquery_warehouse_is_named_by_project_and_data_set():
    given = {
        "kind": "bigquery", "project": "some-project", "dataset": "d", "labels": "edits", "expiry_days": 400,
        "table_labels": {"team": "retail"}, "max_query_bytes": 10**9,
    }  # fmt: skip
    place = json.loads(parameter(nodes(warehouse=settings.WarehouseSettings(**given))["SnapshotGen"], "warehouse"))
    assert place == given | {"database": ""}


def test_nothing_is_cached(week):
    assert not any(node.execution_options.caching_options.enable_cache for node in week.values())


def test_a_part_of_a_week_cannot_be_run():
    with pytest.raises(ValueError, match="partial runs are not supported"):
        local.ProgressDagRunner("run-1", Progress()).run_with_ir(None, run_options=object())
