"""The window planner: the case's arithmetic, digit for digit, what it advises, and what it refuses."""

import argparse
import dataclasses
import datetime
import doctest
import json

import pytest

from pipeline import typed, window
from pipeline.errors import PipelineError, SettingsError
from pipeline.window import Budget, Figures
from tests.pipeline.conftest import ROOT, answers, command

# The case: 19 h an epoch on one V100, of which 40 % decode.
COMPUTE, DECODE = 0.60 * 19, 0.40 * 19
FIXED = dict(speedup=8.1, gpu_ratio=3, workers=4, efficiency=0.75, overlap=True)

ONE, FOUR, NVLINK = "1 x a2-highgpu-1g", "4 x a2-highgpu-1g", "1 x a2-highgpu-4g"
REDUCED = f"{FOUR} + 4 x n1-highcpu-16"


@pytest.fixture(scope="module")
def prices():
    return typed.load(window.Prices, window.PRICES)


@pytest.fixture
def plan(prices):
    """Plans with other figures than the case's; returns (input, machines, budget) -> option, and the advice."""

    def plan(**figures):
        figures = Figures(**figures)
        found = window.options(figures, prices)
        return {(one.input, one.machines, str(one.budget)): one for one in found}, window.advice(found, figures)

    return plan


def test_the_doctests_hold():
    assert doctest.testmod(window) == doctest.TestResults(failed=0, attempted=2)


# CASE, "The arithmetic"; FACTS, "Window formula".


def test_four_workers_with_nothing_else_changed_take_6_1_hours():
    assert round(window.hardware_alone(19, workers=4, efficiency=0.78), 1) == 6.1


def test_one_a100_with_nothing_else_changed_takes_6_3_hours():
    assert round(window.hardware_alone(19, gpu_ratio=3), 1) == 6.3


def test_hardware_alone_never_fits_thirty_epochs():
    for hours in (window.hardware_alone(19, workers=4, efficiency=0.80), window.hardware_alone(19, gpu_ratio=3)):
        assert 30 * hours > 12


def test_an_epoch_of_four_a100s_with_the_input_fixed():
    full, frozen = window.epoch_hours(COMPUTE, DECODE, **FIXED), window.epoch_hours(COMPUTE, DECODE, cost=0.29, **FIXED)
    assert (round(full, 2), round(frozen, 2), round(30 * full)) == (1.27, 0.37, 38)


@pytest.mark.parametrize(
    "speedup, hours",
    [
        (8.1, 9.9),  # decoded and cropped at once; FACTS gives 10.5 h here, which its own formula does not
        (4.75, 10.5),  # decoded, then resized, 4.5 to 5.5: frozen epochs then wait for input
    ],
)
def test_twenty_frozen_and_two_full_epochs_fit_the_window(speedup, hours):
    full, frozen = (window.epoch_hours(COMPUTE, DECODE, cost=cost, **FIXED | {"speedup": speedup}) for cost in (1, 0.29))
    assert round(20 * frozen + 2 * full, 1) == hours < 12


# The formula.


def test_overlap_hides_the_shorter_of_two_and_no_overlap_adds_them():
    assert window.epoch_hours(3, 2, overlap=True) == 3 and window.epoch_hours(2, 3, overlap=True) == 3
    assert window.epoch_hours(3, 2) == 5


def test_a_faster_gpu_and_a_better_network_do_not_decode_faster_but_more_workers_do():
    assert window.epoch_hours(0, 8, gpu_ratio=3, efficiency=0.5) == 8
    assert window.epoch_hours(0, 8, workers=4, efficiency=0.5) == 2
    assert window.epoch_hours(12, 0, gpu_ratio=3, workers=4, efficiency=0.5) == 2


# The options.


def test_every_input_with_every_budget_on_every_machine(plan):
    found, _ = plan()
    assert list(found) == [
        (source, machines, budget)
        for source in ("as it is", "fixed")
        for budget in ("30 full epochs", "20 frozen + 2 full epochs")
        for machines in (ONE, FOUR, REDUCED, NVLINK)
    ]


@pytest.mark.parametrize(
    "figures, hours, then",
    [
        # Without augmentation.
        (
            {"decode_speedup": 8.1},
            "7.8 h, $115",
            "Its GPUs then wait for input 0 % of the time, less than 5 %: the job is compute-bound, and if it must be faster, "
            "more A100s are the right lever.",
        ),
        (
            {},
            "9.6 h, $141",
            "Its GPUs then still wait for input 19 % of the time: faster input is the right lever, and more A100s only once it "
            "is less than 5 %.",
        ),
    ],
)
def test_the_case_fits_with_four_a100s_the_input_fixed_and_most_epochs_frozen_and_not_otherwise(plan, figures, hours, then):
    found, advice = plan(**figures)
    assert {key for key, one in found.items() if one.fits} == {
        ("fixed", machines, "20 frozen + 2 full epochs") for machines in (FOUR, REDUCED, NVLINK)
    }
    assert advice == (
        f"Fix the input first, then take {NVLINK} for 20 frozen + 2 full epochs: {hours}, the cheapest of 3 that fit; "
        f"as it is, {ONE} waits for decoding 67 % of each step, and nothing up to 4 workers fits. {then}"
    )


def test_a_reduction_server_costs_money_and_saves_hours_between_machines_only(plan, prices):
    found, _ = plan()
    plain, reduced = (found["fixed", machines, "30 full epochs"] for machines in (FOUR, REDUCED))
    hour = reduced.on_demand / reduced.hours - plain.on_demand / plain.hours
    assert hour == pytest.approx(4 * prices.machines["n1-highcpu-16"].on_demand)
    assert reduced.hours == pytest.approx(plain.hours * 0.75 / 0.85)
    assert not any("4g +" in machines for _, machines, _ in found)


def test_a_given_efficiency_never_makes_a_reduction_server_harm(plan):
    found, _ = plan(efficiency=0.9)
    of = {machines: one.efficiency for (_, machines, _), one in found.items()}
    assert (of[FOUR], of[REDUCED], of[NVLINK]) == (0.9, 0.9, 0.95)


def test_dollars_are_hours_times_the_price_list(plan, prices):
    option, price = plan()[0]["fixed", NVLINK, "30 full epochs"], prices.machines["a2-highgpu-4g"]
    assert (option.on_demand, option.spot) == pytest.approx((30 * price.on_demand, 30 * price.spot))


def test_fewer_workers_are_planned_with_and_what_more_would_do_is_shown_as_out_of_reach(plan):
    found, advice = plan(max_workers=2)
    assert {machines: one.in_budget for (_, machines, _), one in found.items()} == {
        ONE: True, "2 x a2-highgpu-1g": True, "2 x a2-highgpu-1g + 2 x n1-highcpu-16": True, FOUR: False, REDUCED: False,
        NVLINK: False,
    }  # fmt: skip
    assert advice.startswith("nothing up to 2 workers trains within 11.25 h")
    assert f"{NVLINK}, input fixed, 20 frozen + 2 full epochs would take 9.6 h: allow 4 workers by --max-workers" in advice


def test_a_training_must_leave_the_other_steps_their_time(plan):
    assert plan(window_hours=10.4)[0]["fixed", NVLINK, "20 frozen + 2 full epochs"].fits
    assert not plan(window_hours=10.3)[0]["fixed", NVLINK, "20 frozen + 2 full epochs"].fits
    assert plan(window_hours=10.3, reserve_hours=0.5)[0]["fixed", NVLINK, "20 frozen + 2 full epochs"].fits


def test_input_that_is_fixed_already_is_not_advised_again(plan):
    found, advice = plan(epoch_hours=3, decode_share=0.01, decode_speedup=1, gpu_ratio=1)
    assert {source for source, *_ in found} == {"as it is"}
    assert advice.startswith("Take ") and "compute-bound" in advice


@pytest.mark.parametrize("share, lever", [(0.04, "the job is compute-bound"), (0.06, "faster input is the right lever")])
def test_below_five_percent_of_waiting_more_gpus_are_the_right_lever(plan, share, lever):
    _, advice = plan(epoch_hours=0.1, decode_share=share, decode_speedup=1, gpu_ratio=1, frozen_epochs=0)
    assert lever in advice


def test_when_everything_would_fit_without_frozen_epochs_the_advice_says_so(plan):
    assert f"{ONE}, input fixed, 30 full epochs would fit too: 6.0 h" in plan(epoch_hours=1)[1]


def test_equal_budgets_are_shown_once(plan):
    assert len(plan(epochs=2, frozen_epochs=0, unfrozen_epochs=2)[0]) == 8


def test_budgets_read_as_people_say_them():
    assert [str(Budget(*epochs)) for epochs in ((0, 30), (20, 2), (20, 0))] == [
        "30 full epochs", "20 frozen + 2 full epochs", "20 frozen epochs"
    ]  # fmt: skip


# The price list.


def test_prices_are_old_after_half_a_year(prices):
    assert window.stale(prices, prices.prices_of + datetime.timedelta(days=180)) == ""
    assert "181 days old (limit 180): refresh pipeline/prices.yaml" in window.stale(
        prices, prices.prices_of + datetime.timedelta(days=181)
    )


def test_every_assumption_and_price_names_its_source(prices):
    known = prices.efficiencies
    assert all(getattr(known, field.name).source for field in dataclasses.fields(known))
    assert prices.source and prices.excludes and prices.reduction_server.source
    assert prices.prices_of <= prices.read


def test_four_gpus_in_one_machine_are_within_the_budget(prices):
    assert prices.machines[prices.nvlink].gpus == window.MAX_WORKERS and prices.machines[prices.single].gpus == 1


# A recorded training.


def record(**other):
    """What models/training.py writes, as far as it counts: an image takes 10 ms, frozen 5, of which it waits 1 ms."""
    epochs = {"frozen": [(1, 20.0), (2, 200.0), (3, 200.0)], "unfrozen": [(4, 10.0), (5, 100.0), (6, 100.0)]}
    phases = [
        {"name": name, "epochs": [{"epoch": epoch, "images_per_second": speed} for epoch, speed in measured]}
        for name, measured in epochs.items()
    ]
    return {
        "images_per_second": 90.0, "input_wait_share": 0.1, "examples": {"train": 3600, "val": 400}, "phases": phases,
        "training": {"frozen_epochs": 3, "unfrozen_epochs": 7}, "tensorflow": {"devices": ["CPU", "GPU"]},
    } | other  # fmt: skip


@pytest.fixture
def profile(tmp_path):
    def write(**other):
        (tmp_path / "training.json").write_text(json.dumps(record(**other)))
        return str(tmp_path / "training.json")

    return write


def test_a_profile_gives_hours_wait_budget_and_the_cost_of_a_frozen_step(profile):
    figures = window.read_profile(profile(), images=360_000).figures
    assert figures == pytest.approx({
        "epoch_hours": 1.0, "decode_share": 0.1, "epochs": 10, "frozen_epochs": 3, "unfrozen_epochs": 7,
        "frozen_cost": (0.5 - 0.1) / 0.9, "decode_speedup": 1.0, "gpu_ratio": 1.0, "overlap": False,
    })  # fmt: skip


def test_a_plan_of_a_profile_repeats_what_was_measured(profile, plan):
    option = plan(**window.read_profile(profile(), images=360_000).figures)[0]["as it is", ONE, "3 frozen + 7 full epochs"]
    assert (option.full_hours, option.frozen_hours, option.hours) == pytest.approx((1.0, 0.5, 8.5))


def test_of_several_replicas_one_is_planned_with(profile):
    one, two = window.read_profile(profile()), window.read_profile(profile(replicas=2))
    assert two.figures["epoch_hours"] == 2 * one.figures["epoch_hours"]
    assert {**two.figures, "epoch_hours": 0} == pytest.approx({**one.figures, "epoch_hours": 0})
    assert any("2 replicas trained together" in line for line in two.origin)
    with pytest.raises(PipelineError, match="replicas must be a whole number above 0, not 0"):
        window.read_profile(profile(replicas=0))


def test_without_images_an_epoch_has_those_that_trained(profile):
    assert window.read_profile(profile()).figures["epoch_hours"] == pytest.approx(3600 / 100 / 3600)


def test_a_training_that_froze_nothing_leaves_the_cost_of_frozen_steps_to_the_figures(profile):
    unfrozen = [phase for phase in record()["phases"] if phase["name"] == "unfrozen"]
    assert "frozen_cost" not in window.read_profile(profile(phases=unfrozen)).figures


def test_a_training_without_a_gpu_is_said_to_be_one(profile):
    assert not any("without a GPU" in line for line in window.read_profile(profile()).origin)
    assert "without a GPU" in window.read_profile(profile(tensorflow={"devices": ["CPU"]})).origin[-1]


NO_PROFILES = {
    "no such field": ({"input_wait_share": None}, "input_wait_share must be a share from 0 to 1, not None"),
    "a share that is none": ({"input_wait_share": 34}, "input_wait_share must be a share from 0 to 1, not 34"),
    "a truth for a share": ({"input_wait_share": True}, "input_wait_share must be a share from 0 to 1, not True"),
    "no images": ({"examples": {"train": 0}}, "examples.train must be a whole number above 0, not 0"),
    "examples of another kind": ({"examples": 91}, "examples.train must be a whole number above 0, not None"),
    "no settings": ({"training": []}, "training.frozen_epochs must be a whole number, not None"),
    "no phases": ({"phases": []}, "phases must be a list of phases, not []"),
    "no epochs": ({"phases": [{"name": "unfrozen", "epochs": []}]}, "each of phases must have a name and epochs"),
    "no speed": ({"phases": [{"name": "unfrozen", "epochs": [{"images_per_second": 0}]}]}, "images_per_second above 0"),
    "a word for a speed": ({"phases": [{"name": "u", "epochs": [{"images_per_second": "fast"}]}]}, "each of phases"),
    "phases of another kind": ({"phases": [1]}, "each of phases must have a name"),
    "only frozen": ({"phases": record()["phases"][:1]}, "has no unfrozen phase, only ['frozen']"),
}


@pytest.mark.parametrize("name", NO_PROFILES)
def test_what_is_no_profile_is_refused_with_the_field(profile, name):
    other, words = NO_PROFILES[name]
    path = profile(**other)
    with pytest.raises(PipelineError) as refused:
        window.read_profile(path)
    assert str(refused.value).startswith(path) and words in str(refused.value)


@pytest.mark.parametrize("content", ["no JSON", "[1, 2]", "", "[" * 100_000])
def test_another_file_is_no_profile(tmp_path, content):
    (tmp_path / "other").write_text(content)
    with pytest.raises(PipelineError, match="is no record of a training: .* Name the training.json that a Trainer left"):
        window.read_profile(str(tmp_path / "other"))


def test_a_profile_that_is_not_there(tmp_path):
    with pytest.raises(PipelineError, match="cannot read the profile .*: No such file or directory. Name the"):
        window.read_profile(str(tmp_path / "training.json"))


# Figures that cannot be.

NO_FIGURES = {
    "negative hours": ({"epoch_hours": -3.0}, "hours lie above 0 and up to 100,000: give what was measured, not -3.0"),
    "no number": ({"epoch_hours": float("nan")}, "epoch_hours: hours lie above 0"),
    "endless": ({"window_hours": float("inf")}, "window_hours: hours lie above 0"),
    "percent for a share": ({"decode_share": 40.0}, "decode_share: a share lies between 0 and 1 (40 % is 0.4), not 40.0"),
    "above the budget": ({"max_workers": 5}, "max_workers: the budget is 1 to 4 A100 workers: plan with at most 4, not 5"),
    "no worker": ({"max_workers": 0}, "max_workers: the budget is 1 to 4"),
    "slower shards": ({"decode_speedup": 0.5}, "decode_speedup: lies between 1 (nothing gained) and 1,000"),
    "no GPU": ({"gpu_ratio": 0.0}, "gpu_ratio: lies above 0"),
    "no efficiency": ({"efficiency": 0.0}, "efficiency: a share above 0 and at most 1 (75 % is 0.75), not 0.0"),
    "free frozen steps": ({"frozen_cost": 0.0}, "frozen_cost: a share above 0"),
    "no epoch": ({"epochs": 0}, "epochs: epochs are whole and lie between 1 and 10,000, not 0"),
    "no epoch in the other budget": ({"frozen_epochs": 0, "unfrozen_epochs": 0}, "nothing: give one of them at least 1"),
    "a window that is all reserve": ({"window_hours": 0.5}, "reserve_hours 0.75 leaves nothing of window_hours 0.5"),
    "a slip": ({"epoch_hour": 19.0}, "there is no such setting; did you mean 'epoch_hours'?"),
}


@pytest.mark.parametrize("name", NO_FIGURES)
def test_figures_that_cannot_be_name_field_value_and_remedy(name):
    figures, words = NO_FIGURES[name]
    with pytest.raises(SettingsError) as refused:
        typed.from_dict(Figures, figures, "the command line")
    assert words in str(refused.value)


# The command.


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "training.json").write_text(json.dumps(record()))
    (folder / "figures.yaml").write_text("epoch_hours: 1.9\nmax_workers: 3\n")
    (folder / "figures.json").write_text('{"epoch_hours": 1.9, "max_workers": 3}')
    (folder / "overlap.yaml").write_text("overlap: true\n")
    (folder / "wrong.yaml").write_text("max_workers: 8\n")
    known = window.PRICES.read_text()
    (folder / "prices.yaml").write_text(known.replace("single: a2-highgpu-1g", "single: a3-highgpu-8g"))
    (folder / "swapped.yaml").write_text(known.replace("nvlink: a2-highgpu-4g", "nvlink: a2-highgpu-1g"))
    return folder


COMMANDS = {
    "text": [],
    "json": ["--json"],
    "file": ["--figures", "figures.yaml", "--json"],
    "json file": ["--figures", "figures.json", "--json"],
    "file and flag": ["--figures", "figures.yaml", "--max-workers", "2", "--json"],
    "profile": ["--profile", "training.json", "--images", "360000", "--json"],
    "profile and flag": ["--profile", "training.json", "--gpu-ratio", "2", "--json"],
    "no overlap": ["--no-overlap", "--window-hours", "14", "--json"],
    "nothing fits": ["--window-hours", "2"],
    "nothing fits, json": ["--window-hours", "2", "--json"],
    "two slips": ["--epoch-hours", "-3", "--decode-share", "40"],
    "images alone": ["--images", "5"],
    "no images": ["--profile", "training.json", "--images", "0"],
    "no profile": ["--profile", "figures.yaml"],
    "a wrong file": ["--figures", "wrong.yaml"],
    "no file": ["--figures", "none.yaml"],
    "overlap of a profile": ["--profile", "training.json", "--figures", "overlap.yaml"],
    "prices without a price": ["--prices", "prices.yaml"],
    "prices of other machines": ["--prices", "swapped.yaml"],
    "a word for hours": ["--epoch-hours", "many"],
}


@pytest.fixture(scope="module")
def told(files):
    lines = [["plan", *(str(files / word) if "." in word else word for word in words)] for words in COMMANDS.values()]
    return dict(zip(COMMANDS, answers("pipeline.__main__", lines), strict=True))


def test_a_plan_loads_neither_tensorflow_nor_tfx(told):
    assert [answer.loaded for answer in told.values()] == [[]] * len(told)


def test_the_plan_in_text(told):
    assert (told["text"].status, told["text"].err) == (0, "")
    text = told["text"].out
    assert "4 such GPUs, 78 % efficient: 6.1 h an epoch" in text and "one A100: 6.3 h an epoch" in text
    assert text.count(": does not fit\n") == 2
    assert max(map(len, text.splitlines())) <= 124
    words = next(line for line in text.split("input fixed, 20 frozen")[1].splitlines() if FOUR in line).split()
    assert words == [*FOUR.split(), "1.27", "0.38", "10.1", "$149", "$52", "2.5", "%", "yes"]
    assert "\nFix the input first" in text


def test_the_page_shows_what_the_command_says(told):
    shown = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    today = [line for line in told["text"].out.splitlines() if "days old" not in line]
    assert [line for line in today if line not in shown] == []


def test_the_plan_in_json(told):
    assert (told["json"].status, told["json"].err) == (0, "")
    answer = json.loads(told["json"].out)
    assert answer["figures"]["epoch_hours"] == 19 and len(answer["options"]) == 16
    assert answer["best"] in answer["options"] and answer["best"]["machines"] == NVLINK and answer["best"]["fits"] is True
    assert answer["prices"]["efficiencies"]["nvlink"]["source"].startswith("assumed")
    assert answer["advice"].startswith("Fix the input first")


@pytest.mark.parametrize("name, workers", [("file", 3), ("json file", 3), ("file and flag", 2)])
def test_a_file_overrides_the_case_and_a_flag_the_file(told, name, workers):
    figures = json.loads(told[name].out)["figures"]
    assert (figures["epoch_hours"], figures["max_workers"], figures["decode_share"]) == (1.9, workers, 0.4)


def test_a_profile_overrides_the_case_and_a_flag_the_profile(told):
    measured = json.loads(told["profile"].out)
    assert measured["figures"]["epoch_hours"] == pytest.approx(1.0) and measured["figures"]["gpu_ratio"] == 1
    assert "360,000 images at 100 a second" in measured["origin"][0]
    assert json.loads(told["profile and flag"].out)["figures"]["gpu_ratio"] == 2


def test_without_overlap_input_adds_to_compute(told):
    answer = json.loads(told["no overlap"].out)
    fixed = [one for one in answer["options"] if one["input"] == "fixed" and one["machines"] == FOUR]
    assert fixed[0]["full_hours"] == pytest.approx(1.2667 + 0.38, abs=1e-4)
    assert "faster input is the right lever" in answer["advice"]


@pytest.mark.parametrize("name", ["nothing fits", "nothing fits, json"])
def test_when_nothing_fits_the_plan_is_shown_and_the_status_is_1(told, name):
    answer = told[name]
    assert answer.status == 1 and NVLINK in answer.out
    assert answer.err.startswith("error: nothing up to 4 workers trains within 1.25 h; the fastest, 1 x a2-highgpu-4g")
    assert "takes 9.6 h" in answer.err and "Plan fewer epochs" in answer.err and answer.err.count("\n") == 1
    if "json" in name:
        assert json.loads(answer.out)["best"] is None


REFUSED = {
    "two slips": (2, ["epoch_hours: ", "not -3.0", "decode_share: ", "not 40.0"]),
    "images alone": (2, ["--images 5 needs --profile"]),
    "no images": (2, ["--images 0 must be at least 1"]),
    "no profile": (1, ["figures.yaml is no record of a training", "Name the training.json"]),
    "a wrong file": (2, ["wrong.yaml:", "max_workers: the budget is 1 to 4 A100 workers", "not 8"]),
    "no file": (2, ["none.yaml", "No such file"]),
    "overlap of a profile": (2, ["overlap.yaml", "overlap true does not go with --profile", "drop it"]),
    "prices without a price": (2, ["prices.yaml", "single 'a3-highgpu-8g' has no price: add it to machines"]),
    "prices of other machines": (2, ["nvlink 'a2-highgpu-1g' more: name other machines"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_planned_is_said(told, name):
    status, words = REFUSED[name]
    assert (told[name].status, told[name].out) == (status, "")
    assert told[name].err.startswith("error: ") and all(word in told[name].err for word in words)


def test_a_word_for_a_number_shows_the_usage(told):
    answer = told["a word for hours"]
    assert answer.status == 2 and answer.err.startswith("usage: python -m pipeline plan") and "--epoch-hours" in answer.err


def test_fresh_prices_are_not_complained_of(prices, capsys):
    parser = argparse.ArgumentParser()
    window.add_arguments(parser)
    assert window.plan(parser.parse_args([]), today=prices.prices_of) == 0
    assert "days old" not in capsys.readouterr().out
    window.plan(parser.parse_args([]), today=prices.prices_of + datetime.timedelta(days=200))
    assert "These prices are 200 days old (limit 180): refresh pipeline/prices.yaml" in capsys.readouterr().out


def test_a_plan_waits_for_nothing_heavy():
    script = (
        "import sys; from pipeline.__main__ import main; status = main(['plan']);"
        "print('loaded', sorted({'tensorflow', 'tfx', 'apache_beam', 'numpy', 'google.cloud.aiplatform'} & set(sys.modules)));"
        "sys.exit(status)"
    )
    done = command("-c", script)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "loaded []"

