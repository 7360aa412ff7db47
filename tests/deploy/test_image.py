"""How the image is built: from a commit and from bases by digest, or not at all."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

DIGEST = "sha256:" + "0" * 64

WHOLE = {"IMAGE": "eu.pkg.dev/p/retrain:1", "BASE": f"nvidia/cuda@{DIGEST}", "BEAM": f"apache/beam_python3.12_sdk@{DIGEST}"}

ENGINE = """#!/bin/sh
printf '%s\\n' "$@" > {log}
ls "$(eval echo \\${{$#}})" > {log}.context
exit {status}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A committed project with a Dockerfile, and PATH with git alone."""
    if not shutil.which("git"):
        pytest.skip("needs git to make a repository")
    (tmp_path / "project" / "deploy").mkdir(parents=True)
    (tmp_path / "project" / "deploy" / "Dockerfile").write_text("FROM scratch\n")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "First"]):
        identity = ["-c", "user.name=ana", "-c", "user.email=ana@example.com"]
        subprocess.run(["git", "-C", str(tmp_path / "project"), *identity, *words], check=True)
    (tmp_path / "bin").mkdir()
    for name in ("git", "tar", "sh", "ls"):
        os.symlink(shutil.which(name), tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "project"


@pytest.fixture
def image(project, monkeypatch):
    spec = importlib.util.spec_from_file_location("image_under_test", ROOT / "deploy" / "image.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", str(project))
    return module


def engine(project, name="docker", status=0) -> pathlib.Path:
    log, program = project.parent / "engine.log", project.parent / "bin" / name
    program.write_text(ENGINE.format(log=log, status=status))
    program.chmod(0o755)
    return log


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_the_image_is_built_of_the_commit_and_says_so(image, project, name, capfd):
    log = engine(project, name)
    assert image.main(WHOLE) == 0
    words = log.read_text().splitlines()
    commit = subprocess.run(["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert words[0] == "build" and words[words.index("--tag") + 1] == WHOLE["IMAGE"]
    assert {f"--build-arg=COMMIT={commit}", f"--build-arg=BASE={WHOLE['BASE']}", f"--build-arg=BEAM={WHOLE['BEAM']}"} <= set(words)
    assert pathlib.Path(f"{log}.context").read_text().split() == ["deploy"]  # an export, without .git
    assert f"holds commit {commit}" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"IMAGE": ""}, "IMAGE='' is no name for an image"),
        ({"IMAGE": "eu.pkg.dev/p/retrain"}, "write REGISTRY/REPOSITORY/NAME:TAG"),
        ({"IMAGE": "x:1; rm"}, "is no name for an image"),
        ({"BASE": "debian:13"}, "BASE='debian:13' is no image by digest"),
        ({"BEAM": ""}, "BEAM='' is no image by digest"),
    ],
)
def test_what_is_not_pinned_is_not_built(image, project, capsys, changes, words):
    log = engine(project)
    assert image.main(WHOLE | changes) == 1
    assert words in capsys.readouterr().err and not log.exists()


def test_what_is_not_committed_stops_the_build(image, project, capsys):
    log = engine(project)
    (project / "new.py").write_text("x")
    assert image.main(WHOLE) == 1
    assert "new.py" in capsys.readouterr().err and not log.exists()


def test_without_an_engine_it_says_so(image, capsys):
    assert image.main(WHOLE) == 1
    assert "neither docker nor podman" in capsys.readouterr().err


def test_a_build_that_fails_fails(image, project, capsys):
    engine(project, status=7)
    assert image.main(WHOLE) == 1
    assert "docker could not build eu.pkg.dev/p/retrain:1 (exit status 7)" in capsys.readouterr().err


class TestDockerfile:
    TEXT = (ROOT / "deploy" / "Dockerfile").read_text()

    def test_all_it_begins_from_is_named_by_who_builds_it(self):
        assert set(re.findall(r"^FROM (\S+)", self.TEXT, re.M)) == {"${BASE}", "${BEAM}"}
        assert not re.search(r"^ARG \w+=", self.TEXT, re.M)  # no default that nobody looked at

    def test_what_it_copies_is_there(self):
        for words in re.findall(r"^COPY (?!--from)(.+)", self.TEXT, re.M):
            for name in words.split()[:-1]:
                assert (ROOT / name).exists(), name

    def test_every_package_of_the_project_is_in_it(self):
        packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
        assert packages == {name for name in ("models", "pipeline") if f"COPY {name}/ {name}/" in self.TEXT}

    def test_nobody_is_root_in_it(self):
        assert re.findall(r"^USER (\S+)", self.TEXT, re.M) == ["retrain"] and "useradd" in self.TEXT

    def test_the_settings_find_the_code_where_it_is(self):
        from pipeline.vertex.settings import VertexSettings

        code = next(field.default.default for field in VertexSettings.__dataclass_fields__.values() if field.name == "code")
        assert f"WORKDIR {code}" in self.TEXT and f"PYTHONPATH={code}" in self.TEXT

    def test_beams_image_is_of_the_locked_version(self):
        locked = re.search(r"^apache-beam==(\S+)", (ROOT / "requirements" / "tfx-1.21.txt").read_text(), re.M)[1]
        assert f"apache/beam_python3.12_sdk:{locked}" in self.TEXT
