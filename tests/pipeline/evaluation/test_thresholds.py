"""The thresholds: the committed file, and what is missing, misspelt or contradictory."""

import pytest
import yaml

from pipeline import typed
from pipeline.errors import SettingsError
from pipeline.evaluation.thresholds import Thresholds, kinds
from pipeline.places import PRODUCTION
from pipeline.validation.rules import Limits
from tests.pipeline.conftest import ROOT

FILE = ROOT / "schema" / "release.yaml"


def test_the_committed_thresholds_are_whole_and_travel_as_plain_data():
    thresholds = typed.load(Thresholds, FILE)
    assert typed.from_dict(Thresholds, typed.to_dict(thresholds), "again") == thresholds
    assert list(kinds(thresholds.slices)) == ["label", "source", "size", "new"]


@pytest.mark.parametrize("name", ["gate.yaml", "release.yaml"])
def test_production_has_limits_of_its_own_that_are_nowhere_more_lenient(name):
    kind = {"gate.yaml": Limits, "release.yaml": Thresholds}[name]
    sample, production = (dict(flat(typed.to_dict(typed.load(kind, folder / name)))) for folder in (FILE.parent, PRODUCTION))
    # There are more labels, of more classes, and photographs arrive after their labels: these three let no bad week pass.
    larger = {"max_rows", "max_orphans", "min_class_share"}
    assert sample.keys() == production.keys()
    compared = 0
    for path, limit in production.items():
        least = path.rpartition(".")[2].startswith("min_") or path.startswith("min_split_rows.")
        if path in larger or not (least or path.rpartition(".")[2].startswith("max_") or path.startswith("drift.")):
            continue
        assert limit >= sample[path] if least else limit <= sample[path], f"{path}: {limit}, and {sample[path]} for the sample"
        compared += 1
    assert compared >= 20


def flat(content, path=""):
    for name, value in content.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def leaves(content, path=()):
    for name, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", [path for path in leaves(yaml.safe_load(FILE.read_text())) if path[-1] != "required"])
def test_a_threshold_that_is_missing_is_an_error_and_no_default(tmp_path, path):
    content = yaml.safe_load(FILE.read_text())
    place = content
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    (tmp_path / "release.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(SettingsError, match=rf"(?s)release\.yaml:.*{'.'.join(path)}: this setting is required"):
        typed.load(Thresholds, tmp_path / "release.yaml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"absolute__min_accuracy": 0.9, "absolute__min_top_3_accuracy": 0.5}, "min_top_3_accuracy 0.5 is below"),
        ({"slices__source__min_accuracy": 0.5}, "slices.source.min_accuracy 0.5 is above absolute.min_accuracy 0.0"),
        (
            {"absolute__min_accuracy": 0.5, "absolute__min_top_3_accuracy": 0.5, "slices__label__min_accuracy": 0.4},
            "max_confusion 1.0 is above 1 - slices.label.min_accuracy 0.4",
        ),
        ({"slices__size_edges": [200, 100]}, "size_edges [200, 100] must be one or more numbers of pixels, ascending"),
        ({"slices__size_edges": []}, "ascending"),
        ({"absolute__min_acuracy": 0.5}, "did you mean 'min_accuracy'"),
        ({"comparison__confidence": 1.0}, "comparison.confidence: input should be less than 1, not 1.0"),
    ],
)
def test_thresholds_that_contradict_each_other_are_named(thresholds, changes, words):
    with pytest.raises(SettingsError) as error:
        thresholds(**changes)
    assert words in str(error.value)
