"""The Tuner step: it hands on what is known, or runs a study with real workers and the real service, kills included."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from models.config import TUNED
from models.errors import TrainingError
from pipeline.components import facts, tuner
from pipeline.errors import PipelineError
from pipeline.release import profiles
from pipeline.tuning import results, status, supervisor
from tests.models.conftest import make_week
from tests.models.studies import trial
from tests.pipeline.components.tuner_step import TUNING, Step
from tests.pipeline.conftest import ROOT

MODULES = ("pipeline.tuning.worker", "pipeline.vizier.service")


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return make_week(tmp_path_factory.mktemp("week") / "data", shards=3)


def test_what_is_known_is_handed_on(week, tmp_path):
    step = Step(week, tmp_path, tune=0)
    step.do()
    assert step.written() == {"space": [], "values": {"dropout": 0.25}}
    told = {name: facts.text(step.best, name) for name in ("reason", "origin", "values")}
    assert told == {"reason": "a month is over", "origin": "settings", "values": '{"dropout": 0.25}'}
    assert facts.number(step.best, "tune") == 0 == facts.number(step.found, "trials")
    assert results.read(step.found.uri).trials == () and not pathlib.Path(step.places.studies).exists()


_RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pipeline.tuning import supervisor, task
supervisor.search(task.Task(**json.loads(sys.argv[2])))
"""


def trials_of(places):
    try:
        return status.studies(places)[0].results.trials
    except PipelineError:
        return ()


def wait_for(condition, seconds=240):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to that")


def processes(module, database):
    """Ids of processes of a module whose command line or arguments name this store."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if module in words and (database in words or database in (folder / "environ").read_bytes().decode()):
                found.append(int(folder.name))
        except (OSError, UnicodeDecodeError):
            continue
    return found


@pytest.fixture(scope="module")
def story(week, tmp_path_factory, vizier_environment):
    """A study whose run, then a worker and then the service are killed: (step, trials when the run was killed, at its end)."""
    step = Step(week, tmp_path_factory.mktemp("step"))
    database = step.places.studies
    # Workers inherit it, so that they are told from those of other tests.
    os.environ["OF_STORE"] = database
    try:
        task = {
            "snapshot": "labels_20260302", "snapshot_date": "2026-03-02", "run_id": "run-1",
            "train_files": [f"{step.inputs['examples'][0].uri}/Split-train/*"],
            "eval_files": [f"{step.inputs['examples'][0].uri}/Split-val/*"],
            "schema_path": f"{step.inputs['schema'][0].uri}/schema.pbtxt",
            "custom_config": {name: step.custom[name] for name in ("network", "training", "short_side", "tuning")},
            **{name: step.custom[name] for name in ("pipeline", "database", "records")},
        }
        run = subprocess.Popen([sys.executable, "-c", _RUN, str(ROOT), json.dumps(task)], stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: any(not one.under_way for one in trials_of(step.places)) or run.poll() is not None)
        finally:
            run.kill()
            run.wait()
        wait_for(lambda: not any(processes(module, database) for module in MODULES), 30)
        before = trials_of(step.places)
        killed = []

        def kill():
            for at_least, module in enumerate(MODULES, start=1):
                ended = sum(not one.under_way for one in before)
                wait_for(lambda: sum(not one.under_way for one in trials_of(step.places)) >= min(ended + at_least, 4))
                killed.append(module)
                os.kill(processes(module, database)[0], signal.SIGKILL)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        step.do()
        thread.join(10)
        assert len(killed) == 2
        return step, before, results.read(step.found.uri)
    finally:
        del os.environ["OF_STORE"]


def test_a_run_that_is_killed_goes_on_with_its_study(story):
    _, before, after = story
    ended = [one for one in before if not one.under_way]
    assert 1 <= len(ended) < TUNING["trials"]
    assert [one for one in after.trials if one.number in {each.number for each in ended}] == ended


def test_whatever_is_killed_the_study_ends_with_exactly_its_budget(story):
    _, _, after = story
    assert [one.number for one in after.trials] == [1, 2, 3, 4, 5] and after.total == 5
    for one in after.trials:
        assert one.state == "SUCCEEDED" and [step for step, _ in one.curve] == [1, 2, 3], one
        assert one.value == dict(one.curve)[one.step]
    assert len({one.values["learning_rate"] for one in after.trials}) == 5


def test_the_best_values_and_why_are_recorded(story):
    step, _, after = story
    assert set(step.written()["values"]) == set(TUNED)
    assert step.written()["values"] == dict(after.best.values) == json.loads(facts.text(step.best, "values"))
    assert facts.number(step.best, "tune") == 1 and facts.text(step.best, "reason") == "a month is over"
    assert facts.text(step.best, "origin") == f"trial {after.best.number} of study {after.display_name}"
    assert facts.number(step.best, "trial") == after.best.number and facts.text(step.best, "study") == after.name
    assert facts.real(step.best, "metric") == after.best.value
    assert after.display_name in pathlib.Path(step.places.reports("run-1"), "tuning.html").read_text()


def test_every_trial_is_in_the_lineage_with_parameters_curve_duration_and_state(story):
    step, _, after = story
    trials = json.loads(facts.text(step.found, "all_trials"))
    assert [(one["values"], one["curve"], one["seconds"], one["state"]) for one in trials] == [
        (dict(one.values), [list(point) for point in one.curve], one.seconds, one.state) for one in after.trials
    ]
    assert facts.number(step.found, "trials") == 5 == facts.number(step.found, "succeeded")
    rows = json.loads(pathlib.Path(step.found.uri, "tuner_results.json").read_text())
    assert [row["score"] for row in rows] == sorted((one.value for one in after.trials), reverse=True)


def test_nothing_is_left_running(story):
    database = story[0].places.studies
    assert not any(processes(module, database) for module in MODULES)


def test_a_study_that_is_complete_costs_nothing_more(story, monkeypatch):
    step, _, after = story
    monkeypatch.setattr(supervisor, "_Worker", None)
    step.do()
    assert results.read(step.found.uri) == after


def test_what_a_worker_finds_wrong_ends_the_step(week, tmp_path, vizier_environment):
    step = Step(week, tmp_path, {"trials": 1, "parallel": 1})
    step.custom["training"] = {**step.custom["training"], "backbone": str(tmp_path / "none.npz"), "frozen_epochs": 1}
    with pytest.raises(PipelineError, match="training.backbone .*none.npz cannot be read"):
        step.do()
    assert not pathlib.Path(step.found.uri, results.TRIALS).exists()


def test_a_study_without_a_feasible_trial_leaves_its_trials_and_fails(week, tmp_path, monkeypatch):
    step = Step(week, tmp_path)
    lost = results.Results("n", "d", "val_accuracy", 1, 3, "2026-03-02", "run-1", (trial(1, "INFEASIBLE", reason="memory"),))
    monkeypatch.setattr(supervisor, "search", lambda task: lost)
    with pytest.raises(TrainingError, match="not one of 1 trials was feasible"):
        step.do()
    assert results.read(step.found.uri) == lost and not pathlib.Path(step.best.uri, tuner.BEST).exists()


def test_what_a_search_found_is_recorded_with_its_study_trial_and_metric(week, tmp_path, monkeypatch):
    values = {
        "learning_rate": 0.001, "weight_decay": 0.01, "batch_size": 8, "dropout": 0.1, "augmentation": 0.5,
        "label_smoothing": 0.1,
    }  # fmt: skip
    won = trial(1, value=0.75, curve=[(1, 0.5), (2, 0.6), (3, 0.75)], values=values)
    found = results.Results("studies/7", "d", "val_accuracy", 1, 3, "2026-03-02", "run-1", (won,))
    monkeypatch.setattr(supervisor, "search", lambda task: found)
    step = Step(week, tmp_path)
    step.do()
    assert (facts.text(step.best, "study"), facts.number(step.best, "trial")) == ("studies/7", 1)
    assert facts.real(step.best, "metric") == 0.75 and step.written()["values"] == values
    assert pathlib.Path(step.places.reports("run-1"), "tuning.html").exists()


class Windowed:
    """A step whose window ends, and a search that found so many trials by then."""

    def __init__(self, week, folder, monkeypatch, trials, **manifest):
        self.step, self.until = Step(week, folder), []
        facts.record(self.step.inputs["manifest"][0], manifest)

        def search(task):
            self.until.append(task.until)
            return results.Results("studies/7", "d", "val_accuracy", 60, 3, "2026-03-02", "run-1", tuple(trials))

        monkeypatch.setattr(supervisor, "search", search)

    def do(self):
        self.step.do()
        return self.step.best, facts.text(self.step.best, "warning")


def test_a_search_that_the_window_ends_gives_the_best_so_far_and_says_so(week, tmp_path, monkeypatch):
    values = dict.fromkeys(TUNED, 0.1) | {"batch_size": 8}
    end = time.time() + 7200
    windowed = Windowed(week, tmp_path, monkeypatch, [trial(1, value=0.75, curve=[(1, 0.75)], values=values)], window_end=end)
    best, warning = windowed.do()
    # Half of what is left before the 45 minutes that come after a training: nobody knows how long one takes.
    assert windowed.until == [pytest.approx(time.time() + (7200 - 45 * 60) / 2, abs=60)]
    assert facts.number(best, "tune") == 1 and windowed.step.written()["values"] == values
    assert warning.startswith("the window left time for 1 of 60 trials, and the best of these holds; the same week, run again")


def test_a_search_leaves_the_time_that_the_last_training_took(week, tmp_path, monkeypatch):
    end, record = time.time() + 7200, tmp_path / "training.json"
    record.write_text('{"seconds": 1000}')
    windowed = Windowed(week, tmp_path, monkeypatch, [], window_end=end)
    profiles.record(windowed.step.places.newest_profile, profiles.Newest("run-0", "2026-02-23", str(record)))
    windowed.do()
    assert windowed.until == [pytest.approx(end - 45 * 60 - 1250)]


@pytest.mark.parametrize("trials", [[], [trial(1, "INFEASIBLE", reason="memory")]])
def test_a_window_without_time_for_a_value_hands_on_what_is_known_and_searches_next_time(week, tmp_path, monkeypatch, trials):
    windowed = Windowed(week, tmp_path, monkeypatch, trials, window_end=time.time() + 60)
    best, warning = windowed.do()
    assert facts.number(best, "tune") == 0, "the week counts as one that did not search"
    assert windowed.step.written()["values"] == {"dropout": 0.25} and facts.text(best, "origin") == "settings"
    assert warning.startswith(f"the window left time for {len(trials)} of 60 trials, none of them with a value")
    assert facts.number(windowed.step.found, "trials") == len(trials)


@pytest.mark.parametrize("manifest", [{}, {"window_end": 4e9, "window_hours": 12.0}])
def test_a_search_has_no_end_where_the_window_has_none_or_moves_with_it(week, tmp_path, monkeypatch, manifest):
    values = dict.fromkeys(TUNED, 0.1) | {"batch_size": 8}
    windowed = Windowed(week, tmp_path, monkeypatch, [trial(1, value=0.75, curve=[(1, 0.75)], values=values)], **manifest)
    assert windowed.do()[1] == "" and windowed.until == [None]
