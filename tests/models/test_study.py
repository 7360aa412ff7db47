"""What trials tell together: the best, how many stopped, how long it still takes; and that this needs no TensorFlow."""

import subprocess
import sys

import pytest

from models.study import best, ended_early, fits, leave, progress, seconds_left
from tests.models.studies import MemoryStudy, trial

CURVE = [(1, 0.2), (2, 0.4)]


def test_the_best_is_the_first_of_those_with_the_best_value():
    ended = [trial(1, value=0.5), trial(2, value=0.7), trial(3, value=0.7)]
    trials = [*ended, trial(4, "INFEASIBLE"), trial(5, "ACTIVE", curve=[(1, 0.9)])]
    assert best(trials).number == 2 and best(trials, maximize=False).number == 1
    assert best(trials[3:]) is None and best([]) is None


def test_ended_early_are_those_that_succeeded_with_fewer_epochs():
    assert ended_early(trial(1, value=0.4, curve=CURVE), epochs=3)
    assert not ended_early(trial(1, value=0.4, curve=CURVE), epochs=2)
    assert not ended_early(trial(1, "INFEASIBLE", curve=CURVE), epochs=3)
    assert not ended_early(trial(1, "ACTIVE", curve=CURVE), epochs=3)


@pytest.mark.parametrize(
    "trials, expected",
    [
        ([], True),
        ([trial(1, "ACTIVE"), trial(2, "INFEASIBLE", seconds=900.0)], True),
        ([trial(1, seconds=99.0), trial(2, seconds=9.0), trial(3, seconds=900.0)], True),
        ([trial(1, seconds=101.0), trial(2, seconds=9.0), trial(3, seconds=900.0)], False),
    ],
)
def test_another_trial_begins_if_one_of_the_usual_length_would_end_in_time(trials, expected):
    assert fits(trials, until=1100.0, now=1000.0) is expected
    assert not fits(trials, until=1000.0, now=1000.0), "then it is over"


def test_a_trial_without_time_ends_as_it_stands_or_as_if_it_had_not_begun():
    study = MemoryStudy([{"dropout": 0.1}, {"dropout": 0.2}])
    for client in "ab":
        study.suggest(client)
    study.measure(study.trials()[0], 1, 0.5)
    ended = leave(study, study.trials()[0])
    assert (ended.state, ended.value, ended.step) == ("SUCCEEDED", 0.5, 1)
    assert leave(study, study.trials()[1]) is None
    assert [one.number for one in study.trials()] == [1] and study.suggest("b").values == {"dropout": 0.2}


@pytest.mark.parametrize(
    "trials, parallel, expected",
    [
        ([], 2, None),
        ([trial(1, "ACTIVE")], 2, None),
        ([trial(1, seconds=60.0)], 1, 9 * 60.0),
        ([trial(1, seconds=60.0)], 3, 3 * 60.0),
        # The median, not the mean; 40 s of the one under way are over.
        ([trial(1, seconds=50.0), trial(2), trial(3, seconds=900.0), trial(4, "ACTIVE")], 1, 20 + 6 * 60.0),
        # One that takes longer than the others may end any moment.
        ([*(trial(number, seconds=30.0) for number in range(1, 10)), trial(10, "ACTIVE")], 4, 0.0),
        ([trial(number) for number in range(1, 11)], 4, 0.0),
    ],
)  # fmt: skip
def test_what_is_left_goes_by_the_median_of_the_trials_that_ended(trials, parallel, expected):
    assert seconds_left(trials, total=10, parallel=parallel, now=1040.0) == expected


def test_progress_is_one_line():
    trials = [
        trial(1, value=0.5, curve=CURVE),
        trial(2, value=0.75, curve=[*CURVE, (3, 0.75)]),
        trial(3, "INFEASIBLE"),
        trial(4, "ACTIVE"),
    ]
    told = progress(trials, total=6, parallel=2, epochs=3, now=1030.0)
    assert told.startswith(
        "3 of 6 trials, best 0.750 (trial 2), 1 stopped early, 1 infeasible, 3 remaining, ends in about 1 min 15 s, at "
    )
    assert progress([], 6, 2, 3, 0.0) == "0 of 6 trials, none has a value yet, 0 stopped early, 0 infeasible, 6 remaining"


def test_needs_no_tensorflow():
    check = "import sys, models.study, models.started; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
