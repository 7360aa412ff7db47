"""The alert of a run: what it says, that it goes out in any case, and that Google's own client carries it."""

import json

import grpc
import pytest
from google.cloud import pubsub_v1
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from pipeline.components import run_alert
from pipeline.release import ledger
from tests.pipeline.vertex import answers

SUCCEEDED = {"state": "SUCCEEDED"}

TOPIC = "projects/acme-products/topics/retrain-alerts"


def failed(*steps: str) -> dict:
    text = f"The DAG failed because some tasks failed. The failed tasks are: [{', '.join(steps)}]."
    return {"state": "FAILED", "error": {"code": 9, "message": text}, "pipelineTaskName": "tfx-dag"}


@pytest.fixture
def alert(tmp_path):
    def alert(status):
        return run_alert.alert_of(status, "run-5", str(tmp_path / "reports"), str(tmp_path / "ledger.jsonl"), "default")

    return alert


@pytest.fixture
def served(tmp_path):
    ledger.append(
        tmp_path / "ledger.jsonl", endpoint="default", to_version="7", model="/m", run_id="run-4", snapshot="labels_20260323",
        snapshot_date="2026-03-23", weights_sha256="0",
    )  # fmt: skip


@pytest.fixture
def rejected(tmp_path):
    rules = [
        {"rule": "min_rows", "passed": True, "overridden": False},
        {"rule": "max_orphans", "passed": False, "overridden": True},
        {"rule": "max_class_divergence", "passed": False, "overridden": False},
    ]
    (tmp_path / "reports" / "run-5").mkdir(parents=True)
    (tmp_path / "reports" / "run-5" / "gate.json").write_text(json.dumps({"accepted": False, "rules": rules}))


def test_a_run_that_succeeded_is_no_news(alert):
    assert alert(SUCCEEDED) is None


def test_a_bad_week_is_told_by_its_rules_and_what_goes_on_serving(alert, served, rejected, tmp_path):
    told = alert(failed("SnapshotGate"))
    assert told["text"] == (
        "run run-5 failed at rules max_class_divergence; version 7 of run run-4 (labels_20260323) goes on serving"
    )
    assert (told["steps"], told["rules"]) == (["SnapshotGate"], ["max_class_divergence"])
    assert told["report"] == str(tmp_path / "reports" / "run-5" / "gate.html")


def test_a_step_that_failed_is_named(alert):
    told = alert(failed("Trainer", "ServingModel"))
    assert told["text"] == "run run-5 failed at steps Trainer, ServingModel; nothing serves yet" and told["report"] == ""


@pytest.fixture
def canary(tmp_path, served):
    """Says that the canary of a run was taken back by somebody."""

    def canary(run_id, actor, reason):
        common = {"endpoint": "default", "snapshot_date": "2026-03-30", "weights_sha256": "1", "actor": actor}
        path = tmp_path / "ledger.jsonl"
        ledger.append(path, to_version="8", model="/n", run_id=run_id, snapshot="labels_20260330", share=0.1, action="canary",
                      **common)  # fmt: skip
        ledger.append(path, to_version="7", model="/m", run_id="run-4", snapshot="labels_20260323", action="rollback",
                      reason=reason, **common)  # fmt: skip

    return canary


def test_a_canary_that_its_run_rolled_back_is_told_although_the_run_succeeded(alert, canary):
    canary("run-5", ledger.actor_of("run-5"), "5 of 100 requests failed (limit 1 %)\n\x1b[31m")
    told = alert(SUCCEEDED)
    assert told["text"].startswith("run run-5 rolled its canary back: 5 of 100 requests failed (limit 1 %)")
    assert told["text"].endswith("; version 7 of run run-4 (labels_20260323) goes on serving")
    assert (told["state"], told["steps"]) == ("ROLLED_BACK", ["ReleasePusher"])
    assert "\n" not in told["text"] + told["reason"] and "\x1b" not in told["text"] + told["reason"]


@pytest.mark.parametrize(("run_id", "actor"), [("run-4", ledger.actor_of("run-4")), ("run-5", "ada")])
def test_another_runs_canary_or_a_persons_rollback_is_no_news_of_this_run(alert, canary, run_id, actor):
    canary(run_id, actor, "too slow")
    assert alert(SUCCEEDED) is None


@pytest.mark.parametrize("status", [{"state": "CANCELLED"}, {"state": "FAILED", "error": None}, {}])
def test_little_is_enough_for_an_alert(alert, status):
    assert "at an unknown step; nothing serves yet" in alert(status)["text"]


def test_an_alert_goes_out_although_the_store_is_damaged(alert, tmp_path, rejected):
    (tmp_path / "ledger.jsonl").write_text("no ledger\n")
    (tmp_path / "reports" / "run-5" / "gate.json").write_text("{")
    told = alert(failed("Trainer"))
    assert told["text"].startswith("run run-5 failed at steps Trainer; what serves is not known: ")


def test_people_get_one_line_whatever_the_reason_holds(alert):
    told = alert({"state": "FAILED", "error": {"message": "a\nforged\x1b[31m line. failed tasks are: [A\nB]"}})
    assert "\n" not in told["text"] + told["reason"] and "\x1b" not in told["text"] + told["reason"]


class TestPublishing:
    @pytest.fixture
    def published(self, monkeypatch):
        """A server of Pub/Sub's method; gives what was published."""
        with answers.running() as server:
            answers._REQUESTS["Publish"] = types.PublishRequest
            server.answers["Publish"] = lambda request: types.PublishResponse(message_ids=["1"])
            transport = PublisherGrpcTransport(channel=grpc.insecure_channel(server._address))
            client = pubsub_v1.PublisherClient
            monkeypatch.setattr(pubsub_v1, "PublisherClient", lambda: client(transport=transport))
            yield lambda: server.requests("Publish")

    def end(self, tmp_path, status):
        run_alert.RunAlert.test_call(
            final_status=json.dumps(status), run_id="run-5", pipeline="product-photographs", topic=TOPIC,
            reports=str(tmp_path / "reports"), ledger_path=str(tmp_path / "ledger.jsonl"), endpoint="default",
        )  # fmt: skip

    def test_one_message_for_a_run_that_failed_none_for_another(self, published, tmp_path, served, rejected):
        self.end(tmp_path, SUCCEEDED)
        assert published() == []
        self.end(tmp_path, failed("SnapshotGate"))
        (request,) = published()
        (message,) = request.messages
        assert request.topic == TOPIC
        assert dict(message.attributes) == {"pipeline": "product-photographs", "run_id": "run-5", "state": "FAILED"}
        assert json.loads(message.data)["rules"] == ["max_class_divergence"]
