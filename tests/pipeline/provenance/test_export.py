"""`audit export`: the files that it writes, what others' schemas say of them, and that it writes all or nothing."""

import dataclasses
import doctest
import hashlib
import json
import pathlib
import shutil
import subprocess

import pytest

import local_runner
from pipeline import files
from pipeline.__main__ import main
from pipeline.errors import PipelineError, StoreBusy
from pipeline.provenance import beside, bom, events, export, packages
from tests.pipeline.lineage.conftest import HOSTILE

ROOT = pathlib.Path(__file__).resolve().parents[3]
LOCK = "tfx-1.16.txt"


@pytest.fixture(scope="module")
def exported(weeks, told, tmp_path_factory):
    """The second week, exported with the facts of a run whose lock is here: folder, and what was said."""
    run, facts = told("second")
    facts = dataclasses.replace(facts, lock=LOCK, lock_sha256=files.sha256_of(ROOT / "requirements" / LOCK))
    folder = tmp_path_factory.mktemp("export") / "to"
    return folder, export.write(run, facts, str(folder)), (run, facts)


def test_the_files_and_their_digests(exported, weeks):
    folder, done, _ = exported
    assert set(done.sha256) == {path.name for path in folder.iterdir()} == {export.STATEMENT, export.BOM, export.EVENTS}
    assert all(files.sha256_of(folder / name) == digest for name, digest in done.sha256.items()) and done.notes == ()
    pushed = pathlib.Path(weeks[0].places.versions, "2.intoto.json")
    assert (folder / export.STATEMENT).read_bytes() == pushed.read_bytes()


def test_a_second_export_has_the_same_bytes_and_takes_the_place_of_the_first(exported):
    folder, done, (run, facts) = exported
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert export.write(run, facts, str(folder)) == done
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["to"]


def test_the_bill_of_materials_is_cyclonedx_with_a_card_data_sets_and_every_locked_package(exported):
    folder, _, (_, facts) = exported
    content = json.loads((folder / export.BOM).read_text())
    bom.check(content)
    model = content["metadata"]["component"]
    assert (content["specVersion"], model["type"], model["version"]) == ("1.6", "machine-learning-model", facts.run_id)
    assert model["hashes"] == [{"alg": "SHA-256", "content": facts.release.export_sha256}]
    card = model["modelCard"]
    assert card["modelParameters"]["datasets"] == [{"ref": "label-snapshot"}, {"ref": "image-shards"}]
    components = {each["bom-ref"]: each for each in content["components"]}
    assert components["label-snapshot"]["hashes"][0]["content"] == facts.checksum
    assert components["image-shards"]["hashes"][0]["content"] == facts.shards.digest
    libraries = {each["name"]: each for each in content["components"] if each["type"] == "library"}
    locked = [line for line in (ROOT / "requirements" / LOCK).read_text().splitlines() if "==" in line and line[0] not in " #"]
    assert len(libraries) == len(locked) > 200
    assert libraries["numpy"]["purl"] == f"pkg:pypi/numpy@{libraries['numpy']['version']}"
    assert f"--hash=sha256:{libraries['numpy']['hashes'][0]['content']}" in (ROOT / "requirements" / LOCK).read_text()
    assert {each["ref"] for each in content["dependencies"]} == {"model", *components}


def test_the_card_has_every_figure_by_slice_and_is_honest(exported):
    folder, _, _ = exported
    card = json.loads((folder / export.BOM).read_text())["metadata"]["component"]["modelCard"]
    assert card["quantitativeAnalysis"]["performanceMetrics"] == [
        {"type": "accuracy", "value": "0.75"}, {"type": "log_loss", "value": "0.5"},
        {"type": "accuracy", "value": "0.30000000000000004", "slice": f"label: {HOSTILE}"},
    ]  # fmt: skip
    said = " ".join(card["considerations"]["technicalLimitations"])
    assert "40 photographs of the same snapshot" in said and "weakest class is cup" in said and f"{HOSTILE} is new" in said
    assert "was not assessed" in card["considerations"]["ethicalConsiderations"][0]["name"]


def test_a_bill_of_materials_that_breaks_the_schema_is_refused_with_the_place(exported):
    folder, _, _ = exported
    content = json.loads((folder / export.BOM).read_text())
    content["metadata"]["component"]["modelCard"]["modelParameters"]["approach"]["type"] = "guessing"
    with pytest.raises(PipelineError, match=r"would not be CycloneDX 1\.6: \$\.metadata\.component.*'guessing'"):
        bom.check(content)


def test_the_events_tell_each_step_with_what_it_read_and_wrote(exported):
    folder, _, (run, facts) = exported
    told = [json.loads(line) for line in (folder / export.EVENTS).read_text().splitlines()]
    assert len(told) == 2 * (len(run.executions) + 1)
    assert [each["eventTime"] for each in told] == sorted(each["eventTime"] for each in told)
    assert told[0]["eventType"] == "START" and told[-1]["eventType"] == "COMPLETE"
    assert told[0]["run"]["runId"] == told[-1]["run"]["runId"]
    ends = {each["job"]["name"]: each for each in told if each["eventType"] == "COMPLETE"}
    assert set(ends) == {"pipeline", *(f"pipeline.{step.step}" for step in run.executions)}
    snapshot = ends["pipeline.SnapshotGen"]["outputs"][0]
    assert (snapshot["namespace"], snapshot["name"]) == ("duckdb", facts.snapshot_uri.removeprefix("duckdb:"))
    assert snapshot["facets"]["version"]["datasetVersion"] == facts.checksum
    assert snapshot["outputFacets"]["outputStatistics"]["rowCount"] == facts.rows
    # What one wrote is what another read: a catalog joins them by these two names.
    written = {(each["namespace"], each["name"]) for end in ends.values() for each in end["outputs"]}
    read = {(each["namespace"], each["name"]) for end in ends.values() for each in end["inputs"]}
    assert read <= written and len(read) > 10
    parent = ends["pipeline.Trainer"]["run"]["facets"]["parent"]
    assert parent["run"]["runId"] == told[0]["run"]["runId"] and parent["job"]["name"] == "pipeline"


def test_a_run_that_the_gate_stopped_has_events_alone_with_the_reason(told, tmp_path):
    run, facts = told("bad")
    done = export.write(run, facts, str(tmp_path / "to"))
    assert set(done.sha256) == {export.EVENTS} and "made no model" in done.notes[0]
    ends = [json.loads(line) for line in (tmp_path / "to" / export.EVENTS).read_text().splitlines()]
    assert [each["job"]["name"] for each in ends if each["eventType"] == "FAIL"] == ["pipeline.SnapshotGate", "pipeline"]
    (gate,) = [each for each in ends if each["job"]["name"] == "pipeline.SnapshotGate" and each["eventType"] == "FAIL"]
    assert HOSTILE in gate["run"]["facets"]["errorMessage"]["message"] and gate["outputs"] == []


def test_the_examples_in_the_docs_of_functions():
    for module in (beside, packages):
        assert doctest.testmod(module).failed == 0 < doctest.testmod(module).attempted


def test_a_runner_tells_catalogs_however_a_run_ends_and_what_hinders_it_changes_nothing(weeks, exported, capsys, tmp_path):
    written, runs = weeks
    path = pathlib.Path(written.places.openlineage(runs["bad"]))
    with pytest.raises(KeyError), local_runner._told_to_catalogs(True, written.places, runs["bad"]):
        raise KeyError
    assert json.loads(path.read_text().splitlines()[-1])["eventType"] == "FAIL"
    path.unlink()
    with pytest.raises(StoreBusy), local_runner._told_to_catalogs(True, written.places, runs["bad"]):
        raise StoreBusy("another run holds it")
    with local_runner._told_to_catalogs(False, written.places, runs["bad"]):
        pass
    assert not path.exists() and capsys.readouterr().err == ""
    path.parent.rmdir()
    path.parent.write_text("a file where the folder should be")
    with local_runner._told_to_catalogs(True, written.places, runs["bad"]):
        pass
    assert f"warning: the OpenLineage events of {runs['bad']} were not written: " in capsys.readouterr().err
    path.parent.unlink()


def test_events_of_a_run_that_ends_are_those_that_an_export_gives_however_often(exported, tmp_path):
    folder, _, (run, facts) = exported
    for _ in range(2):
        events.emit(run, facts, str(tmp_path / "openlineage" / "run.ndjson"))
    assert (tmp_path / "openlineage" / "run.ndjson").read_bytes() == (folder / export.EVENTS).read_bytes()
    assert [path.name for path in (tmp_path / "openlineage").iterdir()] == ["run.ndjson"]


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"table_uri": "bigquery:p.d.labels_20260302"}, ("bigquery", "p.d.labels_20260302")),
        ({"folder": "gs://bucket/shards/generation-000001"}, ("gs://bucket", "shards/generation-000001")),
        ({}, ("file", "/artifacts/7")),
    ],
)
def test_data_sets_are_named_as_openlineage_has_it(facts, named):
    assert events._named(events.Artifact(7, "Model", "/artifacts/7", facts)) == named


@pytest.fixture
def commit_before(tmp_path, monkeypatch):
    """A project whose lock was another one commit ago; gives that commit."""
    if not shutil.which("git"):
        pytest.skip("needs git to make a repository")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    project = tmp_path / "project"
    lock = project / "requirements" / LOCK
    lock.parent.mkdir(parents=True)
    (project / "pyproject.toml").write_text("[project]")

    def git(*words):
        identity = ["-c", "user.name=ana", "-c", "user.email=ana@example.com"]
        done = subprocess.run(["git", "-C", str(project), *identity, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    for version in ("1.0", "2.0"):
        lock.write_text(f"uv=={version} \\\n    --hash=sha256:{'a' * 64}\n")
        git("add", ".")
        git("commit", "-q", "-m", version)
    monkeypatch.setattr(packages, "_ROOT", project)
    return git("rev-parse", "HEAD^")


def test_a_lock_that_is_not_here_is_taken_from_git_or_said_to_be_missing(told, commit_before):
    _, facts = told("second")
    sha256 = hashlib.sha256(f"uv==1.0 \\\n    --hash=sha256:{'a' * 64}\n".encode()).hexdigest()
    known = dataclasses.replace(facts, lock=LOCK, lock_sha256=sha256, commit=commit_before)
    assert packages.of_run(known) == ([packages.Package("uv", "1.0", ("a" * 64,))], "")
    found, why = packages.of_run(dataclasses.replace(known, lock_sha256="0" * 64))
    assert found == [] and f"neither here nor in git at commit {commit_before}" in why
    # A record that somebody else wrote leads to no other file and to no option of git.
    assert packages.of_run(dataclasses.replace(known, lock="../pyproject.toml"))[0] == []
    assert packages.of_run(dataclasses.replace(known, commit="--output=x"))[0] == []


def test_a_lock_that_is_not_here_is_said_to_be_missing_without_git(told, monkeypatch):
    _, facts = told("second")
    monkeypatch.setenv("PATH", "")
    found, why = packages.of_run(dataclasses.replace(facts, lock=LOCK, lock_sha256="0" * 64, commit="1" * 40))
    assert found == [] and why.endswith("ask in a checkout that has that commit")


def test_a_run_of_a_time_without_statements_gets_one_now_and_that_is_said(told, tmp_path):
    run, facts = told("second")
    step = run.step("ReleasePusher")
    (artifact,) = step.outputs["pushed_model"]
    old = {name: value for name, value in artifact.facts.items() if name not in ("provenance_sha256", "pushed_at")}
    step = dataclasses.replace(step, outputs={"pushed_model": (dataclasses.replace(artifact, facts=old),)})
    run = dataclasses.replace(run, executions=tuple(step if each.step == step.step else each for each in run.executions))
    done = export.write(run, facts, str(tmp_path / "to"))
    assert "pushed its model before statements were written" in done.notes[0]
    metadata = json.loads((tmp_path / "to" / export.STATEMENT).read_text())["predicate"]["runDetails"]["metadata"]
    recorded = [when.replace("+00:00", "Z") for when in (facts.started, facts.ended)]
    assert [metadata["startedOn"], metadata["finishedOn"]] == recorded


def test_other_things_are_left_alone(told, tmp_path):
    run, facts = told("bad")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for place, words in [
        (tmp_path, "holds 'link', 'mine.txt', which is no export"),
        (tmp_path / "mine.txt", "is there and is no folder"),
        (tmp_path / "link", "is there and is no folder"),
        ("gs://bucket/export", "lies in Cloud Storage"),
    ]:
        with pytest.raises(PipelineError, match=words):
            export.write(run, facts, str(place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "mine.txt"]


DAMAGE = {
    "statement altered": (lambda weeks, run: pathlib.Path(weeks.places.versions, "2.intoto.json"), "was altered: sha256 "),
    "model altered": (
        lambda weeks, run: pathlib.Path(weeks.places.versions, "2", "saved_model.pb"),
        r"is not what the run's records say now: subject\[0\]\.digest\.dirHash, subject\[0\]\.digest\.sha256, subject\[1\]",
    ),
    "evaluation altered": (
        lambda weeks, run: weeks.folder(run, "ReleaseGate.verdict") / "evaluation.json",
        r"predicate\.runDetails\.byproducts\[2\]\.digest\.sha256",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_was_altered_is_named_and_nothing_written(store, told, tmp_path, name):
    written, runs = store
    find, words = DAMAGE[name]
    path = find(written, runs["second"])
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(PipelineError, match=words):
        export.write(*told("second"), str(tmp_path / "to"))
    path.unlink()
    with pytest.raises(PipelineError, match="is not there" if name != "model altered" else "is not what"):
        export.write(*told("second"), str(tmp_path / "to"))
    assert list(tmp_path.iterdir()) == []


def test_a_former_export_stays_when_a_new_one_fails(store, told, tmp_path, monkeypatch):
    export.write(*told("bad"), str(tmp_path / "to"))
    before = files.sha256_of(tmp_path / "to" / export.EVENTS)
    monkeypatch.setattr(events, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError):
        export.write(*told("bad"), str(tmp_path / "to"))
    assert files.sha256_of(tmp_path / "to" / export.EVENTS) == before and [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_place_that_cannot_be_written_is_one_line(weeks, tmp_path, capsys):
    written, runs = weeks
    (tmp_path / "file").write_text("mine")
    words = ["audit", "export", runs["second"], "--store", written.places.store, "--to", str(tmp_path / "file" / "to")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: the export of run {runs['second']} cannot be made: {tmp_path}") and said.count("\n") == 1
