"""One story, run once as a user runs it, and read by every test of this folder.

    2026-03-02  the first week: bootstrap, nothing served before
    2026-03-09  interrupted in training while another run is refused; then again, to its end
    2026-03-30  the bad week: stops at the gate
    2026-03-09  once more, with a threshold that no model reaches: the same weights, judged, not released

Training is cut to a few epochs: what is told here is the pipeline's behaviour, not the model's quality,
which bench/accuracy.py measures with the real settings.
"""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that ended."""

    status: int
    out: str
    err: str
    seconds: float


def command(*words, timeout=400) -> Command:
    """Runs a command of the project from its folder."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    return Command(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def few_epochs_thresholds(min_accuracy: float) -> dict:
    """The committed thresholds of a release, with ones that a few epochs reach and the given accuracy."""
    content = yaml.safe_load((ROOT / "schema" / "release.yaml").read_text())
    content["absolute"] = {
        "min_accuracy": min_accuracy, "min_top_3_accuracy": min_accuracy, "min_balanced_accuracy": 0.0,
        "max_log_loss": 20.0, "max_calibration_error": 1.0, "max_confusion": 1.0,
    }  # fmt: skip
    for limit, value in content["comparison"].items():
        if limit.startswith("max_"):
            content["comparison"][limit] = 20.0 if "loss" in limit else 1.0
    for kind in ("label", "source", "size", "new"):
        content["slices"][kind] |= {"min_accuracy": 0.0, "max_certain_drop": 1.0}
    return content


class Story:
    """The store, the settings and the runs so far, by name."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.store = folder / "store"
        self.runs: dict[str, Command] = {}
        self.settings = self.write_settings("settings.yaml")
        self.thresholds = self.write_thresholds("easy.yaml", min_accuracy=0.0)

    def write_thresholds(self, name: str, min_accuracy: float) -> pathlib.Path:
        """The committed thresholds, with ones that a few epochs reach and the given one."""
        content = few_epochs_thresholds(min_accuracy)
        path = self.folder / name
        path.write_text(yaml.safe_dump(content))
        return path

    def write_settings(self, name: str, epochs: int = 2) -> pathlib.Path:
        """The committed settings with `epochs` after a frozen one, none left out."""
        content = yaml.safe_load((ROOT / "pipeline" / "configs" / "local.yaml").read_text())
        content["training"] |= {"frozen_epochs": 1, "unfrozen_epochs": epochs, "early_stopping_patience": 1000}
        content["lineage"] = {"openlineage": True}
        path = self.folder / name
        path.write_text(yaml.safe_dump(content))
        return path

    def words(self, date: str, settings: pathlib.Path | None = None, thresholds: pathlib.Path | None = None) -> list[str]:
        """The command line of one run."""
        return [
            "local_runner.py", "--snapshot-date", date, "--store", str(self.store),
            "--settings", str(settings or self.settings), "--thresholds", str(thresholds or self.thresholds),
        ]  # fmt: skip

    def run(self, name: str, date: str, thresholds: pathlib.Path | None = None) -> Command:
        """Runs a week to its end and remembers it."""
        self.runs[name] = command(*self.words(date, thresholds=thresholds))
        return self.runs[name]

    def ledger(self) -> str:
        """The serving ledger, byte for byte."""
        path = self.store / "serving" / "ledger.jsonl"
        return path.read_text() if path.exists() else ""


def interrupt_in_training(story: Story, date: str) -> None:
    """Starts a run, tries a second one beside it, and presses Ctrl-C in a training that would last for minutes."""
    settings = story.write_settings("long.yaml", epochs=900)
    process = subprocess.Popen(
        [sys.executable, *story.words(date, settings)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    started, lines = time.monotonic(), []
    try:
        for line in process.stdout:
            lines.append(line)
            if "training on" in line:
                story.runs["second at once"] = command(*story.words(date))
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    story.runs["interrupted"] = Command(process.returncode, "".join(lines) + out, err, time.monotonic() - started)


@pytest.fixture(scope="session")
def story(tmp_path_factory) -> Story:
    """The whole story, told once; ledgers are kept after each chapter."""
    story = Story(tmp_path_factory.mktemp("story"))
    story.run("first", "2026-03-02")
    story.after_first = story.ledger()
    interrupt_in_training(story, "2026-03-09")
    story.after_interrupt = story.ledger()
    story.run("second", "2026-03-09")
    story.after_second = story.ledger()
    story.run("bad", "2026-03-30")
    story.run("again", "2026-03-09", story.write_thresholds("strict.yaml", min_accuracy=1.0))
    return story
