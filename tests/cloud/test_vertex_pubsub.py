"""Alerts on the fake Pub/Sub, by Google's own clients."""

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1, pubsub_v1

from tests.cloud import google_apis
from tests.cloud.small_pipelines import spec, task
from tests.cloud.vertex import clock
from tests.cloud.vertex.names import ENDPOINT, PARENT

TOPIC = f"projects/{google_apis.PROJECT}/topics/alerts"


def test_what_is_published_can_be_read(vertex, publisher):
    client = pubsub_v1.PublisherClient()
    with pytest.raises(exceptions.NotFound):
        client.publish(TOPIC, b"nobody hears it").result(timeout=30)
    client.create_topic(name=TOPIC)
    subscriber = pubsub_v1.SubscriberClient()
    name = f"projects/{google_apis.PROJECT}/subscriptions/night"
    subscriber.create_subscription(name=name, topic=TOPIC)
    number = client.publish(TOPIC, b"the gate said no", run="week-5", rule="class_share").result(timeout=30)
    [message] = publisher.published("alerts")
    assert (message.data, dict(message.attributes)) == (b"the gate said no", {"run": "week-5", "rule": "class_share"})
    assert message.message_id == number and message.publish_time > clock.START
    [received] = subscriber.pull(subscription=name, max_messages=5).received_messages
    assert received.message.data == b"the gate said no"
    subscriber.acknowledge(subscription=name, ack_ids=[received.ack_id])
    assert not subscriber.pull(subscription=name, max_messages=5).received_messages
    with pytest.raises(exceptions.PermissionDenied):
        client.create_topic(name="projects/other/topics/alerts")
    vertex.answer(403, "Publish")
    with pytest.raises(exceptions.PermissionDenied):
        client.publish(TOPIC, b"x").result(timeout=30)


def test_a_task_of_a_pipeline_publishes(vertex, google, publisher):
    publisher.add_topic("alerts")
    google.bucket("runs")
    alert = (
        "from google.cloud import pubsub_v1\n"
        f"pubsub_v1.PublisherClient().publish({TOPIC!r}, parameters['status'].encode()).result(timeout=60)\n"
    )
    handler = task(alert, parameters={"status": {"status": "tfx-dag"}}, after=("tfx-dag",), always=True)
    pipeline = spec("weekly", {"Alert": handler}, inner={"Gate": task("sys.exit(3)")})
    job = {"pipeline_spec": pipeline, "runtime_config": {"gcs_output_directory": "gs://runs/root"}}
    client = aiplatform_v1.PipelineServiceClient(client_options=ENDPOINT)
    client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id="week-5")
    vertex.settle()
    failed = [b'"FAILED"' in message.data for message in publisher.published("alerts")]
    assert failed == [True], vertex.pipelines.failures("week-5")
