"""A replica of a search: which one it is by CLUSTER_SPEC, whose trials it takes, what the chief waits for, how it fails."""

import json

import pytest

from pipeline.errors import PipelineError
from pipeline.tuning import replica
from pipeline.tuning.replica import Replica, this_replica
from tests.models.studies import MemoryStudy


def cluster(kind="workerpool1", index=2, **pools):
    """As Vertex sets it for a chief and seven workers."""
    sizes = pools or {"workerpool0": 1, "workerpool1": 7}
    spec = {name: [f"cmle-training-{name}-{number}:2222" for number in range(size)] for name, size in sizes.items()}
    return {"CLUSTER_SPEC": json.dumps({"cluster": spec, "task": {"type": kind, "index": index, "trial": ""}})}


def test_who_it_is_comes_of_its_pool_and_index_and_stays():
    found = [this_replica(cluster("workerpool0", 0)), *(this_replica(cluster(index=index)) for index in range(7))]
    assert [one.number for one in found] == list(range(8)) and {one.count for one in found} == {8}
    assert [one.client_id for one in found] == ["workerpool0-0", *(f"workerpool1-{index}" for index in range(7))]
    # A job with one pool: Vertex says chief, and an earlier job of the study may have had two.
    assert this_replica(cluster("chief", 0, chief=1)).client_id == "workerpool0-0"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"CLUSTER_SPEC": "no JSON"},
        {"CLUSTER_SPEC": "[]"},
        {"CLUSTER_SPEC": '{"cluster": {}}'},
        cluster("workerpool2", 0, workerpool0=1, workerpool1=1, workerpool2=1),
        cluster("workerpool1", 7),
        cluster("workerpool0", 1),
        cluster("workerpool1", -2),
    ],
)
def test_what_names_no_replica_is_refused(environment):
    with pytest.raises(PipelineError, match="CLUSTER_SPEC is .* and names no replica of a search"):
        this_replica(environment)


class Team:
    """In place of a worker's process: notes what it is to do, and does it at once."""

    done: list = []
    error = ""

    def __init__(self, study, arguments, folder, count, gpus, ended):
        self.study = study
        assert count == 1 and arguments["working_dir"] == str(folder)

    def run(self, clients, finish):
        if Team.error:
            raise PipelineError(Team.error)
        Team.done.append((list(clients), finish))
        for client in clients:
            while trial := self.study.suggest(client):
                self.study.complete(trial, 1, 0.5)
                if finish:
                    break


@pytest.fixture
def study(monkeypatch):
    """A study of four trials whose first two belong to clients that have no replica any more."""
    study = MemoryStudy([{}] * 4)
    study.suggest("workerpool1-5")
    study.suggest("workerpool1-6")
    Team.done, Team.error = [], ""
    monkeypatch.setattr(replica, "Team", Team)
    monkeypatch.setattr(replica, "open_study", lambda *words: study)
    monkeypatch.setattr(replica.regional, "client_of", lambda endpoint: endpoint)
    return study


ARGUMENTS = {
    "endpoint": "europe-west4-aiplatform.googleapis.com", "parent": "projects/p/locations/europe-west4", "display_name": "d",
    "gone": ["workerpool1-5", "workerpool1-6"], "custom_config": {"tuning": {"trials": 4, "parallel": 2}},
}  # fmt: skip


def others(study, monkeypatch):
    """While this one sleeps, those whose trials are waited for end them."""
    waited = []

    def sleep(seconds):
        busy = [trial for trial in study.trials() if trial.under_way]
        waited.append([trial.client_id for trial in busy])
        study.complete(busy[0], 1, 0.25)

    monkeypatch.setattr(replica.time, "sleep", sleep)
    return waited


def test_trials_of_replicas_that_are_no_more_are_ended_by_those_that_are_before_any_begins(study, monkeypatch):
    waited = others(study, monkeypatch)
    replica.run(ARGUMENTS, Replica(number=1, count=2))
    assert Team.done == [(["workerpool1-6"], True), (["workerpool1-0"], False)]
    assert waited == [["workerpool1-5"]], "the chief's, which count as under way"
    clients = [trial.client_id for trial in study.trials()]
    assert clients == ["workerpool1-5", "workerpool1-6", "workerpool1-0", "workerpool1-0"]


def test_the_chief_waits_for_the_last_trial_and_workers_do_not(study, monkeypatch):
    waited = others(study, monkeypatch)
    arguments = {**ARGUMENTS, "gone": []}
    study.complete(study.trials()[0], 1, 0.5)
    replica.run(arguments, Replica(number=1, count=2))
    assert waited == [] and study.trials()[1].under_way
    replica.run(arguments, Replica(number=0, count=2))
    assert waited == [["workerpool1-6"]] and not any(trial.under_way for trial in study.trials())


def test_why_it_fails_is_left_in_the_folder_for_the_step(study, tmp_path, caplog):
    (tmp_path / replica.ARGUMENTS).write_text(json.dumps(ARGUMENTS))
    Team.error = "training.backbone none.npz cannot be read"
    assert replica.main(str(tmp_path), cluster(index=0, workerpool0=1, workerpool1=1)) == 1
    assert (tmp_path / replica.ERRORS / "workerpool1-0").read_text() == Team.error and Team.error in caplog.text
    assert replica.main(str(tmp_path), {}) == 1
    assert "CLUSTER_SPEC is ''" in (tmp_path / replica.ERRORS / "unknown").read_text()
    assert replica.main(str(tmp_path / "nowhere"), cluster()) == 1
    assert "No such file" in (tmp_path / "nowhere" / replica.ERRORS / "workerpool1-2").read_text()
