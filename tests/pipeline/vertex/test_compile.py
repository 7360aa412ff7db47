"""The pipeline as Vertex gets it: what is compiled, and that its first step works with what Vertex fills in."""

import copy
import dataclasses
import difflib
import json
import os
import pathlib

import pytest
from apache_beam.options import pipeline_options
from apache_beam.runners.dataflow.internal import apiclient
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_run_executor

from pipeline import settings
from pipeline.errors import SettingsError
from pipeline.vertex import compile as compiling
from pipeline.vertex.service import steps_of
from tests.pipeline.conftest import ROOT
from tests.pipeline.vertex.conftest import IMAGE, ORIGIN, loaded, rules

GOLDEN = pathlib.Path(__file__).parent / "golden"


def described(job: dict) -> str:
    """A compiled pipeline as people compare it: what each step waits for, reads, is given and runs. No version, no account."""
    spec = job["pipelineSpec"]
    executors = spec["deploymentSpec"]["executors"]
    lines = [f"pipeline {spec['pipelineInfo']['name']}, schema {spec['schemaVersion']}, root {job['runtimeConfig']['gcsOutputDirectory']}"]
    lines += [f"parameter {name}: {of['parameterType']}" for name, of in sorted(spec["root"]["inputDefinitions"]["parameters"].items())]
    for name, task in sorted(steps_of(job).items()) + [("RunAlert", spec["root"]["dag"]["tasks"]["RunAlert"])]:
        container = executors[f"{name}_executor"]["container"]
        args = container["args"]
        assert container["command"][-1] == "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"
        lines += ["", name, f"  runs {args[1]}"]
        if "resources" in container:
            lines.append(f"  on {json.dumps(container['resources'], sort_keys=True)}")
        lines += [f"  after {before}" for before in task.get("dependentTasks", [])]
        if task.get("cachingOptions", {}).get("enableCache"):
            lines.append("  from a cache")
        for key, source in sorted(task.get("inputs", {}).get("artifacts", {}).items()):
            output = source["taskOutputArtifact"]
            lines.append(f"  reads {key}: {output['producerTask']}.{output['outputArtifactKey']}")
        for key, value in sorted(task.get("inputs", {}).get("parameters", {}).items()):
            where = value.get("componentInputParameter") or next(iter(value))
            given = value.get("runtimeValue", {}).get("constant", f"<{where}>")
            lines += [f"  given {key}: {line}" for line in _given(given)]
    beam = executors["ImageSharder_executor"]["container"]["args"][6:]
    return "\n".join([*lines, "", "Beam", *(f"  {arg}" for arg in beam), ""]).replace(IMAGE, "IMAGE@sha256:DIGEST")


def _given(value) -> list[str]:
    """A parameter, a line for each field of what is JSON."""
    try:
        content = json.loads(value)
    except (TypeError, ValueError):
        return [" ".join(str(value).split())]
    if not isinstance(content, dict):
        return [str(value)]
    return [f"{key} = {json.dumps(content[key], sort_keys=True)}" for key in sorted(content)]


@pytest.mark.parametrize("name", ["weekly", "monthly"])
def test_what_is_compiled_is_what_was_compiled(compiled_jobs, name):
    """After a change that is meant: PYTEST_UPDATE_GOLDEN=1, and read the difference."""
    path, now = GOLDEN / f"{name}.txt", described(compiled_jobs[name])
    if os.environ.get("PYTEST_UPDATE_GOLDEN"):
        path.write_text(now)
    difference = list(difflib.unified_diff(path.read_text().splitlines(), now.splitlines(), "golden", "now", lineterm="", n=1))
    assert not difference, "\n".join(difference)


def test_it_compiles_to_the_same_bytes_again(compiled_jobs):
    again = compiling.compiled(loaded(), *rules(), ORIGIN, IMAGE, False)
    assert json.dumps(again, sort_keys=True) == json.dumps(compiled_jobs["weekly"], sort_keys=True)


@pytest.mark.parametrize("name", ["weekly", "monthly"])
def test_it_is_a_pipeline_job_to_vertexs_own_types(compiled_jobs, name):
    job = v1.PipelineJob()
    json_format.ParseDict(compiled_jobs[name], v1.PipelineJob.pb(job))
    assert job.pipeline_spec["schemaVersion"] == "2.1.0"
    spec = json_format.ParseDict(compiled_jobs[name]["pipelineSpec"], pipeline_spec_pb2.PipelineSpec())
    assert {executor["container"]["image"] for executor in spec.deployment_spec["executors"].values()} == {IMAGE}


def test_the_steps_of_the_inner_dag_get_the_pipelines_parameters(compiled_jobs):
    """The compiler alone gives them none when there is an exit handler."""
    spec = compiled_jobs["weekly"]["pipelineSpec"]
    asked = {
        value["componentInputParameter"]
        for task in steps_of(compiled_jobs["weekly"]).values()
        for value in task.get("inputs", {}).get("parameters", {}).values()
        if "componentInputParameter" in value
    }
    assert asked == {"snapshot_date", "override", "window_end"}
    assert set(spec["components"]["tfx-dag"]["inputDefinitions"]["parameters"]) == asked
    passed = spec["root"]["dag"]["tasks"]["tfx-dag"]["inputs"]["parameters"]
    assert passed == {name: {"componentInputParameter": name} for name in asked}


def test_the_alert_comes_after_all_whatever_became_of_it_and_from_no_cache(compiled_jobs):
    alert = compiled_jobs["weekly"]["pipelineSpec"]["root"]["dag"]["tasks"]["RunAlert"]
    assert alert["dependentTasks"] == ["tfx-dag"] and alert["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert alert["inputs"]["parameters"]["final_status"] == {"taskFinalStatus": {"producerTask": "tfx-dag"}}
    assert not alert.get("cachingOptions", {}).get("enableCache")


def test_without_a_topic_there_is_no_alert():
    job = compiling.compiled(loaded(alert_topic=""), *rules(), ORIGIN, IMAGE, False)
    assert set(job["pipelineSpec"]["root"]["dag"]["tasks"]) == set(steps_of(job)) and "RunAlert" not in steps_of(job)


def test_where_no_week_searches_by_itself_values_are_handed_on_without_an_accelerator():
    never = dataclasses.replace(loaded(), retune=settings.RetuneSettings(every_weeks=0, max_drop=1))
    job = compiling.compiled(never, *rules(), ORIGIN, IMAGE, False)
    assert "resources" not in job["pipelineSpec"]["deploymentSpec"]["executors"]["Tuner_executor"]["container"]


def test_no_step_knows_this_machine(compiled_jobs):
    for job in compiled_jobs.values():
        assert str(ROOT) not in json.dumps(job)


def test_settings_for_one_machine_are_refused():
    with pytest.raises(SettingsError, match="have no vertex"):
        compiling.compiled(settings.load(settings.CONFIGS / "local.yaml"), *rules(), ORIGIN, IMAGE, False)
    embedded = dataclasses.replace(loaded(), warehouse=settings.WarehouseSettings(kind="duckdb"))
    with pytest.raises(SettingsError, match="warehouse.kind duckdb .* use bigquery"):
        compiling.compiled(embedded, *rules(), ORIGIN, IMAGE, False)


def test_without_an_endpoint_it_releases_to_the_store():
    job = compiling.compiled(loaded(release=None), *rules(), ORIGIN, IMAGE, False)
    given = steps_of(job)["ReleasePusher"]["inputs"]["parameters"]
    assert given["vertex"]["runtimeValue"]["constant"] == ""


def test_an_image_that_serves_and_was_not_filled_in_is_refused():
    image = "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15@sha256:your-digest"
    with pytest.raises(SettingsError, match="vertex.release.image .* names no digest.*\n.*gcloud artifacts docker images describe"):
        compiling.compiled(loaded(release__image=image), *rules(), ORIGIN, IMAGE, False)


def test_a_backbone_of_this_machine_alone_is_refused():
    def begun_from(backbone):
        return dataclasses.replace(loaded(), training=dataclasses.replace(loaded().training, backbone=backbone))

    with pytest.raises(SettingsError, match="training.backbone /home/ana/x.npz is a path of this machine"):
        compiling.compiled(begun_from("/home/ana/x.npz"), *rules(), ORIGIN, IMAGE, False)
    # What is part of the project is part of the image.
    moved = compiling._for_vertex(begun_from(str(ROOT / "data" / "sample" / "backbone.npz")))
    assert moved.training.backbone == "/app/data/sample/backbone.npz"
    assert compiling._for_vertex(begun_from("gs://bucket/x.npz")).training.backbone == "gs://bucket/x.npz"


def test_without_dataflow_beam_runs_in_each_steps_container():
    assert compiling.beam_args(loaded(dataflow=None), IMAGE) == list(settings.BEAM_HERE)


def beam_options(job: dict, step: str) -> pipeline_options.PipelineOptions:
    """What Beam's own parser makes of the arguments that a compiled step has for it."""
    args = job["pipelineSpec"]["deploymentSpec"]["executors"][f"{step}_executor"]["container"]["args"][6:]
    options = pipeline_options.PipelineOptions(args)
    known = options.get_all_options(retain_unknown_options=False)
    names = {arg.removeprefix("--").partition("=")[0] for arg in args}
    negated = {"no_use_public_ips": "use_public_ips", "worker_machine_type": "machine_type"}
    assert {negated.get(name, name) for name in names} <= known.keys()
    return options


def to_dataflow(options: pipeline_options.PipelineOptions) -> dict:
    """The environment of the job that Beam's client asks of Dataflow: accounts, machines, image, network."""
    sent = apiclient.Environment(packages=[], options=options, environment_version="1", proto_pipeline_staged_url="gs://b/p").proto
    if hasattr(sent, "serviceAccountEmail"):  # Beam 2.61; later ones have the API's own types
        from apitools.base.py import encoding

        return encoding.MessageToDict(sent)
    return json.loads(type(sent).to_json(sent, use_integers_for_enums=False))


BEAM_STEPS = ("ImageSharder", "SnapshotExampleGen", "StatisticsGen", "LabelJoin", "Evaluator")


@pytest.mark.parametrize("step", BEAM_STEPS)
def test_dataflow_gets_the_image_the_account_and_the_network_of_the_settings(compiled_jobs, step):
    options = beam_options(compiled_jobs["weekly"], step)
    cloud, workers = options.view_as(pipeline_options.GoogleCloudOptions), options.view_as(pipeline_options.WorkerOptions)
    assert options.view_as(pipeline_options.StandardOptions).runner == "DataflowRunner"
    assert (cloud.project, cloud.region) == ("acme-products", "europe-west4")
    assert (cloud.temp_location, cloud.staging_location) == tuple(
        f"gs://acme-retrain/retrain/dataflow/{name}" for name in ("temp", "staging")
    )
    assert sorted(cloud.labels) == ["pipeline=product-photographs", "team=retail"]
    assert workers.sdk_container_image == IMAGE and workers.use_public_ips is False
    assert options.view_as(pipeline_options.SetupOptions).sdk_location == "container"
    sent = to_dataflow(options)
    (pool,) = sent["workerPools"]
    assert sent["serviceAccountEmail"] == "retrain-dataflow@acme-products.iam.gserviceaccount.com"
    assert (pool["workerHarnessContainerImage"], pool["machineType"]) == (IMAGE, "n1-standard-8")
    assert pool["ipConfiguration"] == "WORKER_IP_PRIVATE"
    assert pool["subnetwork"] == "regions/europe-west4/subnetworks/retrain-dataflow"
    assert int(pool["autoscalingSettings"]["maxNumWorkers"]) == 32


def test_an_option_that_beam_does_not_know_would_be_seen(compiled_jobs):
    job = copy.deepcopy(compiled_jobs["weekly"])
    job["pipelineSpec"]["deploymentSpec"]["executors"]["ImageSharder_executor"]["container"]["args"].append("--worker_color=red")
    with pytest.raises(AssertionError):
        beam_options(job, "ImageSharder")


def test_dataflows_workers_run_as_the_run_does_unless_told_otherwise():
    def account(**vertex):
        found = [arg for arg in compiling.beam_args(loaded(**vertex), IMAGE) if arg.startswith("--service_account_email=")]
        return found[0].partition("=")[2] if found else ""

    assert account(dataflow__service_account="") == "retrain@acme-products.iam.gserviceaccount.com"
    assert account(dataflow__service_account="w@x.iam.gserviceaccount.com") == "w@x.iam.gserviceaccount.com"
    assert account(dataflow__service_account="", service_account="") == ""


def test_dataflows_workers_have_public_addresses_where_that_is_wanted():
    assert "--no_use_public_ips" not in compiling.beam_args(loaded(dataflow__public_ips=True), IMAGE)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"snapshot_date": "scheduled", "window_end": ""}, ("2026-03-02", 1772524800.0)),
        ({"snapshot_date": "2026-03-09", "window_end": "2026-03-10T06:00:00Z"}, ("2026-03-09", 1773122400.0)),
    ],
)
def test_the_first_step_runs_by_its_own_command_with_what_vertex_fills_in(compiled_jobs, tmp_path, parameters, expected):
    spec = compiled_jobs["weekly"]["pipelineSpec"]
    placeholders = {
        "{{$.pipeline_job_name}}": "product-photographs-20260302",
        "{{$.pipeline_job_create_time_utc}}": "2026-03-02T20:00:07.123456Z",
        "{{$.pipeline_job_schedule_time_utc}}": "2026-03-02T20:00:00Z",
    }
    values = {}
    for name, value in steps_of(compiled_jobs["weekly"])["RunManifest"]["inputs"]["parameters"].items():
        constant = value.get("runtimeValue", {}).get("constant")
        values[name] = placeholders.get(constant, constant) if constant is not None else parameters[value["componentInputParameter"]]
    schema = spec["components"]["RunManifest"]["outputDefinitions"]["artifacts"]["manifest"]["artifactType"]
    filled = {
        "inputs": {"parameterValues": values},
        "outputs": {
            "artifacts": {"manifest": {"artifacts": [{"name": "1", "type": schema, "uri": str(tmp_path / "manifest")}]}},
            "outputFile": str(tmp_path / "task" / "executor_output.json"),
        },
    }
    args = [
        json.dumps(filled) if arg == "{{$}}" else arg
        for arg in spec["deploymentSpec"]["executors"]["RunManifest_executor"]["container"]["args"]
    ]
    kubeflow_v2_run_executor.main(kubeflow_v2_run_executor._parse_flags(["run", *args]))
    known = json.loads((tmp_path / "manifest" / "manifest.json").read_text())
    assert known["run_id"] == "product-photographs-20260302" and known["image"] == IMAGE
    assert (known["snapshot_date"], known["window_end"]) == expected
    # The later steps read these of the artifact, as Vertex keeps them.
    output = json.loads((tmp_path / "task" / "executor_output.json").read_text())
    metadata = output["artifacts"]["manifest"]["artifacts"][0]["metadata"]
    assert metadata["snapshot_date"] == expected[0] and metadata["window_end"] == expected[1]
