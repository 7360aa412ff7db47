"""The dossier: whole, closed to the network, escaped, with links that lead somewhere."""

import datetime
import html.parser
import pathlib
import xml.etree.ElementTree

import pytest

from pipeline.errors import PipelineError
from pipeline.lineage import chart, report, timeline, verify
from pipeline.lineage import facts as audit_facts
from pipeline.lineage.base import Run
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.lineage.timeline import Interval, Timeline
from tests.pipeline.lineage.conftest import HOSTILE
from tests.pipeline.lineage.weeks import STEPS

NOW = datetime.datetime(2026, 4, 1, tzinfo=datetime.timezone.utc)

_VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """Reads a page strictly: every element is closed where it was opened."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.attributes, self.words = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name == "href"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def draw(weeks, name, checks=None) -> str:
    written, runs = weeks
    lineage = MLMDLineage(written.places.metadata)
    run = lineage.run(runs[name])
    return report.page(run, audit_facts.of_run(run), timeline.read(lineage, written.places.ledger), checks, NOW, written.places.store)


@pytest.mark.parametrize("name", ["first", "second", "bad"])
def test_a_page_is_closed_to_network_and_scripts_and_every_link_leads_somewhere(weeks, name):
    text = draw(weeks, name)
    page = Page(text)
    assert "script" not in page.tags and not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert "http://" not in text and "https://" not in text and "url(" not in text.replace("url(#tip)", "")
    assert len(page.ids) == len(set(page.ids)) and all(link[0] == "#" and link[1:] in page.ids for link in page.links)
    assert "@media print" in text


def test_a_page_tells_all_that_an_auditor_asks(weeks):
    written, runs = weeks
    page = Page(draw(weeks, "first"))
    words = "".join(page.words)
    found = audit_facts.of_run(MLMDLineage(written.places.metadata).run(runs["first"]))
    for word in [
        runs["first"], "Released; its model served.", found.checksum, found.shards.digest, found.commit, found.lock_sha256,
        found.labels_sha256, found.release.export_sha256, found.release.ledger_line_sha256, found.gate.verdict, "0.75",
        "2026-03-02 12:00:00", "2026-03-09 12:00:00", "lineage and ledger", "learning_rate",
    ]:  # fmt: skip
        assert word in words
    assert len([link for link in set(page.links) if link.startswith("#step-")]) == len(STEPS)
    assert words.count(runs["second"]) >= 1  # what came after it


def test_a_rejected_run_tells_why_and_hostile_words_stay_words(weeks):
    text = draw(weeks, "bad")
    words = "".join(Page(text).words)
    assert "FAILED at SnapshotGate; its model never served." in words and f"is rejected: {HOSTILE}" in words
    assert "<script>" not in text and "SnapshotRejected" in words


def test_what_was_verified_is_told(weeks):
    checks = [verify.Check("export", "model <b>", verify.ALTERED, "sha256 x"), verify.Check("labels", "label records", verify.INTACT)]
    page = Page(draw(weeks, "first", checks))
    assert "#verified" in page.links and "model <b>" in "".join(page.words) and "b" not in page.tags
    assert "#verified" not in Page(draw(weeks, "first")).links


def test_a_run_without_a_step_in_a_store_without_a_release():
    run = Run("<run>", ())
    words = "".join(Page(report.page(run, audit_facts.of_run(run), Timeline((), ("a <problem>",)), [], NOW, "/s")).words)
    for word in ["Run <run>", "No step began.", "Nothing was released in this store.", "a <problem>", "RUNNING"]:
        assert word in words


def test_a_value_without_end_is_shortened_and_control_codes_are_written_out():
    drawn = report._whole("a\n\x1b[2J" + "x" * 30_000)
    assert "a\n\\x1b[2J" in drawn and len(drawn) < 21_000 and "characters)" in drawn


def interval(number, share=1.0, until=None, endpoint="default", run_id=None) -> Interval:
    since = NOW + datetime.timedelta(days=number)
    return Interval(number, run_id or f"run-{number}", endpoint, str(number), share, since, until and NOW + datetime.timedelta(days=until), "lineage")


def bars(intervals, run_id="run-1") -> list[dict]:
    drawn = xml.etree.ElementTree.fromstring(chart.svg(intervals, run_id, NOW + datetime.timedelta(days=20)))
    return [element.attrib for element in drawn.iter("rect")]


def test_bars_lie_in_time_and_stand_on_one_another_by_share():
    first, second = bars([interval(0, 0.75, until=10), interval(1, 0.25, until=10)])
    assert (first["class"], second["class"]) == ("other", "own")
    assert float(second["x"]) - float(first["x"]) == pytest.approx(82, abs=1)  # a tenth of the axis, which ends on day 10
    assert float(first["height"]) == pytest.approx(25.5) and float(second["height"]) == pytest.approx(8.5)
    assert float(second["y"]) + float(second["height"]) == pytest.approx(float(first["y"]))
    one, other = bars([interval(0, endpoint="a"), interval(1, endpoint="b<")])
    assert float(other["y"]) - float(one["y"]) == chart._ROW


def test_a_moment_is_still_a_bar_and_nothing_is_nothing():
    (bar,) = bars([Interval(1, "run-1", "default", "1", 1.0, NOW, NOW, "ledger")])
    assert float(bar["width"]) >= 2 and chart.svg([], "run-1", NOW) == ""


def test_of_a_long_history_the_part_around_the_run_is_shown():
    long = Timeline(tuple(interval(number, until=number + 1) for number in range(500)), ())
    assert [item.number for item in chart.chosen(long, "run-250")] == list(range(242, 258))
    assert [item.number for item in chart.chosen(long, "run-1")] == list(range(16))
    assert [item.number for item in chart.chosen(long, "never")] == list(range(484, 500))


def test_a_report_takes_the_place_of_a_report_and_of_nothing_else(tmp_path, weeks):
    path = tmp_path / "new" / "run.html"
    report.write(str(path), draw(weeks, "first"))
    report.write(str(path), draw(weeks, "second"))
    assert weeks[1]["second"] in path.read_text()
    mine = tmp_path / "mine.html"
    mine.write_text("my own work")
    for place in (mine, tmp_path):
        with pytest.raises(PipelineError, match="is there and is no report of an audit: name another file by --html"):
            report.write(str(place), "x")
    assert mine.read_text() == "my own work" and sorted(item.name for item in tmp_path.iterdir()) == ["mine.html", "new"]
    with pytest.raises(PipelineError, match="cannot write the report"):
        report.write(str(pathlib.Path(mine, "run.html")), "x")
