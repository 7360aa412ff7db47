"""ML Metadata on the fake Vertex AI: what a pipeline job writes, found again by Google's own clients."""

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform, aiplatform_v1
from google.cloud.aiplatform_v1 import types

from tests.cloud import google_apis
from tests.cloud.small_pipelines import spec, task
from tests.cloud.vertex import names
from tests.cloud.vertex.names import ENDPOINT, PARENT

STORE = f"{PARENT}/metadataStores/default"


@pytest.fixture
def client(vertex):
    return aiplatform_v1.MetadataServiceClient(client_options=ENDPOINT)


@pytest.fixture
def weeks(vertex, google):
    """Two runs of one pipeline, of which the second took its first task from the cache; returns their jobs."""
    google.bucket("runs")
    tasks = {
        "Snapshot": task("give({'snapshot': {'rows': 151}}, rows=151)", outputs={"snapshot": "pipeline.LabelSnapshot"},
                         values={"rows": int}, cache=True),
        "Train": task("give({'model': {'seed': 7}})", artifacts={"snapshot": ("Snapshot", "snapshot")},
                      parameters={"date": {"root": "date"}}, outputs={"model": "tfx.Model"}, cache=True),
    }  # fmt: skip
    pipeline = spec("weekly", tasks, {"date": {"parameterType": "STRING"}})
    client = aiplatform_v1.PipelineServiceClient(client_options=ENDPOINT)
    jobs = []
    for date in ("20260302", "20260309"):
        config = {"gcs_output_directory": "gs://runs/root", "parameter_values": {"date": date}}
        job = {"pipeline_spec": pipeline, "runtime_config": config}
        made = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id=f"week-{date}")
        vertex.settle()
        jobs.append(client.get_pipeline_job(name=made.name))
    return jobs


def test_a_run_leaves_its_contexts_executions_artifacts_and_events(client, weeks):
    first, second = weeks
    context = client.get_context(name=f"{STORE}/contexts/week-20260302")
    assert context.name == first.job_detail.pipeline_run_context.name and context.schema_title == "system.PipelineRun"
    assert list(context.parent_contexts) == [first.job_detail.pipeline_context.name]
    graph = client.query_context_lineage_subgraph(context=context.name)
    assert {each.schema_title: dict(each.metadata) for each in graph.artifacts} == {
        "pipeline.LabelSnapshot": {"rows": 151.0}, "tfx.Model": {"seed": 7.0},
    }  # fmt: skip
    by_name = {each.display_name: each for each in graph.executions}
    assert by_name["Train"].metadata["input:date"] == "20260302" and by_name["Snapshot"].metadata["output:rows"] == 151
    assert by_name["week-20260302"].schema_title == "system.Run"
    events = {(event.execution, event.artifact, event.type_.name, event.labels["key"]) for event in graph.events}
    snapshot, model = (each.name for each in sorted(graph.artifacts, key=lambda each: each.schema_title))
    assert events == {
        (by_name["Snapshot"].name, snapshot, "OUTPUT", "snapshot"), (by_name["Train"].name, snapshot, "INPUT", "snapshot"),
        (by_name["Train"].name, model, "OUTPUT", "model"),
    }  # fmt: skip

    # The second run was served the snapshot: another execution of the same artifact, in state CACHED.
    cached = client.query_context_lineage_subgraph(context=second.job_detail.pipeline_run_context.name)
    assert [each.state.name for each in cached.executions if each.display_name == "Snapshot"] == ["CACHED"]
    assert snapshot in [each.name for each in cached.artifacts] and model not in [each.name for each in cached.artifacts]


def test_lineage_is_walked_from_an_artifact_hop_by_hop(client, weeks):
    [model] = client.list_artifacts(
        request={"parent": STORE, "filter": f'schema_title="tfx.Model" AND in_context("{STORE}/contexts/week-20260302")'}
    )  # fmt: skip
    whole = client.query_artifact_lineage_subgraph(artifact=model.name)
    assert sorted(each.schema_title for each in whole.artifacts) == ["pipeline.LabelSnapshot", "tfx.Model", "tfx.Model"]
    near = client.query_artifact_lineage_subgraph(request={"artifact": model.name, "max_hops": 1})
    assert [each.display_name for each in near.executions] == ["Train"] and len(near.artifacts) == 1
    [train] = near.executions
    both = client.query_execution_inputs_and_outputs(execution=train.name)
    assert sorted(each.schema_title for each in both.artifacts) == ["pipeline.LabelSnapshot", "tfx.Model"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('schema_title="pipeline.LabelSnapshot"', 1),
        ('schema_title="tfx.Model" AND state=LIVE', 2),
        ("metadata.rows.number_value=151", 1),
        ("metadata.rows.number_value>151", 0),
        ('uri:"gs://runs/root"', 3),
        ('display_name="snap*" OR NOT schema_title="tfx.Model"', 1),
        ('(schema_title="tfx.Model" OR schema_title="x") create_time>"2026-01-01T00:00:00Z"', 2),
    ],
)
def test_filters(client, weeks, text, count):
    assert len(list(client.list_artifacts(request={"parent": STORE, "filter": text}))) == count


@pytest.mark.parametrize("text", ["colour=1", "schema_title", 'state="LIVE" AND', "near(1)", 'create_time>"soon"', '"x'])
def test_filters_that_cannot_be_understood_are_refused(client, weeks, text):
    with pytest.raises(exceptions.InvalidArgument, match="filter"):
        client.list_artifacts(request={"parent": STORE, "filter": text})


def test_people_add_to_it(client, vertex, weeks):
    model = client.list_artifacts(request={"parent": STORE, "filter": 'schema_title="tfx.Model"', "page_size": 1}).artifacts[0]
    release = client.create_artifact(
        parent=STORE, artifact={"schema_title": "system.Artifact", "uri": "gs://runs/ledger", "metadata": {"share": 10}},
        artifact_id="release-1",
    )  # fmt: skip
    assert release.name.endswith("/artifacts/release-1") and names.NUMBER in release.name
    with pytest.raises(exceptions.AlreadyExists):
        client.create_artifact(parent=STORE, artifact={"schema_title": "system.Artifact"}, artifact_id="release-1")
    execution = client.create_execution(parent=STORE, execution={"schema_title": "system.Run", "display_name": "release"})
    event = types.Event.Type
    client.add_execution_events(
        execution=execution.name,
        events=[{"artifact": model.name, "type_": event.INPUT}, {"artifact": release.name, "type_": event.OUTPUT}],
    )
    client.update_artifact(artifact={"name": release.name, "metadata": {"share": 100}}, update_mask={"paths": ["metadata"]})
    assert client.get_artifact(name=release.name).metadata["share"] == 100
    found = client.query_artifact_lineage_subgraph(request={"artifact": release.name, "max_hops": 2})
    assert {each.name for each in found.artifacts} == {model.name, release.name}
    client.delete_artifact(name=release.name).result()
    with pytest.raises(exceptions.NotFound):
        client.get_artifact(name=release.name)


def test_a_cached_step_runs_again_once_its_artifact_is_gone(client, vertex, weeks):
    snapshot = weeks[0].job_detail.task_details[0].outputs["snapshot"].artifacts[0]
    client.delete_artifact(name=snapshot.name).result()
    pipelines = aiplatform_v1.PipelineServiceClient(client_options=ENDPOINT)
    again = {"pipeline_spec": weeks[0].pipeline_spec, "runtime_config": weeks[0].runtime_config}
    pipelines.create_pipeline_job(parent=PARENT, pipeline_job=again, pipeline_job_id="again")
    vertex.settle()
    assert vertex.pipelines.tasks("again") == {"Snapshot": "SUCCEEDED", "Train": "SUCCEEDED"}


def test_the_high_level_client_makes_a_table_of_runs(vertex, weeks):
    aiplatform.init(project=google_apis.PROJECT, location="us-central1")
    table = aiplatform.get_pipeline_df("weekly")
    assert sorted(table["run_name"]) == ["week-20260302", "week-20260309"]
    assert sorted(table["param.input:date"]) == ["20260302", "20260309"]


def test_too_large_a_lineage_is_refused(client, vertex, weeks):
    location = f"projects/{names.NUMBER}/locations/us-central1"
    hub = vertex.metadata.put("artifacts", location, "hub", schema_title="system.Artifact")
    for number in range(1001):
        execution = vertex.metadata.put("executions", location, f"e{number}", schema_title="system.Run")
        vertex.metadata.add_event(execution.name, hub.name, types.Event.Type.INPUT, "")
    with pytest.raises(exceptions.FailedPrecondition, match="more than 1000"):
        client.query_artifact_lineage_subgraph(artifact=hub.name)
    context = vertex.metadata.put("contexts", location, "all", schema_title="system.PipelineRun")
    vertex.metadata.link(context.name, [f"{location}/metadataStores/default/executions/e{number}" for number in range(1001)])
    with pytest.raises(exceptions.FailedPrecondition, match="more than 1000 executions"):
        client.query_context_lineage_subgraph(context=context.name)
