"""The release's report: its sentence, its figures, and that nothing hostile reaches the page."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from pipeline import files
from pipeline.evaluation import judge, report
from tests.models.conftest import jpeg
from tests.pipeline.evaluation.conftest import CLASSES, split
from tests.pipeline.evaluation.test_judge import LABELS, around, noisy

SMOKE = {
    "passed": True,
    "facts": {"latency_ms_median": 12.0, "tensorflow": "2"},
    "checks": [{"rule": "loads", "passed": True, "value": "beside <b>", "limit": "alone", "remedy": "", "details": []}],
}
HEADING = report.Heading(run_id="run-2", snapshot="labels_20260309", serving="version 7 of run r", bootstrap=False, smoke=SMOKE)
EVIL = '"><script>alert(1)</script>\u202e\n'


class Page(HTMLParser):
    """The tags of a page, its words and the addresses that it names."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action") or name.startswith("on")]

    def handle_data(self, data):
        self.words.append(data)


def worst(**changes):
    return {
        "image_id": "p001", "label_index": 0, "predicted": 1, "p_true": 0.01, "p_predicted": 0.9,
        "jpeg": base64.b64encode(jpeg(400, 300)).decode(), **changes,
    }  # fmt: skip


@pytest.fixture
def written(tmp_path, thresholds):
    """Judges, writes and reads the report again: (JSON, page)."""

    def write(found, classes=CLASSES, heading=HEADING, limits=None, worst=(), **changes):
        limits = limits or thresholds()
        judgement = judge.judge(found, around(found, **{"classes": classes, "serving_classes": classes, **changes}), limits)
        content = report.content(heading, judgement, judgement.failures, limits, classes)
        report.write(str(tmp_path), heading, judgement, judgement.failures, content, classes, worst)
        return json.loads((tmp_path / "release.json").read_text()), (tmp_path / "release.html").read_text()

    return write


def test_the_verdict_is_one_sentence_and_every_threshold_has_its_row(written):
    found = split(LABELS, noisy(LABELS, 0.2, 0), noisy(LABELS, 0.1, 1))
    content, page = written(found, worst=[worst()])
    count = len(content["checks"])
    assert content["verdict"] == f"The candidate may serve: all {count} thresholds are met" and content["blessed"]
    assert content["verdict"] in page and page.count('<tr class="passed"><td class="name">') == count
    for words in ["compared with: version 7 of run r", "Reliability", "Confusion", "Worst photographs", "Smoke test"]:
        assert words in page
    assert content["metrics"]["accuracy"] == (noisy(LABELS, 0.2, 0) == LABELS).mean()
    assert np.array(content["confusion"]).sum() == 80 and len(content["slices"]) == 4 + 1 + 3 + 1
    assert set(Page(page).tags) >= {"svg", "polyline", "img", "table"}


def test_what_is_missed_stands_first_and_is_named(written, thresholds):
    found = split(LABELS, noisy(LABELS, 0.2, 0), LABELS)
    limits = thresholds(absolute__max_log_loss=0.01, comparison__max_accuracy_drop=0.0)
    content, page = written(found, limits=limits)
    assert content["verdict"].startswith("The candidate must not serve: 2 of ") and not content["blessed"]
    assert len(content["failures"]) == 2 and all(failure in content["verdict"] for failure in content["failures"])
    rows = re.findall(r'<tr class="(passed|failed)"><td class="name">', page)
    assert rows[:2] == ["failed", "failed"] and "failed" not in rows[2:]
    (check,) = [check for check in content["checks"] if check["name"] == "log_loss"]
    assert check["margin"] == pytest.approx(0.01 - check["value"])


def test_a_refused_export_is_reported_without_figures(tmp_path, thresholds):
    failures = ["the smoke test refused the export: probabilities is 0.4 from the trainer's"]
    content = report.content(HEADING, None, failures, thresholds(), ())
    report.write(str(tmp_path), HEADING, None, failures, content, (), [])
    page = (tmp_path / "release.html").read_text()
    assert "must not serve" in page and failures[0].replace("'", "&#x27;") in page and "not evaluated" in page
    assert json.loads((tmp_path / "release.json").read_text())["evaluated"] is False


def test_hostile_names_are_escaped(written):
    classes = (EVIL, *CLASSES[1:])
    found = split(LABELS, noisy(LABELS, 0.3, 0), LABELS, sources=[EVIL] * 80)
    heading = report.Heading(run_id=EVIL, snapshot=EVIL, serving=EVIL, bootstrap=False, smoke=SMOKE)
    _, page = written(found, classes=classes, heading=heading, worst=[worst(image_id=EVIL)])
    read = Page(page)
    assert "script" not in read.tags and "b" in read.tags and "\u202e" not in page
    assert all(address.startswith("data:image/jpeg;base64,") for address in read.addresses)


def test_a_thumbnail_is_small_and_made_anew():
    content = jpeg(3000, 2000) + b"<script>"
    uri = report.thumbnail(content)
    small = base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))
    assert len(small) <= 24_576 and b"<script>" not in small
    assert max(Image.open(io.BytesIO(small)).size) == 160


@pytest.mark.parametrize("content", [b"", b"no picture", jpeg(50, 50)[:100], b"GIF89a" + bytes(50)])
def test_what_is_no_photograph_has_no_thumbnail(content, written):
    assert report.thumbnail(content) == ""
    found = split(LABELS, noisy(LABELS, 0.3, 0), LABELS)
    _, page = written(found, worst=[worst(jpeg=base64.b64encode(content).decode())])
    assert "It cannot be shown." in page


def test_many_classes_and_slices_keep_the_page_small(written):
    classes = tuple(f"class {number}" for number in range(300))
    labels = np.arange(900) % 300
    found = split(np.arange(900) % 4, np.arange(900) % 4)
    found = type(found)(**{**vars(found), "labels": labels, "candidate": _perfect(labels), "serving": _perfect(labels)})
    _, page = written(found, classes=classes)
    assert "300 classes are too many to draw" in page and "and 200 more" in page and len(page) < 200_000


def _perfect(labels):
    from pipeline.evaluation.predictions import Answers

    return Answers(labels, np.full(len(labels), 0.9), np.full(len(labels), 0.9), np.zeros(len(labels), int))


def test_without_figures_that_are_numbers_json_has_null(thresholds):
    found = split([0, 1, 2, 3] * 2, [0, 1, 2, 3] * 2)
    judgement = judge.judge(found, around(found), thresholds())
    text = files.to_json(report.content(HEADING, judgement, judgement.failures, thresholds(), CLASSES))
    assert "NaN" not in text and "null" in text
