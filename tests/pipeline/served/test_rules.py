"""The rules of drift: the gate's own figures, limits that are named, and that nothing is passed over in silence."""

import dataclasses
import doctest

import numpy as np
import pytest
import yaml

from pipeline import typed
from pipeline.errors import SettingsError
from pipeline.places import PRODUCTION, SCHEMA
from pipeline.served import rules
from pipeline.served.rules import Facts, Predictions, ServedLimits, Unusable
from pipeline.validation.rules import classes_moved, jensen_shannon

LIMITS = typed.from_dict(
    ServedLimits,
    {
        "min_images": 50, "max_unusable_share": 0.1, "max_class_share_change": 0.1, "max_class_divergence": 0.05,
        "drift": {"confidence": 0.05, "width": 0.05, "height": 0.05, "bytes": 0.05},
    },
    "the test's limits",
)  # fmt: skip
BINS = rules.bin_names(10)


def predictions(cups, hats, sure) -> Predictions:
    return Predictions({"cup": cups, "hat": hats}, dict.fromkeys(BINS, 0) | {BINS[9]: sure, BINS[4]: cups + hats - sure})


NO_DRIFT = Facts(
    now=predictions(50, 50, 80), before=predictions(500, 500, 800), unusable=Unusable({}, ()),
    sizes={"width": 0.0, "height": 0.05, "bytes": 0.01},
)  # fmt: skip


def judged(**changes):
    return {finding.rule: finding for finding in rules.judge(dataclasses.replace(NO_DRIFT, **changes), LIMITS)}


def failed(**changes):
    return [rule for rule, finding in judged(**changes).items() if not finding.passed]


def test_requests_like_the_training_pass_every_rule_a_figure_on_its_limit_too():
    assert tuple(judged()) == rules.RULES and failed() == []
    assert failed(unusable=Unusable({"no JPEG": 11}, ())) == [] and failed(unusable=Unusable({"no JPEG": 12}, ())) != []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"now": predictions(20, 29, 39)}, ["min_images"]),
        ({"now": predictions(61, 39, 80)}, ["max_class_share_change"]),
        ({"now": predictions(95, 5, 80)}, ["max_class_share_change", "max_class_divergence"]),
        ({"now": predictions(50, 50, 20)}, ["drift.confidence"]),
        ({"unusable": Unusable({"no JPEG": 30}, ("a: no JPEG",))}, ["max_unusable_share"]),
        ({"sizes": {"width": 0.06, "height": 0.0, "bytes": 0.0}}, ["drift.width"]),
        ({"sizes": {"width": 0.0, "height": 0.06, "bytes": 0.06}}, ["drift.height", "drift.bytes"]),
    ],
)
def test_each_rule_fails_by_its_own_figure(changes, expected):
    assert failed(**changes) == expected
    assert all(judged(**changes)[rule].remedy for rule in expected)


def test_classes_are_judged_as_the_gate_judges_them():
    now = predictions(95, 5, 80)
    share, divergence = classes_moved(now.classes, NO_DRIFT.before.classes, 0.1, 0.05, "predictions", ("", ""))
    found = judged(now=now)
    assert found["max_class_share_change"].value == share.value == "-45.0% (hat)"
    assert found["max_class_divergence"].value.startswith(divergence.value + " (by chance")
    assert "cup: 500 of 1000 -> 95 of 100" in found["max_class_share_change"].details


def test_what_was_not_measured_has_failed():
    assert failed(sizes={"width": 0.0}) == ["drift.height", "drift.bytes"]
    assert judged(sizes={})["drift.bytes"].value == "not measured"
    nothing = judged(now=predictions(0, 0, 0), unusable=Unusable({"no JPEG": 60}, ()))
    assert [finding.passed for finding in nothing.values()] == [False] * 8
    assert [finding.value for finding in nothing.values()][2:] == ["not judged"] * 6


def test_every_unusable_request_is_counted_and_the_first_are_named():
    unusable = Unusable({"no JPEG": 18, "no JSON": 2}, ("a.jpg: no JPEG", "b.jsonl:7: no JSON"))
    finding = judged(unusable=unusable)["max_unusable_share"]
    assert finding.value == "16.7% (20 of 120)" and finding.details == ("a.jpg: no JPEG", "b.jsonl:7: no JSON", "and 18 more")


def test_chance_is_what_chance_does():
    """Against the mean of many draws from one distribution."""
    random = np.random.default_rng(0)
    shares = np.array([0.3, 0.25, 0.2, 0.15, 0.1])

    def counts(size):
        return dict(enumerate(random.multinomial(size, shares).tolist()))

    for one, other in [(2000, 2000), (200, 500), (100, 100)]:
        mean = np.mean([jensen_shannon(counts(one), counts(other)) for _ in range(2000)])
        assert rules.by_chance(5, one, other) == pytest.approx(mean, rel=0.08)
    assert rules.by_chance(5, 0, 9) == 1.0


def test_names_are_on_one_line():
    assert rules.described("a\nb\x1b[2J" + "x" * 500, "bad\n") == r"a\nb\x1b[2J" + "x" * 73 + r"… (507 characters): bad\n"


@pytest.mark.parametrize("folder", [SCHEMA, PRODUCTION])
def test_the_committed_limits_are_whole_and_a_missing_one_is_named(folder, tmp_path):
    content = yaml.safe_load((folder / "served.yaml").read_text())
    typed.load(ServedLimits, folder / "served.yaml")
    for path in [*content, *(f"drift.{name}" for name in content["drift"])]:
        changed = yaml.safe_load((folder / "served.yaml").read_text())
        place = changed["drift"] if "." in path else changed
        del place[path.rpartition(".")[2]]
        (tmp_path / "served.yaml").write_text(yaml.safe_dump(changed))
        with pytest.raises(SettingsError, match=rf"served\.yaml:\n  {path}: this setting is required"):
            typed.load(ServedLimits, tmp_path / "served.yaml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"min_images": 0}, "min_images"), ({"max_unusable_share": 2}, "max_unusable_share"), ({"max_widht": 1}, "no such setting")],
)
def test_limits_that_cannot_be_are_named(changes, words):
    with pytest.raises(SettingsError, match=words):
        typed.from_dict(ServedLimits, {**typed.to_dict(LIMITS), **changes}, "served.yaml")


def test_production_is_stricter_than_the_sample():
    sample, production = (typed.load(ServedLimits, folder / "served.yaml") for folder in (SCHEMA, PRODUCTION))
    assert production.min_images > sample.min_images and production.max_unusable_share <= sample.max_unusable_share
    assert production.max_class_share_change < sample.max_class_share_change
    assert production.max_class_divergence < sample.max_class_divergence
    assert all(getattr(production.drift, name) < getattr(sample.drift, name) for name in ("confidence", *rules.SIZES))


def test_the_doctests_hold():
    found = doctest.testmod(rules)
    assert found.attempted >= 2 and not found.failed
