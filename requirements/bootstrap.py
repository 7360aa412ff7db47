"""Builds .venv/ from the hashed requirements beside this file, with nothing but Python and make at hand.

    python3 requirements/bootstrap.py      build .venv/, or return at once when it is up to date

TFX is served by two lines, and one of them is picked for this machine (`pick_line` says how):

    TFX 1.16   Python 3.11           any glibc
    TFX 1.21   Python 3.11 to 3.13   glibc 2.39 or newer (Debian 13, Ubuntu 24.04)

`TFX_LINE=1.16` or `TFX_LINE=1.21` picks by hand. About 1 GB is downloaded and 4 GB of disk used. Nothing is
written outside this directory, apart from uv's cache of downloads.

Standard library only, and Python 3.8 or newer: this is what runs before anything is installed.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

Version = Tuple[int, ...]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REQUIREMENTS = os.path.join(ROOT, "requirements")
VENV = os.path.join(ROOT, ".venv")
TOOLS = os.path.join(ROOT, ".venv-tools")  # uv, and the lock that concurrent set-ups take turns on
STAMP = os.path.join(VENV, ".built")
UV_REQUIREMENTS = os.path.join(REQUIREMENTS, "uv.txt")
BUILD_REQUIREMENTS = os.path.join(REQUIREMENTS, "build.txt")

DISK_NEEDED_GB = 4.0  # measured: 3.4 GB for the environment; uv's cache shares its files where it can


class SetupError(Exception):
    """Something the person at the keyboard can put right; its text says what and how."""


class Line(NamedTuple):
    """One TFX release line and what it runs on."""

    name: str
    pythons: Tuple[Version, ...]  # minor versions, the preferred one first
    glibc: Version  # the oldest that its wheels load on

    @property
    def requirements(self) -> str:
        return os.path.join(REQUIREMENTS, f"tfx-{self.name}.txt")


LINES = {
    "1.16": Line("1.16", pythons=((3, 11),), glibc=(2, 17)),
    "1.21": Line("1.21", pythons=((3, 13), (3, 12), (3, 11)), glibc=(2, 39)),
}


class Choice(NamedTuple):
    """The line for this machine, the interpreter that runs it (None: uv fetches Python 3.11), and why."""

    line: Line
    python: Optional[str]
    why: str


# --- Decisions: pure functions, tested in tests/requirements/test_bootstrap.py ---


def text(version: Version) -> str:
    """(3, 11) -> '3.11'."""
    return ".".join(map(str, version))


def check_platform(system: str, machine: str, glibc: Optional[Version]) -> None:
    """Raises SetupError unless TFX's compiled parts (ml-metadata, TFDV, tfx-bsl) have wheels for this platform.

    Args:
      system: `platform.system()`.
      machine: `platform.machine()`.
      glibc: the C library's version, or None where it is another one (musl).
    """
    elsewhere = "Run it in a container or on a machine with x86-64 Linux, such as Debian 12 or 13."
    if system != "Linux":
        raise SetupError(f"TFX has packages for Linux only, and this is {system}. {elsewhere}")
    if machine not in ("x86_64", "amd64"):
        raise SetupError(
            f"TFX has packages for x86-64 processors only (ml-metadata, TFDV and tfx-bsl have none for others), "
            f"and this is {machine}. {elsewhere}"
        )
    if glibc is None:
        raise SetupError(
            "TFX has packages for Linux with glibc only, and this machine has another C library "
            f"(Alpine, for one, has musl). {elsewhere}"
        )


def pick_line(wanted: Optional[str], pythons: Dict[Version, str], glibc: Version) -> Choice:
    """The TFX line for this machine.

    Args:
      wanted: the line asked for by hand in TFX_LINE, or None.
      pythons: path of each usable CPython here by minor version, such as {(3, 11): '/usr/bin/python3.11'}.
      glibc: the C library's version, such as (2, 36).

    Returns:
      The newest line that this machine can install: TFX 1.21 where glibc and a Python allow it; TFX 1.16 where a
      Python 3.11 is; TFX 1.16 with a Python 3.11 that uv is to fetch.

    Raises:
      SetupError: `wanted` is no line, or cannot run here.
    """
    if wanted is not None and wanted not in LINES:
        raise SetupError(f"TFX_LINE={wanted} is no line of this project. Use {' or '.join(LINES)}, or leave it unset.")

    def usable(line: Line) -> List[Version]:
        return [python for python in line.pythons if python in pythons] if glibc >= line.glibc else []

    def choice(line: Line, why: str) -> Choice:
        return Choice(line, pythons[usable(line)[0]], why)

    old, new = LINES["1.16"], LINES["1.21"]
    if wanted:
        line = LINES[wanted]
        if usable(line):
            return choice(line, f"TFX_LINE={wanted} asks for it")
        if glibc < line.glibc:
            raise SetupError(
                f"TFX_LINE={wanted} asks for TFX {wanted}, which needs glibc {text(line.glibc)} or newer "
                f"(Debian 13, Ubuntu 24.04), and this machine has {text(glibc)}. Leave TFX_LINE unset to get TFX 1.16."
            )
        return Choice(line, None, f"TFX_LINE={wanted} asks for it, with a Python 3.11 that uv fetches")
    if usable(new):
        return choice(new, f"Python {text(usable(new)[0])} and glibc {text(glibc)} are here")
    if usable(old):
        lacking = f"glibc {text(glibc)}, and TFX {new.name} needs {text(new.glibc)}"
        return choice(old, f"a Python 3.11 and {lacking}")
    return Choice(old, None, "no suitable Python on this machine: uv fetches Python 3.11")


def no_python_message(pythons: Sequence[Version], glibc: Version) -> str:
    """What to tell when Python 3.11 is wanted, is not here, and uv could not fetch it."""
    found = ", ".join(text(python) for python in sorted(pythons)) or "none"
    if pick_line(None, dict.fromkeys(pythons, ""), glibc).python is not None:
        return "No Python 3.11 here, and uv could not download one. Leave TFX_LINE unset: TFX 1.21 runs here."
    return (
        "No suitable Python on this machine, and uv could not download one.\n"
        f"  here:     Python {found}; glibc {text(glibc)}\n"
        "  TFX 1.16  needs Python 3.11\n"
        "  TFX 1.21  needs Python 3.11, 3.12 or 3.13, and glibc 2.39 or newer\n"
        "Install one of these Pythons so that it is on PATH (on Debian 12 and 13, as root: apt-get install python3), "
        "or let uv reach its downloads of Python, and say make setup again."
    )


def disk_complaint(free_gb: Dict[str, float]) -> Optional[str]:
    """What to tell when a directory that must hold `DISK_NEEDED_GB` has less free; None when all have enough."""
    for directory, free in free_gb.items():
        if free < DISK_NEEDED_GB:
            return (
                f"Too little disk: {directory} has {free:.1f} GB free, and {DISK_NEEDED_GB:.0f} GB are needed, for the "
                "environment and again for uv's downloads where these are on another disk (UV_CACHE_DIR). Make room."
            )
    return None


def fingerprint(*parts: bytes) -> str:
    """SHA-256 over the parts, each preceded by its length so that no two lists of parts collide."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def stamp_is_current(stamp: Optional[dict], wanted: Optional[str], digest: Optional[str]) -> bool:
    """Whether the environment that left `stamp` is the one to use.

    Args:
      stamp: what the last complete set-up wrote; None when there was none or it was interrupted.
      wanted: the line asked for by hand, or None: then the line that is there stays.
      digest: the fingerprint now of what the stamp's line is made from; None when a part of it is gone.
    """
    return stamp is not None and digest is not None and stamp["digest"] == digest and wanted in (None, stamp["line"])


# --- What this machine is ---


def glibc_version() -> Optional[Version]:
    """(2, 36) for glibc 2.36; None for another C library."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""  # 'glibc 2.36'
    except (ValueError, OSError):
        return None
    kind, _, version = name.partition(" ")
    return tuple(int(part) for part in version.split(".")[:2]) if kind == "glibc" else None


PROBE = """
import sys, platform
import bz2, ctypes, lzma, ssl, zlib  # a hand-built Python may lack some of them, and TFX then fails late
assert platform.python_implementation() == "CPython" and sys.maxsize > 2**32
assert not getattr(sys, "_is_gil_enabled", lambda: True)() is False
print("PROBED", *sys.version_info[:2], getattr(sys, "_base_executable", sys.executable))
"""


def usable_pythons() -> Dict[Version, str]:
    """Path of the first usable CPython of each minor version: the one running this, then those on PATH."""
    names = ["python3.11", "python3.13", "python3.12", "python3"]
    on_path = [os.path.join(folder, name) for name in names for folder in os.get_exec_path()]
    found: Dict[Version, str] = {}
    seen = set()
    for candidate in [sys.executable, *filter(os.path.isfile, on_path)]:
        if os.path.realpath(candidate) in seen:
            continue
        seen.add(os.path.realpath(candidate))
        probe = quiet([candidate, "-c", PROBE])
        answer = re.fullmatch(r"PROBED (\d+) (\d+) (.+)\n", probe.stdout)
        if probe.returncode == 0 and answer:
            found.setdefault((int(answer[1]), int(answer[2])), answer[3])
    return found


def uv_cache_dir() -> str:
    """Where uv keeps its downloads."""
    fallback = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("UV_CACHE_DIR") or os.path.join(fallback, "uv")


def free_gb() -> Dict[str, float]:
    """Free space of each file system that the set-up fills, by the directory that fills it."""
    free, devices = {}, set()
    for directory in (ROOT, uv_cache_dir()):
        while not os.path.isdir(directory):
            directory = os.path.dirname(directory)
        if os.stat(directory).st_dev not in devices:
            devices.add(os.stat(directory).st_dev)
            free[directory] = shutil.disk_usage(directory).free / 1e9
    return free


# --- The stamp: written last, so that an interrupted set-up has none ---


def read_stamp() -> Optional[dict]:
    """What the last complete set-up wrote, or None."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            stamp = json.load(file)
        return stamp if stamp["line"] in LINES and stamp["digest"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def environment_digest(line: Line) -> Optional[str]:
    """Fingerprint of the requirements, of the interpreter and of the place; None when one of them is gone."""
    try:
        contents = []
        for path in (line.requirements, BUILD_REQUIREMENTS, os.path.join(VENV, "bin", "python")):
            with open(path, "rb") as file:
                contents.append(file.read())
    except OSError:
        return None
    return fingerprint(*contents, os.path.realpath(VENV).encode())


def write_stamp(line: Line) -> None:
    """Marks the environment as complete."""
    draft = STAMP + ".new"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump({"line": line.name, "digest": environment_digest(line)}, file)
    os.replace(draft, STAMP)


def is_current(wanted: Optional[str]) -> bool:
    """Whether .venv/ is complete and made from what is here now."""
    stamp = read_stamp()
    return stamp_is_current(stamp, wanted, environment_digest(LINES[stamp["line"]]) if stamp else None)


# --- uv, fetched by whichever pip there is ---


def tool_environment() -> Dict[str, str]:
    """The environment of pip and uv: the user's mirrors and certificates, none of the settings that misplace files."""
    misplacing = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH", "PYTHONHOME")
    env = {name: value for name, value in os.environ.items() if name not in misplacing}
    env.update(PIP_USER="0", PIP_REQUIRE_VIRTUALENV="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    env.update(PIP_ROOT_USER_ACTION="ignore")
    if env.get("PIP_INDEX_URL"):
        env.setdefault("UV_DEFAULT_INDEX", env["PIP_INDEX_URL"])  # uv reads none of pip's settings
    if env.get("PIP_CERT"):
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    if os.path.exists("/etc/ssl/certs/ca-certificates.crt"):
        env.setdefault("UV_SYSTEM_CERTS", "1")  # a company's own authority is known to the system, not to uv
    env.setdefault("UV_HTTP_TIMEOUT", "180")  # seconds; tensorflow is 600 MB, and uv's own 30 fail on slow lines
    return env


def quiet(command: Sequence[str], **kwargs) -> "subprocess.CompletedProcess[str]":
    """Runs a command with its output kept; a program that is not there counts as failed."""
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
            env=tool_environment(),
            **kwargs,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, stdout=str(error))


def some_pip(scratch: str) -> List[str]:
    """The command of a working pip: the interpreter's own, one in a throw-away environment, or Debian's unpacked wheel.

    Args:
      scratch: a temporary directory; nothing is installed in the system.

    Raises:
      SetupError: none of the three works.
    """
    own = [sys.executable, "-m", "pip"]
    if quiet([*own, "--version"]).returncode == 0:
        return own
    venv = os.path.join(scratch, "venv")
    if quiet([sys.executable, "-m", "venv", venv]).returncode == 0:
        return [os.path.join(venv, "bin", "python"), "-m", "pip"]
    return [sys.executable, os.path.join(debian_pip_wheel(scratch), "pip")]  # Python runs a package inside a zip file


def debian_pip_wheel(scratch: str) -> str:
    """Path of pip's wheel out of Debian's python3-pip-whl, unpacked in `scratch` and not installed.

    Raises:
      SetupError: apt-get is not there, or could not download it.
    """
    folder = os.path.join(scratch, "apt")
    os.makedirs(os.path.join(folder, "lists", "partial"))
    own_lists = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}"]
    said = ""
    # The system's package lists are missing in a container image, stale elsewhere, and writable by root alone.
    for options in ([], own_lists):
        if options:
            said += quiet(["apt-get", *options, "update"], cwd=folder).stdout
        said += quiet(["apt-get", *options, "download", "python3-pip-whl"], cwd=folder).stdout
        for package in glob.glob(os.path.join(folder, "python3-pip-whl_*.deb")):
            if quiet(["dpkg-deb", "-x", package, folder]).returncode == 0:
                wheels = glob.glob(os.path.join(folder, "usr/share/python-wheels/pip-*.whl"))
                if wheels:
                    return wheels[0]
    raise SetupError(
        "uv is fetched with pip, and this Python has neither pip nor venv, nor could apt-get download pip:\n"
        f"{indented(said)}\n"
        "Check the network, or install pip (on Debian or Ubuntu, as root: apt-get install python3-pip), "
        "and say make setup again."
    )


def fetch_uv() -> str:
    """Path of uv at the version and hash in uv.txt, downloaded into .venv-tools/ unless it is there."""
    with open(UV_REQUIREMENTS, "rb") as file:
        home = os.path.join(TOOLS, "uv-" + fingerprint(file.read())[:12])
    uv = os.path.join(home, "bin", "uv")
    if os.path.exists(uv):
        return uv
    for leftover in glob.glob(os.path.join(TOOLS, "tmp-*")):  # of a set-up that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=TOOLS, prefix="tmp-") as scratch:
        target = os.path.join(scratch, "uv")
        options = ["--quiet", "--no-input", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        got = quiet([*some_pip(scratch), "install", *options, "--target", target, "-r", UV_REQUIREMENTS])
        if got.returncode != 0:
            raise SetupError(f"pip could not fetch uv:\n{indented(got.stdout)}\nCheck the network and pip's settings.")
        os.rename(target, home)
    return uv


def indented(output: str, lines: int = 15) -> str:
    """The last lines of a program's output, set off from our own."""
    return "\n".join("  | " + line for line in output.strip().splitlines()[-lines:])


# --- The set-up ---


@contextlib.contextmanager
def one_at_a_time() -> Iterator[int]:
    """Waits until no other set-up of this clone runs; yields the lock's file descriptor.

    A child that inherits the descriptor holds the lock too, so a uv that outlives a killed set-up is waited for.
    """
    os.makedirs(TOOLS, exist_ok=True)
    with open(os.path.join(TOOLS, "lock"), "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this clone is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def say(message: str) -> None:
    """One line about what happens, on stderr: stdout belongs to what runs next."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def install(uv: str, venv: str, python: str, requirements: str, lock: int) -> None:
    """Makes the environment `venv` anew and fills it with what a hashed file says.

    Args:
      uv: path of uv.
      venv: the environment; what an earlier, interrupted set-up left there is thrown away.
      python: interpreter, as `uv venv --python` takes it.
      requirements: path of the hashed file.
      lock: the file descriptor that `one_at_a_time` yields.

    Raises:
      SetupError: uv failed; its own message stands above.
    """
    env = tool_environment()
    env["UV_PYTHON_INSTALL_DIR"] = os.path.join(TOOLS, "python")
    env["UV_PYTHON_DOWNLOADS"] = "never"

    def run(*arguments: str) -> bool:
        return subprocess.run([uv, *arguments], env=env, cwd=ROOT, pass_fds=[lock], check=False).returncode == 0

    if os.path.lexists(venv):
        shutil.rmtree(venv) if os.path.isdir(venv) and not os.path.islink(venv) else os.remove(venv)
    if not run("venv", "--quiet", "--no-project", "--python", python, venv):
        raise SetupError(f"uv could not make an environment with {python}: see above.")
    hashes = ["--require-hashes", "--require-build-hashes", "--build-constraints", BUILD_REQUIREMENTS]
    hashes += ["--preview-features", "build-dependency-hashes"]  # without it uv warns that this check is young
    quietly = [] if sys.stderr.isatty() else ["--quiet"]  # a log needs no line for each of 250 packages
    interpreter = os.path.join(venv, "bin", "python")
    # Compiled now: importing TFX takes 7 s with bytecode and 25 s without, and images and CI often forbid to write it.
    if not run("pip", "sync", "--compile-bytecode", *quietly, "--python", interpreter, *hashes, requirements):
        raise SetupError(
            "uv could not install the requirements; its message is above. Say make setup again: what was downloaded "
            "is kept. (Behind a mirror or a proxy's certificate, set UV_DEFAULT_INDEX and SSL_CERT_FILE: uv does not "
            "read pip.conf.)"
        )


def build(choice: Choice, uv: str, lock: int, pythons: Sequence[Version], glibc: Version) -> None:
    """Makes .venv/ anew and fills it; what an earlier, interrupted set-up left is thrown away."""
    env = tool_environment()
    env["UV_PYTHON_INSTALL_DIR"] = os.path.join(TOOLS, "python")
    if choice.python is None:
        command = [uv, "python", "install", "--no-bin", "3.11"]
        fetched = subprocess.run(command, env=env, cwd=ROOT, pass_fds=[lock], check=False)
        if fetched.returncode != 0:
            raise SetupError(no_python_message(pythons, glibc))
    with contextlib.suppress(FileNotFoundError):
        os.remove(STAMP)
    install(uv, VENV, choice.python or "3.11", choice.line.requirements, lock)
    write_stamp(choice.line)


def set_up(wanted: Optional[str]) -> None:
    """Makes .venv/ what the requirements say.

    Args:
      wanted: the TFX line asked for by hand, or None.

    Raises:
      SetupError: this machine cannot, for a reason that the text gives.
    """
    if is_current(wanted):
        return
    glibc = glibc_version()
    check_platform(platform.system(), platform.machine(), glibc)
    pythons = usable_pythons()
    choice = pick_line(wanted, pythons, glibc)
    with one_at_a_time() as lock:
        if is_current(wanted):  # the set-up that we waited for did it
            return
        say(f"TFX {choice.line.name} with {choice.python or 'Python 3.11'}: {choice.why}")
        complaint = disk_complaint(free_gb())
        if complaint:
            raise SetupError(complaint)
        say("about 1 GB to download, once; the next calls start at once")
        build(choice, fetch_uv(), lock, list(pythons), glibc)
        say("done: .venv/")


def exit_code(work: Callable[[], None], command: str) -> int:
    """Does `work`; says on stderr what stopped it, and which command starts it again."""
    try:
        work()
    except (SetupError, OSError) as problem:
        print(f"set-up: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nset-up: interrupted; {command} starts it again and keeps what was downloaded", file=sys.stderr)
        return 130
    return 0


def main() -> int:
    """Runs the set-up; returns the exit code."""

    def work():
        if sys.version_info < (3, 8):
            raise SetupError(f"{sys.executable} is Python {text(sys.version_info[:2])}; the set-up needs 3.8 or newer.")
        set_up(os.environ.get("TFX_LINE") or None)

    return exit_code(work, "make setup")


if __name__ == "__main__":
    sys.exit(main())
