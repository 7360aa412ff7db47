"""What kubeflow_runner.py says when Vertex AI refuses: one line that names the project, the region or the role, and no traceback."""

import dataclasses
import json

import pytest
import yaml

import kubeflow_runner
from pipeline import settings, typed
from tests.cloud import google_apis
from tests.cloud.vertex.containers import IMAGE
from tests.pipeline.vertex.conftest import filled

MISSING_ROLE = "Whoever starts runs needs roles/aiplatform.user on the project, and roles/iam.serviceAccountUser on vertex.service_account"


@pytest.fixture
def say(vertex, tmp_path, capsys):
    """Gives a command; returns its status and what it printed to stderr."""

    def say(command: str, **changes) -> tuple[int, str]:
        content = filled()
        # The window is planned before Vertex is asked, and here there is nothing to plan with.
        content["vertex"] |= {"project": google_apis.PROJECT, "window_hours": 0, **changes}
        (tmp_path / "settings.yaml").write_text(yaml.safe_dump(content))
        words = [command, "--settings", str(tmp_path / "settings.yaml")]
        if command != "status":
            (tmp_path / "job.json").write_text(json.dumps(compiled(typed.from_dict(settings.Settings, content, "test"))))
            words += ["--job", str(tmp_path / "job.json")]
        if command == "submit":
            words += ["--snapshot-date", "2026-03-02"]
        return kubeflow_runner.main(words), capsys.readouterr().err

    return say


def compiled(config: settings.Settings) -> dict:
    """As much of a compiled pipeline as is read of one before it is sent."""
    constants = {"RunManifest": {"settings": json.dumps(dataclasses.asdict(config))}, "TuningDecision": {"asked": 0}}
    tasks = {
        name: {"inputs": {"parameters": {key: {"runtimeValue": {"constant": value}} for key, value in given.items()}}}
        for name, given in constants.items()
    }
    parameters = {name: {"parameterType": "STRING"} for name in ("snapshot_date", "override", "window_end")}
    return {
        "pipelineSpec": {
            "pipelineInfo": {"name": config.name},
            "root": {"inputDefinitions": {"parameters": parameters}, "dag": {"tasks": tasks}},
            "components": {},
            "deploymentSpec": {"executors": {"RunManifest_executor": {"container": {"image": IMAGE}}}},
        },
        "runtimeConfig": {"gcsOutputDirectory": "gs://runs/artifacts"},
    }


COMMANDS = {"status": "ListSchedules", "schedule": "ListSchedules", "submit": "CreatePipelineJob"}
"""The commands that ask Vertex, and what each asks first."""


def one_line(told: tuple[int, str]) -> str:
    status, text = told
    assert status == 1 and text.startswith("error: ") and text.count("\n") == 1, text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_another_project(say, command):
    text = one_line(say(command, project="acme-elsewhere"))
    assert "Vertex AI refuses (project acme-elsewhere, region europe-west4)" in text and MISSING_ROLE in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_region_that_is_none(say, google, command):
    text = one_line(say(command, region="mars-north1"))
    assert "Vertex AI cannot be reached at mars-north1-aiplatform.googleapis.com" in text and "see vertex.region" in text
    assert "mars-north1-aiplatform.googleapis.com:443" in google.refused


@pytest.mark.parametrize(("command", "method"), COMMANDS.items())
def test_a_missing_permission(say, vertex, command, method):
    vertex.answer(403, method)
    text = one_line(say(command))
    assert f"Vertex AI refuses (project {google_apis.PROJECT}, region europe-west4)" in text and MISSING_ROLE in text


@pytest.mark.parametrize("command", COMMANDS)
def test_no_credentials(say, tmp_path, monkeypatch, command):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    text = one_line(say(command))
    assert "no credentials for Vertex AI" in text and "gcloud auth application-default login" in text


def test_a_quota_that_is_used_up(say, vertex):
    vertex.answer(429, "CreatePipelineJob")
    assert "a quota of Vertex AI is exhausted" in one_line(say("submit"))
