"""Running the commands of the project the way a person does."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# What must not be loaded before it is certain that there is work for it.
HEAVY = ("tensorflow", "tf_keras", "tfx", "apache_beam", "tensorflow_data_validation", "tensorflow_model_analysis")

# Runs several command lines in one interpreter and tells of each what it printed and what it loaded.
_SCRIPT = """
import contextlib, importlib, io, json, sys
module, heavy, command_lines = json.loads(sys.argv[1])
main = importlib.import_module(module).main
for words in command_lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as left:
            status = left.code
    loaded = [name for name in heavy if name in sys.modules]
    print(json.dumps([status, out.getvalue(), err.getvalue(), loaded]))
"""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one command line came to.

    Attributes:
        status: Its exit status.
        out: What it printed.
        err: What it complained of.
        loaded: Which of `HEAVY` was loaded by then.
    """

    status: int
    out: str
    err: str
    loaded: list[str]


def answers(module: str, command_lines: list[list[str]]) -> list[Answer]:
    """Runs `module.main` for each command line, in one new interpreter: to start one costs more than most answers."""
    words = [sys.executable, "-c", _SCRIPT, json.dumps([module, HEAVY, command_lines])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [Answer(*json.loads(line)) for line in done.stdout.splitlines()]


def command(*words: str) -> subprocess.CompletedProcess:
    """Runs a command of the project from its folder."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="session")
def vizier_environment():
    """The environment of Vizier's service, built before the first test that needs it."""
    # Returns at once when it is there.
    subprocess.run([sys.executable, ROOT / "requirements" / "vizier.py"], check=True)
