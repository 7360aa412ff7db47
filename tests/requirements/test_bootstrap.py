"""The set-up's decisions, and what its requirements files promise. No network; nothing is installed."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKED = sorted(path.name for path in REQUIREMENTS.glob("*.txt"))


@pytest.fixture
def bootstrap(monkeypatch, tmp_path):
    """The module, with its files under tmp_path."""
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", REQUIREMENTS / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(module, "TOOLS", str(tmp_path / ".venv-tools"))
    monkeypatch.setattr(module, "STAMP", str(tmp_path / ".venv" / ".built"))
    return module


def pythons(*minors):
    return {(3, minor): f"/usr/bin/python3.{minor}" for minor in minors}


class TestPickLine:
    @pytest.mark.parametrize(
        "wanted, here, glibc, line, python",
        [
            pytest.param(None, (11,), (2, 36), "1.16", "/usr/bin/python3.11", id="Debian 12"),
            pytest.param(None, (13,), (2, 41), "1.21", "/usr/bin/python3.13", id="Debian 13"),
            pytest.param(None, (12,), (2, 39), "1.21", "/usr/bin/python3.12", id="Ubuntu 24.04"),
            pytest.param(None, (11, 13), (2, 41), "1.21", "/usr/bin/python3.13", id="Debian 13 with a Python 3.11"),
            pytest.param(None, (11,), (2, 41), "1.21", "/usr/bin/python3.11", id="Debian 13 with nothing but a Python 3.11"),
            pytest.param(None, (11, 13), (2, 36), "1.16", "/usr/bin/python3.11", id="Debian 12 with a Python 3.13"),
            pytest.param(None, (13, 14), (2, 42), "1.21", "/usr/bin/python3.13", id="3.14 beside 3.13"),
            pytest.param(None, (10,), (2, 35), "1.16", None, id="Ubuntu 22.04: uv fetches 3.11"),
            pytest.param(None, (13,), (2, 38), "1.16", None, id="glibc too old for 1.21"),
            pytest.param(None, (14,), (2, 42), "1.16", None, id="Python too new for both"),
            pytest.param(None, (), (2, 41), "1.16", None, id="no Python at all"),
            pytest.param("1.21", (11, 13), (2, 41), "1.21", "/usr/bin/python3.13", id="1.21 by hand"),
            pytest.param("1.21", (11,), (2, 41), "1.21", "/usr/bin/python3.11", id="1.21 by hand on 3.11"),
            pytest.param("1.16", (11, 13), (2, 41), "1.16", "/usr/bin/python3.11", id="1.16 by hand"),
            pytest.param("1.16", (13,), (2, 41), "1.16", None, id="1.16 by hand without 3.11"),
        ],
    )
    def test_line_and_python(self, bootstrap, wanted, here, glibc, line, python):
        choice = bootstrap.pick_line(wanted, pythons(*here), glibc)
        assert (choice.line.name, choice.python) == (line, python)
        assert choice.why

    def test_unknown_line_names_those_there_are(self, bootstrap):
        with pytest.raises(bootstrap.SetupError, match=r"TFX_LINE=1\.17.*1\.16 or 1\.21"):
            bootstrap.pick_line("1.17", pythons(11), (2, 36))

    def test_line_that_glibc_is_too_old_for(self, bootstrap):
        with pytest.raises(bootstrap.SetupError, match=r"glibc 2\.39 or newer.*this machine has 2\.36"):
            bootstrap.pick_line("1.21", pythons(11), (2, 36))


class TestUnfitMachine:
    @pytest.mark.parametrize(
        "system, machine, glibc, says",
        [
            ("Linux", "aarch64", (2, 36), "x86-64 processors only.*this is aarch64"),
            ("Linux", "x86_64", None, "glibc only.*musl"),
            ("Darwin", "arm64", None, "Linux only, and this is Darwin"),
        ],
    )
    def test_says_what_is_missing_and_what_to_do(self, bootstrap, system, machine, glibc, says):
        with pytest.raises(bootstrap.SetupError, match=says + r".*Run it in a container or on a machine with"):
            bootstrap.check_platform(system, machine, glibc)

    def test_fit_machine(self, bootstrap):
        bootstrap.check_platform("Linux", "x86_64", (2, 36))

    def test_no_python_to_be_had(self, bootstrap):
        message = bootstrap.no_python_message([(3, 14), (3, 9)], (2, 36))
        assert "Python 3.9, 3.14; glibc 2.36" in message
        assert "TFX 1.16  needs Python 3.11" in message
        assert "apt-get install python3" in message

    def test_no_python_for_the_line_asked_for(self, bootstrap):
        assert "Leave TFX_LINE unset: TFX 1.21 runs here" in bootstrap.no_python_message([(3, 13)], (2, 41))

    def test_too_little_disk(self, bootstrap):
        complaint = bootstrap.disk_complaint({"/home": 80.0, "/var/cache": 1.25})
        assert "/var/cache has 1.2 GB free, and 4 GB are needed" in complaint

    def test_enough_disk(self, bootstrap):
        assert bootstrap.disk_complaint({"/home": 4.0}) is None

    @pytest.mark.parametrize("wrong", ["arm64", "disk", "TFX_LINE", "read-only"])
    def test_ends_with_one_message_and_no_traceback(self, bootstrap, monkeypatch, capsys, wrong):
        monkeypatch.delenv("TFX_LINE", raising=False)
        monkeypatch.setattr(bootstrap, "usable_pythons", lambda: pythons(11))
        monkeypatch.setattr(bootstrap, "fetch_uv", lambda: pytest.fail("nothing may be fetched"))
        if wrong == "arm64":
            monkeypatch.setattr(bootstrap.platform, "machine", lambda: "aarch64")
        elif wrong == "disk":
            monkeypatch.setattr(bootstrap, "free_gb", lambda: {"/small": 0.5})
        elif wrong == "TFX_LINE":
            monkeypatch.setenv("TFX_LINE", "2.0")
        else:
            monkeypatch.setattr(bootstrap, "TOOLS", "/proc/.venv-tools")  # where not even root can make a directory
        assert bootstrap.main() == 1
        err = capsys.readouterr().err
        assert err.startswith("set-up: ") and "Traceback" not in err


class TestStamp:
    """An environment counts when its set-up ended, from these requirements, with this interpreter, in this place."""

    @pytest.fixture
    def built(self, bootstrap, monkeypatch, tmp_path):
        """A clone whose set-up is complete."""
        monkeypatch.setattr(bootstrap, "REQUIREMENTS", str(tmp_path))
        monkeypatch.setattr(bootstrap, "BUILD_REQUIREMENTS", str(tmp_path / "build.txt"))
        for name in ("tfx-1.16.txt", "tfx-1.21.txt", "build.txt"):
            (tmp_path / name).write_text("six==1.17.0\n")
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "python").write_text("an interpreter")
        bootstrap.write_stamp(bootstrap.LINES["1.16"])
        return bootstrap

    def test_a_second_call_does_nothing(self, built, monkeypatch):
        monkeypatch.delenv("TFX_LINE", raising=False)
        monkeypatch.setattr(built, "usable_pythons", lambda: pytest.fail("no need to look round"))
        assert built.main() == 0

    @pytest.mark.parametrize("wanted, current", [(None, True), ("1.16", True), ("1.21", False)])
    def test_the_line_that_is_there_stays_unless_another_is_asked_for(self, built, wanted, current):
        assert built.is_current(wanted) is current

    @pytest.mark.parametrize("changed", ["tfx-1.16.txt", "build.txt", ".venv/bin/python"])
    def test_a_change_of_what_it_is_made_from(self, built, tmp_path, changed):
        (tmp_path / changed).write_text("another")
        assert not built.is_current(None)

    def test_a_change_of_the_other_line(self, built, tmp_path):
        (tmp_path / "tfx-1.21.txt").write_text("another")
        assert built.is_current(None)

    def test_an_interpreter_that_is_gone(self, built, tmp_path):
        (tmp_path / ".venv" / "bin" / "python").unlink()
        assert not built.is_current(None)

    def test_a_clone_that_was_moved(self, built, monkeypatch, tmp_path):
        moved = tmp_path / "elsewhere"
        (tmp_path / ".venv").rename(moved)
        monkeypatch.setattr(built, "VENV", str(moved))
        monkeypatch.setattr(built, "STAMP", str(moved / ".built"))
        assert built.read_stamp() and not built.is_current(None)

    @pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"line": "9.9", "digest": "x"}', '{"line": "1.16"}'])
    def test_a_stamp_that_makes_no_sense(self, built, tmp_path, content):
        (tmp_path / ".venv" / ".built").write_text(content)
        assert not built.is_current(None)

    def test_an_interrupted_set_up_leaves_none_and_is_redone(self, built, tmp_path):
        """The stamp goes first and comes last: here uv fails on the way."""
        choice = built.Choice(built.LINES["1.16"], sys.executable, "test")
        with built.one_at_a_time() as lock, pytest.raises(built.SetupError, match="uv could not make"):
            built.build(choice, "/bin/false", lock, [], (2, 36))
        assert not built.is_current(None)

    def test_a_python_that_cannot_be_fetched_costs_no_environment(self, built):
        choice = built.Choice(built.LINES["1.16"], None, "test")
        with built.one_at_a_time() as lock, pytest.raises(built.SetupError, match="could not download"):
            built.build(choice, "/bin/false", lock, [(3, 13)], (2, 36))
        assert built.is_current(None)

    def test_fingerprint_keeps_parts_apart(self, bootstrap):
        assert bootstrap.fingerprint(b"ab", b"c") != bootstrap.fingerprint(b"a", b"bc")


class TestConcurrentCalls:
    def test_one_waits_for_the_other(self, bootstrap, capsys):
        order = []

        def second():
            with bootstrap.one_at_a_time():
                order.append("second")

        with bootstrap.one_at_a_time():
            waiting = threading.Thread(target=second)
            waiting.start()
            waiting.join(timeout=0.3)
            order.append("first")
        waiting.join(timeout=10)
        assert order == ["first", "second"]
        assert "another set-up of this clone is running" in capsys.readouterr().err

    def test_a_child_that_outlives_a_killed_set_up_is_waited_for(self, bootstrap):
        with bootstrap.one_at_a_time() as lock:
            child = subprocess.Popen(["sleep", "0.5"], pass_fds=[lock])
        with bootstrap.one_at_a_time():
            assert child.poll() is not None or child.wait(timeout=0.2) == 0


class TestThisMachine:
    def test_finds_the_python_that_runs_this(self, bootstrap):
        assert sys.version_info[:2] in bootstrap.usable_pythons()

    def test_skips_programs_that_are_no_usable_python(self, bootstrap, monkeypatch, tmp_path):
        for name, body in {"python3.11": "exit 127", "python3.13": "echo nonsense; exit 1"}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "python3.12").write_text("not a program")
        monkeypatch.setenv("PATH", str(tmp_path))
        assert list(bootstrap.usable_pythons()) == [sys.version_info[:2]]

    def test_knows_its_glibc(self, bootstrap):
        assert bootstrap.glibc_version() >= (2, 17)

    def test_other_c_libraries_have_no_glibc(self, bootstrap, monkeypatch):
        def unknown(name):
            raise ValueError("unrecognized configuration name")

        monkeypatch.setattr(bootstrap.os, "confstr", unknown)
        assert bootstrap.glibc_version() is None

    def test_free_disk_of_places_that_are_not_there_yet(self, bootstrap, monkeypatch, tmp_path):
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "not" / "yet"))
        assert list(bootstrap.free_gb()) == [str(tmp_path)]

    def test_mirrors_and_certificates_of_pip_reach_uv(self, bootstrap, monkeypatch):
        monkeypatch.setenv("PIP_INDEX_URL", "mirror")
        monkeypatch.setenv("PIP_CERT", "/etc/company.crt")
        monkeypatch.setenv("PIP_TARGET", "/somewhere")
        for name in ("UV_DEFAULT_INDEX", "SSL_CERT_FILE"):
            monkeypatch.delenv(name, raising=False)
        env = bootstrap.tool_environment()
        assert (env["UV_DEFAULT_INDEX"], env["SSL_CERT_FILE"]) == ("mirror", "/etc/company.crt")
        assert "PIP_TARGET" not in env

    def test_no_pip_no_venv_no_apt(self, bootstrap, monkeypatch, tmp_path):
        monkeypatch.setattr(bootstrap.sys, "executable", "/bin/false")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(bootstrap.SetupError, match="(?s)neither pip nor venv.*apt-get install python3-pip"):
            bootstrap.some_pip(str(tmp_path))


def requirements(name):
    """Each requirement of a locked file with its hashes: [(first line, [hash, ...])]."""
    entries = []
    for line in (REQUIREMENTS / name).read_text().splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            entries.append((line, []))
        elif line.strip().startswith("--hash="):
            entries[-1][1].append(line.strip().rstrip(" \\"))
    return entries


class TestRequirementsFiles:
    def test_the_files(self):
        assert LOCKED == ["bigquery-emulator.txt", "build.txt", "tfx-1.16.txt", "tfx-1.21.txt", "uv.txt", "vizier.txt"]

    @pytest.mark.parametrize("name", LOCKED)
    def test_every_requirement_has_one_version_and_hashes(self, name):
        assert requirements(name)
        for line, hashes in requirements(name):
            assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^ ]+( ; .*)? \\$", line), line
            assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), line

    @pytest.mark.parametrize("name", LOCKED)
    def test_no_address_and_no_path_of_a_machine(self, name):
        content = (REQUIREMENTS / name).read_text()
        assert "://" not in content and "--index" not in content and "--find-links" not in content
        assert not re.search(r"(^|[\s=@])(/|file:)", content)

    @pytest.mark.parametrize(
        "name, pins", [("tfx-1.16.txt", {"tfx==1.16.0", "apache-beam==2.61.0"}), ("tfx-1.21.txt", {"tfx==1.21.0"})]
    )
    def test_each_line_has_its_tfx(self, name, pins):
        assert pins <= {line.split(" ")[0] for line, _ in requirements(name)}

    @pytest.mark.parametrize("name", ["tfx-1.16.txt", "tfx-1.21.txt"])
    def test_every_direct_dependency_is_in_the_file(self, name):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        group = name.removesuffix(".txt").replace(".", "-")
        direct = project["project"]["dependencies"] + project["dependency-groups"][group]
        direct += project["dependency-groups"]["test"]
        names = {re.match(r"[a-z0-9-]+", each).group() for each in direct}
        assert names <= {re.match(r"[a-z0-9-]+", line).group() for line, _ in requirements(name)}

    def test_nothing_needs_a_compiler(self):
        """pyfarmhash before 0.5 and crcmod are C extensions that come as source only."""
        for name in ("tfx-1.16.txt", "tfx-1.21.txt"):
            versions = dict(line.split(" ")[0].split("==") for line, _ in requirements(name))
            assert "crcmod" not in versions
            assert versions["pyfarmhash"] >= "0.5"


def test_each_direct_dependency_has_its_reason():
    entry = re.compile(r'^    "(?P<name>[a-z0-9-]+)[^"]*",(?P<comment>.*)$')
    found = [match for match in map(entry.match, (ROOT / "pyproject.toml").read_text().splitlines()) if match]
    assert len(found) > 20
    for match in found:
        assert re.match(r"  # \w.+", match["comment"]), f"{match['name']} has no reason beside it"


def test_what_tfdv_takes_from_farmhash_is_as_in_the_version_it_asks_for():
    """The override to 0.5.1 is safe as long as these two functions give what 0.3.2 gave."""
    farmhash = pytest.importorskip("farmhash")
    assert farmhash.fingerprint64("abc") == 2640714258260161385
    assert farmhash.fingerprint32("abc") == 795041479


def test_beam_s_checksums_are_in_c():
    """Beam before 2.66 takes TFRecord checksums from crcmod, which is far too slow in Python."""
    crcmod = pytest.importorskip("crcmod.crcmod")
    assert crcmod._usingExtension
    assert sys.modules["crcmod"].predefined.mkCrcFun("crc-32c")(b"123456789") == 0xE3069283


def test_make_lists_its_commands():
    listing = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True, env={**os.environ})
    for command in ("setup", "run", "test", "lock", "clean"):
        assert f"make {command}" in listing.stdout
