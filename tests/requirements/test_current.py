"""Running the tests in a Debian 13 of their own: what is decided before, and what is said after. Nothing is unpacked here."""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def current(monkeypatch, tmp_path):
    """The module, with its Debian and its project under tmp_path."""
    monkeypatch.syspath_prepend(str(ROOT / "requirements"))
    spec = importlib.util.spec_from_file_location("current_under_test", ROOT / "requirements" / "current.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path / "clone")
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "clone" / ".debian13")
    monkeypatch.setattr(module, "STAMP", tmp_path / "clone" / ".debian13" / ".debootstrapped")
    return module


TOOLS = {"debootstrap": "/usr/sbin/debootstrap", "git": "/usr/bin/git", "unshare": "/usr/bin/unshare"}


class TestWhatHinders:
    def test_nothing(self, current):
        assert current.complaint(0, TOOLS, 20.0, made=False) is None

    @pytest.mark.parametrize(
        "user, tools, gigabytes, words",
        [
            (1000, TOOLS, 20.0, "this is user 1000: run it as root"),
            (0, {**TOOLS, "git": None, "debootstrap": None}, 20.0, "debootstrap and git cannot be found.*apt-get install"),
            (0, TOOLS, 3.0, r"3\.0 GB free, and 8 GB are needed"),
        ],
    )
    def test_each_names_the_remedy(self, current, user, tools, gigabytes, words):
        assert re.search(words, current.complaint(user, tools, gigabytes, made=False))

    def test_a_debian_that_is_there_needs_neither_room_nor_debootstrap(self, current):
        assert current.complaint(0, {**TOOLS, "debootstrap": None}, 1.0, made=True) is None


class TestEnvironment:
    def test_mirrors_and_proxies_go_with_it_and_nothing_else(self, current):
        outside = {"PIP_INDEX_URL": "https://mirror.example/simple", "https_proxy": "http://proxy.example", "SECRET": "x"}
        inside = current.environment({**outside, "PYTHONPATH": "/elsewhere", "TFX_LINE": "1.16"})
        assert inside["PIP_INDEX_URL"] == "https://mirror.example/simple"
        assert inside["https_proxy"] == "http://proxy.example"
        assert inside["TFX_LINE"] == "1.21"
        assert not {"SECRET", "PYTHONPATH"} & set(inside)


class TestSummary:
    VERSIONS = "Debian 13.2 (Python 3.13.5, glibc 2.41)"

    def test_the_closing_line_of_pytest(self, current):
        printed = "tests/a.py ..s [100%]\n===== 2 failed, 310 passed, 3 skipped in 812.10s (0:13:32) =====\n"
        said = current.summary(printed, self.VERSIONS, 903.4)
        assert said == f"TFX 1.21 on {self.VERSIONS}: 2 failed, 310 passed, 3 skipped in 903 s"

    @pytest.mark.parametrize("printed", ["", "set-up: no network\n", "===== no tests ran in 1.78s =====\n"])
    def test_no_closing_line_no_claim(self, current, printed):
        assert current.summary(printed, self.VERSIONS, 1.0) is None


class TestProjectThere:
    def test_is_what_is_here_now_and_keeps_its_environments(self, current):
        if not shutil.which("git"):
            pytest.skip("this machine has no git, which says what belongs to the project")
        clone = current.ROOT
        clone.mkdir()
        subprocess.run(["git", "init", "-q", str(clone)], check=True)
        (clone / ".gitignore").write_text(".venv/\n.debian13/\n")
        (clone / "models").mkdir()
        for name in ("models/a.py", "models/gone.py", "new.py"):
            (clone / name).write_text(name)
        subprocess.run(["git", "-C", str(clone), "add", "models"], check=True)
        (clone / "models/gone.py").unlink()
        (clone / ".venv").mkdir()
        (clone / ".venv/mark").write_text("of this machine")
        there = current.DEBIAN / "srv/project"
        (there / ".venv").mkdir(parents=True)
        (there / ".venv/mark").write_text("of that one")
        (there / "pipeline").mkdir()
        (there / "pipeline/of_yesterday.py").write_text("")

        current.copy_project()

        files = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
        assert files == {".gitignore", ".venv/mark", "models/a.py", "new.py"}
        assert (there / ".venv/mark").read_text() == "of that one"


class TestPackages:
    @pytest.fixture
    def apt(self, current, monkeypatch):
        """What is called in place of apt, and how that ends."""
        info = current.DEBIAN / "var/lib/dpkg/info"
        info.mkdir(parents=True)
        (current.DEBIAN / "etc").mkdir()
        (info / "git.list").write_text("")
        called, ends = [], [0]

        def run(words, **_):
            called.append(words)
            return subprocess.CompletedProcess(words, ends[0], "E: Unable to locate package chromim\n")

        monkeypatch.setattr(current.subprocess, "run", run)
        return called, ends

    def test_those_that_are_missing_are_installed(self, current, apt):
        current.add_packages(["git", "chromium"])
        (words,) = apt[0]
        assert words[-1] == "chromium" and "git" not in words
        current.add_packages(["git"])
        current.add_packages([])
        assert len(apt[0]) == 1

    def test_what_apt_says_is_passed_on(self, current, apt):
        apt[1][0] = 100
        with pytest.raises(current.bootstrap.SetupError, match="(?s)could not install chromim.*Unable to locate.*Check the names"):
            current.add_packages(["chromim"])

    @pytest.mark.parametrize("name", ["-o=Dir::Etc=/x", "Git", "a;b", "git,make"])
    def test_no_name_no_call(self, current, apt, name):
        with pytest.raises(current.bootstrap.SetupError, match="no name of a package"):
            current.add_packages([name])
        assert not apt[0]


def test_arguments_with_spaces_stay_whole(current, monkeypatch, tmp_path):
    called = []

    class Ended:
        returncode = 0
        stdout = iter(())

        def __init__(self, words, **_):
            called.append(words)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    (current.DEBIAN / "etc").mkdir(parents=True)
    (current.DEBIAN / "etc/debian_version").write_text("13.2\n")
    monkeypatch.setattr(current, "make_debian", lambda: None)
    monkeypatch.setattr(current, "copy_project", lambda: None)
    monkeypatch.setattr(current.subprocess, "Popen", Ended)
    monkeypatch.setattr(current.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "3.13.5 2.41\n"))
    current.test(["-k", "a or b"])
    assert called[0][-1] == "ARGS=-k 'a or b'"
    assert called[0][:3] == ["setpriv", "--pdeathsig", "KILL"]


def test_is_told_to_a_user_without_a_traceback(tmp_path):
    """As another user than root, or as root without git: one line, exit status 1."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    words = [sys.executable, str(ROOT / "requirements" / "current.py")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    glibc_is_new = "new enough" in done.stderr
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert glibc_is_new or "apt-get install" in done.stderr
