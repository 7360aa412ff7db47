"""The lineage store on Vertex ML Metadata: the same answers as everywhere, by bounded questions of Google's own client."""

import json

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import audit
from pipeline.lineage.vertex import VertexLineage
from pipeline.places import Places
from pipeline.vertex.settings import VertexSettings
from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex_lineage import PIPELINE, VertexWritten
from tests.pipeline.lineage.conformance import LineageConformance
from tests.pipeline.lineage.conftest import release_facts

REGION = google_apis.REGIONS[0]
LOCATION = names.parent(REGION)


def settings(**changes) -> VertexSettings:
    known = {"project": google_apis.PROJECT, "region": REGION, "store": "gs://runs/store", "images": "gs://photographs/jpeg"}
    return VertexSettings(**known | changes)


@pytest.fixture
def written(vertex):
    return VertexWritten(Places(store="gs://runs/store"), vertex, LOCATION)


@pytest.fixture
def lineage(written):
    return VertexLineage(settings(), PIPELINE)


class TestVertexMLMetadata(LineageConformance):
    @pytest.fixture
    def written(self, written):
        return written

    @pytest.fixture
    def lineage(self, lineage):
        return lineage


def test_a_project_that_never_ran_the_pipeline_has_no_runs(vertex):
    lineage = VertexLineage(settings(), "another")
    assert lineage.run_ids() == lineage.releases() == lineage.values("pipeline.LabelSnapshot", "table") == []
    with pytest.raises(PipelineError, match=f"in the lineage store of pipeline another in project .*, {REGION}; the store is empty"):
        lineage.run("run-1")


def test_runs_of_another_pipeline_are_none_of_this_one(written, lineage, vertex):
    other = VertexWritten(written.places, vertex, LOCATION, "another")
    other.whole_run("run-9", release_facts("run-9", 9, "2026-03-02 12:00"))
    written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00"))
    assert lineage.run_ids() == ["run-1"] and [release.run_id for release in lineage.releases()] == ["run-1"]
    assert [use.run_id for use in lineage.uses("pipeline.LabelSnapshot", "table", ["labels_20260302"])] == ["run-1"]
    with pytest.raises(PipelineError, match="there is no run 'run-9'"):
        lineage.run("run-9")


def asked(vertex, ask) -> list[str]:
    """The methods of ML Metadata that a question calls."""
    before = len(vertex.calls())
    ask()
    return vertex.calls()[before:]


QUESTIONS = {
    "run": (lambda lineage: lineage.run("run-1"), 4),
    "releases": (lambda lineage: lineage.releases(), 2),
    "uses": (lambda lineage: lineage.uses("pipeline.LabelSnapshot", "table", ["mine"]), 6),
    "facts": (lambda lineage: lineage.facts("pipeline.LabelSnapshot", ["table"], ["run-1"]), 1),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_costs_no_more_among_many_runs(written, lineage, vertex, name):
    ask, most = QUESTIONS[name]

    def week(number: int, table: str) -> None:
        context = written.run(f"run-{number}")
        made = written.new_artifact("pipeline.LabelSnapshot", {"table": table})
        written.step(context, "SnapshotGen", outputs={"out": [made]})

    for number in (0, 1, 2):
        week(number, "mine" if number == 1 else "other")
    few = asked(vertex, lambda: ask(lineage))
    for number in range(3, 60):
        week(number, "other")
    assert asked(vertex, lambda: ask(lineage)) == few and len(few) <= most


def test_what_ended_is_read_once(written, lineage, vertex):
    from google.cloud.aiplatform_v1 import types

    for number, job in enumerate((types.Execution.State.COMPLETE, types.Execution.State.RUNNING)):
        made = written.new_artifact("pipeline.LabelSnapshot", {"table": str(number)})
        written.step(written.run(f"run-{number}", job), "SnapshotGen", outputs={"out": [made]})

    def ask():
        return lineage.facts("pipeline.LabelSnapshot", ["table"], ["run-0", "run-1"])

    assert ask() == {"run-0": {"table": "0"}, "run-1": {"table": "1"}}
    assert asked(vertex, ask) == ["QueryContextLineageSubgraph"]


def test_the_steps_of_the_job_itself_are_no_steps(written, lineage):
    context = written.run("run-1")
    dag = written._put("executions", display_name="tfx-dag", schema_title="system.DagExecution")
    written._link(context, dag.name)
    written.step(context, "SnapshotGen")
    assert [step.step for step in lineage.run("run-1").executions] == ["SnapshotGen"]


def test_a_job_that_failed_before_any_step_is_no_running_run(written, lineage):
    from google.cloud.aiplatform_v1 import types

    written.run("run-1", types.Execution.State.FAILED)
    facts = audit.run_facts(lineage.run("run-1"))
    assert facts["state"] == "FAILED at PipelineJob"


def test_a_gate_that_stopped_a_run_says_why_by_its_report(written, lineage, tmp_path):
    rule = {"overridden": False, "limit": "0", "details": ["<b>x</b>\n y"], "remedy": "mend"}
    report = {
        "accepted": False, "baseline": None, "override": None, "snapshot": {"table": "labels_20260302"},
        "rules": [
            {"rule": "max_orphans", "passed": False, "value": "5", **rule}, {"rule": "max_rows", "passed": True, "value": "7", **rule},
        ],
    }  # fmt: skip
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "gate.json").write_text(json.dumps(report))
    written.step(written.run("run-1"), "SnapshotGate", "FAILED", parameters={"reports": str(tmp_path)})
    facts = audit.run_facts(lineage.run("run-1"))
    assert (facts["state"], facts["reason_kind"]) == ("FAILED at SnapshotGate", "SnapshotRejected")
    assert facts["reason"].splitlines() == [
        "labels_20260302 is rejected: 1 of 2 rules failed (max_orphans)", "  max_orphans: 5, allowed: 0", r"    - <b>x</b>\n y",
    ]  # fmt: skip
    assert facts["gate"]["accepted"] is False and facts["gate"]["failed"] == ["max_orphans"]


@pytest.mark.parametrize("content", [None, "{", "{}", '{"accepted": true, "rules": []}'])
def test_a_gate_s_report_that_cannot_be_used_leaves_the_reason_open(written, lineage, tmp_path, content):
    (tmp_path / "run-1").mkdir()
    if content is not None:
        (tmp_path / "run-1" / "gate.json").write_text(content)
    written.step(written.run("run-1"), "SnapshotGate", "FAILED", parameters={"reports": str(tmp_path)})
    facts = audit.run_facts(lineage.run("run-1"))
    assert (facts["state"], facts["reason"], facts["gate"]) == ("FAILED at SnapshotGate", None, None)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (403, "Vertex AI refuses to tell the lineage store .*an auditor needs roles/aiplatform.viewer"),
        (401, "no credentials for Vertex AI"),
        (400, "Vertex AI failed"),
    ],
)
def test_what_google_refuses_is_told_in_one_sentence(written, lineage, vertex, status, told):
    written.run("run-1")
    vertex.answer(status, "GetContext")
    with pytest.raises(PipelineError, match=told) as caught:
        lineage.run("run-1")
    assert "\n" not in str(caught.value)


def test_a_service_that_is_busy_for_a_moment_is_asked_again(written, lineage, vertex):
    written.run("run-1")
    vertex.answer(503, "GetContext", times=1)
    vertex.answer(429, "QueryContextLineageSubgraph", times=1)
    assert lineage.run("run-1").executions == ()


def test_nothing_is_written(written, lineage, vertex):
    written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00"))
    calls = asked(vertex, lambda: (
        lineage.run("run-1"), lineage.releases(), lineage.run_ids(), lineage.values("pipeline.LabelSnapshot", "table"),
        lineage.uses("pipeline.LabelSnapshot", "table", ["labels_20260302"]), lineage.facts("pipeline.RunManifest", ["commit"], ["run-1"]),
    ))  # fmt: skip
    assert {method.rstrip("s") for method in calls} == {
        "GetContext", "ListContext", "ListArtifact", "QueryContextLineageSubgraph", "QueryArtifactLineageSubgraph",
    }  # fmt: skip
