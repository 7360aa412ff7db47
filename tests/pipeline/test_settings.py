"""Settings files: what they may say, and what is said when they are wrong."""

import pathlib

import pytest
import yaml

from pipeline import settings, typed
from pipeline.errors import SettingsError
from pipeline.validation.rules import Limits

ROOT = pathlib.Path(__file__).parents[2]
LOCAL = settings.CONFIGS / "local.yaml"


def changed(tmp_path, **groups):
    """local.yaml with some fields set otherwise, as a new file."""
    content = yaml.safe_load(LOCAL.read_text())
    for group, fields in groups.items():
        if isinstance(fields, dict):
            content.setdefault(group, {}).update(fields)
        else:
            content[group] = fields
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_week_that_would_search_days_before_the_monthly_schedule_is_refused(tmp_path):
    content = yaml.safe_load((settings.CONFIGS / "vertex.yaml").read_text())
    path = tmp_path / "settings.yaml"

    def load(weeks, monthly):
        content["retune"]["every_weeks"], content["vertex"]["schedule"]["monthly"] = weeks, monthly
        path.write_text(yaml.safe_dump(content))
        return settings.load(path)

    with pytest.raises(SettingsError, match=r"retune\.every_weeks 4 .*vertex\.schedule\.monthly '0 20 1 \* \*'.* set it to 5"):
        load(4, "0 20 1 * *")
    assert load(4, "").retune.every_weeks == 4 and load(0, "0 20 1 * *") and load(5, "0 20 1 * *")


def test_the_committed_files_load():
    assert settings.load(LOCAL).warehouse.kind == "duckdb"
    assert settings.load(settings.CONFIGS / "vertex.yaml").warehouse.kind == "bigquery"
    assert typed.load(Limits, ROOT / "schema" / "gate.yaml").max_orphans == 0


def test_plain_data_makes_the_same_settings_again():
    loaded = settings.load(LOCAL)
    assert typed.from_dict(settings.Settings, typed.to_dict(loaded), "again") == loaded


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"shards": {"shortside": 3}}, ["shards.shortside", "no such setting", "short_side", "3"]),
        ({"shardz": {"x": 1}}, ["shardz", "no such setting", "shards"]),
        ({"shards": {"short_side": "112"}}, ["shards.short_side", "whole number", "original", "'112'"]),
        ({"shards": {"short_side": 15}}, ["shards.short_side", "from 16 to 2048", "15"]),
        ({"shards": {"short_side": True}}, ["shards.short_side", "True"]),
        ({"shards": {"readers": 0}}, ["shards.readers", "0"]),
        ({"splits": {"train": 1.5}}, ["splits.train", "less than 1", "1.5"]),
        ({"splits": {"train": 0.9, "val": 0.2}}, ["splits", "leave a share for eval", "0.9 + 0.2"]),
        ({"splits": {"salt": "'; DROP TABLE labels; --"}}, ["splits.salt", "pattern"]),
        ({"name": "Capital Letters"}, ["name", "pattern", "'Capital Letters'"]),
        ({"warehouse": {"kind": "oracle"}}, ["warehouse.kind", "'duckdb' or 'bigquery'", "'oracle'"]),
        ({"warehouse": {"kind": "bigquery"}}, ["warehouse", "project"]),
        ({"training": {"batch_size": 0}}, ["training.batch_size", "0"]),
        ({"training": {"learning_rate": -1.0}}, ["training.learning_rate", "-1.0"]),
        ({"retune": {"every_weeks": -1}}, ["retune.every_weeks", "-1"]),
        ({"retune": {"max_drop": 2}}, ["retune.max_drop", "less than or equal to 1", "2"]),
        ({"retune": {"every_weeks": 6}}, ["retune.every_weeks 6 exceeds retune.warn_after_weeks 5"]),
        ({"network": {"image_size": 224}}, ["image_size 224", "short_side"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value(tmp_path, groups, words):
    path = changed(tmp_path, **groups)
    with pytest.raises(SettingsError) as raised:
        settings.load(path)
    for word in [str(path), *words]:
        assert word in str(raised.value)


def test_events_are_not_asked_for_where_no_run_of_this_machine_ends():
    content = typed.to_dict(settings.load(settings.CONFIGS / "vertex.yaml")) | {"lineage": {"openlineage": True}}
    with pytest.raises(SettingsError, match="lineage.openlineage is for runs on this machine.*audit export"):
        typed.from_dict(settings.Settings, content, "vertex.yaml")


def test_every_wrong_field_is_named_at_once(tmp_path):
    path = changed(tmp_path, shards={"quality": 3}, splits={"val": 0})
    with pytest.raises(SettingsError, match=r"(?s)shards\.quality.*splits\.val"):
        settings.load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: [", "not valid YAML"), ("- 1", "mapping"), ("", "required"), ("name: x", "warehouse: this setting is required")],
)
def test_a_file_that_is_no_settings_file(tmp_path, text, words):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        settings.load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        settings.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(("short_side", "wanted"), [(112, 112), ("original", 110)])
def test_the_centre_is_cropped_from_the_stored_side_or_from_8_7_of_the_networks(tmp_path, short_side, wanted):
    loaded = settings.load(changed(tmp_path, shards={"short_side": short_side}))
    assert loaded.network.image_size == 96 and loaded.short_side == wanted


def test_other_workers_than_the_file_s_are_checked_as_the_file_is():
    given = settings.load(settings.CONFIGS / "local.yaml")
    assert settings.with_workers(given, 2).training.workers == 2
    with pytest.raises(SettingsError, match="(?s)--workers 5.*training.workers 5 must be 1 to 4"):
        settings.with_workers(given, 5)


def test_what_a_study_may_choose_must_be_trainable_on_all_workers():
    given = typed.to_dict(settings.load(settings.CONFIGS / "local.yaml"))
    given["training"]["workers"], given["tuning"]["batch_size"] = 2, [8, 15]
    with pytest.raises(SettingsError, match="tuning.batch_size 15 does not divide over training.workers 2"):
        typed.from_dict(settings.Settings, given, "test")
