"""A mapping becomes a tree of frozen dataclasses, or an error that names every field that does not fit."""

import dataclasses
from typing import Literal

import pydantic
import pytest

from pipeline import typed
from pipeline.errors import SettingsError


@typed.frozen
class Leaf:
    """A small part."""

    size: int = pydantic.Field(default=1, ge=1)
    share: float = 0.5
    kinds: tuple[int, ...] = (1, 2)


@typed.frozen
class Tree:
    """The whole."""

    name: str
    shape: Literal["round", "tall"] = "tall"
    leaf: Leaf = pydantic.Field(default_factory=Leaf)
    limits: dict[str, float] = pydantic.Field(default_factory=dict)
    tall: bool = False

    def __post_init__(self):
        if self.name == self.shape:
            raise ValueError(f"name and shape are both {self.name!r}")


def error(content) -> str:
    with pytest.raises(SettingsError) as raised:
        typed.from_dict(Tree, content, "there")
    return str(raised.value)


def test_what_is_left_out_has_its_default():
    assert typed.from_dict(Tree, {"name": "oak"}, "there") == Tree(name="oak", shape="tall", leaf=Leaf(), limits={}, tall=False)


def test_there_and_back():
    tree = Tree(name="oak", leaf=Leaf(size=3, kinds=(7,)), limits={"a": 0.5})
    assert typed.from_dict(Tree, typed.to_dict(tree), "there") == tree


def test_lists_fill_tuples_and_whole_numbers_floats():
    leaf = typed.from_dict(Tree, {"name": "oak", "leaf": {"kinds": [3, 4], "share": 1}}, "there").leaf
    assert leaf.kinds == (3, 4) and leaf.share == 1.0 and isinstance(leaf.share, float)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"name": "oak", "leaf": {"size": "3"}}, "leaf.size: input should be a valid integer, not '3'"),
        ({"name": "oak", "leaf": {"size": 3.0}}, "leaf.size: input should be a valid integer, not 3.0"),
        ({"name": "oak", "leaf": {"size": True}}, "leaf.size: input should be a valid integer, not True"),
        ({"name": "oak", "leaf": {"size": None}}, "leaf.size: input should be a valid integer, not None"),
        ({"name": "oak", "leaf": {"size": 0}}, "leaf.size: input should be greater than or equal to 1, not 0"),
        ({"name": "oak", "leaf": {"kinds": [1, "2"]}}, "leaf.kinds.1: input should be a valid integer, not '2'"),
        ({"name": "oak", "limits": {"a": "much"}}, "limits.a: input should be a valid number, not 'much'"),
        ({"name": "oak", "tall": "yes"}, "tall: input should be a valid boolean, not 'yes'"),
        ({"name": 7}, "name: input should be a valid string, not 7"),
        ({"name": "oak", "shape": "flat"}, "shape: input should be 'round' or 'tall', not 'flat'"),
        ({"name": "oak", "leaf": [1]}, "leaf: "),
        ({}, "name: this setting is required"),
        ({"name": "round", "shape": "round"}, "name and shape are both 'round'"),
        ({"name": "oak", "leef": {}}, "leef: there is no such setting; did you mean 'leaf'? (its value was {})"),
        ({"name": "oak", "leaf": {"sise": 4}}, "leaf.sise: there is no such setting; did you mean 'size'? (its value was 4)"),
        ({"name": "oak", "leaf": {"zzz": 4}}, "leaf.zzz: there is no such setting (its value was 4)"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_its_value(content, words):
    text = error(content)
    assert text.startswith("there:\n  ") and words in text


def test_every_wrong_field_has_a_line():
    assert len(error({"nam": "oak", "leaf": {"size": 0, "share": "x"}}).splitlines()) == 5


def test_a_date_of_yaml_is_no_text(tmp_path):
    path = tmp_path / "tree.yaml"
    path.write_text("name: oak\nleaf: {size: 2026-03-02}")
    with pytest.raises(SettingsError, match="leaf.size: input should be a valid integer, not '2026-03-02'"):
        typed.load(Tree, path)


@pytest.mark.parametrize("text", ["2026-03-02: oak", "name: oak\nlimits: &self {a: *self}", "name: &self [*self]"])
def test_yaml_that_no_setting_can_hold_is_told_with_its_file(tmp_path, text):
    path = tmp_path / "tree.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="tree.yaml holds what no setting can: "):
        typed.load(Tree, path)


@pytest.mark.parametrize("text", ["name: 2026-13-01", "name: " + "[" * 5000])
def test_yaml_that_cannot_be_parsed_is_told_with_its_file(tmp_path, text):
    path = tmp_path / "tree.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="tree.yaml is not valid YAML: "):
        typed.load(Tree, path)


def test_settings_cannot_be_changed_by_accident():
    tree = Tree(name="oak")
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.name = "elm"
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.leaf.size = 2


def test_the_file_stands_in_the_error(tmp_path):
    path = tmp_path / "tree.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot read the settings file .*tree.yaml"):
        typed.load(Tree, path)
    path.write_text("name: oak\ntal: true")
    with pytest.raises(SettingsError, match=r"(?s)tree.yaml:.*tal: there is no such setting; did you mean 'tall'"):
        typed.load(Tree, path)
