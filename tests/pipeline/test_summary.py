"""The closing words of a run."""

import pytest

from pipeline import summary
from pipeline.places import Places
from tests.pipeline.lineage.conftest import HandWritten, release_facts


# A fact that a run did not record.
DROPPED = object()


@pytest.fixture
def told(tmp_path):
    """Tells a run whose release has these facts."""

    def tell(**changes):
        places = Places(store=str(tmp_path))
        facts = release_facts("run-1", 1, "2026-03-02 12:00", **changes)
        kept = {name: value for name, value in facts.items() if value is not DROPPED}
        HandWritten(places).whole_run("run-1", kept)
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
        "eval       accuracy 0.750 on 40 photographs, nothing served before; weakest class cup 0.500",
        "blessed    yes",
        f"weights    {'1' * 16}",
        "serves     version 1 at endpoint default, /versions/1",
    ]:
        assert line in lines
    assert lines[-3] == "Try next:" and "audit serving --on 20" in lines[-1]


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
    text = told(**refused, blessed=0, released=0, evaluation_failures='["too slow"]', reason=why)
    assert "eval       none: the smoke test refused the export\n" in text
    assert "serves     unchanged: the smoke test refused its export\n" in text
