"""The gate's report: for a terminal, for a browser, for machines."""

import dataclasses
import html.parser
import json

import pytest

from pipeline.validation import report, rules
from pipeline.validation.histograms import Histogram
from pipeline.validation.rules import Confusion, Offenders
from pipeline.validation.verdict import Override, Verdict
from tests.pipeline.validation.test_rules import GOOD, LIMITS

SNAPSHOT = {
    "table": "labels_20260309",
    "date": "2026-03-09",
    "as_of": "2026-03-09T00:00:00+00:00",
    "checksum": "0123456789abcdef" * 4,
    "table_uri": "duckdb:w#labels_20260309",
    "rows": 100,
}

HOSTILE = "<script>alert(\"1\")</script> & 'é'"
BAD = dataclasses.replace(
    GOOD,
    class_counts={"cup": 60, "hat": 36, HOSTILE: 4},
    orphans=Offenders(3, tuple(f"p{number} ({HOSTILE})" for number in range(3))),
    schema_anomalies=[f"train: label: {HOSTILE}"],
    baseline=dataclasses.replace(GOOD.baseline, relabelled=2, confusions=[Confusion(HOSTILE, "cup", 2, "p1", HOSTILE)]),
)
NOW = {
    "width": Histogram([(300, 400, 60), (400, 500, 40)], 100, 300, 390, 395.5, 500),
    "bytes": Histogram([(7, 7, 100)], 100, 7, 7, 7, 7),
}
BEFORE = {"width": Histogram([(250, 350, 10), (350, 450, 80)], 90, 250, 380, 381, 450)}


class Page(html.parser.HTMLParser):
    """Tags and text of a page as a browser reads it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def decided(facts, *overridden, by="ana", reason="the catalogue doubled") -> Verdict:
    return Verdict(rules.judge(facts, LIMITS), Override(overridden, by, reason) if overridden else None)


def written(folder, facts, verdict=None, run_id="20260309-x", now=NOW, before=BEFORE) -> tuple[dict, Page]:
    report.write(str(folder), run_id, SNAPSHOT, facts, verdict or decided(facts), now, before)
    assert sorted(path.name for path in folder.iterdir()) == ["gate.html", "gate.json"]
    return json.loads((folder / "gate.json").read_text()), Page((folder / "gate.html").read_text())


def test_the_text_names_each_failed_rule_with_value_limit_details_and_remedy():
    text = report.as_text("labels_20260309", decided(BAD))
    lines = text.splitlines()
    assert lines[0] == (
        "labels_20260309 is rejected: 3 of 19 rules failed (max_orphans, max_unknown_labels, example_validator)"
    )
    assert "  max_orphans: 3, allowed: 2" in lines
    assert f"    - p0 ({HOSTILE})" in lines
    assert any(line.startswith("    what to do: correct the image id") for line in lines)
    assert text.count("what to do:") == 3 and "max_duplicates" not in text


def test_a_label_forges_no_line_and_no_colour_in_the_text():
    label = "cup\n  max_rows: 0\r\x1b[2K\u2028é"
    orphans = Offenders(3, (f"p1 ({label})",) * 3)
    facts = dataclasses.replace(GOOD, orphans=orphans, class_counts={"cup": 60, label: 40})
    text = report.as_text("t", decided(facts))
    assert r"    - p1 (cup\n  max_rows: 0\r\x1b[2K\u2028é)" in text.splitlines()
    assert all(line.isprintable() and not line.startswith("  max_rows") for line in text.split("\n"))


def test_the_text_of_a_good_week_is_one_line():
    assert report.as_text("t", decided(GOOD)) == "t is accepted: all 19 rules passed"


ALL = ("max_orphans", "max_unknown_labels", "example_validator")


@pytest.mark.parametrize(
    ("facts", "overridden", "line"),
    [
        (
            BAD,
            ALL,
            "t is accepted by an override: 3 of 19 rules failed (max_orphans, max_unknown_labels, example_validator), and "
            "ana let them pass: the catalogue doubled",
        ),
        (
            BAD,
            ALL[:2],
            "t is rejected: 3 of 19 rules failed (max_orphans, max_unknown_labels, example_validator); the override by ana "
            "does not name example_validator",
        ),
        (GOOD, ("min_rows",), "t is accepted: all 19 rules passed; not needed: the override of min_rows by ana"),
    ],
)
def test_an_override_is_told_in_the_verdict(facts, overridden, line):
    assert report.verdict_line("t", decided(facts, *overridden)) == line


def test_the_text_of_a_rejected_week_marks_what_was_overridden():
    lines = report.as_text("t", decided(BAD, "max_orphans")).splitlines()
    assert "  max_orphans: 3, allowed: 2 (overridden)" in lines and "  max_unknown_labels: 4, allowed: 3" in lines


def test_person_and_reason_forge_no_line():
    line = report.verdict_line("t", decided(BAD, *ALL, by="ana\nben", reason="a\x1b[2K" + "x" * 10_000))
    assert line.isprintable() and r"ana\nben" in line and "(10,005 characters)" in line


def test_an_override_is_in_the_page_and_in_the_json(tmp_path):
    verdict = decided(BAD, *ALL, "min_edits", reason=HOSTILE)
    content, page = written(tmp_path, BAD, verdict)
    assert content["accepted"] is True
    assert content["override"] == {"rules": list(ALL), "unused": ["min_edits"], "by": "ana", "reason": HOSTILE}
    assert [rule["rule"] for rule in content["rules"] if rule["overridden"]] == list(ALL)
    assert report.verdict_line("labels_20260309", verdict) in page.text
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "tr"]
    assert kinds.count("overridden") == 3 and kinds.count("failed") == 0


def test_hostile_labels_are_text_in_the_page(tmp_path):
    _, page = written(tmp_path, BAD, run_id="<b>run</b>")
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
    assert page.text.count(HOSTILE) >= 7 and "<b>run</b>" in page.text
    # The page brings its own style and asks nobody for anything.
    assert not any({"src", "href", "onclick"} & attributes.keys() for _, attributes in page.tags)


@pytest.mark.parametrize(
    ("label", "shown"), [("x" * 10_000, "x… (10,000 characters)"), ("cup\n\x1b[1mhat", r"cup\n\x1b[1mhat"), ("🦄", "🦄")]
)
def test_long_labels_line_ends_and_emoji_in_the_page_and_in_the_text(tmp_path, label, shown):
    facts = dataclasses.replace(
        GOOD,
        class_counts={"cup": 60, "hat": 30, label: 10},
        schema_anomalies=[f"train: label: values missing from the schema: {label}"],
        baseline=dataclasses.replace(GOOD.baseline, relabelled=9, confusions=[Confusion(label, "cup", 9, "p1", "p9")]),
    )
    _, page = written(tmp_path, facts)
    text = report.as_text("t", decided(facts))
    for told in (page.text, text):
        assert shown in told and "x" * 700 not in told
    assert len((tmp_path / "gate.html").read_text()) < 30_000


def test_the_page_of_a_bad_week_shows_verdict_remedies_and_both_weeks(tmp_path):
    _, page = written(tmp_path, BAD)
    for words in [
        "Gate report of labels_20260309", "is rejected", "checksum 0123456789abcdef ", "baseline: labels_20260302",
        "40 (40.0%)", "36 (36.0%)", "2 of 100 images known before", "p0 (",
        "this week (filled): 100 values, 300 to 500, median 390, mean 395.5", "baseline (line): 90 values, 250 to 450",
    ]:  # fmt: skip
        assert words in page.text
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "tr"]
    assert kinds.count("failed") == 3 and kinds.count("passed") == 16
    assert sum(attributes.get("class") == "remedy" for _, attributes in page.tags) == 3


def test_the_histograms_are_drawn_for_both_weeks(tmp_path):
    _, page = written(tmp_path, GOOD)
    paths = [attributes["class"] for tag, attributes in page.tags if tag == "path"]
    assert paths == ["now", "then", "now"]  # width of both weeks, bytes of this week alone
    labels = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    assert labels[0].startswith("Histogram of width: this week 100 values, 300 to 500") and "baseline none" in labels[1]


def test_bars_are_as_long_as_shares_whatever_the_number_of_labels(tmp_path):
    baseline = dataclasses.replace(GOOD.baseline, class_counts={"cup": 500, "hat": 500})
    _, page = written(tmp_path, dataclasses.replace(GOOD, class_counts={"cup": 20, "hat": 80}, baseline=baseline))
    spans = [attributes for tag, attributes in page.tags if tag == "span"]
    assert [(span["class"], span["style"]) for span in spans if "bar" in span["class"]][:4] == [
        ("bar before", "width:11.25rem"), ("bar", "width:4.50rem"), ("bar before", "width:11.25rem"), ("bar", "width:18.00rem"),
    ]  # fmt: skip


def test_without_statistics_there_is_no_empty_drawing(tmp_path):
    _, page = written(tmp_path, GOOD, now={}, before={})
    assert not any(tag == "svg" for tag, _ in page.tags) and "train split" not in page.text


def test_the_page_of_a_bootstrap_says_so(tmp_path):
    content, page = written(tmp_path, dataclasses.replace(GOOD, baseline=None, drift=[]), before={})
    assert "baseline: none (bootstrap)" in page.text and "is accepted" in page.text
    assert content["baseline"] is None and content["baseline_counts"] is None and content["override"] is None


def test_a_snapshot_without_rows_has_a_page(tmp_path):
    content, page = written(tmp_path, dataclasses.replace(GOOD, class_counts={}, eval_counts={}, split_rows={}))
    assert not content["accepted"] and "is rejected" in page.text


def test_a_thousand_labels_that_the_schema_does_not_have_fill_no_page(tmp_path):
    counts = {"cup": 60, "hat": 40} | {f"odd{number:04d}": 1 for number in range(1000)}
    _, page = written(tmp_path, dataclasses.replace(GOOD, class_counts=counts))
    assert "odd0019" in page.text and "odd0020" not in page.text and "and 980 labels more" in page.text


@pytest.mark.parametrize(("facts", "accepted"), [(GOOD, True), (BAD, False)])
def test_the_json_holds_every_rule_and_what_it_was_judged_on(tmp_path, facts, accepted):
    content, _ = written(tmp_path, facts)
    assert content["accepted"] is accepted and content["run_id"] == "20260309-x" and content["snapshot"] == SNAPSHOT
    assert content["class_counts"] == facts.class_counts and content["baseline_counts"] == facts.baseline.class_counts
    assert content["split_rows"] == facts.split_rows
    findings = rules.judge(facts, LIMITS)
    assert [rule["rule"] for rule in content["rules"]] == [finding.rule for finding in findings]
    for rule, finding in zip(content["rules"], findings, strict=True):
        assert rule == {**dataclasses.asdict(finding), "details": list(finding.details), "overridden": False}
