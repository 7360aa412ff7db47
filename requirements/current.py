"""Runs the tests on TFX 1.21 where the machine itself is too old for it: in a Debian 13 of its own (`make test-current`).

    python3 requirements/current.py [ARGUMENT ...]      arguments for pytest, as in make test ARGS=...

Debian 13 is unpacked by debootstrap into .debian13/ (once; 0.3 GB, and 6 GB with the environments), with python3 and make and
nothing else. The project's files as they are now, tracked or new, are copied there, and `make test` runs in it: what a
fresh machine does. The variable DEBIAN_PACKAGES names packages to install there first, such as those without which tests
are skipped: `make test-current DEBIAN_PACKAGES="git chromium mariadb-server"`. The last line says what ran:

    TFX 1.21 on Debian 13.2 (Python 3.13.5, glibc 2.41): 2300 passed, 3 skipped in 1500 s

Where glibc is new enough, no second Debian is needed, and this is `TFX_LINE=1.21 make test`. Needs root (for chroot and
mounts, which end with the process), debootstrap and git. Standard library only.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import Dict, List, Mapping, Optional

import bootstrap

LINE = "1.21"
SUITE = "trixie"  # Debian 13, whose glibc is 2.41
PACKAGES = "python3,make,ca-certificates"
DISK_NEEDED_GB = 8.0  # measured: 6.4 GB for the root with its environments, and a run's temporary files

ROOT = pathlib.Path(bootstrap.ROOT)
DEBIAN = ROOT / ".debian13"
STAMP = DEBIAN / ".debootstrapped"  # written last: an interrupted debootstrap is begun anew
PROJECT = pathlib.PurePosixPath("/srv/project")  # inside

# What the user set for downloads and for this processor; nothing else of the surroundings reaches the tests.
_PASSED_ON = re.compile(
    r"PIP_INDEX_URL|PIP_EXTRA_INDEX_URL|PIP_TRUSTED_HOST|UV_(DEFAULT_)?INDEX(_URL)?|UV_HTTP_TIMEOUT|OPENBLAS_\w+|CI|PROCESSES"
    r"|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy"
)
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

# Mounts last as long as the namespace that unshare makes, so nothing stays mounted whatever ends this.
_IN_DEBIAN = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/dev/shm"
exec chroot "$@"
"""


def environment(outside: Mapping[str, str]) -> Dict[str, str]:
    """The environment of the tests: a fresh machine's, with the user's mirrors and proxies.

    Args:
      outside: the environment here.
    """
    inside = {name: value for name, value in outside.items() if _PASSED_ON.fullmatch(name)}
    inside.update(HOME="/root", LANG="C.UTF-8", PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    # The certificates of this machine are copied, with a company's own authority among them.
    inside.update(TFX_LINE=LINE, TERM="dumb", PIP_CERT=_CERTIFICATES, SSL_CERT_FILE=_CERTIFICATES)
    return inside


def complaint(user: int, tools: Mapping[str, Optional[str]], gigabytes: float, made: bool) -> Optional[str]:
    """What hinders a run, with the remedy; None when nothing does.

    Args:
      user: the effective user id.
      tools: path of each tool that is called, None where it is missing.
      gigabytes: free space where .debian13/ goes.
      made: whether .debian13/ is there already.
    """
    missing = [name for name, path in tools.items() if path is None and not (made and name == "debootstrap")]
    if missing:
        return f"{' and '.join(missing)} cannot be found. On Debian or Ubuntu, as root: apt-get install debootstrap git util-linux"
    if user != 0:
        return f"chroot is for root alone, and this is user {user}: run it as root, or on a machine with glibc 2.39 or newer"
    if not made and gigabytes < DISK_NEEDED_GB:
        return f"too little disk: {ROOT} has {gigabytes:.1f} GB free, and {DISK_NEEDED_GB:.0f} GB are needed. Make room."
    return None


def summary(output: str, versions: str, seconds: float) -> Optional[str]:
    """The line for the docs, from what pytest printed; None when it printed no closing line.

    Args:
      output: all that was printed.
      versions: such as `Debian 13.2 (Python 3.13.5, glibc 2.41)`.
      seconds: how long the tests took, set-up included.
    """
    closing = re.findall(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s", output, re.MULTILINE)
    return f"TFX {LINE} on {versions}: {closing[-1]} in {seconds:.0f} s" if closing else None


def make_debian(root: Optional[pathlib.Path] = None, packages: str = PACKAGES) -> None:
    """Unpacks Debian 13 into a folder, unless it is there whole.

    Args:
      root: the folder; None for .debian13/.
      packages: what it holds beside the least that there is, separated by commas.

    Raises:
      SetupError: debootstrap failed; its own message stands above.
    """
    root = root or DEBIAN
    stamp = root / STAMP.name
    if stamp.exists():
        return
    if root.exists():
        shutil.rmtree(root)
    bootstrap.say(f"Debian 13 into {root.name}/, once")
    include = [f"--include={packages}"] if packages else []
    command = ["debootstrap", "--variant=minbase", *include, SUITE, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        lines = list(process.stdout)
    if process.returncode != 0:
        raise bootstrap.SetupError(
            f"debootstrap could not make Debian 13:\n{bootstrap.indented(''.join(lines))}\n"
            "Check the network, or that debootstrap knows trixie (Debian 12 has it since 12.1)."
        )
    stamp.touch()


def add_packages(names: List[str]) -> None:
    """Installs packages in .debian13/, unless they are there.

    Args:
      names: Debian's names.

    Raises:
      SetupError: a name that is none, or apt failed.
    """
    wrong = [name for name in names if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name)]
    if wrong:
        raise bootstrap.SetupError(f"DEBIAN_PACKAGES has {wrong[0]!r}, which is no name of a package: names with spaces between them")
    status = DEBIAN / "var" / "lib" / "dpkg" / "info"
    missing = [name for name in names if not (status / f"{name}.list").exists()]
    if not missing:
        return
    bootstrap.say(f"{' '.join(missing)} into {DEBIAN.name}/")
    shutil.copyfile("/etc/resolv.conf", DEBIAN / "etc" / "resolv.conf")
    script = 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"'
    command = in_debian("sh", "-c", script, "sh", *missing)
    done = subprocess.run(
        command, env=environment(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise bootstrap.SetupError(
            f"apt-get could not install {' '.join(missing)} in Debian 13:\n{bootstrap.indented(done.stdout[-3000:])}\n"
            "Check the names in DEBIAN_PACKAGES and the network."
        )


def copy_project() -> None:
    """Puts the project's files there as they are here, and takes away those that are here no more; environments stay."""
    target = DEBIAN / PROJECT.relative_to("/")
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        if not old.name.startswith(".venv"):
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():  # a tracked file may be deleted here
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    for file in ("/etc/resolv.conf", "/etc/hosts", _CERTIFICATES):
        if os.path.exists(file):
            (DEBIAN / file[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, DEBIAN / file[1:])


def in_debian(*command: str, root: Optional[pathlib.Path] = None) -> List[str]:
    """The command line that runs `command` inside a Debian, with its own mounts and processes, which end with it.

    Args:
      command: the command.
      root: the Debian's folder; None for .debian13/.
    """
    with_us = ["setpriv", "--pdeathsig", "KILL"]  # should this process be killed, everything inside goes too
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _IN_DEBIAN, "sh", str(root or DEBIAN)]
    return [*with_us, *isolated, *command]


def test(arguments: List[str]) -> int:
    """Runs the tests there; returns the exit code.

    Args:
      arguments: for pytest.
    """
    make_debian()
    add_packages(os.environ.get("DEBIAN_PACKAGES", "").split())
    copy_project()
    inside = environment(os.environ)
    start, output = time.monotonic(), []
    words = ["make", "--directory", str(PROJECT), "test", f"ARGS={shlex.join(arguments)}"]
    with subprocess.Popen(in_debian(*words), env=inside, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    probe = "import os, platform; print(platform.python_version(), os.confstr('CS_GNU_LIBC_VERSION').split()[1])"
    asked = subprocess.run(
        in_debian("python3", "-c", probe), env=inside, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    debian = (DEBIAN / "etc" / "debian_version").read_text(encoding="utf-8").strip()
    said = summary("".join(output), f"Debian {debian} (Python {asked[0]}, glibc {asked[1]})", time.monotonic() - start)
    print(said or f"TFX {LINE}: the tests did not come to an end", flush=True)
    return process.returncode


def main() -> int:
    """Runs the tests on TFX 1.21, here or in a Debian 13; returns the exit code."""
    status = [1]

    def work():
        glibc = bootstrap.glibc_version()
        if glibc is not None and glibc >= bootstrap.LINES[LINE].glibc:
            bootstrap.say(f"glibc {bootstrap.text(glibc)} is new enough here")
            words = ["make", "test", f"TFX_LINE={LINE}", f"ARGS={shlex.join(sys.argv[1:])}"]
            status[0] = subprocess.run(words, cwd=ROOT, check=False).returncode
            return
        tools = {name: shutil.which(name) for name in ("debootstrap", "git", "setpriv", "unshare", "chroot")}
        free = shutil.disk_usage(ROOT).free / 1e9
        hindered = complaint(os.geteuid(), tools, free, STAMP.exists())
        if hindered:
            raise bootstrap.SetupError(hindered)
        status[0] = test(sys.argv[1:])

    return bootstrap.exit_code(work, "make test-current") or status[0]


if __name__ == "__main__":
    sys.exit(main())
