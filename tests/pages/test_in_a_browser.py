"""Every page that the pipeline writes, looked at in Chromium: no script, no request, nothing that sticks out or cannot be read.

Labels, ids and file names in these pages are as hostile as people's can be. One browser looks at all of them.
"""

import base64
import dataclasses
import datetime
import json
import pathlib

import pytest

from models import profile_page
from pipeline.evaluation import judge
from pipeline.evaluation import report as release_report
from pipeline.lineage import facts as audit_facts
from pipeline.lineage import report as dossier
from pipeline.lineage import timeline
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.served import report as drift_report
from pipeline.served import rules as served_rules
from pipeline.tuning import page as tuning_page
from pipeline.validation import histograms
from pipeline.validation import report as gate_report
from pipeline.validation.rules import Confusion, Finding, Offenders
from tests.models.conftest import jpeg
from tests.models.test_profile_page import record_of
from tests.pages.browser import NAMES, Browser, executable
from tests.pipeline.evaluation.conftest import CLASSES, split, thresholds  # noqa: F401 - a fixture
from tests.pipeline.evaluation.test_judge import LABELS, around, noisy
from tests.pipeline.evaluation.test_report import SMOKE
from tests.pipeline.lineage.conftest import weeks  # noqa: F401 - a fixture
from tests.pipeline.tuning.test_results import searched, study
from tests.pipeline.validation import test_report as gate_pages

pytestmark = pytest.mark.skipif(executable() is None, reason=f"none of {', '.join(NAMES)} is installed, so no page is looked at")

# Were any of it to run, it would leave a mark on the page, open a dialog or ask for an address.
HOSTILE = (
    "</title></style></svg><script>document.documentElement.dataset.ran=1;alert(1)</script>"
    "<img src=//x.test onerror=alert(2)>"
)
LONG = "W" * 200

LOOK = pathlib.Path(__file__).with_name("look.js").read_text()


def gate(folder, *_) -> str:
    facts = dataclasses.replace(
        gate_pages.BAD,
        class_counts={"cup": 60, "hat": 36, HOSTILE: 4, LONG: 1},
        orphans=Offenders(3, (f"p1 ({HOSTILE})", LONG, "p2")),
        schema_anomalies=[f"train: label: {HOSTILE}", LONG],
        baseline=dataclasses.replace(gate_pages.BAD.baseline, confusions=[Confusion(HOSTILE, LONG, 2, LONG, HOSTILE)]),
    )
    verdict = gate_pages.decided(facts, "max_orphans", by=LONG, reason=HOSTILE)
    gate_report.write(
        str(folder), HOSTILE, gate_pages.SNAPSHOT | {"table": f"labels_{LONG}"}, facts, verdict, gate_pages.NOW, gate_pages.BEFORE
    )
    return (folder / "gate.html").read_text()


def release(folder, thresholds, _) -> str:  # noqa: F811
    classes = (HOSTILE, LONG, *CLASSES[2:])
    found = split(LABELS, noisy(LABELS, 0.4, 0), noisy(LABELS, 0.2, 1), sources=[HOSTILE, LONG] * 40)
    limits = thresholds(absolute__max_log_loss=0.01, comparison__max_accuracy_drop=0.0)
    judgement = judge.judge(found, around(found, classes=classes, serving_classes=classes), limits)
    heading = release_report.Heading(run_id=LONG, snapshot=HOSTILE, serving=HOSTILE, bootstrap=False, smoke=SMOKE)
    photograph = {"label_index": 0, "predicted": 1, "p_true": 0.01, "p_predicted": 0.9}
    worst = [
        {**photograph, "image_id": name, "jpeg": base64.b64encode(content).decode()}
        for name, content in [(HOSTILE, jpeg(400, 300)), (LONG, jpeg(40, 3000)), ("p3", b"no picture")]
    ]
    return release_report.page(heading, judgement, judgement.failures, classes, worst)


def tuning(*_) -> str:
    results = study(searched(), display_name=HOSTILE, run_id=LONG, snapshot_date=HOSTILE)
    return tuning_page.page(results)


def profile(*_) -> str:
    record = record_of(classes=[HOSTILE, LONG, *(f"class {number}" for number in range(30))])
    record["network"] = {HOSTILE: LONG}
    record["training"]["backbone"] = HOSTILE
    return profile_page.page(record, datetime.datetime(2026, 3, 2, tzinfo=datetime.timezone.utc))


def audit(_, __, weeks) -> str:  # noqa: F811
    written, runs = weeks
    lineage = MLMDLineage(written.places.metadata)
    run = lineage.run(runs["first"])
    now = datetime.datetime(2026, 4, 1, tzinfo=datetime.timezone.utc)
    known = timeline.read(lineage, written.places.ledger)
    return dossier.page(run, audit_facts.of_run(run), known, None, now, f"/{HOSTILE}/{LONG}")


def drift(*_) -> str:
    bins = served_rules.bin_names(10)
    now, before = (
        served_rules.Predictions(dict(zip((HOSTILE, LONG, "cup"), counts, strict=True)), dict(zip(bins, range(10), strict=True)))
        for counts in ((5, 30, 10), (15, 15, 15))
    )
    unusable = served_rules.Unusable({"no JPEG": 2}, (f"{HOSTILE}.jsonl: no JPEG", f"{LONG}: no JPEG"))
    facts = served_rules.Facts(now, before, unusable, {"width": 0.3})
    findings = [Finding(rule, rule == "min_images", LONG, "0.1", (HOSTILE, LONG), "look") for rule in served_rules.RULES]
    content = {
        "run_id": HOSTILE, "version": LONG, "endpoint": "default", "snapshot": "labels", "source": f"/{HOSTILE}/{LONG}",
        "found": 47, "asked": 47, "seed": 0, "ignored_files": 3, "drifted": True, "verdict": f"Requests have drifted {LONG}",
        "rules": [vars(finding) for finding in findings],
    }  # fmt: skip
    sizes = {"width": histograms.Histogram([(300, 400, 60), (400, 500, 40)], 100, 300, 390, 395.5, 500)}
    return drift_report.page(content, facts, sizes, sizes)


PAGES = {page.__name__: page for page in (gate, release, tuning, profile, audit, drift)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(params=PAGES)
def page(request, tmp_path, thresholds, weeks) -> str:  # noqa: F811
    """The address of a page."""
    path = tmp_path / "page.html"
    path.write_text(PAGES[request.param](tmp_path, thresholds, weeks), encoding="utf-8")
    return path.as_uri()


def test_a_page_is_legible_inert_and_complete(browser, page):
    seen = browser.look(page, LOOK)
    assert (seen.requests, seen.dialogs, seen.errors) == ([], [], [])
    assert seen.value["data"] == {} and seen.value["scripts"] == 0
    assert len(seen.value["words"]) > 500 and seen.value["elements"] > 50 and seen.value["title"]
    wrong = {name: seen.value[name] for name in ("overflow", "outside", "small", "pale") if seen.value[name]}
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)[:5000]
    # The same without scripts, and in the dark as pale nowhere.
    assert browser.look(page, LOOK, scripts=False).value["words"] == seen.value["words"]
    assert not browser.look(page, LOOK, dark=True).value["pale"]


def test_the_browser_would_have_noticed(browser, tmp_path):
    """What this file looks for, on a page that does all of it wrong."""
    path = tmp_path / "page.html"
    path.write_text(
        "<!doctype html><title>x</title><body>" + HOSTILE + "<p style='width:2000px'>wide</p><p style='font-size:5px'>small</p>"
        "<p style='color:#ccc'>pale</p><svg viewBox='0 0 10 10' width=50><text x='9' font-size='4'>sticks out</text></svg>"
    )
    seen = browser.look(path.as_uri(), LOOK)
    assert seen.dialogs[:1] == ["1"] and seen.requests and seen.value["data"] == {"ran": "1"} and seen.value["scripts"] == 1
    assert seen.value["overflow"] > 700 and len(seen.value["outside"]) >= 2
    assert len(seen.value["small"]) == 1 and len(seen.value["pale"]) >= 1
    assert browser.look(path.as_uri(), LOOK, scripts=False).value["data"] == {}
