"""Models, endpoints and predictions on the fake Vertex AI, by Google's own clients."""

import base64
import json

import pytest
import tensorflow as tf
from google.api_core import exceptions
from google.cloud import aiplatform, aiplatform_v1

from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex.containers import SERVING_IMAGE
from tests.cloud.vertex.names import ENDPOINT, PARENT


class Weighing(tf.Module):
    """Multiplies the number of bytes of a photograph by a weight."""

    def __init__(self, weight: float):
        super().__init__()
        self._weight = tf.Variable(weight)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image")])
    def serve(self, image):
        sizes = tf.cast(tf.strings.length(image), tf.float32) * self._weight
        return {"score": sizes, "label": tf.where(sizes > 10, "heavy", "light")}


@pytest.fixture
def uris(google):
    """Two SavedModels in a bucket: one weighs once, one twice."""
    folder = google.bucket("models")
    for name, weight in (("once", 1.0), ("twice", 2.0)):
        module = Weighing(weight)
        tf.saved_model.save(module, str(folder / name), signatures={"serving_default": module.serve})
    return ["gs://models/once", "gs://models/twice"]


@pytest.fixture
def upload(vertex):
    aiplatform.init(project=google_apis.PROJECT, location="us-central1")

    def upload(uri: str = "gs://models/once", **fields) -> aiplatform.Model:
        fields = {"display_name": "photographs", "serving_container_image_uri": SERVING_IMAGE, **fields}
        return aiplatform.Model.upload(artifact_uri=uri, **fields)

    return upload


def test_versions_of_one_model_with_aliases_and_labels(vertex, google, upload):
    google.bucket("models")
    first = upload(labels={"run": "week-1"})
    assert first.resource_name.startswith(f"projects/{names.NUMBER}/locations/us-central1/models/")
    second = upload(
        parent_model=first.resource_name, is_default_version=False, version_aliases=["candidate"], labels={"run": "week-2"}
    )  # fmt: skip
    third = upload(parent_model=first.resource_name, is_default_version=True)
    assert [each.version_id for each in (first, second, third)] == ["1", "2", "3"]
    registry = first.versioning_registry
    assert {each.version_id: each.version_aliases for each in registry.list_versions()} == {
        "1": [], "2": ["candidate"], "3": ["default"],
    }  # fmt: skip
    # Back to the first one: the alias moves.
    registry.add_version_aliases(["default", "serving"], "1")
    registry.remove_version_aliases(["candidate"], "2")
    assert {each.version_id: list(each.version_aliases) for each in registry.list_versions()} == {
        "1": ["default", "serving"], "2": [], "3": [],
    }  # fmt: skip
    assert aiplatform.Model(f"{first.resource_name}@serving").labels == {"run": "week-1"}
    assert aiplatform.Model(f"{first.resource_name}@2").labels == {"run": "week-2"}
    assert aiplatform.Model(first.resource_name).version_id == "1"
    assert [each.display_name for each in aiplatform.Model.list(filter='labels.run="week-1"')] == ["photographs"]
    assert aiplatform.Model.list(filter='labels.run="week-2"') == []  # a listing has the default versions
    with pytest.raises(exceptions.NotFound):
        aiplatform.Model(f"{first.resource_name}@candidate")
    registry.delete_version("2")
    assert len(registry.list_versions()) == 2
    with pytest.raises(exceptions.FailedPrecondition, match="default"):
        registry.delete_version("1")
    with pytest.raises(exceptions.NotFound):
        upload(parent_model=f"{PARENT}/models/1")
    with pytest.raises(exceptions.InvalidArgument, match="alias"):
        upload(version_aliases=["Has Space"])


def test_traffic_moves_from_one_version_to_the_next(vertex, uris, upload):
    first = upload(uris[0])
    second = upload(uris[1], parent_model=first.resource_name, is_default_version=False)
    endpoint = aiplatform.Endpoint.create("photographs", labels={"team": "retrain"})
    machine = {"machine_type": "n1-standard-2", "min_replica_count": 1, "sync": True}
    first.deploy(endpoint, traffic_percentage=100, **machine)
    instance = {"b64": base64.b64encode(b"x" * 8).decode()}
    answer = endpoint.predict([instance, {"image": {"b64": base64.b64encode(b"x" * 11).decode()}}])
    assert answer.predictions == [{"score": 8.0, "label": "light"}, {"score": 11.0, "label": "heavy"}]
    assert (answer.model_version_id, answer.model_resource_name) == ("1", first.resource_name)

    second.deploy(endpoint, traffic_percentage=25, **machine)
    old, new = (each.id for each in endpoint.list_models())
    assert endpoint.traffic_split == {old: 75, new: 25}
    scores = [endpoint.predict([instance]).predictions[0]["score"] for _ in range(8)]
    assert sorted(scores) == [8.0] * 6 + [16.0] * 2

    with pytest.raises(exceptions.FailedPrecondition, match="% of the traffic"):
        endpoint.api_client.undeploy_model(endpoint=endpoint.resource_name, deployed_model_id=old)
    with pytest.raises(exceptions.FailedPrecondition, match="deployed"):
        aiplatform_v1.ModelServiceClient(client_options=ENDPOINT).delete_model(name=first.resource_name)
    endpoint.update(traffic_split={old: 0, new: 100})
    endpoint.undeploy(old)
    assert endpoint.traffic_split == {new: 100}
    body = json.dumps({"signature_name": "serving_default", "instances": [instance]}).encode()
    raw = endpoint.raw_predict(body, {"Content-Type": "application/json"})
    assert raw.json() == {"predictions": [{"score": 16.0, "label": "heavy"}]}
    with pytest.raises(exceptions.InvalidArgument, match="no signature"):
        client = aiplatform_v1.PredictionServiceClient(client_options=ENDPOINT)
        client.raw_predict(
            endpoint=endpoint.resource_name,
            http_body={"data": json.dumps({"signature_name": "other", "instances": [instance]}).encode()},
        )
    # The name of an endpoint is found by its display name, as TFX's Pusher does it.
    assert [each.name for each in aiplatform.Endpoint.list(filter='display_name="photographs"')] == [endpoint.name]
    with pytest.raises(exceptions.FailedPrecondition, match="deployed models"):
        endpoint.delete()
    endpoint.delete(force=True)
    with pytest.raises(exceptions.NotFound):
        aiplatform.Endpoint(endpoint.resource_name).gca_resource  # noqa: B018


def test_a_deployment_that_vertex_would_refuse_is_refused(vertex, google, upload):
    google.bucket("models")
    model = upload("gs://models/nothing")
    client = aiplatform_v1.EndpointServiceClient(client_options=ENDPOINT)
    endpoint = client.create_endpoint(parent=PARENT, endpoint={"display_name": "photographs"}).result().name
    resources = {"machine_spec": {"machine_type": "n1-standard-2"}, "min_replica_count": 1}
    good = {"model": model.resource_name, "dedicated_resources": resources}
    for deployed, split, error, message in (
        ({**good, "model": f"{PARENT}/models/1"}, {"0": 100}, exceptions.NotFound, "models/1"),
        ({**good, "dedicated_resources": {}}, {"0": 100}, exceptions.InvalidArgument, "machine_type"),
        (good, {"0": 90}, exceptions.InvalidArgument, "sum to 100"),
        (good, {"0": 50, "7": 50}, exceptions.InvalidArgument, "7, which is not deployed"),
    ):
        with pytest.raises(error, match=message):
            client.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split=split)
    operation = client.deploy_model(endpoint=endpoint, deployed_model=good, traffic_split={"0": 100})
    with pytest.raises(exceptions.FailedPrecondition, match="saved_model.pb"):
        operation.result()
    prediction = aiplatform_v1.PredictionServiceClient(client_options=ENDPOINT)
    with pytest.raises(exceptions.FailedPrecondition, match="no model"):
        prediction.predict(endpoint=endpoint, instances=[])


def test_a_slow_deployment_is_waited_for_and_can_be_cancelled(vertex, uris, upload):
    model = upload(uris[0])
    client = aiplatform_v1.EndpointServiceClient(client_options=ENDPOINT)
    endpoint = client.create_endpoint(parent=PARENT, endpoint={"display_name": "photographs"}).result().name
    deployed = {
        "model": model.resource_name,
        "dedicated_resources": {"machine_spec": {"machine_type": "n1-standard-2"}, "min_replica_count": 1},
    }
    with vertex.slow("DeployModel"):
        cancelled = client.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split={"0": 100})
        cancelled.cancel()
        operation = client.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split={"0": 100})
        assert not operation.done() and not client.get_endpoint(name=endpoint).deployed_models
    assert operation.result(timeout=30).deployed_model.model == model.resource_name
    assert len(client.get_endpoint(name=endpoint).deployed_models) == 1 and cancelled.cancelled()
