"""What `status` tells: schedules, runs, and of a run that failed the step and, of the gate, its rules."""

import datetime
import json

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.places import Places
from pipeline.vertex import status

PARENT = "projects/acme-products/locations/europe-west4"

NOW = datetime.datetime(2026, 3, 2, 20, 0, 5, tzinfo=datetime.timezone.utc)

THE_DAG = "The DAG failed because some tasks failed. The failed tasks are: [{}]."


def task(number: int, name: str, state: str = "SUCCEEDED", parent: int = 0, said: str = "") -> v1.PipelineTaskDetail:
    return v1.PipelineTaskDetail(
        task_id=number, parent_task_id=parent, task_name=name, state=state, error={"code": 9, "message": said} if said else None,
        end_time=NOW + datetime.timedelta(minutes=number),
    )  # fmt: skip


def run(*tasks: v1.PipelineTaskDetail, said: str = "", name: str = "r0") -> v1.PipelineJob:
    return v1.PipelineJob(
        name=f"{PARENT}/pipelineJobs/{name}", state="PIPELINE_STATE_FAILED", create_time=NOW, job_detail={"task_details": tasks},
        error={"code": 9, "message": said},
    )  # fmt: skip


BAD_WEEK = (
    task(1, "tfx-dag", "FAILED", said=THE_DAG.format("SnapshotGate")),
    task(2, "RunAlert"),
    task(3, "StatisticsGen", parent=1),
    task(4, "SnapshotGate", "FAILED", 1, "The replica workerpool0-0 exited with a non-zero status of 1."),
    task(5, "Trainer", "NOT_TRIGGERED", 1),
)


@pytest.fixture
def places(tmp_path):
    return Places(store=str(tmp_path))


@pytest.fixture
def rejected(tmp_path):
    rules = [{"rule": name, "passed": name == "min_rows", "overridden": False} for name in ("min_rows", "max_orphans", "max_age")]
    (tmp_path / "reports" / "r0").mkdir(parents=True)
    (tmp_path / "reports" / "r0" / "gate.json").write_text(json.dumps({"accepted": False, "rules": rules}))


def test_the_step_is_named_and_not_the_dag_that_holds_it(places):
    (failure,) = status.failures_of(run(*BAD_WEEK), places)
    assert failure == status.Failure("SnapshotGate", "The replica workerpool0-0 exited with a non-zero status of 1.")


def test_of_the_gate_the_rules_are_named(places, rejected, tmp_path):
    (failure,) = status.failures_of(run(*BAD_WEEK), places)
    assert failure.rules == ("max_orphans", "max_age") and failure.report == f"{tmp_path}/reports/r0/gate.html"
    text = status.as_text(status.Status([], [run(*BAD_WEEK)], {"r0": [failure]}))
    assert text.splitlines()[1] == f"  SnapshotGate: the snapshot breaks max_orphans, max_age; report {tmp_path}/reports/r0/gate.html"


def test_several_steps_come_in_the_order_in_which_they_failed(places):
    tasks = [task(1, "tfx-dag", "FAILED"), task(9, "Evaluator", "FAILED", 1, "b"), task(7, "SmokeTest", "FAILED", 1, "a")]
    assert [failure.step for failure in status.failures_of(run(*tasks), places)] == ["SmokeTest", "Evaluator"]


def test_where_vertex_tells_of_the_dag_alone_its_words_name_the_steps(places):
    one = run(task(1, "tfx-dag", "FAILED", said=THE_DAG.format("Trainer, LabelJoin")), task(2, "RunAlert"))
    assert [failure.step for failure in status.failures_of(one, places)] == ["Trainer", "LabelJoin"]


def test_without_a_dag_the_steps_lie_in_the_run_itself(places):
    assert [failure.step for failure in status.failures_of(run(task(4, "Trainer", "FAILED", said="x")), places)] == ["Trainer"]


def test_an_alert_that_could_not_be_sent_is_a_step_that_failed_too(places):
    tasks = [*BAD_WEEK[:1], task(2, "RunAlert", "FAILED", said="no topic"), *BAD_WEEK[2:]]
    assert [failure.step for failure in status.failures_of(run(*tasks), places)] == ["RunAlert", "SnapshotGate"]


def test_schedules_runs_and_what_failed_are_told(there, vertex):
    mine, other = (
        v1.Schedule(name=f"{PARENT}/schedules/{name}", display_name=name, cron="TZ=UTC 0 20 * * 1", state="ACTIVE",
                    next_run_time=NOW)
        for name in ("product-photographs-weekly", "somebody-elses")
    )  # fmt: skip
    whole = {f"r{number}": run(task(4, "Trainer", "FAILED", said="\x1b[31mno\n machine"), name=f"r{number}") for number in range(2)}
    whole["r1"] = run(said="the job\n could not start", name="r1")
    # A listing leaves out the tasks.
    listed = [v1.PipelineJob(name=each.name, state=each.state, create_time=NOW, error=each.error) for each in whole.values()]
    listed.append(v1.PipelineJob(name=f"{PARENT}/pipelineJobs/r2", state="PIPELINE_STATE_SUCCEEDED", create_time=NOW))
    vertex.answers["ListSchedules"] = lambda request: v1.ListSchedulesResponse(schedules=[other, mine])
    vertex.answers["ListPipelineJobs"] = lambda request: v1.ListPipelineJobsResponse(pipeline_jobs=listed)
    vertex.answers["GetPipelineJob"] = lambda request: whole[request.name.rpartition("/")[2]]
    found = status.read(there(), "product-photographs", 2)
    assert status.as_text(found).splitlines() == [
        "schedule product-photographs-weekly: TZ=UTC 0 20 * * 1, active, next 2026-03-02 20:00 UTC",
        "run r0: failed, started 2026-03-02 20:00 UTC",
        "  Trainer: ?[31mno machine",
        "run r1: failed, started 2026-03-02 20:00 UTC",
        "  the job could not start",
    ]
    told = json.loads(json.dumps(status.as_json(found)))["runs"]
    assert [each["run_id"] for each in told] == ["r0", "r1"] and told[1]["failed"] == []
    assert told[0]["failed"] == [{"step": "Trainer", "said": "\x1b[31mno\n machine", "rules": [], "report": ""}]
    assert vertex.requests("ListPipelineJobs")[0].filter == 'labels.pipeline="product-photographs"'
    assert len(vertex.requests("GetPipelineJob")) == 2


def test_nothing_there_is_said(there, vertex):
    vertex.answers["ListSchedules"] = lambda request: v1.ListSchedulesResponse()
    vertex.answers["ListPipelineJobs"] = lambda request: v1.ListPipelineJobsResponse()
    assert status.as_text(status.read(there(), "product-photographs", 2)) == "no schedules, no runs"
