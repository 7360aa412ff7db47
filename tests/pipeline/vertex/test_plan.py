"""Whether a training fits its window, by what the newest recorded one measured."""

import dataclasses
import json

import pytest

from pipeline.errors import PipelineError
from pipeline.release import profiles
from pipeline.release.profiles import Newest
from pipeline.vertex import plan
from tests.pipeline.vertex.conftest import loaded


def record(tmp_path, images_per_second: float) -> str:
    path = tmp_path / "training.json"
    epochs = [{"images_per_second": images_per_second}]
    path.write_text(json.dumps({
        "input_wait_share": 0.0, "examples": {"train": 3_600_000}, "training": {"frozen_epochs": 0, "unfrozen_epochs": 30},
        "phases": [{"name": "unfrozen", "epochs": epochs}], "replicas": 1,
    }))  # fmt: skip
    return str(path)


# 3.6 million photographs at 1,000 a second are an hour; on 4 A100s at 75 % of their speed a third of it.
@pytest.mark.parametrize(
    ("speed", "changes", "hours", "fits"),
    [
        (1000, {}, "10.0", True),  # of the 11.25 that the window leaves
        (800, {}, "12.5", False),
        (800, {"window_hours": 14.0}, "12.5", True),
        (800, {"training__reduction_server": {"image": f"x@sha256:{'0' * 64}"}}, "11.0", True),  # 85 %
    ],
)
def test_what_was_measured_is_set_against_the_window(tmp_path, speed, changes, hours, fits):
    told, found = plan.judge(loaded(store=str(tmp_path / "store"), **changes), record(tmp_path, speed))
    assert f"30 full epochs on 4 x a2-highgpu-1g take {hours} h" in told and found == fits
    assert told.endswith("it fits" if fits else "it does not fit")


def test_one_machine_of_four_is_faster_than_four_of_one(tmp_path):
    settings = loaded(training__machine="a2-highgpu-1g", store=str(tmp_path / "store"))
    together = dataclasses.replace(
        settings,
        training=dataclasses.replace(settings.training, workers=1),
        vertex=dataclasses.replace(
            settings.vertex, training=dataclasses.replace(settings.vertex.training, machine="a2-highgpu-4g")
        ),
    )
    told, fits = plan.judge(together, record(tmp_path, 800))
    assert "on 1 x a2-highgpu-4g take 9.9 h" in told and fits


def test_the_newest_recorded_training_is_found_by_its_pointer(tmp_path):
    settings = loaded(store=str(tmp_path))
    told, fits = plan.judge(settings)
    assert fits and told.startswith("not planned: no training is recorded in") and str(tmp_path) in told
    pointer = str(tmp_path / "profiles" / "newest.json")
    profiles.record(pointer, Newest("run-2", "2026-03-09", record(tmp_path, 800)))
    profiles.record(pointer, Newest("run-1", "2026-03-02", "/of/an/older/week"))  # which ran later
    told, fits = plan.judge(settings)
    assert "training.json: 30 full epochs" in told and not fits
    (tmp_path / "profiles" / "newest.json").write_text("{}")
    with pytest.raises(PipelineError, match="points to no training .* --profile"):
        plan.judge(settings)


def test_without_a_window_everything_fits(tmp_path):
    told, fits = plan.judge(loaded(window_hours=0.0), record(tmp_path, 1))
    assert fits and "no window" in told


def test_a_record_that_is_gone_is_named(tmp_path):
    with pytest.raises(PipelineError, match="cannot read the profile /gone.json"):
        plan.judge(loaded(store=str(tmp_path)), "/gone.json")
