"""Whether a week searches for hyperparameters, and why."""

import dataclasses
import datetime

import pytest

from pipeline import settings
from pipeline.release import configurations, quality
from pipeline.release.configurations import Configuration
from pipeline.release.quality import Quality
from pipeline.settings import RetuneSettings
from pipeline.tuning.decision import decide, for_week

KNOWN = Configuration("2026-03-02", "run-1", {"space": [], "values": {"dropout": 0.1}}, value=0.9)
NEVER = RetuneSettings(every_weeks=0, max_drop=1.0)
MONTHLY = RetuneSettings(every_weeks=4, max_drop=1.0)
BAND = RetuneSettings(every_weeks=0, max_drop=0.02)


def week(date, value=0.9, tuned=False, released=True, reason="", used=None):
    return Quality(f"run-of-{date}", date, value, released, tuned, reason, used)


def test_without_anything_known_the_settings_hold_and_nothing_is_due():
    decision = decide("2026-03-30", False, RetuneSettings(), None, [week("2026-03-02", 0.9), week("2026-03-09", 0.1)])
    assert not decision.tune and decision.known is None and decision.warning == ""
    assert decision.reason.startswith("nothing was tuned and released before 2026-03-30: the values of the settings hold")


@pytest.mark.parametrize("known", [None, KNOWN])
def test_what_a_person_asks_for_is_done(known):
    decision = decide("2026-03-09", True, NEVER, known, [])
    assert (decision.tune, decision.reason, decision.known) == (True, "asked for by --tune", known)


@pytest.mark.parametrize(
    "date, due", [("2026-03-09", False), ("2026-03-29", False), ("2026-03-30", True), ("2026-07-06", True)]
)
def test_a_search_is_due_so_many_weeks_after_the_last(date, due):
    decision = decide(date, False, MONTHLY, KNOWN, [])
    assert decision.tune is due
    if date == "2026-03-30":
        assert decision.reason == "due: the last search was 4 weeks ago, of 2026-03-02, and retune.every_weeks is 4"


def test_a_search_whose_model_was_refused_is_not_repeated_every_week():
    trained = [week("2026-03-02", tuned=True), week("2026-03-30", 0.5, tuned=True, released=False)]
    assert not decide("2026-04-06", False, MONTHLY, KNOWN, trained).tune
    assert decide("2026-04-27", False, MONTHLY, KNOWN, trained).tune


@pytest.mark.parametrize("value, tunes", [(0.95, False), (0.9, False), (0.881, False), (0.87, True), (0.0, True)])
def test_a_metric_below_its_band_asks_for_a_search(value, tunes):
    decision = decide("2026-03-16", False, BAND, KNOWN, [week("2026-03-02"), week("2026-03-09", value)])
    assert decision.tune is tunes
    if value == 0.87:
        assert decision.reason == (
            "val_accuracy 0.870 of 2026-03-09 is 0.030 below the 0.900 of the best-known configuration, of 2026-03-02; "
            "retune.max_drop is 0.02"
        )


def test_the_newest_week_is_judged_released_or_not():
    low, high = week("2026-03-09", 0.5), week("2026-03-16", 0.9)
    assert not decide("2026-03-23", False, BAND, KNOWN, [low, high]).tune
    low, high = week("2026-03-16", 0.5, released=False), week("2026-03-09", 0.9)
    assert decide("2026-03-23", False, BAND, KNOWN, [high, low]).tune


def test_a_drop_that_a_search_did_not_mend_is_warned_of_and_not_searched_again():
    refused = week("2026-03-16", 0.4, tuned=True, released=False, reason="it is worse")
    trained = [week("2026-03-09", 0.5), refused, week("2026-03-23", 0.5)]
    decision = decide("2026-03-30", False, BAND, KNOWN, trained)
    assert not decision.tune
    assert "val_accuracy 0.500 of 2026-03-23" in decision.warning and "the search of 2026-03-16" in decision.warning
    assert "(it is worse)" in decision.warning and "--tune" in decision.warning


def test_weeks_before_the_known_configuration_are_not_its_own():
    assert not decide("2026-03-09", False, BAND, KNOWN, [week("2026-02-23", 0.1)]).tune


def test_a_week_that_ran_while_the_search_was_under_way_is_judged_by_what_it_used():
    low = week("2026-03-09", 0.5, used="run-0")
    assert not decide("2026-03-16", False, BAND, KNOWN, [low]).tune
    assert decide("2026-03-16", False, BAND, KNOWN, [low, week("2026-03-10", 0.5, used="run-1")]).tune
    assert decide("2026-03-16", False, BAND, KNOWN, [dataclasses.replace(low, configuration=None)]).tune, "of older code"


def searches(retune, fails=()):
    """The dates of two years on which production's two schedules search: each Monday, and each first of a month, asked to.

    Args:
        retune: The settings.
        fails: Months, as YYYY-MM, whose run of the first fails before it trains.
    """
    known, found = Configuration("2026-01-01", "run", {"space": [], "values": {}}, value=0.9), []
    day = datetime.date(2026, 1, 2)
    while day < datetime.date(2028, 1, 2):
        monthly = day.day == 1 and f"{day:%Y-%m}" not in fails
        if (monthly or day.weekday() == 0) and decide(str(day), monthly, retune, known, []).tune:
            found.append(day)
            known = dataclasses.replace(known, snapshot_date=str(day))
        day += datetime.timedelta(days=1)
    return found


def test_beside_the_monthly_search_no_week_searches_on_its_own():
    retune = settings.load(settings.CONFIGS / "vertex.yaml").retune
    assert searches(retune) and all(day.day == 1 for day in searches(retune))
    # What they are refused for: with four weeks a Monday searches a few days before the first does.
    assert any(day.day != 1 for day in searches(RetuneSettings(every_weeks=4)))


def test_a_monthly_search_that_fails_is_made_up_for_by_a_week():
    retune = settings.load(settings.CONFIGS / "vertex.yaml").retune
    found = searches(retune, fails=["2026-06"])
    made_up = next(day for day in found if day > datetime.date(2026, 5, 1))
    assert made_up == datetime.date(2026, 6, 8) and made_up.weekday() == 0, "the first Monday five weeks after 1 May"


def test_what_a_configuration_of_older_code_reached_is_found_in_its_runs_record():
    old = dataclasses.replace(KNOWN, value=None, run_id="run-of-2026-03-02")
    trained = [week("2026-03-02", 0.9, tuned=True), week("2026-03-09", 0.8)]
    assert decide("2026-03-16", False, BAND, old, trained).tune
    decision = decide("2026-03-16", False, BAND, old, trained[1:])
    assert not decision.tune and decision.reason.endswith("what val_accuracy it reached was not recorded")


def test_a_week_that_keeps_what_is_known_says_how_well_it_does():
    decision = decide("2026-03-16", False, NEVER, KNOWN, [week("2026-03-09", 0.885)])
    assert decision.reason == (
        "the best-known configuration, of 2026-03-02 (run run-1), holds: val_accuracy 0.900 then, 0.885 on 2026-03-09"
    )


@pytest.mark.parametrize("date, warns", [("2026-04-06", False), ("2026-04-07", True), ("2026-04-13", True)])
def test_a_configuration_older_than_five_weeks_is_warned_of(date, warns):
    decision = decide(date, False, NEVER, KNOWN, [])
    assert bool(decision.warning) is warns and not decision.tune
    if date == "2026-04-13":
        assert "was found 6 weeks ago, more than retune.warn_after_weeks 5: search again by --tune" in decision.warning


def test_no_warning_is_needed_where_a_search_is_made_anyway():
    assert decide("2026-06-01", False, MONTHLY, KNOWN, []).warning == ""


def test_what_is_due_comes_before_what_got_worse():
    both = RetuneSettings(every_weeks=4, max_drop=0.02)
    assert decide("2026-03-30", False, both, KNOWN, [week("2026-03-23", 0.1)]).reason.startswith("due: ")


def test_a_week_that_is_run_again_decides_what_it_decided(tmp_path):
    folders = str(tmp_path / "configurations"), str(tmp_path / "quality")
    configurations.record(folders[0], KNOWN)
    quality.record(folders[1], week("2026-03-09", 0.8))
    first = for_week("2026-03-16", False, BAND, *folders)
    assert first.tune
    # What that week and later ones leave behind.
    configurations.record(folders[0], dataclasses.replace(KNOWN, snapshot_date="2026-03-16", value=0.95))
    quality.record(folders[1], week("2026-03-16", 0.95, tuned=True))
    quality.record(folders[1], week("2026-03-23", 0.95))
    assert for_week("2026-03-16", False, BAND, *folders) == first
    assert not for_week("2026-03-23", False, BAND, *folders).tune
