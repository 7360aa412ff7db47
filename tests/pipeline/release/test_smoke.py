"""The smoke test: a right export passes, a wrong one is refused whatever is wrong with it, and nothing is an exception."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline, network, serving
from models import smoke as smoke_set
from models.config import NetworkConfig
from pipeline.evaluation.thresholds import SmokeThresholds
from pipeline.release import smoke
from tests.models.conftest import CLASSES, IMAGE_SIZE, SHORT_SIDE, make_week

LIMITS = SmokeThresholds(max_probability_difference=0.001, max_latency_ms=5000, max_seconds=240)


@pytest.fixture(scope="module")
def classifier():
    """A network whose answers depend on what it sees, as a trained one's do."""
    found = network.Classifier(NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=IMAGE_SIZE), 3, seed=0)
    found.head.kernel.assign(100 * found.head.kernel)
    return found


@pytest.fixture(scope="module")
def val(tmp_path_factory):
    week = make_week(tmp_path_factory.mktemp("smoke") / "data")
    return input_pipeline.read_split("val", week.labels("val"), len(CLASSES))


@pytest.fixture(scope="module")
def exported(classifier, val, tmp_path_factory):
    """A right export with its smoke set."""
    path = str(tmp_path_factory.mktemp("exported") / "model")
    serving.export(classifier, CLASSES, IMAGE_SIZE, SHORT_SIDE, path)
    smoke_set.write(classifier, val, CLASSES, IMAGE_SIZE, SHORT_SIDE, path)
    return path


@pytest.fixture
def wrong(exported, classifier, tmp_path):
    """Exports once more with something wrong, beside the smoke set of the right export."""

    def export(classes=CLASSES, short_side=SHORT_SIDE):
        path = tmp_path / "wrong"
        serving.export(classifier, classes, IMAGE_SIZE, short_side, str(path))
        shutil.copytree(pathlib.Path(exported, "assets.extra"), path / "assets.extra")
        return str(path)

    return export


def failed(test):
    return [finding.rule for finding in test.findings if not finding.passed]


def test_the_smoke_set_holds_photographs_of_every_class_and_the_answers_to_them(exported, val, classifier):
    content = json.loads(pathlib.Path(exported, smoke.SMOKE_SET).read_text())
    assert smoke.SMOKE_SET == smoke_set.FILE and content["classes"] == list(CLASSES)
    assert len(content["photographs"]) == min(smoke_set.PHOTOGRAPHS, val.examples)
    wanted = [tf.nn.softmax(classifier(images)).numpy() for images, _ in input_pipeline.validation_dataset(
        val, image_size=IMAGE_SIZE, short_side=SHORT_SIDE, batch_size=100)]  # fmt: skip
    for photograph in content["photographs"]:
        assert np.abs(wanted[0] - np.array(photograph["probabilities"])).max(axis=1).min() < 1e-5


def test_a_right_export_passes_beside_tensorflow_alone(exported):
    test = smoke.run(exported, LIMITS)
    assert test.passed, test.reasons
    assert [finding.rule for finding in test.findings] == [
        "loads", "survives", "classes", "probabilities", "telling", "refuses_garbage", "latency",
    ]  # fmt: skip
    assert test.facts["tensorflow"] == tf.__version__ and 0 < test.facts["latency_ms_median"] <= test.facts["latency_ms_max"]


def test_an_export_with_the_wrong_preprocessing_is_refused(wrong):
    test = smoke.run(wrong(short_side=SHORT_SIDE - 8), LIMITS)
    assert failed(test) == ["probabilities"]
    assert "from the trainer's" in test.reasons[0] and "models/serving.py" in test.findings[3].remedy


def test_an_export_that_scales_pixels_is_refused(wrong, monkeypatch):
    prepared = serving.pixels
    monkeypatch.setattr(serving, "pixels", lambda *arguments: prepared(*arguments) / 255)
    assert failed(smoke.run(wrong(), LIMITS)) == ["probabilities"]


def test_an_export_that_is_damaged_or_slow_is_refused(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "cut")
    graph = tmp_path / "cut" / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:1000])
    assert failed(smoke.run(str(tmp_path / "cut"), LIMITS)) == ["loads"]
    test = smoke.run(exported, dataclasses.replace(LIMITS, max_seconds=0.5))
    assert not test.passed and "did not finish within 0 s" in test.reasons[0] or "within 1 s" in test.reasons[0]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"classes": ["a"], "photographs": []}',
                                     '{"classes": ["a"], "photographs": [{"request": {}, "probabilities": [1, 2]}]}',
                                     '{"classes": ["a"], "photographs": [{"request": {}, "probabilities": [1]}]}'])  # fmt: skip
def test_an_export_without_the_trainers_answers_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "assets.extra").mkdir()
        (tmp_path / "assets.extra" / "smoke.json").write_text(content)
    assert failed(smoke.run(str(tmp_path), LIMITS)) == ["smoke_set"]


REFERENCE = {
    "classes": ["cup", "hat"],
    "photographs": [
        {"request": {"bytes_inputs": {"b64": "AAAA"}}, "probabilities": [0.9, 0.1]},
        {"request": {"bytes_inputs": {"b64": "BBBB"}}, "probabilities": [0.2, 0.8]},
    ],
}


@pytest.fixture
def judged():
    """Judges the lines of a probe that answered rightly, changed by the test."""
    requests = smoke._Requests(REFERENCE)

    def judge(change=lambda requests, lines: None, reference=REFERENCE, died=""):
        by_request = {json.dumps(each["request"]): each["probabilities"] for each in REFERENCE["photographs"]}
        lines = [{"seconds": 1.0, "tensorflow": "2", "modules": ["numpy", "tensorflow"], "signatures": []}]
        for body in requests.bodies:
            rows = [by_request.get(json.dumps(row)) for row in json.loads(body)["instances"]]
            if None in rows:
                lines.append({"seconds": 0.01, "status": 400, "error": "no JPEG"})
            else:
                answers = [{"classes": ["cup", "hat"], "probabilities": list(row)} for row in rows]
                lines.append({"seconds": 0.01, "status": 200, "predictions": answers})
        return smoke.judge(reference, requests, change(requests, lines) or lines, died, LIMITS)

    return judge


def _nan(requests, lines):
    lines[1 + requests.batch]["predictions"][1]["probabilities"][0] = float("nan")


def _other_order(requests, lines):
    lines[1 + requests.batch]["predictions"].reverse()


def _swapped(requests, lines):
    for line in lines[1:]:
        for row in line.get("predictions", []):
            row["classes"] = ["hat", "cup"]


def _takes_garbage(requests, lines):
    lines[1 + requests.bad.start] = {"seconds": 0.01, "status": 200, "predictions": [{}]}


def _refuses_after_garbage(requests, lines):
    lines[1 + requests.after.start] = {"seconds": 0.01, "status": 400, "error": "resource exhausted"}


def _slow(requests, lines):
    for line in lines[1 + requests.timed.start :]:
        line["seconds"] = 6.0


def _beside_ours(requests, lines):
    lines[0]["modules"].append("models")


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (_nan, ["probabilities"]),
        (_other_order, ["probabilities"]),
        (_swapped, ["classes"]),
        (_takes_garbage, ["refuses_garbage"]),
        (_refuses_after_garbage, ["classes", "probabilities"]),
        (_slow, ["latency"]),
        (_beside_ours, ["loads"]),
        (lambda requests, lines: lines[:9], ["survives"]),
        (lambda requests, lines: lines[:1], ["survives"]),
    ],
)
def test_each_fault_has_its_check(judged, change, rules):
    assert judged().passed
    assert failed(judged(change)) == rules


def test_a_process_that_dies_is_told_with_what_it_was_asked(judged):
    test = judged(lambda requests, lines: lines[: 1 + requests.bad.start + 2], died="it died of SIGSEGV")
    assert "it died of SIGSEGV, at request 6 of" in test.reasons[0] and "zeros" in test.reasons[0]


def test_a_model_that_answers_the_same_to_everything_cannot_be_told_from_a_wrong_one(judged):
    flat = {**REFERENCE, "photographs": [{**each, "probabilities": [0.5, 0.5]} for each in REFERENCE["photographs"]]}
    assert failed(judged(reference=flat)) == ["probabilities", "telling"]
