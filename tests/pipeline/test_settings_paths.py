"""Paths in a settings file: a backbone is found from wherever the command is given."""

import pytest
import yaml

from pipeline import settings
from tests.pipeline.conftest import ROOT


def loaded(tmp_path, backbone) -> str:
    content = yaml.safe_load((settings.CONFIGS / "local.yaml").read_text())
    content["training"]["backbone"] = backbone
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(content))
    return settings.load(path).training.backbone


def test_a_relative_backbone_is_meant_from_the_projects_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert loaded(tmp_path, "data/sample/backbone.npz") == str(ROOT / "data" / "sample" / "backbone.npz")


@pytest.mark.parametrize("backbone", ["/models/backbone.npz", "gs://bucket/backbone.npz"])
def test_any_other_backbone_stays_as_it_is(tmp_path, backbone):
    assert loaded(tmp_path, backbone) == backbone


def test_a_relative_backbone_changes_nothing_else(tmp_path):
    content = yaml.safe_load((settings.CONFIGS / "local.yaml").read_text())
    path = settings.load(settings.CONFIGS / "local.yaml")
    assert path.training.batch_size == content["training"]["batch_size"] and path.name == content["name"]
