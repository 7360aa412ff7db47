"""Recompiles the requirements files beside this one from pyproject.toml: `make lock`.

    python3 requirements/lock.py              keep the versions that still fit
    python3 requirements/lock.py --upgrade    take the newest of everything

Each file holds exact versions and hashes, and no registry's address.
"""

import os
import subprocess
import sys

import bootstrap

# (file, what it holds): the options of `uv pip compile` that say which of pyproject.toml's groups and for which Python
FILES = {
    "tfx-1.16.txt": [
        "pyproject.toml", "--group", "tfx-1-16", "--group", "test",
        "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28",
    ],
    "tfx-1.21.txt": [
        "pyproject.toml", "--group", "tfx-1-21", "--group", "test",
        "--python-version", "3.11", "--universal",
    ],
    "bigquery-emulator.txt": ["--group", "bigquery-emulator", "--python-version", "3.11", "--universal"],
    "vizier.txt": ["--group", "vizier", "--python-version", "3.11", "--universal"],
    "build.txt": ["--group", "build", "--python-version", "3.11"],
    "uv.txt": ["--group", "uv", "--python-version", "3.8"],
}  # fmt: skip


def main() -> int:
    """Compiles every file; returns the exit code."""
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    try:
        with bootstrap.one_at_a_time():
            uv = bootstrap.fetch_uv()
            for name, options in FILES.items():
                bootstrap.say(f"compiling requirements/{name}")
                command = [uv, "pip", "compile", "--quiet", "--generate-hashes", *upgrade, *options]
                command += ["--custom-compile-command", "make lock"]
                command += ["--output-file", os.path.join("requirements", name)]
                subprocess.run(command, cwd=bootstrap.ROOT, env=bootstrap.tool_environment(), check=True)
    except subprocess.CalledProcessError:
        print("lock: uv could not resolve the dependencies; its message is above", file=sys.stderr)
        return 1
    except (bootstrap.SetupError, OSError) as problem:
        print(f"lock: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
