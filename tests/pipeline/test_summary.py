"""The closing words of a run."""

import pytest

from pipeline import summary
from pipeline.places import Places
from tests.pipeline.lineage.conftest import TUNING, HandWritten, release_facts


# A fact that a run did not record.
DROPPED = object()


@pytest.fixture
def told(tmp_path):
    """Tells a run whose release has these facts."""

    def tell(tuning=None, **changes):
        places = Places(store=str(tmp_path))
        facts = release_facts("run-1", 1, "2026-03-02 12:00", **changes)
        written = HandWritten(places)
        written.tuning = TUNING | (tuning or {})
        written.whole_run("run-1", {name: value for name, value in facts.items() if value is not DROPPED})
        return summary.of_run(places, "run-1")

    return tell


def test_a_release_is_told_with_what_went_in_and_came_out(told, tmp_path):
    lines = told().splitlines()
    for line in [
        "run        run-1",
        f"snapshot   labels_20260302, checksum {'5' * 16}, 152 labels",
        "images     199 in shards, 1 in quarantine",
        "gate       labels_20260302 is accepted: all 19 rules passed (bootstrap: no baseline for drift)",
        f"           report: {tmp_path}/reports/run-1/gate.html",
        f"           report: {tmp_path}/reports/run-1/release.html",
        "tuning     no: the best-known configuration holds",
        "eval       accuracy 0.750 on 40 photographs, nothing served before; weakest class cup 0.500",
        "blessed    yes",
        f"weights    {'1' * 16}",
        "serves     version 1 at endpoint default, /versions/1",
    ]:
        assert line in lines
    assert lines[-3] == "Try next:" and "audit serving --on 20" in lines[-1]


def test_a_week_that_searched_says_why_and_a_warning_is_told(told):
    lines = told({"tune": 1, "reason": "due: the last search was 4 weeks ago", "warning": "look into it"}).splitlines()
    at = lines.index("tuning     yes: due: the last search was 4 weeks ago")
    assert lines[at + 1] == "           warning: look into it"


def test_what_a_search_came_to_is_told_and_its_reason_once(tmp_path):
    places = Places(store=str(tmp_path))
    written = HandWritten(places)
    context = written.whole_run("run-1", release_facts("run-1", 1, "2026-03-02 12:00"))
    best = {"tune": 1, "reason": "asked for by --tune", "objective": "val_accuracy", "metric": 0.875, "trial": 3, "values": "{}"}
    made = {"best_hyperparameters": ("HyperParameters", best), "tuner_results": ("TunerResults", {"tune": 1, "trials": 5})}
    written.step(context, "Tuner", outputs={key: [written.new_artifact(*one)] for key, one in made.items()})
    text = summary.of_run(places, "run-1")
    assert f"""
tuning     yes: asked for by --tune
tuned      5 trials, best val_accuracy 0.875 (trial 3)
           report: {tmp_path}/reports/run-1/tuning.html
""" in text
    assert text.count("asked for by --tune") == 1


def test_a_model_that_was_held_is_told_with_every_reason(told):
    text = told(
        blessed=0, released=0, evaluation_failures='["too weak", "too slow"]', reason="the evaluation did not bless it",
        baseline_accuracy=0.875,
    )  # fmt: skip
    assert "blessed    no: too weak; too slow\n" in text
    assert "serves     unchanged: the evaluation did not bless it\n" in text
    assert "accuracy 0.750 on 40 photographs, the serving model has 0.875; weakest" in text


def test_without_a_class_that_could_be_judged_alone(told):
    assert "no class has enough eval examples to be judged alone" in told(weakest_class="", weakest_accuracy=-1.0)


def test_the_next_commands_name_a_store_that_is_not_the_default_one(told, tmp_path):
    *_, predict, audit = told().splitlines()
    assert f"-m pipeline predict --store {tmp_path} " in predict
    assert audit.endswith(f" --store {tmp_path}")


def test_a_refused_export_is_told_without_figures(told):
    refused = dict.fromkeys(
        ("accuracy", "log_loss", "eval_examples", "weakest_class", "weakest_accuracy", "by_class"), DROPPED
    )
    why = "the smoke test refused its export"
    text = told(**refused, evaluated=0, blessed=0, released=0, evaluation_failures='["too slow"]', reason=why)
    assert "eval       none: the smoke test refused the export\n" in text
    assert "serves     unchanged: the smoke test refused its export\n" in text
