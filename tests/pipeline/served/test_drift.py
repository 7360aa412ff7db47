"""`python -m pipeline drift`: found where there is some, and not where there is none, with a report; and every refusal."""

import base64
import html.parser
import json
import pathlib

import pytest

from pipeline import storage
from pipeline.__main__ import main
from pipeline.places import Places
from pipeline.release import ledger
from pipeline.served import asking
from pipeline.served import report as pages
from pipeline.served.requests import Photograph
from pipeline.served.rules import Facts, Predictions, Unusable
from pipeline.settings import ShardSettings
from tests.cloud import storage_emulator
from tests.pipeline.served.conftest import CLASSES, HOSTILE, SHARDS, photographs

LIMITS = {
    "min_images": 50, "max_unusable_share": 0.05, "max_class_share_change": 0.25, "max_class_divergence": 0.1,
    "drift": {"confidence": 0.1, "width": 0.1, "height": 0.1, "bytes": 0.1},
}  # fmt: skip


class Page(html.parser.HTMLParser):
    """The tags of a page, its words and the addresses that it names."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action") or name.startswith("on")]

    def handle_data(self, data):
        self.words += data


@pytest.fixture
def drift(store, tmp_path, capsys):
    """Runs the command on photographs or on a path; gives status, what it printed, what it complained of, and its report."""

    def run(source, *words, limits=LIMITS):
        folder = tmp_path / "requests"
        if not isinstance(source, (str, pathlib.Path)):
            folder.mkdir()
            for number, content in enumerate(source):
                (folder / f"{number:03d}.jpg").write_bytes(content)
            source = folder
        (tmp_path / "limits.yaml").write_text(json.dumps(limits))
        status = main(["drift", str(source), "--store", store.store, "--limits", str(tmp_path / "limits.yaml"), *words])
        out, err = capsys.readouterr()
        reports = sorted(pathlib.Path(store.reports("run-1")).glob("drift-*.json"))
        return status, out, err, json.loads(reports[-1].read_text()) if reports else None

    return run


def test_requests_like_the_training_have_not_drifted(drift, store):
    status, out, err, report = drift(photographs(80, seed=2))
    assert status == 0 and err == "version 7 of run run-1 (labels_20260302) is asked about 80 of 80 photographs\n"
    assert out.startswith("Requests have not drifted: all 8 rules passed; 80 of 80 photographs were answered\n")
    assert report["failed"] == [] and report["drifted"] is False and report["answered"] == 80
    assert report["predictions"]["classes"].keys() == set(CLASSES) and sum(report["predictions"]["classes"].values()) == 80
    assert report["eval_predictions"]["classes"] == {"dark": 50, "light": 50, HOSTILE: 0}
    assert report["sizes"]["width"]["trained"]["images"] == 200 and report["sizes"]["width"]["now"]["images"] == 80
    page = pathlib.Path(report["report"])
    assert page.parent == pathlib.Path(store.reports("run-1")) and f"report: {page}" in out
    read = Page(page.read_text())
    assert "Requests have not drifted" in read.words and read.tags.count("svg") == 3 and HOSTILE in read.words
    assert "script" not in read.tags and read.addresses == []


@pytest.mark.parametrize(
    ("sent", "failed"),
    [
        ({"light": 1.0}, {"max_class_share_change", "max_class_divergence"}),
        ({"scale": 0.25}, {"drift.width", "drift.height", "drift.bytes"}),
    ],
)
def test_one_class_only_and_tiny_pictures_are_drift(drift, sent, failed):
    status, out, _, report = drift(photographs(80, seed=2, **sent))
    assert status == 3 and set(report["failed"]) == failed and report["drifted"] is True
    assert out.count("what to do:") == len(failed) and "FAILED" in out


def test_larger_ones_are_not_because_they_are_stored_alike(drift):
    status, _, _, report = drift(photographs(60, seed=2, scale=3))
    assert (status, report["failed"]) == (0, []) and report["divergences"]["width"] < 0.03


def test_the_machine_s_answer_is_the_report(drift):
    status, out, _, report = drift(photographs(60, seed=2), "--json")
    assert status == 0 and json.loads(out) == report


def test_a_log_with_what_cannot_be_read_is_judged_on_the_rest(drift, tmp_path):
    lines = [
        json.dumps({"instances": [{"bytes_inputs": {"b64": base64.b64encode(content).decode()}}]})
        for content in [*photographs(70, seed=3), b"GIF89a", b"", photographs(1, seed=4)[0][:200]]
    ]
    lines[10:10] = ["{", "[]"]
    name = "<img src=x onerror=alert(1)>.jsonl"
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    status, out, _, report = drift(tmp_path / name)
    assert status == 3 and report["failed"] == ["max_unusable_share"]
    assert (report["found"], report["answered"], report["unusable"]["count"]) == (75, 70, 5)
    assert report["unusable"]["reasons"] == {
        "no JPEG image: it is of another kind, cut short or damaged": 2, "the file is empty": 1, "it is no JSON": 1,
        'it is no request: {"instances": [{"bytes_inputs": {"b64": "..."}}]} is one': 1,
    }  # fmt: skip
    assert f"    - {name}:11: it is no JSON\n" in out and "6.7% (5 of 75)" in out
    page = Page(pathlib.Path(report["report"]).read_text())
    assert f"{name}:11: it is no JSON" in page.words and "img" not in page.tags and page.addresses == []


def test_nothing_that_can_be_answered_is_drift_too(drift):
    status, out, _, report = drift([b"no photograph"] * 60)
    assert status == 3 and len(report["failed"]) == 8 and "0 of 60 photographs were answered" in out
    assert pathlib.Path(report["report"]).is_file()


def test_a_draw_is_as_large_as_wanted(drift):
    status, _, err, report = drift(photographs(70, seed=2), "--most", "55", "--seed", "4")
    assert status == 0 and "asked about 55 of 70" in err and (report["asked"], report["seed"]) == (55, 4)


def test_many_classes_keep_the_page_small_and_those_that_moved_most_are_shown():
    names = [f"class {number}" for number in range(300)]
    now, before = (Predictions(dict.fromkeys(names, 10) | {"class 299": moved}, dict.fromkeys("ab", 1)) for moved in (10, 400))
    facts = Facts(now, before, Unusable({}, ()), {})
    content = {
        "run_id": "r", "version": "7", "endpoint": "e", "snapshot": "s", "source": "x", "found": 1, "asked": 1, "seed": 0,
        "ignored_files": 0, "drifted": False, "verdict": "v", "rules": [],
    }  # fmt: skip
    page = pages.page(content, facts, {}, {})
    assert page.index("class 299") < page.index("class 0") and "and 200 classes more, which moved less" in page
    assert len(page) < 60_000


def test_other_classes_than_the_report_s_are_refused(drift, store):
    _changed(store, classes=["dark", "light", "other"])
    status, _, err, report = drift(photographs(60, seed=2))
    assert status == 1 and report is None
    assert f"knows the classes dark, light, {HOSTILE}, and the report of its release has dark, light, other" in err


def _changed(store, **changes):
    path = pathlib.Path(store.reports("run-1"), "release.json")
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value != "-"}))


def _broken_model(store, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"no graph")
    ledger.append(
        store.ledger, endpoint="default", to_version="8", model=str(folder), run_id="run-1", snapshot="labels_20260302",
        snapshot_date="2026-03-02", weights_sha256="1",
    )  # fmt: skip


def _no_model(store, tmp_path):
    _broken_model(store, tmp_path)
    (tmp_path / "broken" / "saved_model.pb").unlink()


REFUSALS = {
    "no report": (
        lambda store, _: pathlib.Path(store.reports("run-1"), "release.json").unlink(), ["release.json", "No such file"],
    ),
    "an older report": (lambda store, _: _changed(store, shards="-"), ["older version of the pipeline", "next release"]),
    "a damaged report": (lambda store, _: _changed(store, confusion=[[1]]), ["release.json", "cannot be read", "backup"]),
    "a report that is none": (lambda store, _: _changed(store, reliability="-"), ["cannot be read (KeyError: 'reliability')"]),
    "no statistics": (
        lambda store, _: pathlib.Path(store.accepted, "labels_20260302", "accepted.json").unlink(),
        ["cannot read the statistics of the snapshot labels_20260302", "(there are none)"],
    ),
    "an accepted snapshot that cannot be read": (
        lambda store, _: pathlib.Path(store.accepted, "labels_20260302", "accepted.json").write_text("{"),
        ["cannot read the statistics of the snapshot labels_20260302", "JSONDecodeError"],
    ),
    "statistics that cannot be read": (
        lambda store, _: next(pathlib.Path(store.accepted).rglob("FeatureStats.pb")).write_bytes(b"\xff\xff"),
        ["cannot read the statistics of the snapshot labels_20260302", "DecodeError"],
    ),
    "no model": (_no_model, ["version 8 of run run-1 serves, says the ledger", "is not there or not whole", "release rollback"]),
    "a model that no longer loads": (_broken_model, ["does not load", "release rollback"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_store_that_lacks_something_is_told_what(drift, store, tmp_path, name):
    change, words = REFUSALS[name]
    change(store, tmp_path)
    status, out, err, report = drift(photographs(50, seed=2))
    assert (status, out, report) == (1, "", None)
    error = err.splitlines()[-1]
    assert error.startswith("error: ") and "Traceback" not in err and all(word in error for word in words)


def test_what_cannot_be_judged_is_refused_before_anything_is_loaded(drift, tmp_path):
    (tmp_path / "none").mkdir()
    for source, words, limits in [
        (tmp_path / "nowhere", ["there is no file or folder", "nowhere"], LIMITS),
        (tmp_path / "none", ["holds no request and no photograph"], LIMITS),
        (photographs(49, seed=2), ["has 49 photographs, and 49 were drawn", "min_images", "is 50"], LIMITS),
    ]:
        status, out, err, report = drift(source, limits=limits)
        assert (status, out, report) == (1, "", None) and all(word in err for word in words)
    status, _, err, _ = drift(tmp_path / "none", limits={**LIMITS, "drift": {"confidence": 1}})
    assert status == 2 and "drift.width: this setting is required" in err


def test_everything_may_lie_in_cloud_storage_and_then_production_s_limits_count(store, model, tmp_path, capsys):
    with storage_emulator.running("out") as objects:
        cloud = Places(store="gs://out/retrain")
        storage.copy_folder(store.all_reports, cloud.all_reports)
        storage.copy_folder(store.accepted, cloud.accepted)
        storage.copy_folder(model, f"{cloud.versions}/7")
        ledger.append(
            cloud.ledger, endpoint="default", to_version="7", model=f"{cloud.versions}/7", run_id="run-1",
            snapshot="labels_20260302", snapshot_date="2026-03-02", weights_sha256="0",
        )  # fmt: skip
        for number, content in enumerate(photographs(60, seed=2)):
            storage.write(f"gs://out/requests/{number % 3}/{number}.jpg", content)
        objects.answer(403, lambda call: True, times=1)
        assert main(["drift", "x.jsonl", "--store", cloud.store]) == 1
        assert "error: cannot read the store gs://out/retrain: Cloud Storage refuses access" in capsys.readouterr().err
        words = ["drift", "gs://out/requests/", "--store", cloud.store]
        assert main(words) == 1
        assert "schema/production/served.yaml is 1000" in capsys.readouterr().err
        (tmp_path / "limits.yaml").write_text(json.dumps(LIMITS))
        assert main([*words, "--limits", str(tmp_path / "limits.yaml"), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["answered"] == 60 and report["report"].startswith("gs://out/retrain/reports/run-1/drift-2")
        assert b"Requests have not drifted" in objects.content(report["report"])


def test_batches_are_bounded_by_photographs_and_by_bytes(monkeypatch):
    monkeypatch.setattr(asking, "_BATCH", 3)
    monkeypatch.setattr(asking, "_BATCH_BYTES", 10)
    refused, read = [], []

    def sample():
        for size in (4, 4, 4, 1, 1, 1, 99, 0, 2):
            read.append(size)
            yield Photograph(f"{size}", bytes(size))
        yield Photograph("bad", problem="it is no JSON")

    sizes = []
    for batch in asking.batches(sample(), lambda photograph, reason: refused.append((photograph.name, reason))):
        sizes.append([len(photograph.content) for photograph in batch])
        assert len(read) <= sum(map(len, sizes)) + 2  # nothing is read long before it is asked
    assert sizes == [[4, 4], [4, 1, 1], [1], [99], [2]]
    assert refused == [("0", "the file is empty"), ("bad", "it is no JSON")]


def test_a_photograph_has_the_answer_that_it_has_alone(model, store):
    contents = [*photographs(5, seed=5), b"no photograph", *photographs(5, seed=6)]
    sample = [Photograph(str(number), content) for number, content in enumerate(contents)]
    together = asking.ask(model, sample, ShardSettings(**SHARDS), CLASSES)
    alone = [asking.ask(model, [each], ShardSettings(**SHARDS), CLASSES) for each in sample]
    assert together.predictions.images == 10 and together.unusable == alone[5].unusable
    for name in CLASSES:
        assert together.predictions.classes[name] == sum(each.predictions.classes[name] for each in alone)
    assert together.sizes["bytes"].tolist() == [size for each in alone for size in each.sizes["bytes"].tolist()]
