"""Releases to an endpoint of the fake Vertex AI, as runs do them: canary, watch, promotion, rollback; and killed anywhere."""

import datetime
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import PipelineError
from pipeline.lineage import timeline
from pipeline.lineage.base import Release
from pipeline.release import ledger
from pipeline.release import vertex as releases
from pipeline.vertex import endpoint as endpoints
from tests.cloud import google_apis
from tests.cloud.release_team import IMAGE, NAME, OPTIONS, SERVES_AS, WHY, Killed, Mortal, killed_at

# --- A week after the other ---


def test_the_first_release_takes_all_traffic_once_its_answers_were_probed(team):
    outcome = team.release(1)
    assert outcome.released and outcome.version == "1" and "4 photographs answered as by the trainer" in outcome.reason
    assert team.told() == [("release", "1", 1.0)] and team.split() == {"1": 100}
    assert team.versions() == {"1": {"run-product-photographs-week-1", "serving", "default"}}
    (entry,) = team.entries()
    assert (entry.run_id, entry.path, entry.reason) == (team.run(1), f"{team.places.versions}/{team.run(1)}", outcome.reason)
    assert pathlib.Path(entry.path, "saved_model.pb").is_file()


def test_a_second_week_is_a_canary_first_and_a_version_of_the_same_model(serving):
    assert serving.release(2).released
    first, second = (request for request in serving.vertex.called("DeployModel"))
    assert dict(first.traffic_split) == {"0": 100} and dict(second.traffic_split) == {"0": 50, "1": 50}
    assert second.deployed_model.dedicated_resources.machine_spec.machine_type == "n1-standard-2"
    assert first.deployed_model.service_account == second.deployed_model.service_account == SERVES_AS
    assert serving.told() == [("release", "1", 1.0), ("canary", "2", 0.5), ("promote", "2", 1.0)]
    canary, promotion = serving.entries()[1:]
    assert canary.actor == promotion.actor == f"run {serving.run(2)}" and "0 errors" in promotion.reason
    assert canary.from_version == promotion.from_version == "1" and promotion.previous == canary.line_sha256
    assert serving.versions() == {
        "1": {"run-product-photographs-week-1"}, "2": {"run-product-photographs-week-2", "serving", "default"},
    }  # fmt: skip
    # The version before stays for its grace time.
    assert serving.split() == {"2": 100} and serving.deployed() == ["1", "2"]


def test_every_version_and_the_endpoint_carry_their_labels(serving):
    (model,) = v1.ModelServiceClient(client_options=OPTIONS).list_model_versions(name=serving.endpoint._model)
    known = {"team": "retail", "pipeline": NAME, "snapshot": "2026-03-02", "run": serving.run(1)}
    assert known.items() <= dict(model.labels).items() and model.labels["verdict"] == "passed"
    assert model.container_spec.image_uri == IMAGE
    endpoint = v1.EndpointServiceClient(client_options=OPTIONS).get_endpoint(name=serving.endpoint.name)
    assert dict(endpoint.labels) == {"team": "retail", "pipeline": NAME, "snapshot": "2026-03-02"}


@pytest.mark.parametrize(("grace", "left"), [(0.0, ["2"]), (1440.0, ["1", "2"])])
def test_the_version_before_is_undeployed_after_its_grace_time(serving, grace, left):
    serving.change(grace_minutes=grace)
    assert serving.release(2).released and serving.deployed() == left
    serving.change(grace_minutes=0.0)
    assert serving.target().tidy() == (["1"] if "1" in left else []) and serving.deployed() == ["2"]
    assert serving.target().tidy() == [] and serving.split() == {"2": 100}


def test_the_audit_sees_both_models_with_their_shares(serving):
    serving.release(2)
    found = [
        Release(each.number, each.at, NAME, each.run_id, each.to_version, each.share, each.path, each.line_sha256)
        for each in serving.entries()
    ]
    built = timeline.build(found, found)
    ends = {entry.number: datetime.datetime.fromisoformat(entry.at) for entry in serving.entries()}
    assert [(item.version, item.share, item.since, item.until) for item in built.intervals] == [
        ("1", 1.0, ends[1], ends[2]), ("1", 0.5, ends[2], ends[3]), ("2", 0.5, ends[2], ends[3]), ("2", 1.0, ends[3], None),
    ]  # fmt: skip


# --- What a canary fails by ---


def test_a_canary_that_answers_otherwise_than_its_trainer_is_rolled_back(serving):
    outcome = serving.release(2, shift=0.01)
    assert not outcome.released
    assert "rolled back" in outcome.reason and "a probability lies 0.01 from the trainer's, at most 0.005" in outcome.reason
    assert serving.told() == [("release", "1", 1.0), ("canary", "2", 0.5), ("rollback", "1", 1.0)]
    rollback = serving.entries()[-1]
    assert (rollback.actor, rollback.from_version, rollback.run_id) == (f"run {serving.run(2)}", "2", serving.run(1))
    assert serving.split() == {"1": 100} and serving.deployed() == ["1"] and "candidate" not in serving.versions()["2"]
    # A run does not try the same weights again (`reason_to_hold`).
    assert ledger.withdrawal(serving.entries(), serving.candidate(2).weights_sha256) == rollback


def test_a_canary_of_which_5_percent_of_the_requests_fail_is_rolled_back(serving):
    serving.change(watch_answers=60, max_error_share=0.01)
    serving.vertex.endpoints.failing["2"] = 20
    outcome = serving.release(2)
    assert not outcome.released and "at most 1 %" in outcome.reason and "the model server failed" in outcome.reason
    assert serving.told()[-1] == ("rollback", "1", 1.0) and serving.split() == {"1": 100}


def test_errors_below_the_limit_do_not_stop_a_release(serving):
    serving.change(watch_answers=60, max_error_share=0.08)
    serving.vertex.endpoints.failing["2"] = 20
    outcome = serving.release(2)
    assert outcome.released and ", 0 errors" not in outcome.reason


def test_a_slow_canary_is_rolled_back(serving):
    serving.change(max_latency_ms=0.01)
    outcome = serving.release(2)
    assert not outcome.released and "95 % of the answers took up to" in outcome.reason and serving.split() == {"1": 100}


def test_a_model_that_does_not_load_never_gets_to_serve(serving):
    outcome = serving.release(2, loads=False)
    assert not outcome.released and "never became ready" in outcome.reason
    assert serving.split() == {"1": 100} and serving.deployed() == ["1"]


def test_a_first_model_that_answers_wrongly_leaves_nothing_deployed_and_no_entry(team):
    outcome = team.release(1, shift=0.5)
    assert not outcome.released and team.entries() == [] and team.deployed() == []
    # The step that is tried again says the same, and the next week begins anew.
    assert team.release(1, shift=0.5).reason == outcome.reason and len(team.versions()) == 1
    assert team.release(2).released and team.told() == [("release", "2", 1.0)]


def test_a_deployment_that_vertex_gives_up_is_the_models_own_failure(serving):
    """The prebuilt image: the fake sees at once that there is no model."""
    serving.change(image=f"us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15@sha256:{'0' * 64}")
    target, candidate = serving.target(), serving.candidate(2)
    path = pathlib.Path(target._upload(candidate).path)
    (path / "saved_model.pb").unlink()
    outcome = serving.release(2)
    assert not outcome.released and "Vertex AI cannot serve it" in outcome.reason and "saved_model.pb" in outcome.reason
    assert serving.told() == [("release", "1", 1.0)] and serving.split() == {"1": 100}
    assert serving.versions()["2"] == {"run-product-photographs-week-2"}


# --- Machines, and slowness ---


def test_a_full_quota_changes_nothing_and_the_same_again_works(serving, ask):
    serving.vertex.endpoints.machines = 1
    with pytest.raises(endpoints.NoQuota, match="CustomModelServingCPUs.* Nothing was changed"):
        serving.release(2)
    assert serving.told() == [("release", "1", 1.0)] and serving.split() == {"1": 100}
    assert serving.versions()["2"] == {"run-product-photographs-week-2", "candidate"}
    serving.vertex.endpoints.machines = None
    status, out, err = ask("promote", serving.run(2), "--reason", "there is quota now", "--by", "ana")
    assert (status, err) == (0, "") and "version 2" in out and "never had traffic" in out
    promotion = serving.entries()[-1]
    assert (promotion.action, promotion.actor) == ("promote", "ana")
    assert promotion.reason.startswith("there is quota now (4 photographs answered")
    assert len(serving.versions()) == 2 and serving.split() == {"2": 100}


def test_a_quota_that_is_refused_at_once_is_told_the_same_way(serving):
    serving.vertex.answer(429, "DeployModel", times=1)
    with pytest.raises(endpoints.NoQuota, match="release promote"):
        serving.release(2)
    assert serving.release(2).released


def test_a_deployment_that_takes_too_long_is_told_and_waited_for_the_next_time(serving, monkeypatch):
    monkeypatch.setattr(endpoints, "_POLL_SECONDS", 0.02)
    with serving.vertex.slow("DeployModel"):
        with monkeypatch.context() as patch:
            patch.setattr(endpoints, "_OPERATION_SECONDS", 0.2)
            for _ in range(2):  # the second waits for what the first began
                with pytest.raises(PipelineError, match="did not end within .* the same again waits for it"):
                    serving.release(2)
        assert serving.told() == [("release", "1", 1.0)]
    assert serving.release(2).released and len(serving.vertex.called("DeployModel")) == 2


# --- Killed ---


_UP_TO_THE_WATCH = ["upload_model", "deploy_model", "before the ledger", "after the ledger"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_release_that_is_killed_anywhere_ends_the_same_when_its_run_is_started_again(serving, fails):
    """A week for each place in which it can be killed; every one of them must end as if nothing had happened."""
    serving.change(grace_minutes=0.0)
    # Up to the watch, one that will fail is like any other.
    first = len(_UP_TO_THE_WATCH) if fails else 0
    places, serves, shift = [], 1, 0.1 if fails else 0.0
    for week in range(2, 30):
        before = len(serving.entries())
        with pytest.MonkeyPatch.context() as patch:
            target = serving.target()
            life = Mortal(target, patch, after=first + week - 1)
            try:
                serving.release(week, target, shift=shift)
            except Killed as killed:
                places.append(str(killed))
        outcome = serving.release(week, shift=shift)
        assert outcome.released is not fails and outcome.version == str(week), places[-1]
        serves = serves if fails else week
        assert serving.told()[before:] == [
            ("canary", str(week), 0.5), ("rollback" if fails else "promote", str(serves), 1.0),
        ], places[-1]  # fmt: skip
        assert serving.split() == {str(serves): 100} and serving.deployed() == [str(serves)], places[-1]
        versions = serving.versions()
        assert len(versions) == week and versions[str(serves)] >= {"serving", "default"}, places[-1]
        assert not any("candidate" in aliases for aliases in versions.values()), places[-1]
        if life.left > 0:
            break
    assert life.left > 0, "there are more places than weeks"
    usual = [*_UP_TO_THE_WATCH, "predict", "update_model", "update_endpoint", "before the ledger", "after the ledger"]
    last = ["undeploy_model", "merge_version_aliases"] if fails else ["merge_version_aliases", "undeploy_model"]
    assert places == [*usual, *last][first:]


def test_a_process_that_is_killed_while_vertex_deploys_finds_its_deployment_again(serving):
    serving.target().keep(serving.candidate(2))
    command = [sys.executable, "-m", "pipeline", "release", "promote", serving.run(2), *WHY]
    command += ["--settings", str(serving.folder / "settings.yaml")]
    process = subprocess.Popen(command, cwd=google_apis.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with serving.vertex.slow("DeployModel"):
        serving.vertex.wait_for_call("DeployModel", times=2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert serving.told() == [("release", "1", 1.0)]
    assert serving.release(2).released
    assert len(serving.vertex.called("UploadModel")) == len(serving.vertex.called("DeployModel")) == 2
    assert serving.told()[1:] == [("canary", "2", 0.5), ("promote", "2", 1.0)] and serving.split() == {"2": 100}


def test_of_two_releases_at_once_the_second_is_refused(serving):
    killed_at(serving, 2, "predict")
    outcome = serving.release(3)
    assert not outcome.released and "one release at a time" in outcome.reason and serving.run(2) in outcome.reason
    assert serving.split() == {"1": 50, "2": 50} and set(serving.versions()) == {"1", "2"}
    # The first goes on all the same.
    assert serving.release(2).released


def test_one_that_has_deployed_and_not_said_so_is_respected_too(serving):
    serving.vertex.advance(datetime.datetime.now(datetime.timezone.utc))  # the fake's clock is the machine's now
    killed_at(serving, 2, "before the ledger")
    outcome = serving.release(3)
    assert not outcome.released and "one release at a time" in outcome.reason


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("deploy_model", [("canary", "2", 0.5), ("rollback", "1", 1.0)]),
        ("predict", [("canary", "2", 0.5), ("rollback", "1", 1.0)]),
        ("update_model", [("canary", "2", 0.5), ("promote", "2", 1.0)]),
        ("update_endpoint", [("canary", "2", 0.5), ("promote", "2", 1.0)]),
    ],
)
def test_what_a_dead_run_left_half_done_the_next_week_ends(serving, monkeypatch, place, told):
    killed_at(serving, 2, place)
    monkeypatch.setattr(releases, "_ALIVE_MINUTES", -1.0)
    assert serving.release(3).released
    assert serving.told()[1:] == [*told, ("canary", "3", 0.5), ("promote", "3", 1.0)]
    assert all(entry.actor == f"run {serving.run(2)}" for entry in serving.entries()[1:3])
    assert serving.split() == {"3": 100}


def test_a_canary_that_was_overtaken_while_its_run_was_dead_is_taken_back(serving):
    killed_at(serving, 2, "deploy_model")
    outcome = serving.target().release(serving.candidate(2), hold=lambda entries: "it was overtaken")
    assert not outcome.released and outcome.reason == "its canary was rolled back: it was overtaken"
    assert serving.told()[1:] == [("canary", "2", 0.5), ("rollback", "1", 1.0)] and serving.deployed() == ["1"]
    assert serving.entries()[1].reason.startswith("recorded late")
