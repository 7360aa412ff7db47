"""Every rule of the gate on both sides of its limit, and what its finding tells."""

import dataclasses
import math

import pytest

from pipeline import typed
from pipeline.errors import SettingsError
from pipeline.validation import rules
from pipeline.validation.rules import OTHER, RULES, Baseline, Confusion, Drift, Facts, Limits, Offenders

LIMITS = Limits(
    min_rows=50,
    max_rows=200,
    max_row_change=0.25,
    min_edits=3,
    max_null_images=1,
    max_null_labels=2,
    max_duplicates=1,
    max_orphans=2,
    max_unknown_labels=3,
    min_class_rows=20,
    min_class_share=0.125,
    min_class_eval_rows=5,
    min_split_rows=rules.SplitRows(train=40, val=10, eval=20),
    max_straddling_groups=1,
    max_class_share_change=0.0625,  # a power of two: shares can lie on it exactly
    max_class_divergence=0.9,
    max_relabelled_share=0.08,
    drift={"label": 0.02, "width": 0.05},
)

GOOD = Facts(
    class_counts={"cup": 60, "hat": 40},
    eval_counts={"cup": 15, "hat": 10},
    split_rows={"train": 65, "val": 10, "eval": 25},
    classes=("cup", "hat"),
    null_images=Offenders(),
    null_labels=Offenders(),
    duplicates=Offenders(),
    orphans=Offenders(),
    straddling=Offenders(),
    baseline=Baseline(
        table="labels_20260302",
        as_of="2026-03-02 00:00 UTC",
        class_counts={"cup": 60, "hat": 40},
        relabelled=0,
        confusions=[],
        common_images=100,
        edits=5,
        newest_edit="2026-03-08 17:05 UTC",
    ),
    schema_anomalies=[],
    drift_anomalies=[],
    drift=[Drift("label", 0.001, 0.02), Drift("width", 0.0125, 0.05)],
)


def judged(limits=LIMITS, **changes) -> dict[str, rules.Finding]:
    """Judges GOOD with these facts; those of a baseline by their own names, and `before` for its class counts."""
    names = {field.name for field in dataclasses.fields(Baseline)} - {"class_counts"} | {"before"}
    of_baseline = {name: value for name, value in changes.items() if name in names}
    facts = {name: value for name, value in changes.items() if name not in names}
    if of_baseline:
        before = of_baseline.pop("before", GOOD.baseline.class_counts)
        facts["baseline"] = dataclasses.replace(GOOD.baseline, class_counts=before, **of_baseline)
    return {finding.rule: finding for finding in rules.judge(dataclasses.replace(GOOD, **facts), limits)}


def failed(limits=LIMITS, **changes) -> list[str]:
    return [rule for rule, finding in judged(limits, **changes).items() if not finding.passed]


def counts(cup, hat):
    return {"cup": cup, "hat": hat}


def some(count):
    return Offenders(count, tuple(f"i{number}: cup, hat" for number in range(min(count, 8))))


def changes(count):
    return {"relabelled": count, "confusions": [Confusion("cup", "hat", count, "i0", f"i{count}")]}


def anomalies(*texts):
    return {"drift_anomalies": list(texts)}


def test_a_good_week_passes_every_rule_in_a_fixed_order():
    assert list(judged()) == list(RULES) and failed() == []


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("min_rows", counts(30, 20), counts(29, 20)),
        ("max_rows", counts(120, 80), counts(121, 80)),
        ("max_row_change", counts(75, 50), counts(75, 51)),
        ("max_row_change", counts(45, 30), counts(45, 29)),
        ("min_class_rows", counts(60, 20), counts(60, 19)),
        ("min_class_rows", counts(20, 60), {"hat": 60}),
        ("min_class_share", counts(140, 20), counts(141, 20)),  # one in eight
        ("min_class_share", {**counts(20, 20), "tie": 120}, {**counts(20, 20), "tie": 121}),
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
    assert "max_class_share_change" not in failed(class_counts=good, before=before)
    assert failed(class_counts=bad, before=before) == ["max_class_share_change"]


@pytest.mark.parametrize(("hats", "passed"), [(20, True), (21, False)])
def test_a_share_that_is_no_binary_fraction_may_lie_on_its_limit(hats, passed):
    limits = dataclasses.replace(LIMITS, max_class_share_change=0.05)
    finding = judged(limits, class_counts=counts(100 - hats, hats), before=counts(85, 15))["max_class_share_change"]
    assert finding.passed is passed


def test_weeks_without_a_common_image_cannot_be_compared():
    finding = judged(common_images=0)["max_relabelled_share"]
    assert not finding.passed and finding.value == "100.0% (0 of 0)"


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("max_relabelled_share", changes(8), changes(9)),
        ("max_relabelled_share", {**changes(2), "common_images": 25}, {**changes(2), "common_images": 24}),
        ("min_edits", {"edits": 3}, {"edits": 2}),
        ("max_null_images", {"null_images": some(1)}, {"null_images": some(2)}),
        ("max_null_labels", {"null_labels": some(2)}, {"null_labels": some(3)}),
        ("max_duplicates", {"duplicates": some(1)}, {"duplicates": some(2)}),
        ("max_orphans", {"orphans": some(2)}, {"orphans": some(3)}),
        ("max_straddling_groups", {"straddling": some(1)}, {"straddling": some(2)}),
        (
            "max_unknown_labels",
            {"class_counts": {**counts(60, 40), "vehical": 2, "Cup": 1}},
            {"class_counts": {**counts(60, 40), "vehical": 2, "Cup": 2}},
        ),
        (
            "min_split_rows",
            {"split_rows": {"train": 40, "val": 10, "eval": 20}},
            {"split_rows": {"train": 40, "val": 10, "eval": 19}},
        ),
        (
            "min_split_rows",
            {"split_rows": {"train": 40, "val": 10, "eval": 20}},
            {"split_rows": {"train": 39, "val": 10, "eval": 20}},
        ),
        (
            "min_split_rows",
            {"split_rows": {"train": 40, "val": 10, "eval": 20}},
            {"split_rows": {"train": 40, "val": 9, "eval": 20}},
        ),
        ("example_validator", {"schema_anomalies": []}, {"schema_anomalies": ["train: label: unexpected"]}),
        ("distribution_validator", anomalies(), anomalies("train_train: label: drifted")),
    ],
)
def test_each_other_rule_on_both_sides_of_its_limit_and_alone(rule, good, bad):
    assert failed(**good) == []
    assert failed(**bad) == [rule]


def test_the_divergence_of_the_classes_on_both_sides_of_its_limit():
    # Half of all labels moves from one class to another: of 1, 1/2 and 0 the divergence is 0.31127...
    figure = rules.jensen_shannon(counts(50, 50), {"cup": 100})
    assert figure == pytest.approx(1 - 0.75 * math.log2(3) + 0.5, abs=1e-12)
    for limit, passed in [(figure, True), (figure - 1e-6, False)]:
        limits = dataclasses.replace(LIMITS, max_class_divergence=limit)
        assert judged(limits, class_counts=counts(50, 50), before={"cup": 100})["max_class_divergence"].passed is passed


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (counts(1, 3), counts(2, 6), 0.0),
        ({"cup": 1}, {"hat": 9}, 1.0),
        (counts(1, 1), {"tie": 1, "tin": 1}, 1.0),
        ({}, {"cup": 1}, 1.0),
        ({"cup": 1}, {}, 1.0),
        ({}, {}, 0.0),
        ({"cup": 0}, {"cup": 3}, 1.0),
    ],
)
def test_the_jensen_shannon_divergence_at_its_ends(one, other, wanted):
    assert rules.jensen_shannon(one, other) == pytest.approx(wanted, abs=1e-12)


def test_the_divergence_is_symmetric_and_sees_what_the_largest_change_does_not():
    before = {f"class{n}": 100 for n in range(20)}
    after = {f"class{n}": 100 + (60 if n % 2 else -60) for n in range(20)}
    assert rules.jensen_shannon(before, after) == pytest.approx(rules.jensen_shannon(after, before))
    limits = dataclasses.replace(LIMITS, max_class_divergence=0.05)
    findings = judged(limits, class_counts=after, before=before)
    assert findings["max_class_share_change"].value == "-3.0% (class0)" and findings["max_class_share_change"].passed
    assert not findings["max_class_divergence"].passed


def test_the_divergence_says_in_words_which_classes_moved_and_how():
    before = {"flower": 212, "produce": 388, "tool": 400}
    after = {"flower": 31, "produce": 569, "tool": 400}
    assert judged(class_counts=after, before=before)["max_class_divergence"].details == (
        "flower: 21.2% of the labels -> 3.1%, -18.1 points",
        "produce: 38.8% of the labels -> 56.9%, +18.1 points",
    )


def test_an_empty_eval_split_is_named_as_such():
    finding = judged(split_rows={"train": 65, "val": 9})["min_split_rows"]
    assert finding.details == ("val: 9, at least 10", "eval is empty: there is nothing to judge the model by")
    assert (finding.value, finding.limit) == ("train 65, val 9, eval 0", "at least train 40, val 10, eval 20")


def test_no_edit_since_the_last_accepted_week_is_told_with_the_newest():
    finding = judged(edits=0)["min_edits"]
    assert not finding.passed and finding.value == "0 since 2026-03-02 00:00 UTC"
    assert finding.details == ("the newest edit is of 2026-03-08 17:05 UTC",) and "export" in finding.remedy


def test_every_divergence_that_tfdv_measured_is_told_beside_its_limit():
    drift = [Drift("label", 0.08471, 0.02), Drift("width", 0.0500004, 0.05)]
    finding = judged(drift=drift, drift_anomalies=["train_train: label: x"])["distribution_validator"]
    assert finding.value == "label 0.0847, width 0.0500004" and finding.limit == "label 0.02, width 0.05"
    assert finding.details == ("train_train: label: x",)
    assert judged(drift=[], drift_anomalies=["nothing written"])["distribution_validator"].value == "1 anomaly"
    alone = judged(dataclasses.replace(LIMITS, drift={}), drift=[])["distribution_validator"]
    assert alone.passed and alone.limit == "no feature is compared"


def test_a_figure_just_above_its_limit_is_not_printed_like_it():
    finding = judged(relabelled=804, common_images=10_000)["max_relabelled_share"]
    assert not finding.passed and (finding.value, finding.limit) == ("8.04% (804 of 10000)", "8.0%")
    limits = dataclasses.replace(LIMITS, min_class_share=0.2)
    share = judged(limits, class_counts=counts(80_004, 20_000))["min_class_share"]
    assert not share.passed and (share.value, share.limit) == ("19.999% (hat)", "at least 20.0%")
    assert judged(relabelled=8)["max_relabelled_share"].value == "8.0% (8 of 100)"


def test_a_class_that_vanished_or_appeared_counts_with_its_whole_share():
    vanished = judged(class_counts={"cup": 100})["max_class_share_change"]
    assert not vanished.passed and vanished.value in ("+40.0% (cup)", "-40.0% (hat)")
    assert set(vanished.details) == {"cup: 60 of 100 -> 100 of 100", "hat: 40 of 100 -> 0 of 100"}
    appeared = judged(class_counts={"cup": 60, "hat": 20, "tie": 20})["max_class_share_change"]
    assert set(appeared.details) == {"hat: 40 of 100 -> 20 of 100", "tie: 0 of 100 -> 20 of 100"}


def test_every_finding_names_value_limit_and_remedy():
    findings = judged(
        dataclasses.replace(LIMITS, max_class_divergence=0.1),
        class_counts={"cup": 10, "vehical": 4},
        eval_counts={},
        split_rows={},
        null_images=some(2),
        null_labels=some(3),
        duplicates=some(2),
        orphans=some(3),
        straddling=some(2),
        edits=2,
        schema_anomalies=["train: x"],
        drift_anomalies=["train: y", "train: z"],
        **changes(9),
    )
    values = {rule: (finding.value, finding.limit) for rule, finding in findings.items()}
    assert values == {
        "min_rows": ("14", "at least 50"),
        "max_rows": ("14", "200"),
        "max_row_change": ("86.0% (100 in labels_20260302, now 14)", "25.0%"),
        "min_edits": ("2 since 2026-03-02 00:00 UTC", "at least 3"),
        "max_class_share_change": ("-40.0% (hat)", "6.25%"),
        "max_class_divergence": (findings["max_class_divergence"].value, "0.1"),
        "max_relabelled_share": ("9.0% (9 of 100)", "8.0%"),
        "max_null_images": ("2", "1"),
        "max_null_labels": ("3", "2"),
        "max_duplicates": ("2", "1"),
        "max_orphans": ("3", "2"),
        "max_unknown_labels": ("4", "3"),
        "min_class_rows": ("0 (hat)", "at least 20"),
        "min_class_share": ("0.0% (hat)", "at least 12.5%"),
        "min_class_eval_rows": ("0 (cup)", "at least 5"),
        "min_split_rows": ("train 0, val 0, eval 0", "at least train 40, val 10, eval 20"),
        "max_straddling_groups": ("2", "1"),
        "example_validator": ("1 anomaly", "0"),
        "distribution_validator": ("label 0.0010, width 0.0125", "label 0.02, width 0.05"),
    }
    assert [rule for rule, finding in findings.items() if finding.passed] == ["max_rows"]
    assert all(finding.remedy for finding in findings.values())


def test_details_name_the_offenders():
    assert judged(orphans=Offenders(1, ("p0l33 (produce)",)))["max_orphans"].details == ("p0l33 (produce)",)
    unknown = judged(class_counts={**counts(60, 40), "vehical": 2})["max_unknown_labels"]
    assert unknown.details == ("'vehical' on 2 image(s)",)
    assert judged(class_counts=counts(60, 3))["min_class_rows"].details == ("hat: 3",)
    assert judged(class_counts=counts(60, 3))["min_class_share"].details == ("hat: 3 of 63",)
    assert judged(schema_anomalies=["val: label: x"])["example_validator"].details == ("val: label: x",)


@pytest.mark.parametrize("label", ["<script>alert(1)</script>", "a\nb", "'; DROP TABLE x; --", "{0}", "%s", "☃", "🦄"])
def test_a_hostile_label_is_told_as_it_is(label):
    confusions = [Confusion(label, "cup", 1, "p1", "p1")]
    findings = judged(class_counts={**counts(60, 40), label: 1}, relabelled=1, confusions=confusions)
    assert findings["max_unknown_labels"].details == (f"{label!r} on 1 image(s)",)
    assert findings["max_relabelled_share"].details == (f"1 image went from {label} to cup (p1)",)


def test_a_long_label_is_shortened_with_its_length():
    label = "x" * 10_000
    confusions = [Confusion(label, "cup", 1, label, label)]
    findings = judged(class_counts={**counts(10, 10), label: 80}, relabelled=1, confusions=confusions)
    texts = [text for finding in findings.values() for text in (finding.value, *finding.details)]
    assert max(map(len, texts)) < 400
    for rule in ("max_unknown_labels", "max_relabelled_share", "max_class_share_change", "max_class_divergence"):
        assert any("x… (10,000 characters)" in text for text in findings[rule].details), rule


def test_no_label_is_a_null_label_and_no_unknown_one():
    findings = judged(class_counts={**counts(60, 40), "": 9, " ": 9}, null_labels=some(18))
    assert findings["max_unknown_labels"].value == "0" and findings["max_null_labels"].value == "18"
    details = judged(class_counts={**counts(60, 20), "": 20})["max_class_divergence"].details
    assert details[0] == "no label (''): 0.0% of the labels -> 20.0%, +20.0 points"


def test_labels_beyond_those_that_are_counted_one_by_one_are_unknown():
    assert judged(class_counts={**counts(60, 40), "tie": 1, OTHER: 3})["max_unknown_labels"].value == "4"


def test_long_lists_are_cut_and_say_so():
    details = judged(orphans=some(11_000_000))["max_orphans"].details
    assert len(details) == 9 and details[-1] == "and 10999992 more"
    assert judged(schema_anomalies=[f"train: {n}" for n in range(9)])["example_validator"].details[-1] == "and 1 more"
    assert len(judged(orphans=some(8))["max_orphans"].details) == 8


def test_confusions_are_told_in_words_with_examples():
    confusions = [
        Confusion("flower", "produce", 21, "p0001-a", "p0165-a"),
        Confusion("coin", "tool", 2, "p0003-a", "p0104-a"),
        Confusion("hat", "cup", 1, "p9", "p9"),
    ]
    assert judged(relabelled=30, confusions=confusions)["max_relabelled_share"].details == (
        "21 images went from flower to produce (such as p0001-a, p0165-a)",
        "2 images went from coin to tool (p0003-a, p0104-a)",
        "1 image went from hat to cup (p9)",
        "and 6 images by rarer changes",
    )


def test_a_bootstrap_passes_what_needs_a_baseline_and_says_so_and_judges_the_rest():
    findings = judged(baseline=None, drift=[], duplicates=some(2))
    assert list(findings) == list(RULES)
    unjudged = [rule for rule, finding in findings.items() if finding.value == "no baseline"]
    assert unjudged == [
        "max_row_change", "min_edits", "max_class_share_change", "max_class_divergence", "max_relabelled_share",
        "distribution_validator",
    ]  # fmt: skip
    assert all(findings[rule].passed and "bootstrap" in findings[rule].limit for rule in unjudged)
    assert not findings["max_duplicates"].passed


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_snapshot_without_rows_is_judged_and_fails(bootstrap):
    broken = failed(class_counts={}, eval_counts={}, split_rows={}, **({"baseline": None} if bootstrap else {}))
    assert {"min_rows", "min_class_rows", "min_class_share", "min_class_eval_rows", "min_split_rows"} <= set(broken)
    assert ("max_row_change" in broken) == ("max_class_divergence" in broken) == (not bootstrap)


def test_a_baseline_without_rows_is_no_division_by_zero():
    assert {"max_row_change", "max_class_share_change", "max_class_divergence"} <= set(failed(before={}))
    assert "max_class_share_change" in failed(before={}, class_counts={})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"min_rows": 300}, ["min_rows 300 exceeds max_rows 200"]),
        (
            {"min_split_rows": {"train": 150, "val": 40, "eval": 11}},
            ["min_split_rows add up to 201, which exceeds max_rows 200: no week could pass"],
        ),
        ({"max_orphans": -1}, ["max_orphans", "-1"]),
        ({"max_relabelled_share": 8}, ["max_relabelled_share", "less than or equal to 1", "8"]),
        ({"max_row_change": float("nan")}, ["max_row_change", "nan"]),
        ({"max_duplicate": 0}, ["max_duplicate", "did you mean 'max_duplicates'?"]),
        ({"max_orphans": "2"}, ["max_orphans", "integer", "'2'"]),
        ({"max_row_change": float("inf")}, ["max_row_change", "finite"]),
        ({"max_class_divergence": 1.5}, ["max_class_divergence", "less than or equal to 1", "1.5"]),
        ({"min_class_share": -0.1}, ["min_class_share", "greater than or equal to 0", "-0.1"]),
        ({"min_edits": -1}, ["min_edits", "-1"]),
        ({"min_split_rows": {"train": 1, "val": 1, "eval": 0}}, ["min_split_rows.eval", "greater than or equal to 1", "0"]),
        ({"min_split_rows": {"train": 1, "val": 1}}, ["min_split_rows.eval: this setting is required"]),
        (
            {"min_split_rows": {"train": 1, "val": 1, "eval": 1, "evil": 1}},
            ["min_split_rows.evil: there is no such setting; did you mean 'eval'?"],
        ),
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
