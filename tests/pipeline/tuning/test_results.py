"""A study's trials as JSON, as a page, and which parameters mattered."""

import doctest
import random
import re

import pytest

from models.study import Trial
from pipeline.errors import PipelineError
from pipeline.tuning import importance, page, results
from pipeline.tuning.importance import importances
from tests.models.studies import trial


def study(trials, **changes):
    given = {
        "name": "projects/local/locations/local/studies/1", "display_name": "photographs-labels-20260302-0",
        "objective": "val_accuracy", "total": 60, "epochs": 3, "snapshot_date": "2026-03-02", "run_id": "run-1",
        "trials": tuple(trials),
    }  # fmt: skip
    return results.Results(**{**given, **changes})


SOME = [
    trial(1, value=0.5, curve=[(1, 0.4), (2, 0.5), (3, 0.5)]),
    trial(2, value=0.75, curve=[(1, 0.7), (2, 0.75)]),
    trial(3, "INFEASIBLE", reason="the loss is <b>no</b> number"),
    trial(4, "ACTIVE", curve=[(1, 0.1)]),
]


def searched(count=60, seed=1, noise=0.01):
    """Trials whose value depends on the learning rate, a little on dropout, and not on the weight decay."""
    chance, trials = random.Random(seed), []
    for number in range(1, count + 1):
        values = {
            "learning_rate": 10 ** chance.uniform(-4, -2), "weight_decay": 10 ** chance.uniform(-4, -1),
            "dropout": chance.uniform(0, 0.5), "batch_size": chance.choice([64.0, 128.0]),
        }  # fmt: skip
        value = 0.5 + 20 * values["learning_rate"] - 0.1 * values["dropout"] + chance.gauss(0, noise)
        trials.append(trial(number, value=value, curve=[(1, 0.1), (2, 0.2), (3, value)], values=values))
    return trials


def test_what_is_written_is_read(tmp_path):
    results.write(str(tmp_path), study(SOME))
    assert results.read(str(tmp_path)) == study(SOME)
    assert isinstance(results.read(str(tmp_path)).trials[0], Trial)


def test_tfx_s_own_file_has_the_trials_with_a_value_best_first():
    assert results.rows(study(SOME)) == [
        {"trial_id": "2", "score": 0.75, "dropout": 0.1}, {"trial_id": "1", "score": 0.5, "dropout": 0.1},
    ]  # fmt: skip


def test_states_are_told_apart_and_counted():
    assert study(SOME).counts() == {"trials": 4, "succeeded": 1, "stopped early": 1, "infeasible": 1, "under way": 1}
    assert study(SOME).best.number == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trials": [{}]}'])
def test_something_else_is_refused(tmp_path, text):
    (tmp_path / results.TRIALS).write_text(text)
    with pytest.raises(PipelineError, match="trials.json holds no trials"):
        results.read(str(tmp_path))


def test_results_that_are_nowhere(tmp_path):
    with pytest.raises(PipelineError, match="trials.json holds no trials .FileNotFoundError"):
        results.read(str(tmp_path))


def test_what_mattered_is_found_with_its_direction():
    found, explained = importances(searched())
    assert [each.parameter for each in found][:1] == ["learning_rate"] and found[0].share > 0.6 and explained > 0.5
    assert found[0].correlation > 0.7 and sum(each.share for each in found) == pytest.approx(1)
    by_name = {each.parameter: each for each in found}
    assert by_name["weight_decay"].share < 0.1 and abs(by_name["weight_decay"].correlation) < 0.4
    assert importances(searched()) == (found, explained), "the same each time"


def test_noise_explains_nothing():
    chance = random.Random(5)
    trials = [trial(one.number, value=chance.random(), curve=one.curve, values=one.values) for one in searched()]
    assert importances(trials)[1] < 0.2


def test_too_few_trials_or_equal_ones_say_nothing():
    assert importances(searched(count=9)) is None and importances([]) is None
    equal = [trial(one.number, value=0.5, curve=one.curve, values=one.values) for one in searched()]
    assert importances(equal) is None


def test_ties_share_their_rank():
    assert importance.rank_correlation([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(0.894, abs=1e-3)  # scipy.stats.spearmanr


def test_examples_in_docstrings():
    found = doctest.testmod(importance)
    assert found.attempted and not found.failed


class TestPage:
    def test_every_trial_is_there_with_its_state_and_reason(self):
        drawn = page.page(study(SOME))
        assert [re.search(f'<td class="n">{number}</td>', drawn) is not None for number in (1, 2, 3, 4)] == [True] * 4
        assert "infeasible: the loss is &lt;b&gt;no&lt;/b&gt; number" in drawn and "stopped early, best" in drawn
        assert "Trial 2 is the best: val_accuracy 0.750" in drawn and "<b>" not in drawn
        assert drawn.count('class="best"') == 2  # its point and its row

    def test_the_best_so_far_never_falls(self):
        drawn = page.page(study(searched()))
        points = re.search(r'class="so-far" points="([^"]+)"', drawn)[1].split()
        heights = [float(point.split(",")[1]) for point in points]
        assert heights == sorted(heights, reverse=True) and len(set(heights)) > 1

    def test_a_line_for_each_trial_and_the_measure_by_its_name(self):
        drawn = page.page(study(searched()))
        lines = re.findall(r'<polyline class="trial[^"]*" stroke-opacity="[\d.]+" points="([^"]+)"', drawn)
        assert len(lines) == 60 and {len(line.split()) for line in lines} == {5}
        assert "permutation importance" in drawn and "Spearman" in drawn

    def test_drawings_stay_in_their_frame_and_nothing_runs_or_is_fetched(self):
        for trials in (searched(), SOME, searched(count=2), searched(count=1)):
            drawn = page.page(study(trials))
            points = " ".join(re.findall(r'points="([^"]+)"', drawn))
            numbers = [float(each) for each in points.replace(",", " ").split()]
            assert all(0 <= number <= page._WIDTH for number in numbers)
            assert not re.search(r"<script|https?://|javascript:|nan|inf[^e]", drawn)

    @pytest.mark.parametrize("trials", [[], [SOME[2]], [SOME[3]]])
    def test_a_study_without_a_value_says_so(self, trials):
        assert "No trial has a value." in page.page(study(trials))

    def test_names_are_nobody_s_markup(self):
        drawn = page.page(study(SOME, display_name="<script>x", objective="<img>", run_id="\u202e<i>"))
        assert "<script" not in drawn and "<img" not in drawn and "<i>" not in drawn and "\u202e" not in drawn
