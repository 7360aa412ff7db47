"""The gate's report: for a terminal, for a browser, for machines."""

import dataclasses
import html.parser
import json

import pytest

from pipeline.validation import report, rules
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
    class_counts={"cup": 60, "hat": 39, HOSTILE: 1},
    orphans=[(f"p{number}", HOSTILE) for number in range(3)],
    unknown=[(HOSTILE, 9)],
    schema_anomalies=[f"train: label: {HOSTILE}"],
)


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


def written(folder, facts, run_id="20260309-x") -> tuple[dict, Page]:
    findings = rules.judge(facts, LIMITS)
    report.write(str(folder), run_id, SNAPSHOT, facts, findings)
    assert sorted(path.name for path in folder.iterdir()) == ["gate.html", "gate.json"]
    return json.loads((folder / "gate.json").read_text()), Page((folder / "gate.html").read_text())


def test_the_text_names_each_failed_rule_with_value_limit_details_and_remedy():
    text = report.as_text("labels_20260309", rules.judge(BAD, LIMITS))
    lines = text.splitlines()
    assert lines[0] == (
        "labels_20260309 is rejected: 3 of 11 rules failed (max_orphans, max_unknown_labels, example_validator)"
    )
    assert "  max_orphans: 3, allowed: 2" in lines
    assert f"    - p0 ({HOSTILE})" in lines
    assert any(line.startswith("    what to do: correct the image id") for line in lines)
    assert text.count("what to do:") == 3 and "max_duplicates" not in text


def test_a_label_forges_no_line_and_no_colour_in_the_text():
    label = "cup\n  max_rows: 0\r\x1b[2K\u2028é"
    facts = dataclasses.replace(GOOD, orphans=[("p1", label)] * 3, class_counts={"cup": 60, label: 40})
    text = report.as_text("t", rules.judge(facts, LIMITS))
    assert r"    - p1 (cup\n  max_rows: 0\r\x1b[2K\u2028é)" in text.splitlines()
    assert all(line.isprintable() and not line.startswith("  max_rows") for line in text.split("\n"))


def test_the_text_of_a_good_week_is_one_line():
    assert report.as_text("t", rules.judge(GOOD, LIMITS)) == "t is accepted: all 11 rules passed"


def test_hostile_labels_are_text_in_the_page(tmp_path):
    _, page = written(tmp_path, BAD, run_id="<b>run</b>")
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
    assert page.text.count(HOSTILE) >= 5 and "<b>run</b>" in page.text
    # The page brings its own style and asks nobody for anything.
    assert not any({"src", "href", "onclick"} & attributes.keys() for _, attributes in page.tags)


def test_the_page_of_a_bad_week_shows_verdict_remedies_and_both_weeks(tmp_path):
    _, page = written(tmp_path, BAD)
    for words in ["Gate report of labels_20260309", "is rejected", "checksum 0123456789abcdef ", "baseline: labels_20260302"]:
        assert words in page.text
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "tr"]
    assert kinds.count("failed") == 3 and kinds.count("passed") == 8
    assert sum(attributes.get("class") == "remedy" for _, attributes in page.tags) == 3


def test_the_page_of_a_bootstrap_says_so(tmp_path):
    content, page = written(tmp_path, dataclasses.replace(GOOD, baseline_counts=None, baseline_table=None))
    assert "baseline: none (bootstrap)" in page.text and "is accepted" in page.text
    assert content["baseline"] is None and content["baseline_counts"] is None


def test_a_snapshot_without_rows_has_a_page(tmp_path):
    content, page = written(tmp_path, dataclasses.replace(GOOD, class_counts={}, eval_counts={}))
    assert not content["accepted"] and "is rejected" in page.text


@pytest.mark.parametrize(("facts", "accepted"), [(GOOD, True), (BAD, False)])
def test_the_json_holds_every_rule_and_what_it_was_judged_on(tmp_path, facts, accepted):
    content, _ = written(tmp_path, facts)
    assert content["accepted"] is accepted and content["run_id"] == "20260309-x" and content["snapshot"] == SNAPSHOT
    assert content["class_counts"] == facts.class_counts and content["baseline_counts"] == facts.baseline_counts
    findings = rules.judge(facts, LIMITS)
    assert [rule["rule"] for rule in content["rules"]] == [finding.rule for finding in findings]
    for rule, finding in zip(content["rules"], findings, strict=True):
        assert rule == {**dataclasses.asdict(finding), "details": list(finding.details)}
