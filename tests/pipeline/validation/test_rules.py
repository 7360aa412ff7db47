"""Every rule of the gate on both sides of its limit, and what its finding tells."""

import dataclasses

import pytest

from pipeline import typed
from pipeline.errors import SettingsError
from pipeline.validation import rules
from pipeline.validation.rules import Facts, Limits

LIMITS = Limits(
    min_rows=50,
    max_rows=200,
    max_row_change=0.25,
    max_duplicates=1,
    max_orphans=2,
    max_unknown_labels=3,
    min_class_rows=20,
    min_class_eval_rows=5,
    max_class_share_change=0.0625,  # a power of two: shares can lie on it exactly
    max_relabelled_share=0.08,
)

GOOD = Facts(
    class_counts={"cup": 60, "hat": 40},
    eval_counts={"cup": 15, "hat": 10},
    classes=("cup", "hat"),
    duplicates=[],
    orphans=[],
    unknown=[],
    relabelled=[],
    baseline_counts={"cup": 60, "hat": 40},
    baseline_table="labels_20260302",
    common_images=100,
    schema_anomalies=[],
    drift_anomalies=[],
)

RULES = [
    "min_rows, max_rows",
    "max_row_change",
    "max_class_share_change",
    "max_relabelled_share",
    "max_duplicates",
    "max_orphans",
    "max_unknown_labels",
    "min_class_rows",
    "min_class_eval_rows",
    "example_validator",
    "distribution_validator",
]


def judged(limits=LIMITS, **changes) -> dict[str, rules.Finding]:
    return {finding.rule: finding for finding in rules.judge(dataclasses.replace(GOOD, **changes), limits)}


def failed(limits=LIMITS, **changes) -> list[str]:
    return [rule for rule, finding in judged(limits, **changes).items() if not finding.passed]


def counts(cup, hat):
    return {"cup": cup, "hat": hat}


def pairs(count):
    return [(f"i{number}", "cup, hat") for number in range(count)]


def changes(count):
    return [(f"i{number}", "cup", "hat") for number in range(count)]


def test_a_good_week_passes_every_rule_in_a_fixed_order():
    assert list(judged()) == RULES and failed() == []


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("min_rows, max_rows", counts(30, 20), counts(29, 20)),
        ("min_rows, max_rows", counts(120, 80), counts(121, 80)),
        ("max_row_change", counts(75, 50), counts(75, 51)),
        ("max_row_change", counts(45, 30), counts(45, 29)),
        ("min_class_rows", counts(60, 20), counts(60, 19)),
        ("min_class_rows", counts(20, 60), {"hat": 60}),
    ],
)
def test_numbers_of_labels_on_both_sides_of_the_limit(rule, good, bad):
    assert rule not in failed(class_counts=good)
    assert rule in failed(class_counts=bad)


@pytest.mark.parametrize(("good", "bad"), [(counts(5, 90), counts(4, 90)), (counts(90, 5), {"cup": 90})])
def test_eval_labels_of_a_class_on_both_sides_of_the_limit(good, bad):
    assert failed(eval_counts=good) == []
    assert failed(eval_counts=bad) == ["min_class_eval_rows"]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (counts(72, 56), counts(73, 55)),  # 64 -> 72 of 128 is the limit: 1/16
        (counts(56, 72), counts(55, 73)),
    ],
)
def test_the_share_of_a_class_on_both_sides_of_the_limit(good, bad):
    before = counts(64, 64)
    assert "max_class_share_change" not in failed(class_counts=good, baseline_counts=before)
    assert failed(class_counts=bad, baseline_counts=before) == ["max_class_share_change"]


@pytest.mark.parametrize(("hats", "passed"), [(20, True), (21, False)])
def test_a_share_that_is_no_binary_fraction_may_lie_on_its_limit(hats, passed):
    limits = dataclasses.replace(LIMITS, max_class_share_change=0.05)
    finding = judged(limits, class_counts=counts(100 - hats, hats), baseline_counts=counts(85, 15))["max_class_share_change"]
    assert finding.passed is passed


def test_weeks_without_a_common_image_cannot_be_compared():
    finding = judged(common_images=0)["max_relabelled_share"]
    assert not finding.passed and finding.value == "100.0% (0 of 0)"


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("max_relabelled_share", {"relabelled": changes(8)}, {"relabelled": changes(9)}),
        (
            "max_relabelled_share",
            {"relabelled": changes(2), "common_images": 25},
            {"relabelled": changes(2), "common_images": 24},
        ),
        ("max_duplicates", {"duplicates": pairs(1)}, {"duplicates": pairs(2)}),
        ("max_orphans", {"orphans": pairs(2)}, {"orphans": pairs(3)}),
        ("max_unknown_labels", {"unknown": [("vehical", 2), ("Cup", 1)]}, {"unknown": [("vehical", 2), ("Cup", 2)]}),
        ("example_validator", {"schema_anomalies": []}, {"schema_anomalies": ["train: label: unexpected"]}),
        ("distribution_validator", {"drift_anomalies": []}, {"drift_anomalies": ["train_train: label: drifted"]}),
    ],
)
def test_each_other_rule_on_both_sides_of_its_limit_and_alone(rule, good, bad):
    assert failed(**good) == []
    assert failed(**bad) == [rule]


def test_a_class_that_vanished_or_appeared_counts_with_its_whole_share():
    vanished = judged(class_counts={"cup": 100})["max_class_share_change"]
    assert not vanished.passed and vanished.value in ("+40.0% (cup)", "-40.0% (hat)")
    assert set(vanished.details) == {"cup: 60 of 100 -> 100 of 100", "hat: 40 of 100 -> 0 of 100"}
    appeared = judged(class_counts={"cup": 60, "hat": 20, "tie": 20})["max_class_share_change"]
    assert set(appeared.details) == {"hat: 40 of 100 -> 20 of 100", "tie: 0 of 100 -> 20 of 100"}


def test_every_finding_names_value_limit_and_remedy():
    findings = judged(
        class_counts={"cup": 10},
        eval_counts={},
        duplicates=pairs(2),
        orphans=pairs(3),
        unknown=[("vehical", 4)],
        relabelled=changes(9),
        schema_anomalies=["train: x"],
        drift_anomalies=["train: y", "train: z"],
    )
    values = {rule: (finding.value, finding.limit) for rule, finding in findings.items()}
    assert values == {
        "min_rows, max_rows": ("10", "50 to 200"),
        "max_row_change": ("90.0% (100 in labels_20260302, now 10)", "25.0%"),
        "max_class_share_change": (findings["max_class_share_change"].value, "6.2%"),
        "max_relabelled_share": ("9.0% (9 of 100)", "8.0%"),
        "max_duplicates": ("2", "1"),
        "max_orphans": ("3", "2"),
        "max_unknown_labels": ("4", "3"),
        "min_class_rows": ("0 (hat)", "at least 20"),
        "min_class_eval_rows": ("0 (cup)", "at least 5"),
        "example_validator": ("1 anomalies", "0"),
        "distribution_validator": ("2 anomalies", "0"),
    }
    assert all(not finding.passed and finding.remedy for finding in findings.values())


def test_details_name_the_offenders():
    assert judged(orphans=[("p0l33", "produce")])["max_orphans"].details == ("p0l33 (produce)",)
    assert judged(duplicates=[("p1", "cup, hat")])["max_duplicates"].details == ("p1: cup, hat",)
    assert judged(unknown=[("vehical", 2)])["max_unknown_labels"].details == ("'vehical' on 2 image(s)",)
    assert judged(class_counts=counts(60, 3))["min_class_rows"].details == ("hat: 3",)
    assert judged(schema_anomalies=["val: label: x"])["example_validator"].details == ("val: label: x",)


@pytest.mark.parametrize("label", ["<script>alert(1)</script>", "a\nb", "'; DROP TABLE x; --", "{0}", "%s", "☃"])
def test_a_hostile_label_is_told_as_it_is(label):
    findings = judged(unknown=[(label, 1)], orphans=[("p1", label)], class_counts={**counts(60, 40), label: 1})
    assert findings["max_unknown_labels"].details == (f"{label!r} on 1 image(s)",)
    assert findings["max_orphans"].details == (f"p1 ({label})",)


def test_long_lists_are_cut_and_say_so():
    details = judged(orphans=pairs(20))["max_orphans"].details
    assert len(details) == 9 and details[-1] == "and 12 more"
    assert judged(schema_anomalies=[f"train: {n}" for n in range(9)])["example_validator"].details[-1] == "and 1 more"
    assert len(judged(orphans=pairs(8))["max_orphans"].details) == 8


def test_the_commonest_confusion_comes_first():
    relabelled = [("a", "cup", "hat"), ("b", "hat", "cup"), ("c", "hat", "cup")]
    assert judged(relabelled=relabelled)["max_relabelled_share"].details == ("hat -> cup: 2", "cup -> hat: 1")


def test_a_bootstrap_passes_what_needs_a_baseline_and_says_so_and_judges_the_rest():
    findings = judged(baseline_counts=None, baseline_table=None, common_images=0, duplicates=pairs(2))
    assert list(findings) == RULES
    for rule in ("max_row_change", "max_class_share_change", "max_relabelled_share"):
        assert findings[rule].passed and findings[rule].value == "no baseline" and "bootstrap" in findings[rule].limit
    assert not findings["max_duplicates"].passed


@pytest.mark.parametrize("baseline", [None, counts(60, 40)])
def test_a_snapshot_without_rows_is_judged_and_fails(baseline):
    broken = failed(class_counts={}, eval_counts={}, baseline_counts=baseline)
    assert {"min_rows, max_rows", "min_class_rows", "min_class_eval_rows"} <= set(broken)
    assert ("max_row_change" in broken) == (baseline is not None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"min_rows": 300}, ["min_rows 300 exceeds max_rows 200"]),
        ({"max_orphans": -1}, ["max_orphans", "-1"]),
        ({"max_relabelled_share": 8}, ["max_relabelled_share", "less than or equal to 1", "8"]),
        ({"max_row_change": float("nan")}, ["max_row_change", "nan"]),
        ({"max_duplicate": 0}, ["max_duplicate", "did you mean 'max_duplicates'?"]),
        ({"max_orphans": "2"}, ["max_orphans", "integer", "'2'"]),
        ({"max_row_change": float("inf")}, ["max_row_change", "finite"]),
        ({"drift": {"label": 1.01}}, ["drift.label", "less than or equal to 1", "1.01"]),
        ({"drift": {"label": -0.01}}, ["drift.label", "greater than or equal to 0", "-0.01"]),
        ({"drift": {"label": "little"}}, ["drift.label", "number", "'little'"]),
    ],
)
def test_a_limit_that_cannot_be_is_named_with_its_value(fields, words):
    with pytest.raises(SettingsError) as raised:
        typed.from_dict(Limits, {**typed.to_dict(LIMITS), **fields}, "gate.yaml")
    for word in ["gate.yaml", *words]:
        assert word in str(raised.value)


def test_a_limit_that_is_left_out_is_asked_for():
    limits = typed.to_dict(LIMITS)
    del limits["max_orphans"]
    with pytest.raises(SettingsError, match="max_orphans: this setting is required"):
        typed.from_dict(Limits, limits, "gate.yaml")
