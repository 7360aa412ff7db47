"""What every lineage store must do; one class that each implementation's tests inherit."""

import datetime
import json

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import audit, timeline
from pipeline.lineage.base import LineageStore, Release, UnknownRun, Use
from tests.pipeline.lineage.conftest import GATE, MANIFEST, SHARDS, SNAPSHOT, TUNING, at, release_facts

STRANGE = "it's \"q\" \\ %s ?, é ☃ 😀\n:name"
"""A text with everything that a query, a filter or a code page could mistake."""


class LineageConformance:
    """Inherit, and give `written`, which writes as TFX does there, and `lineage`, the store under test over it."""

    @pytest.fixture
    def written(self):
        """Returns what has the methods of `conftest.HandWritten` that are used here; ids are the store's own."""
        raise NotImplementedError

    @pytest.fixture
    def lineage(self, written) -> LineageStore:
        raise NotImplementedError

    def test_a_run_has_its_steps_in_order_with_inputs_outputs_and_parameters(self, written, lineage):
        context = written.run("run-1")
        rows = written.artifact("pipeline.LabelSnapshot", {"table": "labels_20260302", "rows": 152}, uri="/artifacts/1")
        models = [written.artifact("Model", {"share": 0.5}), written.artifact("Model", {})]
        before = written.now()
        written.step(context, "SnapshotGen", outputs={"snapshot": [rows]}, parameters={"snapshot_date": "2026-03-02", "count": 3})
        written.step(context, "Trainer", "FAILED", inputs={"examples": [rows], "base": models})
        run = lineage.run("run-1")
        assert run.run_id == "run-1"
        assert [(step.step, step.state) for step in run.executions] == [("SnapshotGen", "COMPLETE"), ("Trainer", "FAILED")]
        gen, trainer = run.executions
        assert gen.parameters == {"snapshot_date": "2026-03-02", "count": 3} and gen.inputs == {}
        (snapshot,) = gen.outputs["snapshot"]
        assert (snapshot.id, snapshot.type, snapshot.uri) == (rows, "pipeline.LabelSnapshot", "/artifacts/1")
        assert snapshot.facts == {"table": "labels_20260302", "rows": 152} and isinstance(snapshot.facts["rows"], int)
        assert trainer.inputs["examples"] == (snapshot,) and [model.id for model in trainer.inputs["base"]] == models
        assert trainer.inputs["base"][0].type == "Model" and trainer.inputs["base"][0].facts == {"share": 0.5}
        slack = datetime.timedelta(milliseconds=1)
        assert before - slack <= gen.started < trainer.started <= trainer.updated <= written.now()

    def test_runs_do_not_mix(self, written, lineage):
        shared = written.artifact("pipeline.ImageShards", {"number": 1})
        for number in (1, 2):
            written.step(written.run(f"run-{number}"), "ImageSharder", outputs={f"shards{number}": [shared]})
        (step,) = lineage.run("run-2").executions
        assert list(step.outputs) == ["shards2"]

    def test_a_run_without_a_step(self, written, lineage):
        written.run("run-1")
        assert lineage.run("run-1").executions == ()

    @pytest.mark.parametrize(("runs", "hint"), [
        ([], "the store is empty"), (["one", "two"], "the newest is two"), (["run-1", "one", "run-2"], "the closest: run-2, run-1"),
    ])  # fmt: skip
    def test_an_unknown_run_is_named_with_a_hint(self, written, lineage, runs, hint):
        for run_id in runs:
            written.run(run_id)
        with pytest.raises(UnknownRun, match=f"no run 'run-9' in the lineage store .*; {hint}"):
            lineage.run("run-9")

    @pytest.mark.parametrize("asked", ["Run-1", "run-1 ", "run_1", "run-%", "", "run-1/../run-1", "' OR '1'='1", "*", "é", STRANGE])
    def test_a_run_is_meant_by_its_whole_id_alone(self, written, lineage, asked):
        written.run("run-1")
        with pytest.raises(UnknownRun, match="there is no run"):
            lineage.run(asked)

    def test_run_ids_come_oldest_first(self, written, lineage):
        for run_id in ("run-9", "run-10", "run-1"):
            written.run(run_id)
        assert lineage.run_ids() == ["run-9", "run-10", "run-1"]

    def test_only_what_ended_well_is_an_output(self, written, lineage):
        context = written.run("run-1")
        lost = written.artifact("pipeline.GateReport", {"verdict": "lost"})
        first = written.artifact("pipeline.GateReport", {"verdict": "first"})
        second = written.artifact("pipeline.GateReport", {"verdict": "second"})
        written.step(context, "SnapshotGate", "FAILED", outputs={"verdict": [lost]})
        written.step(context, "Again", "CACHED", outputs={"verdict": [first]})
        written.step(context, "Other", inputs={"verdict": [lost]}, outputs={"other": [second]})
        run = lineage.run("run-1")
        assert run.output("pipeline.GateReport").facts["verdict"] == "first"
        assert run.output("pipeline.GateReport", key="other").facts["verdict"] == "second"
        assert run.output("pipeline.GateReport", key="none") is None and run.output("Model") is None

    @pytest.mark.parametrize("state", ["RUNNING", "FAILED", "CANCELED", "CACHED", "COMPLETE"])
    def test_a_step_is_found_by_name_with_its_state(self, written, lineage, state):
        written.step(written.run("run-1"), "Trainer", state)
        assert lineage.run("run-1").step("Trainer").state == state
        assert lineage.run("run-1").step("Evaluator") is None

    def test_a_store_without_a_release(self, written, lineage):
        written.run("run-1")
        assert lineage.releases() == []

    def test_releases_come_in_the_order_of_the_ledger(self, written, lineage):
        for number in (2, 10, 1):
            written.artifact("pipeline.ServingRelease", release_facts(f"run-{number}", number, "2026-03-02 12:00"))
        found = lineage.releases()
        assert [release.run_id for release in found] == ["run-1", "run-2", "run-10"]
        assert found[0] == Release(1, at("2026-03-02 12:00"), "default", "run-1", "1", 1.0, "/versions/1", None)
        assert [type(value) for value in (found[0].number, found[0].share)] == [int, float]

    def test_a_release_in_several_steps_tells_each_of_them(self, written, lineage):
        known = {"endpoint": "default", "path": "/versions/2", "at": at("2026-03-09 12:00"), "line_sha256": "a"}
        canary = known | {"number": 2, "run_id": "run-2", "to_version": "2", "share": 0.1}
        back = known | {"number": 3, "run_id": "run-1", "to_version": "1", "share": 1.0}
        written.artifact("pipeline.ServingRelease", release_facts("run-1", 1, "2026-03-02 12:00"))
        held = {"run_id": "run-2", "released": 0, "reason": "rolled back", "ledger_entries": json.dumps([canary, back])}
        written.artifact("pipeline.ServingRelease", held)
        assert [(each.number, each.run_id, each.version, each.share, each.line_sha256) for each in lineage.releases()] == [
            (1, "run-1", "1", 1.0, None), (2, "run-2", "2", 0.1, "a"), (3, "run-1", "1", 1.0, "a"),
        ]  # fmt: skip

    def test_what_moved_no_traffic_is_no_release(self, written, lineage):
        held = {"run_id": "run-1", "released": 0, "reason": "the evaluation did not bless it"}
        written.artifact("pipeline.ServingRelease", held)
        abandoned = release_facts("run-2", 1, "2026-03-02 12:00")
        written.artifact("pipeline.ServingRelease", abandoned, state="ABANDONED")
        written.artifact("pipeline.ServingRelease", release_facts("run-3", 2, "2026-03-09 12:00"))
        assert [release.run_id for release in lineage.releases()] == ["run-3"]

    def test_values_uses_and_facts_of_a_type(self, written, lineage):
        snapshot = {name: written.artifact("pipeline.LabelSnapshot", {"table": f"labels_{name}"}) for name in ("1", "2")}
        other = written.artifact("ExampleStatistics", {"table": "labels_1"})
        trained, rejected, going = (written.run(f"run-{number}") for number in (1, 2, 3))
        written.step(trained, "SnapshotGen", outputs={"snapshot": [snapshot["1"]]})
        written.step(trained, "Trainer", inputs={"examples": [snapshot["1"]]})
        written.step(trained, "ServingLedger")
        written.step(rejected, "SnapshotGen", outputs={"snapshot": [snapshot["2"]]})
        written.step(rejected, "SnapshotGate", "FAILED", inputs={"snapshot": [snapshot["2"]]})
        written.step(going, "LastAccepted", outputs={"statistics": [other]}, inputs={"snapshot": [snapshot["1"]]})
        assert lineage.values("pipeline.LabelSnapshot", "table") == ["labels_1", "labels_2"]
        assert lineage.values("pipeline.LabelSnapshot", "none") == lineage.values("pipeline.None", "table") == []
        assert lineage.uses("pipeline.LabelSnapshot", "table", ["labels_1", "labels_2", "labels_3"]) == [
            Use("run-1", "labels_1", "COMPLETE", True),
            Use("run-2", "labels_2", "FAILED at SnapshotGate", False),
            Use("run-3", "labels_1", "RUNNING", False),
        ]
        assert lineage.uses("ExampleStatistics", "table", ["labels_1"]) == [Use("run-3", "labels_1", "RUNNING", False)]
        assert lineage.uses("pipeline.LabelSnapshot", "table", []) == []
        assert lineage.uses("pipeline.LabelSnapshot", "none", ["labels_1"]) == lineage.uses("pipeline.None", "table", ["labels_1"]) == []
        wanted = ["run-1", "run-2", "run-3", "run-4"]
        assert lineage.facts("pipeline.LabelSnapshot", ["table"], wanted) == {
            "run-1": {"table": "labels_1"}, "run-2": {"table": "labels_2"},
        }  # fmt: skip
        assert lineage.facts("pipeline.LabelSnapshot", ["table"], []) == {}

    def test_runs_that_go_on_at_once_are_told_apart(self, written, lineage):
        contexts = {f"run-{number}": written.run(f"run-{number}") for number in range(4)}
        for step in ("SnapshotGen", "Trainer"):
            for number, context in enumerate(contexts.values()):
                made = written.artifact("pipeline.LabelSnapshot", {"table": f"labels_{number}_{step}"})
                written.step(context, step, outputs={"out": [made]})
        for number, run_id in enumerate(contexts):
            for step in ("SnapshotGen", "Trainer"):
                assert lineage.uses("pipeline.LabelSnapshot", "table", [f"labels_{number}_{step}"]) == [
                    Use(run_id, f"labels_{number}_{step}", "RUNNING", True)
                ]

    def test_texts_come_back_as_they_were(self, written, lineage):
        context = written.run("run-1")
        facts = {"table": STRANGE, "long": "é" * 30_000, "empty": ""}
        written.step(
            context, "SnapshotGen", outputs={"out": [written.new_artifact("pipeline.LabelSnapshot", facts, uri="gs://é/☃ x")]},
            parameters={"text": STRANGE},
        )  # fmt: skip
        (step,) = lineage.run("run-1").executions
        (found,) = step.outputs["out"]
        assert (dict(found.facts), found.uri, step.parameters["text"]) == (facts, "gs://é/☃ x", STRANGE)
        assert lineage.values("pipeline.LabelSnapshot", "table") == [STRANGE]
        assert [use.value for use in lineage.uses("pipeline.LabelSnapshot", "table", [STRANGE])] == [STRANGE]
        assert lineage.facts("pipeline.LabelSnapshot", ["table"], ["run-1"]) == {"run-1": {"table": STRANGE}}

    def test_a_value_is_meant_as_a_whole(self, written, lineage):
        context = written.run("run-1")
        for value in ("labels_1", "Labels_1", "labels_1 ", "labels_1é"):
            written.step(context, "SnapshotGen", outputs={"out": [written.new_artifact("pipeline.LabelSnapshot", {"table": value})]})
        assert len(lineage.values("pipeline.LabelSnapshot", "table")) == 4
        assert [use.value for use in lineage.uses("pipeline.LabelSnapshot", "table", ["labels_1"])] == ["labels_1"]
        for asked in ("*", "labels_%", "labels*", "labels_1e", "' OR '1'='1", '" OR state="LIVE'):
            assert lineage.uses("pipeline.LabelSnapshot", "table", [asked]) == []

    def test_more_values_than_a_query_may_name_one_by_one(self, written, lineage):
        context = written.run("run-1")
        tables = [f"labels_{number}" for number in range(1000)]
        made = [written.new_artifact("pipeline.LabelSnapshot", {"table": table}) for table in tables[:3]]
        written.step(context, "SnapshotGen", outputs={"out": made})
        assert [use.value for use in lineage.uses("pipeline.LabelSnapshot", "table", tables)] == tables[:3]
        assert lineage.facts("pipeline.LabelSnapshot", ["table"], tables + ["run-1"]).keys() == {"run-1"}

    def test_the_facts_of_a_released_run_are_the_same_wherever_they_are_kept(self, written, lineage):
        written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00", ledger_line_sha256="f" * 64))
        found = audit.run_facts(lineage.run("run-1"))
        assert (found["state"], found["reason"]) == ("COMPLETE", None)
        for facts, names in ((MANIFEST, ("commit", "tree", "lock_sha256", "launched_by")), (SNAPSHOT, ("checksum", "as_of", "rows"))):
            assert {name: found[name] for name in names} == {name: facts[name] for name in names}
        assert {name: found["shards"][name] for name in SHARDS} == SHARDS
        assert (found["gate"]["verdict"], found["gate"]["bootstrap"]) == (GATE["verdict"], True)
        assert found["hyperparameters"] == {"dropout": 0.5} and found["tuned_by"]["reason"] == TUNING["reason"]
        assert found["evaluation"]["accuracy"] == 0.75 and found["release"]["ledger_number"] == 1
        (interval,) = timeline.build(lineage.releases(), None).intervals
        assert (interval.run_id, interval.share, interval.until) == ("run-1", 1.0, None)

    def test_a_question_of_no_run_is_an_error_that_a_person_can_act_on(self, written, lineage):
        with pytest.raises(PipelineError, match="there is no run 'run-1' in the lineage store .*; the store is empty"):
            lineage.run("run-1")
        assert lineage.run_ids() == lineage.releases() == lineage.values("pipeline.LabelSnapshot", "table") == []
