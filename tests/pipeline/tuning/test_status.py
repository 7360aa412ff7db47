"""How studies stand, read while somebody else holds their file."""

import json
import pathlib

import pytest
from google.cloud import aiplatform_v1 as v1

from models.config import TuningConfig
from pipeline.errors import PipelineError
from pipeline.places import Places
from pipeline.tuning import status
from pipeline.vizier import local
from pipeline.vizier.database import Database, Trial
from pipeline.vizier.resources import TrialName
from pipeline.vizier.study import Budget, open_study, study_spec

NAME = "photographs-labels-20260302-0123456789abcdef"
STATES = v1.Trial.State


@pytest.fixture
def places(tmp_path):
    return Places(store=str(tmp_path / "store"))


def message(number, state, *values, reason=""):
    made = v1.Trial(id=str(number), state=state, client_id="worker-0", infeasible_reason=reason, start_time={"seconds": 1000})
    made.parameters = [v1.Trial.Parameter(parameter_id="dropout", value=0.25)]
    made.measurements = [
        v1.Measurement(step_count=step, metrics=[v1.Measurement.Metric(metric_id="val_accuracy", value=value)])
        for step, value in enumerate(values, start=1)
    ]
    if state in (STATES.SUCCEEDED, STATES.INFEASIBLE):
        made.end_time = {"seconds": 1060}
    if state == STATES.SUCCEEDED:
        made.final_measurement = made.measurements[-1]
    return made


@pytest.fixture
def held(places):
    """A store whose study has four of five trials, and the service's hold on it."""
    database = Database(places.studies)
    messages = [
        message(1, STATES.SUCCEEDED, 0.25, 0.5), message(2, STATES.SUCCEEDED, 0.125), message(3, STATES.ACTIVE, 0.375),
        message(4, STATES.INFEASIBLE, reason="the loss is\nno number"),
    ]  # fmt: skip
    with database.transaction() as transaction:
        made = v1.Study(display_name=NAME, study_spec=study_spec(TuningConfig(), "val_accuracy"))
        study = transaction.add_study(local.PARENT, made, "eagle", 0)
        for number, each in enumerate(messages, start=1):
            transaction.save_trial(Trial(TrialName(study.name, number), each, number))
    record(places, NAME, name=str(study.name))
    yield database
    database.close()


def record(places, display_name, **changes):
    content = {
        "name": f"{local.PARENT}/studies/1", "display_name": display_name, "database": places.studies, "trials": 5, "parallel": 2,
        "epochs": 2, "run_id": "run-1", "snapshot_date": "2026-03-02", "objective": "val_accuracy", "started": "2026-03-02T01:00:00",
        **changes,
    }  # fmt: skip
    path = pathlib.Path(places.study_records, f"{display_name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_a_study_that_is_searched_is_told_while_the_service_holds_it(held, places):
    (found,) = status.studies(places)
    assert found.state == "running" and [trial.number for trial in found.results.trials] == [1, 2, 3, 4]
    told = status.as_text(found).splitlines()
    assert told[0] == f"study     {NAME}"
    assert told[3].startswith("trials    3 of 5 trials, best 0.500 (trial 1), 1 stopped early, 1 infeasible, 2 remaining, ends in")
    assert told[4] == "best      val_accuracy 0.500 with dropout 0.25"
    assert [line.split() for line in told[5:]] == [
        ["1", "0.500", "2", "of", "2", "epochs", "1", "min", "0", "s", "succeeded"],
        ["2", "0.125", "1", "of", "2", "epochs", "1", "min", "0", "s", "stopped", "early"],
        ["3", "0.375", "1", "of", "2", "epochs", "under", "way"],
        ["4", "-", "0", "of", "2", "epochs", "1", "min", "0", "s", "infeasible:", "the", "loss", "is\\nno", "number"],
    ]


def test_a_study_that_nobody_works_at_was_interrupted(held, places):
    held.close()
    (found,) = status.studies(places)
    assert found.state == "interrupted"
    assert "the same command with --tune goes on with it" in status.as_text(found) and "ends in" not in status.as_text(found)


def test_machines_get_everything(held, places):
    (found,) = status.studies(places)
    answer = json.loads(json.dumps(status.as_json(found)))
    assert answer["state"] == "running" and answer["best"] == 1 and answer["seconds_left"] >= 0
    assert answer["trials"][0]["curve"] == [[1, 0.25], [2, 0.5]] and answer["counts"]["under way"] == 1


def test_one_is_named_by_its_beginning(held, places):
    with held.transaction() as transaction:
        made = v1.Study(display_name="another", study_spec=study_spec(TuningConfig(), "val_accuracy"))
        transaction.add_study(local.PARENT, made, "eagle", 0)
    record(places, "another", started="2026-03-09T01:00:00")
    assert [each.results.display_name for each in status.studies(places)] == [NAME, "another"]
    assert [each.results.display_name for each in status.studies(places, "photo")] == [NAME]
    with pytest.raises(PipelineError, match=f"there is no study 'none' in the store .*; there are: {NAME}, another"):
        status.studies(places, "none")


def test_a_study_whose_file_was_deleted_since_is_left_out(held, places):
    record(places, "gone", started="2026-03-09T01:00:00")
    assert [each.results.display_name for each in status.studies(places)] == [NAME]
    with pytest.raises(PipelineError, match="studies.sqlite does not have gone any more"):
        status.studies(places, "gone")


def test_a_study_of_vertex_is_asked_for_at_its_endpoint(held, places, tmp_path, monkeypatch, vizier_environment):
    """Here another service answers in Vertex's place, with a study of its own."""
    asked = []
    parent, name = "projects/acme-products/locations/europe-west4", "on-vertex"
    with local.running(tmp_path / "vertex.sqlite", "quasi_random") as service:
        study = open_study(service.client(), parent, name, study_spec(TuningConfig(), "val_accuracy"), Budget(5, 2))
        done = study.suggest("workerpool0-0")
        study.complete(done, 1, 0.75)
        monkeypatch.setattr(status.regional, "client_of", lambda endpoint: asked.append(endpoint) or service.client())
        changes = {"name": study.name, "endpoint": "europe-west4-aiplatform.googleapis.com", "started": "2026-03-09T01:00:00"}
        record(places, name, **changes)
        here, there = status.studies(places)
        assert asked == ["europe-west4-aiplatform.googleapis.com"] and here.results.display_name == NAME
        assert (there.state, there.results.name, there.results.best.value) == ("interrupted", study.name, 0.75)
        study.suggest("workerpool1-0")
        assert status.studies(places, name)[0].state == "running"
    # A store in Cloud Storage has no file of studies.
    held.close()
    pathlib.Path(places.studies).unlink()
    with pytest.raises(PipelineError, match="Vizier"):
        monkeypatch.setattr(status.regional, "client_of", _refused)
        status.studies(places, name)


def _refused(endpoint):
    raise PipelineError(f"no credentials for Vertex Vizier at {endpoint}")


@pytest.mark.parametrize("text", ["", "[]", '{"display_name": 3}'])
def test_a_record_that_is_none_is_named(held, places, text):
    path = pathlib.Path(places.study_records, "broken.json")
    path.write_text(text)
    with pytest.raises(PipelineError, match="broken.json is no record of a study"):
        status.studies(places)


@pytest.mark.parametrize(
    "content, words", [(None, "there are no studies at|cannot be read"), (b"no database" * 100, "cannot be read"), (b"", "is no store")]
)
def test_a_file_of_studies_that_is_none_is_named(places, content, words):
    record(places, NAME)
    if content is not None:
        pathlib.Path(places.studies).write_bytes(content)
    with pytest.raises(PipelineError, match=words):
        status.studies(places)
    assert content is not None or not pathlib.Path(places.studies).exists(), "nothing is made"
