"""The command that compiles, starts and schedules on Vertex: its answers, its refusals, and that they come at once."""

import json

import pytest
import yaml
from google.cloud import aiplatform_v1 as v1

import kubeflow_runner
from pipeline import typed
from pipeline.evaluation.thresholds import Thresholds
from pipeline.places import PRODUCTION
from pipeline.validation.rules import Limits
from pipeline.vertex import service
from tests.pipeline.conftest import ROOT, answers, command
from tests.pipeline.vertex.conftest import IMAGE, filled, loaded
from tests.pipeline.vertex.conftest import compiled_jobs, job_file, vertex  # noqa: F401 - fixtures
from tests.pipeline.vertex.test_plan import record
from tests.pipeline.vertex.test_service import named

DATE = ["--snapshot-date", "2026-03-02"]

# Name -> words of the command line (a file of `folder` after @), exit status, words of the answer.
MISTAKES = {
    "a tag": (
        ["compile", "--settings", "@v.yaml", "--image", "eu.pkg.dev/p/retrain:latest", "--output", "@x.json"], 2,
        ["--image eu.pkg.dev/p/retrain:latest names no digest", "gcloud artifacts docker images describe eu.pkg.dev/p/retrain:latest"],
    ),
    "no vertex": (
        ["compile", "--settings", "pipeline/configs/local.yaml", "--image", IMAGE, "--output", "@x.json"], 2,
        ["local.yaml has no vertex", "pipeline/configs/vertex.yaml"],
    ),
    "settings: unknown key": (
        ["compile", "--settings", "@wrong.yaml", "--image", IMAGE, "--output", "@x.json"], 2,
        ["wrong.yaml", "vertex.regoin: there is no such setting; did you mean 'region'?"],
    ),
    "no folder": (
        ["compile", "--settings", "@v.yaml", "--image", IMAGE, "--output", "@none/x.json"], 1, ["none/x.json: there is no such folder"],
    ),
    "no thresholds": (
        ["compile", "--settings", "@v.yaml", "--image", IMAGE, "--output", "@x.json", "--thresholds", "@none.yaml"], 2, ["none.yaml"],
    ),
    "no limits": (
        ["compile", "--settings", "@v.yaml", "--image", IMAGE, "--output", "@x.json", "--limits", "@none.yaml"], 2, ["none.yaml"],
    ),
    "no job": (["submit", "--settings", "@v.yaml", "--job", "@none.json", *DATE], 1, ["none.json", "compile` writes one"]),
    "no compiled job": (["schedule", "--settings", "@v.yaml", "--job", "@v.yaml"], 1, ["v.yaml is no compiled pipeline"]),
    "a month that is none": (
        ["submit", "--settings", "@v.yaml", "--job", "@none.json", "--snapshot-date", "2026-13-01"], 1, ["'2026-13-01'"],
    ),
    "no rule": (
        ["submit", "--settings", "@v.yaml", "--job", "@none.json", *DATE, "--override", "x", "--override-by", "Ana",
         "--override-reason", "why"], 1, ["'x', which is no rule"],
    ),
}  # fmt: skip

USAGE = {
    "no command": ([], "COMMAND"),
    "half an override": (["submit", "--settings", "s", "--job", "j", *DATE, "--override", "max_orphans"], "go together"),
    "no date": (["submit", "--settings", "s", "--job", "j"], "--snapshot-date"),
    "no instant": (["submit", "--settings", "s", "--job", "j", *DATE, "--window-end", "tonight"], "'tonight' is no instant"),
    "a window that is over": (
        ["submit", "--settings", "s", "--job", "j", *DATE, "--window-end", "2026-03-03T06:00+01:00"], "is over",
    ),
    "too many runs": (["status", "--settings", "s", "--runs", "101"], "--runs 101 must be 1 to 100"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "v.yaml").write_text(yaml.safe_dump(filled()))
    (folder / "wrong.yaml").write_text(yaml.safe_dump(filled()).replace("region:", "regoin:"))
    return folder


@pytest.fixture(scope="module")
def told(folder):
    lines = [[str(folder / word[1:]) if word.startswith("@") else word for word in words] for words, _, _ in MISTAKES.values()]
    lines += [words for words, _ in USAGE.values()]
    return dict(zip([*MISTAKES, *USAGE], answers("kubeflow_runner", lines), strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_value_and_without_a_traceback(told, name):
    _, status, words = MISTAKES[name]
    answer = told[name]
    assert (answer.status, answer.out) == (status, "") and answer.err.startswith("error: ")
    for word in words:
        assert word in answer.err


@pytest.mark.parametrize("name", USAGE)
def test_a_command_line_that_cannot_be_used_is_told(told, name):
    assert told[name].status == 2 and USAGE[name][1] in told[name].err


def test_nothing_of_this_loads_tensorflow_or_tfx(told):
    assert [answer.loaded for answer in told.values()] == [[]] * len(told)


def test_help_shows_each_command():
    done = command("kubeflow_runner.py", "--help")
    for words in ("compile --settings", "submit --settings", "schedule --settings", "status --settings", "Exit status: 0 done"):
        assert words in done.stdout


def constant(steps, step: str, name: str) -> dict:
    return json.loads(steps[step]["inputs"]["parameters"][name]["runtimeValue"]["constant"])


@pytest.mark.parametrize("own", [False, True])
def test_compile_writes_what_the_other_commands_read(folder, tmp_path, capsys, monkeypatch, own):
    """Once with files of one's own, weekly; once monthly, and then production's thresholds and limits, not the sample's."""
    monkeypatch.setenv("PIPELINE_IMAGE", "")
    output = tmp_path / "job.json"
    words = ["compile", "--settings", str(folder / "v.yaml"), "--image", IMAGE, "--output", str(output)]
    for flag, name, before, after in [
        ("--thresholds", "release.yaml", "min_accuracy: 0.5\n", "min_accuracy: 0.625\n"),
        ("--limits", "gate.yaml", "min_rows: 100\n", "min_rows: 101\n"),
    ]:
        (tmp_path / name).write_text((ROOT / "schema" / name).read_text().replace(before, after))
        words += [flag, str(tmp_path / name)] if own else []
    assert kubeflow_runner.main(words if own else [*words, "--tune"]) == 0
    assert f"20 steps of product-photographs, image {IMAGE}" in capsys.readouterr().out
    compiled = service.read_compiled(str(output), loaded())
    assert (compiled.image, compiled.tunes) == (IMAGE, not own)
    steps = service.steps_of(compiled.content)
    thresholds, limits = constant(steps, "ReleaseGate", "thresholds"), constant(steps, "SnapshotGate", "limits")
    if own:
        assert (thresholds["absolute"]["min_accuracy"], limits["min_rows"]) == (0.625, 101)
    else:
        assert thresholds == typed.to_dict(typed.load(Thresholds, PRODUCTION / "release.yaml"))
        assert limits == typed.to_dict(typed.load(Limits, PRODUCTION / "gate.yaml"))
    manifest = steps["RunManifest"]["inputs"]["parameters"]
    assert json.loads(manifest["origin"]["runtimeValue"]["constant"])["image"] == IMAGE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gate.yaml", "job.json", "release.yaml"]


@pytest.fixture
def run(vertex, job_file, folder, tmp_path, monkeypatch, capsys):  # noqa: F811
    """Runs a command against the server; returns its status and what it printed."""
    monkeypatch.setattr(service, "connect", lambda settings: service.Service(settings, vertex.pipelines, vertex.schedules))
    vertex.answers["CreatePipelineJob"] = named("pipeline_job")
    vertex.answers["CreateSchedule"] = named("schedule")
    vertex.answers["ListSchedules"] = lambda request: v1.ListSchedulesResponse()
    vertex.answers["ListPipelineJobs"] = lambda request: v1.ListPipelineJobsResponse()

    def run(name, *words):
        given = [] if name == "status" else ["--job", job_file()]
        status = kubeflow_runner.main([name, "--settings", str(folder / "v.yaml"), *given, *words])
        return status, *capsys.readouterr()

    return run


def test_submit_starts_a_run_that_fits(run, vertex, tmp_path):  # noqa: F811
    status, out, err = run(
        "submit", *DATE, "--profile", record(tmp_path, 1000), "--override", "max_orphans", "--override-by", "Ana",
        "--override-reason", "the photographs come on Tuesday", "--window-end", "2126-03-03T06:00+01:00",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "it fits" in out and f"on labels of before 2026-03-02, image {IMAGE}" in out
    (request,) = vertex.requests("CreatePipelineJob")
    values = dict(request.pipeline_job.runtime_config.parameter_values)
    assert json.loads(values.pop("override"))["rules"] == ["max_orphans"]
    assert values == {"snapshot_date": "2026-03-02", "window_end": "2126-03-03T06:00:00+01:00"}
    assert request.pipeline_job_id.startswith("product-photographs-20260302-")


@pytest.mark.parametrize("command_name", ["submit", "schedule"])
def test_what_does_not_fit_is_not_started_unless_a_person_says_so(run, vertex, tmp_path, command_name):  # noqa: F811
    words = [*(DATE if command_name == "submit" else []), "--profile", record(tmp_path, 800)]
    status, out, err = run(command_name, *words)
    assert status == 1 and "it does not fit" in out and "--although-it-does-not-fit" in err and not vertex.asked
    status, out, err = run(command_name, *words, "--although-it-does-not-fit")
    assert (status, err) == (0, "") and "started all the same" in out
    assert [method for method, _ in vertex.asked][-1] == {"submit": "CreatePipelineJob", "schedule": "CreateSchedule"}[command_name]


def test_status_tells_people_and_machines(run):
    assert run("status") == (0, "no schedules, no runs\n", "")
    status, out, _ = run("status", "--json")
    assert status == 0 and json.loads(out) == {"schedules": [], "runs": []}
