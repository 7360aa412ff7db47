"""What people do to an endpoint of the fake Vertex AI: by the commands, by hand in the console, and what is refused."""

import json

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import PipelineError
from pipeline.release import vertex as releases
from pipeline.vertex import endpoint as endpoints
from tests.cloud import google_apis
from tests.cloud.release_team import IMAGE, NAME, OPTIONS, WHY, killed_at


def test_a_rollback_takes_no_deployment_while_the_version_before_is_there(serving, ask):
    serving.release(2)
    status, out, err = ask("rollback", *WHY)
    assert (status, err) == (0, "")
    serves = f"version 1 of run {serving.run(1)} (labels_20260302) serves at endpoint {NAME}"
    assert out == f"{serves}, before it 2; it was deployed still\n"
    assert serving.told()[-1] == ("rollback", "1", 1.0) and serving.split() == {"1": 100}
    entry = serving.entries()[-1]
    assert (entry.actor, entry.reason) == ("ana", "flowers are seen as fruit") and len(serving.vertex.called("DeployModel")) == 2
    assert "serving" in serving.versions()["1"] and "serving" not in serving.versions()["2"]


def test_a_rollback_to_a_version_that_is_gone_deploys_it_again_and_says_so(serving, ask):
    serving.change(grace_minutes=0.0).release(2)
    status, out, _ = ask("rollback", *WHY)
    assert status == 0 and "was not deployed any more, so this took a deployment" in out
    assert serving.split() == {"1": 100} and serving.told()[-1] == ("rollback", "1", 1.0)


def test_a_rollback_for_which_there_are_no_machines_changes_nothing(serving, ask):
    serving.change(grace_minutes=0.0).release(2)
    serving.vertex.endpoints.machines = 1
    status, _, err = ask("rollback", *WHY)
    assert status == 1 and "no quota" in err and serving.split() == {"2": 100} and serving.told()[-1] == ("promote", "2", 1.0)


def test_a_person_ends_a_canary_and_its_run_learns_of_it(serving, ask):
    killed_at(serving, 2, "predict")
    assert ask("rollback", *WHY)[0] == 0
    assert serving.told()[-1] == ("rollback", "1", 1.0) and serving.entries()[-1].from_version == "2"
    assert not any("candidate" in aliases for aliases in serving.versions().values())
    outcome = serving.release(2)
    assert not outcome.released and "rolled back by ana: flowers are seen as fruit" in outcome.reason
    assert serving.split() == {"1": 100}


def test_a_person_promotes_a_canary_and_its_run_learns_of_it(serving, ask):
    killed_at(serving, 2, "predict")
    assert ask("promote", serving.run(2), *WHY)[0] == 0 and serving.split() == {"2": 100}
    outcome = serving.release(2)
    assert outcome.released and outcome.reason == "flowers are seen as fruit"
    assert [action for action, *_ in serving.told()] == ["release", "canary", "promote"]


def test_what_people_decided_is_in_the_lineage_and_what_failed_to_get_there_is_told_and_made_up_for(serving, ask):
    killed_at(serving, 2, "predict")
    serving.vertex.answer(503, "AddContextArtifactsAndExecutions", times=1)
    status, out, err = ask("rollback", *WHY)
    assert status == 0 and out.startswith("version 1") and "the ledger has it; the lineage does not yet" in err
    assert ask("status")[2] == "" and ask("status")[2] == ""
    store = f"projects/{google_apis.PROJECT}/locations/europe-west4/metadataStores/default"
    client = v1.MetadataServiceClient(client_options=OPTIONS)
    wanted = f'schema_title="pipeline.ServingRelease" AND in_context("{store}/contexts/{NAME}")'
    found = client.list_artifacts(v1.ListArtifactsRequest(parent=store, filter=wanted))
    facts = sorted((dict(artifact.metadata) for artifact in found), key=lambda facts: facts["ledger_number"])
    # The canary, too: its run ended before it could record it.
    wanted = [(each.number, each.to_version, each.share, each.line_sha256) for each in serving.entries()[1:]]
    fields = ("ledger_number", "to_version", "share", "ledger_line_sha256")
    assert [tuple(each[name] for name in fields) for each in facts] == wanted
    assert facts[1]["actor"] == "ana" and facts[1]["released"] == 1 and facts[1]["released_at"] == serving.entries()[2].at


def test_status_says_what_serves_what_is_deployed_and_what_was_decided(serving, ask):
    serving.release(2)
    status, out, err = ask("status")
    assert (status, err) == (0, "")
    assert out.startswith(f"endpoint {NAME} serves version 2 of run {serving.run(2)} (labels_20260309) since ")
    said = ("version 1 is deployed since", "UTC: 0 % of the traffic", "UTC: 100 % of the traffic", "canary    version 2 at 50 %")
    for words in said:
        assert words in out, out
    found = json.loads(ask("status", "--json")[1])
    assert found["disagreement"] == "" and [each["percent"] for each in found["deployed"]] == [0, 100]
    assert [entry["action"] for entry in found["entries"]] == ["release", "canary", "promote"]


def test_tidy_undeploys_by_hand_what_the_next_release_would(serving, ask):
    serving.release(2)
    assert ask("tidy")[1] == "nothing to undeploy\n"
    serving.change(grace_minutes=0.0)
    assert ask("tidy")[1] == "undeployed: version 1\n" and serving.deployed() == ["2"]


# --- An endpoint that was edited by hand ---


def test_an_endpoint_that_was_edited_by_hand_stops_a_release_and_is_not_overwritten(serving, ask):
    serving.release(2)
    serving.by_hand(v1=100, v2=0)
    with pytest.raises(releases.EndpointChanged, match="has version 1 at 100 %, and by the ledger .* version 2 at 100 %"):
        serving.release(3)
    assert serving.split() == {"1": 100} and len(serving.versions()) == 2
    status, out, _ = ask("status")
    assert status == 0 and "BEWARE: the endpoint" in out and "changed it by hand" in out
    status, _, err = ask("promote", serving.run(2), *WHY)
    assert status == 1 and "--accept-endpoint" in err and serving.split() == {"1": 100}
    assert ask("promote", serving.run(2), *WHY, "--accept-endpoint")[0] == 0
    assert serving.split() == {"2": 100} and "by hand: version 1 at 100 %" in serving.entries()[-1].reason
    assert serving.release(3).released


def test_what_a_person_did_by_hand_is_recorded_by_naming_it(serving, ask):
    serving.release(2)
    serving.by_hand(v1=100, v2=0)
    assert ask("rollback", *WHY)[0] == 0
    assert serving.told()[-1] == ("rollback", "1", 1.0) and serving.split() == {"1": 100}


def test_a_model_of_somebody_else_with_traffic_is_named(serving):
    client = v1.EndpointServiceClient(client_options=OPTIONS)
    models = v1.ModelServiceClient(client_options=OPTIONS)
    parent = f"projects/{google_apis.PROJECT}/locations/europe-west4"
    model = v1.Model(display_name="x", artifact_uri=str(serving.folder / "model-1"), container_spec={"image_uri": IMAGE})
    other = models.upload_model(v1.UploadModelRequest(parent=parent, model=model, model_id="other")).result().model
    resources = {"machine_spec": {"machine_type": "n1-standard-2"}, "min_replica_count": 1}
    client.deploy_model(
        endpoint=serving.endpoint.name, deployed_model={"model": other, "dedicated_resources": resources},
        traffic_split={"0": 10, "1": 90},
    ).result()  # fmt: skip
    with pytest.raises(releases.EndpointChanged, match="version 1 at 90 %, version other@1 at 10 %"):
        serving.release(2)


def test_an_endpoint_that_somebody_deleted_is_told(serving):
    client = v1.EndpointServiceClient(client_options=OPTIONS)
    client.undeploy_model(endpoint=serving.endpoint.name, deployed_model_id="1").result()
    client.delete_endpoint(name=serving.endpoint.name).result()
    with pytest.raises(releases.EndpointChanged, match="does not exist, and by the ledger"):
        serving.release(2)


def test_somebody_who_changes_the_endpoint_at_the_same_moment_is_not_overwritten(serving):
    serving.release(2)
    target = serving.target()
    state = target.endpoint.state()
    serving.by_hand(v1=50, v2=50)
    with pytest.raises(PipelineError, match="somebody changed .* at this moment"):
        target.endpoint.move({"1": 100}, state)
    assert serving.split() == {"1": 50, "2": 50}


# --- What cannot be used ---

REFUSED = {
    "a run without a model": (["promote", "week-9", *WHY], ["'week-9' has no model that could be released"]),
    "what serves already": (["promote", "product-photographs-week-1", *WHY], ["serves already"]),
    "nothing before": (["rollback", *WHY], ["is the first that served"]),
    "no reason": (["rollback", "--reason", " "], ["--reason is empty"]),
    "a person who calls themselves a run": (["rollback", "--reason", "x", "--by", "run 7"], ["give a person's name"]),
    "a store beside settings": (["status", "--store", "x"], ["leave --store and --endpoint out"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_told(serving, ask, name):
    words, complaints = REFUSED[name]
    status, _, err = ask(*words)
    assert status == 1 and err.startswith("error: ") and err.count("\n") == 1
    for complaint in complaints:
        assert complaint in err
    assert serving.told() == [("release", "1", 1.0)]


def test_without_credentials_or_rights_it_says_what_is_missing(serving, ask):
    for status, words in ((401, "no credentials"), (403, "roles/aiplatform.user")):
        serving.vertex.answer(status, "GetEndpoint", times=1)
        found, _, err = ask("status")
        assert found == 1 and words in err


def test_a_label_of_any_run_id_is_one_that_vertex_takes():
    for run_id in ("20260302-20261203T100037Z", "x" * 200, "Ünï", "a"):
        label, alias = endpoints.run_label(run_id), endpoints.run_alias(run_id)
        assert len(label) <= 63 and label.isascii() and label == endpoints.run_label(label)
        assert alias[0].isalpha() and alias[-1].isalnum() and len(alias) <= 128
    assert endpoints.run_label("x" * 200) != endpoints.run_label("x" * 201)
