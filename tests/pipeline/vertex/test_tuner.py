"""The step that searches in a custom job: what it asks of Vertex, what it finds again, and how it ends."""

import json

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1
from google.protobuf import empty_pb2

from pipeline import storage, typed
from pipeline.components import facts
from pipeline.errors import PipelineError
from pipeline.tuning import replica, results, task
from pipeline.vertex import launch, tuner
from tests.models.conftest import make_week
from tests.models.studies import MemoryStudy
from tests.pipeline.components.tuner_step import Step
from tests.pipeline.vertex.answers import Refused
from tests.pipeline.vertex.conftest import IMAGE, loaded

NAME = "projects/1/locations/europe-west4/customJobs/{}"

VALUES = {
    "learning_rate": 0.01, "weight_decay": 0.1, "batch_size": 8.0, "dropout": 0.1, "augmentation": 0.5, "label_smoothing": 0.1,
}  # fmt: skip


class Study(MemoryStudy):
    """What `open_study` gives."""

    name = "projects/1/locations/europe-west4/studies/7"

    def is_complete(self):
        return len(self.trials()) == len(self._values) and not any(trial.under_way for trial in self.trials())

    def trim(self):
        return []

    def finish(self, client_id="workerpool0-0"):
        """As a job does that succeeds."""
        for trial in self.trials():
            if trial.under_way:
                self.complete(trial, 1, 0.5)
        while trial := self.suggest(client_id):
            self.complete(trial, 1, 0.5)


class Search:
    """The step, and a Vertex whose jobs end as they are told to."""

    def __init__(self, vertex, monkeypatch, root, week):
        self.vertex, self.study = vertex, Study([VALUES] * 3)
        self.step = Step(week, root, tuning={"trials": 3, "parallel": 3})
        self.here: list[v1.CustomJob] = []
        self.ends: list = []
        monkeypatch.setattr(launch, "_POLL_SECONDS", 0.0)
        monkeypatch.setattr(launch.JobClient, "create_client", lambda client: setattr(client, "_client", vertex.jobs))
        monkeypatch.setattr(tuner.regional, "client_of", lambda endpoint: endpoint)
        monkeypatch.setattr(task, "open_study", self._open)
        vertex.answers |= {
            "ListCustomJobs": lambda request: v1.ListCustomJobsResponse(custom_jobs=self.here),
            "CreateCustomJob": self._create, "GetCustomJob": self._get,
            "CancelCustomJob": lambda request: empty_pb2.Empty(),
        }  # fmt: skip

    def _open(self, client, parent, display_name, spec, budget):
        assert (client, parent) == ("europe-west4-aiplatform.googleapis.com", "projects/acme-products/locations/europe-west4")
        assert (budget.trials, budget.parallel) == (3, 3) and display_name.startswith("photographs-labels-20260302-")
        return self.study

    def _create(self, request):
        if self.ends and isinstance(self.ends[0], Refused):
            raise self.ends.pop(0)
        return v1.CustomJob(request.custom_job, name=NAME.format(len(self.created())))

    def _get(self, request):
        state, *error = self.ends.pop(0) if self.ends else ("SUCCEEDED",)
        if state == "SUCCEEDED":
            self.study.finish()
        code, message = error or (0, "")
        return v1.CustomJob(name=request.name, state=f"JOB_STATE_{state}", error={"code": code, "message": message})

    def do(self, *ends, **settings):
        self.ends = list(ends)
        vertex = typed.to_dict(loaded(**settings).vertex)
        self.step.custom["platform"] = {"vertex": {"settings": vertex, "image": IMAGE}}
        self.step.do(tuner.Executor)

    def created(self) -> list[v1.CustomJob]:
        return [request.custom_job for request in self.vertex.requests("CreateCustomJob")]

    def told(self) -> dict:
        """What the replicas are told."""
        return json.loads(storage.read(f"{self.step.found.uri}/{replica.ARGUMENTS}"))


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return make_week(tmp_path_factory.mktemp("week") / "data", shards=1)


@pytest.fixture
def search(vertex, monkeypatch, tmp_path, week):
    return Search(vertex, monkeypatch, tmp_path, week)


def test_a_search_is_one_job_of_as_many_replicas_as_trials_at_once(search):
    search.do(("PENDING",), ("RUNNING",), ("SUCCEEDED",))
    (job,) = search.created()
    chief, workers = job.job_spec.worker_pool_specs
    assert (chief.replica_count, workers.replica_count) == (1, 2) and chief.container_spec == workers.container_spec
    assert list(chief.container_spec.command) == ["python", "-m", "pipeline.tuning.replica", search.step.found.uri]
    spec = chief.machine_spec
    assert (spec.machine_type, spec.accelerator_type.name, spec.accelerator_count) == ("g2-standard-8", "NVIDIA_L4", 1)
    scheduling = job.job_spec.scheduling
    # A machine that went takes its own trial along, and nobody else's.
    assert scheduling.strategy.name == "SPOT" and not scheduling.restart_job_on_worker_restart
    assert job.display_name == "photographs-tune-run-1"
    labels = dict(job.labels)
    study = labels.pop("study")
    assert labels == {"team": "retail", "pipeline": "photographs", "snapshot": "2026-03-02"}

    told = search.told()
    assert told["endpoint"] == "europe-west4-aiplatform.googleapis.com" and told["gone"] == []
    assert told["display_name"].endswith(f"-{study}") and told["custom_config"]["tuning"]["trials"] == 3
    assert told["train_files"] == [f"{search.step.inputs['examples'][0].uri}/Split-train/*"]
    assert len(results.read(search.step.found.uri).trials) == 3 and facts.number(search.step.best, "trial") == 1


def test_what_is_known_is_handed_on_without_vertex(search):
    facts.record(search.step.inputs["hyperparameters"][0], {"tune": 0})
    search.do()
    assert search.step.written() == {"space": [], "values": {"dropout": 0.25}} and not search.vertex.asked


def test_a_study_that_is_complete_starts_no_job(search):
    search.study.finish()
    search.do()
    assert not search.created() and len(results.read(search.step.found.uri).trials) == 3


@pytest.mark.parametrize(("end", "started"), [("SUCCEEDED", 0), ("CANCELLED", 1), ("FAILED", 1)])
def test_a_job_that_searches_already_is_waited_for_and_followed_by_another_only_if_trials_are_left(search, end, started):
    """A step that was killed left it, or another run of the same snapshot has it."""
    search.here = [
        v1.CustomJob(name=NAME.format(number), state=f"JOB_STATE_{state}") for number, state in ((8, "RUNNING"), (9, "FAILED"))
    ]
    search.do(("RUNNING",), (end,))
    (asked,) = search.vertex.requests("ListCustomJobs")
    assert asked.filter == f'labels.study="{results.read(search.step.found.uri).display_name[-16:]}"'
    assert [request.name for request in search.vertex.requests("GetCustomJob")][:2] == [NAME.format(8)] * 2
    assert len(search.created()) == started and len(results.read(search.step.found.uri).trials) == 3


def test_a_job_that_waits_for_spot_machines_is_waited_for_no_longer_than_one_of_this_step(search, monkeypatch):
    clock = iter(range(0, 100_000, 600))
    monkeypatch.setattr(launch.time, "monotonic", lambda: next(clock))
    scheduling = {"scheduling": {"strategy": "SPOT"}}
    search.here = [v1.CustomJob(name=NAME.format(8), state="JOB_STATE_PENDING", job_spec=scheduling)]
    search.do(*[("PENDING",)] * 5, ("CANCELLED",))
    assert [request.name for request in search.vertex.requests("CancelCustomJob")] == [NAME.format(8)]
    assert len(search.created()) == 1 and len(results.read(search.step.found.uri).trials) == 3


def test_trials_of_replicas_that_this_job_does_not_have_are_named(search):
    for client in ("workerpool1-1", "workerpool1-6"):
        search.study.suggest(client)
    search.do()
    assert search.told()["gone"] == ["workerpool1-6"], "workerpool1-1 comes back for its own"


def test_without_spot_machines_the_study_goes_on_on_demand(search):
    search.do(("RUNNING",), ("FAILED", 8, "Resources are insufficient in region"), ("RUNNING",), ("SUCCEEDED",))
    assert [job.job_spec.scheduling.strategy.name for job in search.created()] == ["SPOT", "STANDARD"]
    assert len({job.labels["study"] for job in search.created()}) == 1


def test_a_job_that_fails_fails_the_step_with_what_its_replicas_said(search, tmp_path):
    said = tmp_path / "found" / replica.ERRORS / "workerpool1-0"
    said.parent.mkdir()
    said.write_text("of an earlier job")

    def create(request):
        assert not said.exists(), "what an earlier job said is not this one's"
        said.parent.mkdir(exist_ok=True)
        said.write_text("the val split has no files")
        return v1.CustomJob(request.custom_job, name=NAME.format(1))

    search.vertex.answers["CreateCustomJob"] = create
    with pytest.raises(PipelineError) as raised:
        search.do(("FAILED", 3, "The replica workerpool1-0 exited with a non-zero status of 1."))
    told = str(raised.value)
    assert "the tuning job projects/1/locations/europe-west4/customJobs/1 ended as failed: The replica workerpool1-0" in told
    assert "workerpool1-0 said: the val split has no files. What was tried is in the study" in told
    assert not (tmp_path / "best" / "best_hyperparameters.txt").exists()


def test_a_job_that_may_not_be_started_is_told_in_one_line(search):
    with pytest.raises(PipelineError, match="Vertex AI refuses .*customJobs.create denied. Whoever starts runs needs"):
        search.do(Refused(grpc.StatusCode.PERMISSION_DENIED, "aiplatform.customJobs.create denied"))
