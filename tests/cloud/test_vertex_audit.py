"""`python -m pipeline audit --settings FILE`: the same weeks, on Vertex and on one machine, have the same answers."""

import json

import pytest
import yaml

from pipeline.places import Places
from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex_lineage import PIPELINE, VertexWeeks
from tests.pipeline.conftest import answers
from tests.pipeline.lineage.conftest import three_weeks
from tests.pipeline.lineage.weeks import Weeks

CONFIGS = google_apis.ROOT / "pipeline" / "configs"

REGION = google_apis.REGIONS[0]

NOT_THE_SAME = ("id", "started", "ended", "ledger_line_sha256", "provenance_sha256")
"""Another store counts otherwise, wrote at another time, and has its path in the ledger and in the provenance."""


@pytest.fixture(scope="module")
def told(_google_apis, _vertex_server, _forks, tmp_path_factory):
    """Question -> its answer on one machine, and on Vertex: exit status, output, error and heavy modules of each."""
    from tests.cloud.vertex.containers import Containers
    from tests.cloud.vertex.server import Vertex

    folder = tmp_path_factory.mktemp("audit")
    stores = {name: folder / name / "store" for name in ("local", "cloud")}
    for store in stores.values():
        store.mkdir(parents=True)
    settings = yaml.safe_load((CONFIGS / "vertex.yaml").read_text())
    settings["vertex"] |= {"project": google_apis.PROJECT, "region": REGION, "store": str(stores["cloud"])}
    (folder / "vertex.yaml").write_text(yaml.safe_dump(settings))
    _, runs = three_weeks(lambda edits: Weeks(Places(store=str(stores["local"])), edits))
    lines = {
        "serving": ["serving", "--on", "2026-03-09"],
        "run": ["run", runs["second"]],
        "diff": ["diff", runs["first"], runs["second"], "--ids"],
        "image": ["image", "p1-a"],
        "snapshot": ["snapshot", "labels_20260302"],
        "verify": ["verify", runs["second"]],
        "model": ["verify", str(stores["cloud"] / "serving" / "versions" / "1")],
        "text": ["run", runs["first"]],
        "none": ["run", "20260302"],
        "report": ["report", runs["second"], "--html", str(folder / "report.html"), "--verify"],
    }
    as_json = {name: [*words, "--json"] if name not in ("text", "none", "report") else words for name, words in lines.items()}
    wrong = {
        "both": ["run", "x", "--settings", str(folder / "vertex.yaml"), "--lineage", "mysql://a@b/c"],
        "no vertex": ["run", "x", "--settings", str(CONFIGS / "local.yaml")],
        "no file": ["run", "x", "--settings", str(folder / "none.yaml")],
        "bucket": ["run", "x", "--store", "gs://runs/store"],
        "two stores": ["run", "x", "--store", "store", "--settings", str(folder / "vertex.yaml")],
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _google_apis.environment.items():
            patch.setenv(name, value)
        with _vertex_server.serving(
            Vertex(folder / "vertex", _google_apis, Containers(_google_apis.environment, _forks))
        ) as vertex:
            three_weeks(lambda edits: VertexWeeks(Places(store=str(stores["cloud"])), vertex, names.parent(REGION), edits))
            local = [["audit", *words, "--store", str(stores["local"])] for words in as_json.values()]
            cloud = [["audit", *words, "--settings", str(folder / "vertex.yaml")] for words in as_json.values()]
            found = answers("pipeline.__main__", [*local, *cloud, *(["audit", *words] for words in wrong.values())])
    pairs = dict(zip(lines, zip(found[: len(lines)], found[len(lines) : 2 * len(lines)], strict=True), strict=True))
    return pairs, dict(zip(wrong, found[2 * len(lines) :], strict=True)), stores, runs, (folder / "report.html").read_text()


def same(answer, store) -> object:
    """An answer without what is another one in another store."""
    if isinstance(answer, dict):
        return {name: same(value, store) for name, value in answer.items() if name not in NOT_THE_SAME}
    if isinstance(answer, list):
        return [same(value, store) for value in answer]
    return answer.replace(str(store), "STORE") if isinstance(answer, str) else answer


@pytest.mark.parametrize("name", ["serving", "run", "diff", "image", "snapshot", "verify"])
def test_vertex_and_one_machine_answer_alike(told, name):
    pairs, _, stores, *_ = told
    local, cloud = pairs[name]
    assert (cloud.status, cloud.err, cloud.loaded) == (local.status, "", []) == (0, "", [])
    assert same(json.loads(cloud.out), stores["cloud"]) == same(json.loads(local.out), stores["local"])


def test_a_model_leads_to_its_run(told):
    pairs, _, _, runs, _ = told
    answer = json.loads(pairs["model"][1].out)
    assert (answer["run_id"], answer["intact"]) == (runs["first"], True)


def test_a_run_as_text(told):
    pairs, _, _, runs, _ = told
    text = pairs["text"][1].out
    assert f"run {runs['first']}\n" in text and "labels_20260302: 40 rows as of" in text and "ServingLedger" in text


def test_an_unknown_run_is_told_with_the_closest(told):
    answer = told[0]["none"][1]
    assert (answer.status, answer.out) == (1, "")
    assert f"no run '20260302' in the lineage store of pipeline {PIPELINE} in project" in answer.err and "the closest: 20260302-" in answer.err


def test_a_report_of_a_run_on_vertex_has_its_graph(told):
    pairs, _, _, runs, page = told
    assert (pairs["report"][1].status, pairs["report"][1].err) == (0, "")
    steps = json.loads(pairs["run"][1].out)["steps"]
    assert runs["second"] in page and page.count('class="step complete"') == len(steps)
    assert page.count("<path class=") > len(steps)


WRONG = {
    "both": (1, "--settings and --lineage name two lineages"),
    "no vertex": (2, "local.yaml has no vertex: name the settings that the runs on Vertex AI have"),
    "no file": (2, "none.yaml"),
    "bucket": (1, "whose lineage is in Vertex ML Metadata: name their settings by --settings"),
    "two stores": (2, "not allowed with argument"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_command_line_that_names_no_lineage_or_two_is_refused(told, name):
    status, words = WRONG[name]
    answer = told[1][name]
    assert (answer.status, answer.out) == (status, "") and words in answer.err and "Traceback" not in answer.err
