"""The arithmetic of bench/tuning.py: what it would claim if the service were any good or bad."""

import doctest
import json
import random
import types

import pytest

from bench import tuning
from bench.tuning import EPOCHS, SPACE, TUNED, Kind, Surface


class Draws:
    """A service that draws at random, and stops whom it is told to."""

    def __init__(self, seed=0, stops=frozenset()):
        self._rng, self._stops = random.Random(seed), stops
        self.under_way, self.most, self.completed, self.reported = set(), 0, [], []

    def suggest(self, worker):
        name = str(len(self.completed) + len(self.under_way) + 1)
        self.under_way.add(name)
        self.most = max(self.most, len(self.under_way))
        values = {name: self._rng.uniform(*getattr(SPACE, name)) for name in TUNED if name != "batch_size"}
        values["batch_size"] = self._rng.choice(SPACE.batch_size)
        return types.SimpleNamespace(
            name=name, parameters=[types.SimpleNamespace(parameter_id=key, value=value) for key, value in values.items()]
        )

    def should_stop(self, trial, step, value):
        self.reported.append((trial, step))
        return int(trial) in self._stops

    def complete(self, trial, step, value):
        self.under_way.remove(trial)
        self.completed.append((trial, step))


@pytest.mark.parametrize("parallel, lengths", [(1, (55, 65)), (8, (7, 9.5)), (60, (1, 1.3))])
def test_every_trial_ends_and_no_more_run_at_once_than_may(parallel, lengths):
    draws = Draws()
    row = tuning.run(draws, Kind("random", parallel, False, 0))
    assert len(draws.completed) == 60 and not draws.under_way and draws.most == parallel
    assert {step for _, step in draws.completed} == {EPOCHS} and row["epochs_run"] == 60 * EPOCHS
    assert lengths[0] <= row["lengths"] <= lengths[1] and draws.reported == []
    assert len(row["suggestion_seconds"]) == 60 and row["stopped"] == 0
    assert list(row["regret_after"]) == ["10", "20", "30", "40", "50", "60"] and row["regret_after"]["60"] == row["regret"]


def test_a_trial_that_is_stopped_saves_the_epochs_that_it_had_left():
    draws = Draws(stops={3, 7})
    row = tuning.run(draws, Kind("random", 8, True, 0))
    assert row["stopped"] == 2 and row["epochs_run"] == 58 * EPOCHS + 2
    assert sorted(step for _, step in draws.completed) == [1, 1, *[EPOCHS] * 58]
    assert ("1", EPOCHS) not in draws.reported, "at its last epoch a trial ends in any case"


def test_the_same_seeds_give_the_same_however_long_suggestions_take(monkeypatch):
    rows = [tuning.run(Draws(), Kind("random", 8, False, 0)) for _ in range(2)]
    slow = iter(range(10**6))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: float(next(slow) ** 2))
    rows.append(tuning.run(Draws(), Kind("random", 8, False, 0)))
    assert len({json.dumps({**row, "suggestion_seconds": []}) for row in rows}) == 1
    assert max(rows[2]["suggestion_seconds"]) > 100


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_of_a_surface_is_known_and_nothing_is_better(seed):
    surface, rng = Surface(seed), random.Random(seed)
    sizes = {tuning._unit("batch_size", size): size for size in SPACE.batch_size}
    best = {}
    for name, unit in surface._optimum.items():
        low, high = min(getattr(SPACE, name)), max(getattr(SPACE, name))
        logarithmic = name in tuning.LOGARITHMIC
        best[name] = low * (high / low) ** unit if logarithmic else low + unit * (high - low)
    best["batch_size"] = sizes[surface._optimum["batch_size"]]
    assert surface.final(best) == pytest.approx(surface.best)
    for _ in range(200):
        values = {name: rng.uniform(*getattr(SPACE, name)) for name in TUNED if name != "batch_size"}
        assert 0.1 <= surface.final(values | {"batch_size": rng.choice(SPACE.batch_size)}) <= surface.best


def test_a_curve_ends_where_its_values_lead_but_for_noise(monkeypatch):
    monkeypatch.setattr(tuning, "NOISE", 0.0)
    values = {name: getattr(SPACE, name)[0] for name in TUNED}
    curve = Surface(0).curve(values, random.Random(0))
    assert len(curve) == EPOCHS and curve == sorted(curve) and curve[-1] == pytest.approx(Surface(0).final(values))


def test_all_who_ask_at_once_wait_for_each_other():
    # The 60th waits for 60 suggestions: 30.5 seconds each in the mean.
    assert tuning.waiting_share([1.0] * 60, 60, 1000.0) == pytest.approx(30.5 / 1030.5)
    assert tuning.waiting_share([1.0] * 60, 1, 9.0) == pytest.approx(0.1)


def test_what_stopping_saves_and_costs_is_taken_from_the_same_surfaces():
    def row(seed, stopping, regret, epochs):
        return {
            "algorithm": "eagle", "parallel": 8, "stopping": stopping, "seed": seed, "stopped": 10 * stopping,
            "regret": regret, "regret_after": {"60": regret}, "suggestion_seconds": [0.01] * 60, "epochs_run": epochs, "lengths": 8.0,
        }  # fmt: skip

    rows = [row(0, False, 0.01, 480), row(1, False, 0.03, 480)]
    rows += [row(0, True, 0.02, 400), row(1, True, 0.03, 320), row(2, True, 0.9, 100)]
    found = tuning.summarize(rows)
    figures = found["stopping"]["eagle, 8 at once"]
    assert (figures["seeds"], figures["trials_stopped"], figures["trials_saved"]) == (2, 10.0, 15.0)
    assert figures["regret_more"]["mean"] == 0.005 and figures["regret_with"]["mean"] == 0.025
    assert found["search"]["eagle, 8 at once"]["regret"]["mean"] == 0.02 and list(found["search"]) == ["eagle, 8 at once"]


def test_examples():
    assert doctest.testmod(tuning).failed == 0
