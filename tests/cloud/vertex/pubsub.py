"""Pub/Sub: topics, what was published to them, and subscriptions that pull it."""

import re

from google.pubsub_v1 import types

from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex.refusals import Code, Refused, invalid
from tests.cloud.vertex.state import State

_ID = re.compile(r"(?!goog)[a-zA-Z][a-zA-Z0-9._~+%-]{2,254}")


class Publisher:
    """The calls of Publisher and Subscriber that are needed for alerts.

    Args:
        state: What the fake shares.
    """

    def __init__(self, state: State):
        self._state = state
        self._topics: dict[str, list[types.PubsubMessage]] = {}
        self._subscriptions: dict[str, tuple[str, list[types.ReceivedMessage]]] = {}

    # --- What a test does ---

    def add_topic(self, topic: str) -> str:
        """Makes a topic; returns its name."""
        name = f"projects/{google_apis.PROJECT}/topics/{topic}"
        with self._state.changed:
            self._topics.setdefault(name, [])
        return name

    def published(self, topic: str) -> list[types.PubsubMessage]:
        """The messages that were published to a topic, in their order."""
        with self._state.changed:
            return list(self._topics.get(f"projects/{google_apis.PROJECT}/topics/{topic}", []))

    # --- Publisher ---

    def create_topic(self, request: types.Topic) -> types.Topic:
        _check_name(request.name, "topics")
        with self._state.changed:
            if request.name in self._topics:
                raise Refused(Code.ALREADY_EXISTS, f"Resource already exists in the project (resource={request.name}).")
            self._topics[request.name] = []
            return types.Topic(name=request.name)

    def get_topic(self, request: types.GetTopicRequest) -> types.Topic:
        self._messages(request.topic)
        return types.Topic(name=request.topic)

    def list_topics(self, request: types.ListTopicsRequest) -> types.ListTopicsResponse:
        with self._state.changed:
            found = [types.Topic(name=name) for name in self._topics if name.startswith(f"{request.project}/")]
            return types.ListTopicsResponse(topics=found)

    def delete_topic(self, request: types.DeleteTopicRequest) -> None:
        with self._state.changed:
            self._messages(request.topic)
            del self._topics[request.topic]

    def publish(self, request: types.PublishRequest) -> types.PublishResponse:
        with self._state.changed:
            kept = self._messages(request.topic)
            if not request.messages:
                raise invalid("messages are missing")
            numbers = []
            for message in request.messages:
                if not message.data and not message.attributes:
                    raise invalid("a message must have data or attributes")
                made = types.PubsubMessage(message)
                made.message_id, made.publish_time = str(names.new_number()), self._state.clock.now()
                kept.append(made)
                numbers.append(made.message_id)
                for topic, waiting in self._subscriptions.values():
                    if topic == request.topic:
                        waiting.append(types.ReceivedMessage(ack_id=made.message_id, message=made))
            return types.PublishResponse(message_ids=numbers)

    # --- Subscriber ---

    def create_subscription(self, request: types.Subscription) -> types.Subscription:
        _check_name(request.name, "subscriptions")
        with self._state.changed:
            self._messages(request.topic)
            if request.name in self._subscriptions:
                raise Refused(Code.ALREADY_EXISTS, f"Resource already exists in the project (resource={request.name}).")
            self._subscriptions[request.name] = (request.topic, [])
            return types.Subscription(name=request.name, topic=request.topic)

    def pull(self, request: types.PullRequest) -> types.PullResponse:
        with self._state.changed:
            return types.PullResponse(received_messages=self._waiting(request.subscription)[: request.max_messages])

    def acknowledge(self, request: types.AcknowledgeRequest) -> None:
        with self._state.changed:
            waiting = self._waiting(request.subscription)
            waiting[:] = [each for each in waiting if each.ack_id not in request.ack_ids]

    # --- Inside ---

    def _messages(self, topic: str) -> list[types.PubsubMessage]:
        if topic not in self._topics:
            raise Refused(Code.NOT_FOUND, f"Resource not found (resource={names.last(topic)}).")
        return self._topics[topic]

    def _waiting(self, subscription: str) -> list[types.ReceivedMessage]:
        if subscription not in self._subscriptions:
            raise Refused(Code.NOT_FOUND, f"Resource not found (resource={names.last(subscription)}).")
        return self._subscriptions[subscription][1]


def _check_name(name: str, kind: str) -> None:
    found = re.fullmatch(rf"projects/([^/]+)/{kind}/([^/]+)", name)
    if not found or not _ID.fullmatch(found[2]):
        raise invalid(f"{name!r} is no name of {kind}")
    if found[1] not in (google_apis.PROJECT, names.NUMBER):
        raise Refused(Code.PERMISSION_DENIED, "User not authorized to perform this action.")
