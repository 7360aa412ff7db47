"""Where a run comes from; what cannot be found out is never guessed."""

import getpass
import hashlib
import importlib.metadata
import platform
import shutil
import subprocess

import pytest

from pipeline import origin


def git(folder, *words):
    if not shutil.which("git"):
        pytest.skip("needs git to make a repository")
    identity = ["-c", "user.name=ana", "-c", "user.email=ana@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder that takes the project's place."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "code.py").write_text("one")
    monkeypatch.setattr(origin, "_ROOT", project.resolve())
    # Whoever runs the tests may have a repository or a configuration of his own around them.
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return project


@pytest.fixture
def repository(project):
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "First")
    return project


def test_a_clean_repository(repository):
    found = origin.discover()
    assert (found.commit, found.tree, found.changes_sha256) == (git(repository, "rev-parse", "HEAD"), "clean", "")


def test_an_image_knows_the_commit_that_it_was_built_of(project, monkeypatch):
    monkeypatch.setenv("PIPELINE_COMMIT", "c0ffee")
    found = origin.discover()
    assert (found.commit, found.tree) == ("c0ffee", "clean")


def test_a_repository_is_believed_before_an_image(repository, monkeypatch):
    monkeypatch.setenv("PIPELINE_COMMIT", "c0ffee")
    assert origin.discover().commit == git(repository, "rev-parse", "HEAD")


def test_what_was_compiled_elsewhere_runs_with_what_the_container_holds(project, monkeypatch):
    monkeypatch.setenv("PIPELINE_COMMIT", "c0ffee")
    compiled = {"commit": "other", "lock": "tfx-1.16.txt", "image": "i@sha256:0", "launched_by": "ana", "python": "3.11.0"}
    found = origin.in_container(compiled)
    assert (found["commit"], found["image"], found["launched_by"]) == ("c0ffee", "i@sha256:0", "ana")
    assert found["python"] == platform.python_version() and found.keys() == vars(origin.discover()).keys()


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_changed_or_added_file_is_told(repository, name):
    (repository / name).write_text("two")
    found = origin.discover()
    assert (found.commit, found.tree) == (git(repository, "rev-parse", "HEAD"), "changed")


def test_each_state_of_a_changed_tree_has_a_digest_of_its_own(repository):
    def digest(name: str, text: str) -> str:
        (repository / name).write_text(text)
        return origin.discover().changes_sha256

    found = [digest("code.py", "two"), digest("new.py", "x"), digest("new.py", "y"), digest("code.py", "one"), digest("b", "\0")]
    assert len(set(found)) == 5 and all(len(name) == 64 for name in found)
    (repository / "b").unlink()
    assert origin.discover().changes_sha256 == found[3]
    # Staged or not, it is the same change; nor does anybody's taste in diffs change it.
    assert digest("code.py", "two") != found[3]
    before = origin.discover().changes_sha256
    git(repository, "add", "code.py")
    assert origin.discover().changes_sha256 == before
    git(repository, "config", "diff.external", "false")
    assert origin.discover().changes_sha256 == before


def test_ignored_files_change_nothing(repository):
    (repository / ".git" / "info" / "exclude").write_text("store/\n")
    (repository / "store").mkdir()
    (repository / "store" / "metadata.sqlite").write_text("x")
    assert origin.discover().tree == "clean"


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": "a" * 40 + "\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack-refs\n{'b' * 40} refs/heads/x/main\n{'a' * 40} refs/heads/main\n"},
        {"HEAD": "a" * 40 + "\n"},
    ],
    ids=["branch", "packed", "detached"],
)
def test_a_repository_on_a_machine_without_git(project, monkeypatch, files):
    for name, text in files.items():
        (project / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / ".git" / name).write_text(text)
    monkeypatch.setenv("PATH", "")
    assert (origin.discover().commit, origin.discover().tree) == ("a" * 40, "unknown")


@pytest.mark.parametrize("head", ["", "ref: refs/heads/main\n", "main\n", "ref: refs/heads/broken\n"])
def test_a_head_that_names_no_commit_is_not_guessed(project, monkeypatch, head):
    (project / ".git" / "refs" / "heads").mkdir(parents=True)
    (project / ".git" / "HEAD").write_text(head)
    (project / ".git" / "refs" / "heads" / "broken").write_text("no digest\n")
    monkeypatch.setenv("PATH", "")
    assert (origin.discover().commit, origin.discover().tree) == ("", "unknown")


@pytest.mark.parametrize("state", ["branch", "packed", "detached"])
def test_without_git_the_commit_is_read_and_the_tree_unknown(repository, monkeypatch, state):
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, *{"branch": ["status"], "packed": ["pack-refs", "--all"], "detached": ["checkout", "-q", commit]}[state])
    monkeypatch.setenv("PATH", "")
    found = origin.discover()
    assert (found.commit, found.tree) == (commit, "unknown")


def test_no_repository(project):
    assert (origin.discover().commit, origin.discover().tree) == ("", "unknown")


def test_a_repository_around_the_project_is_not_the_projects(project):
    git(project.parent, "init", "-q")
    git(project.parent, "add", ".")
    git(project.parent, "commit", "-q", "-m", "Something else")
    assert (origin.discover().commit, origin.discover().tree) == ("", "unknown")


def test_a_repository_without_a_commit(project):
    git(project, "init", "-q")
    assert (origin.discover().commit, origin.discover().tree) == ("", "unknown")


def test_the_locked_packages_are_those_of_the_installed_line(project):
    line = ".".join(importlib.metadata.version("tfx").split(".")[:2])
    assert (origin.discover().lock, origin.discover().lock_sha256) == ("", "")
    (project / "requirements").mkdir()
    (project / "requirements" / f"tfx-{line}.txt").write_text("tfx==1\n")
    found = origin.discover()
    assert (found.lock, found.lock_sha256) == (f"tfx-{line}.txt", hashlib.sha256(b"tfx==1\n").hexdigest())


def test_an_account_without_a_name_is_unknown(project, monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(getpass.os, "getuid", lambda: 2**31 - 5)  # a container's user that no file names
    assert origin.discover().launched_by == ""
    monkeypatch.setenv("LOGNAME", "ana")
    assert origin.discover().launched_by == "ana"


def test_image_and_machine(project, monkeypatch):
    monkeypatch.delenv("PIPELINE_IMAGE", raising=False)
    assert origin.discover().image == ""
    monkeypatch.setenv("PIPELINE_IMAGE", "registry/pipeline@sha256:0")
    found = origin.discover()
    assert found.image == "registry/pipeline@sha256:0"
    assert found.python == platform.python_version() and platform.machine() in found.platform
