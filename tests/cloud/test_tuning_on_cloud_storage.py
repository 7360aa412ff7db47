"""The step that searches on Vertex AI, with everything that it reads and leaves in Cloud Storage."""

import json

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline import storage
from pipeline.components import tuner
from pipeline.errors import PipelineError
from pipeline.tuning import replica, results
from tests.models.conftest import make_week
from tests.pipeline.vertex import answers
from tests.pipeline.vertex.test_tuner import NAME, Search


@pytest.fixture
def search(cloud, monkeypatch, tmp_path):
    with answers.running() as vertex:
        search = Search(vertex, monkeypatch, tmp_path, make_week(tmp_path / "week", shards=1))
        search.step.found.uri, search.step.best.uri = "gs://out/found", "gs://out/best"
        search.step.custom |= {"records": "gs://out/studies", "reports": "gs://out/reports"}
        yield search


def test_what_was_found_lies_in_cloud_storage(search):
    search.do()
    study = results.read("gs://out/found")
    assert [trial.state for trial in study.trials] == ["SUCCEEDED"] * 3
    assert sorted(storage.names("gs://out/found")) == ["trials.json", "tuner_results.json", replica.ARGUMENTS]
    assert b"Trial 1 is the best" in storage.read("gs://out/reports/run-1/tuning.html")
    assert json.loads(storage.read(f"gs://out/best/{tuner.BEST}"))["values"]["learning_rate"] == 0.01
    (record,) = storage.names("gs://out/studies")
    assert json.loads(storage.read(f"gs://out/studies/{record}"))["name"] == study.name
    (job,) = search.created()
    assert job.job_spec.base_output_directory.output_uri_prefix == "gs://out/found"


def test_why_a_replica_failed_is_read_there_and_not_what_an_earlier_one_said(search):
    storage.write(f"gs://out/found/{replica.ERRORS}/workerpool1-1", b"of an earlier job")

    def create(request):
        cluster = {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"]}
        environment = {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": {"type": "workerpool1", "index": 0}})}
        assert replica.main("gs://out/nothing", environment) == 1
        storage.write(f"gs://out/found/{replica.ERRORS}/workerpool1-0", b"the val split has no files")
        return v1.CustomJob(request.custom_job, name=NAME.format(1))

    search.vertex.answers["CreateCustomJob"] = create
    with pytest.raises(PipelineError, match="workerpool1-0 said: the val split has no files. What was tried") as raised:
        search.do(("FAILED", 3, "The replica workerpool1-0 exited with a non-zero status of 1."))
    assert "earlier" not in str(raised.value)
    assert storage.names(f"gs://out/nothing/{replica.ERRORS}") == ["workerpool1-0"]
