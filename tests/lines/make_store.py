"""Makes the store that the tests of both TFX lines read: `python -m tests.lines.make_store`, on the line that is installed.

Two weeks of 48 drawn photographs in three classes, the first with a search for hyperparameters, run by local_runner.py as a
user runs it. With it is packed what this line answers about it (`answers.py`), which every line must repeat:

    tests/lines/store-1.16.tar.xz       data/, settings.yaml, store/ without logs and studies, and answers.json
    tests/lines/store-1.16.tar.xz.sha256

A store knows its own paths, so it is made where the tests put it back: `place`. It takes about two minutes.
"""

import csv
import datetime
import importlib.metadata
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import yaml
from PIL import Image

from pipeline import files
from tests.end_to_end.conftest import ROOT, few_epochs_thresholds
from tests.lines import answers

HERE = pathlib.Path(__file__).parent
CLASSES = {"amber": (220, 150, 30), "blue": (30, 60, 200), "chalk": (230, 230, 225)}
DATES = ("2026-03-02", "2026-03-09")
_PHOTOGRAPHS, _SIDE = 48, 40
_LEFT_OUT = re.compile(r"store/(logs|lock|checkpoints|studies\.sqlite.*)|.*\.log")  # what names the machine, and open studies


def place(line: str) -> pathlib.Path:
    """Where the store of a line was made, and must be to be read: it holds `data/` and `store/`."""
    return pathlib.Path(f"/tmp/product-photographs-of-tfx-{line}")


def photograph(number: int) -> bytes:
    """A JPEG of soft noise around the colour of its class, the same on each machine."""
    colour = list(CLASSES.values())[number % len(CLASSES)]
    noise = np.random.default_rng(number).normal(0, 40, (5, 5, 3)) + np.array(colour)
    image = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).resize((_SIDE + number % 3, _SIDE), Image.BICUBIC)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=85)
    return content.getvalue()


def write_data(folder: pathlib.Path) -> None:
    """Writes photographs, labels of two weeks and a schema folder with limits that so few of them can keep."""
    (folder / "images").mkdir(parents=True)
    (folder / "schema").mkdir()
    begun = datetime.datetime(2026, 2, 25, tzinfo=datetime.timezone.utc)
    rows = []
    for number in range(_PHOTOGRAPHS):
        name = f"p{number:02d}"
        (folder / "images" / f"{name}.jpg").write_bytes(photograph(number))
        # The second week has six labels more, and one that was corrected.
        at = begun + datetime.timedelta(days=7 if number >= _PHOTOGRAPHS - 6 else 0, seconds=number)
        rows.append([name, name, list(CLASSES)[number % len(CLASSES)], "import", f"{at:%Y-%m-%dT%H:%M:%SZ}"])
    rows.append(["p00", "p00", "blue", "analyst", "2026-03-05T08:00:00Z"])
    with open(folder / "labels.csv", "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([["image_id", "product_id", "label", "source", "updated_at"], *rows])
    schema = (ROOT / "schema" / "schema.pbtxt").read_text(encoding="utf-8")
    names = [line for line in schema.splitlines(keepends=True) if line.startswith("    value: ")]
    labels, others = names[:-3], "".join(names[-3:])
    assert all(split in others for split in ("train", "val", "eval"))
    ours = "".join(f'    value: "{name}"\n' for name in CLASSES)
    (folder / "schema" / "schema.pbtxt").write_text(schema.replace("".join(labels), ours), encoding="utf-8")
    limits = yaml.safe_load((ROOT / "schema" / "gate.yaml").read_text(encoding="utf-8"))
    limits |= {"min_rows": 20, "min_class_eval_rows": 1, "max_class_share_change": 0.2, "max_class_divergence": 0.2}
    limits |= {"max_relabelled_share": 0.2, "min_split_rows": {"train": 10, "val": 3, "eval": 3}}
    limits["drift"] = {"label": 0.3, "width": 0.3}
    (folder / "schema" / "gate.yaml").write_text(yaml.safe_dump(limits), encoding="utf-8")
    thresholds = few_epochs_thresholds(0.0)
    thresholds["smoke"]["max_latency_ms"] = 60000
    for kind in thresholds["slices"].values():
        if isinstance(kind, dict):
            kind |= {"min_examples": 1, "required": False}
    (folder / "schema" / "release.yaml").write_text(yaml.safe_dump(thresholds), encoding="utf-8")


def write_settings(path: pathlib.Path) -> None:
    """The committed settings of the sample, with a network that one second trains."""
    content = yaml.safe_load((ROOT / "pipeline" / "configs" / "local.yaml").read_text(encoding="utf-8"))
    content["shards"] |= {"short_side": 36, "min_side": 32, "target_bytes": 16384}
    content["splits"]["tuning_share"] = 0.8
    content["network"] = {"blocks": [1], "bottleneck": False, "width": 4, "image_size": 32}
    content["training"] = {
        "unfrozen_epochs": 12, "batch_size": 8, "intra_op_threads": 2, "inter_op_threads": 2,
    }  # fmt: skip
    content["tuning"] |= {"trials": 3, "epochs": 1, "learning_rate": [0.01, 0.05]}
    content["retune"] = {"every_weeks": 5, "max_drop": 1.0}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def run_weeks(folder: pathlib.Path) -> None:
    """Runs both weeks; the first one searches, and checks how well its sample ranked."""
    write_data(folder / "data")
    write_settings(folder / "settings.yaml")
    # Who made it is of no interest to those who read it.
    environment = {**os.environ, "LOGNAME": "retrain"}
    for date, more in zip(DATES, (["--tune", "--verify-ranking", "3"], []), strict=True):
        words = ["--data", str(folder / "data"), "--store", str(folder / "store"), "--settings", str(folder / "settings.yaml")]
        command = [sys.executable, "local_runner.py", "--snapshot-date", date, *words, *more]
        subprocess.run(command, cwd=ROOT, check=True, env=environment)


def pack(folder: pathlib.Path, archive: pathlib.Path) -> None:
    """Packs what the runs left, with the answers, and writes the archive's digest beside it."""

    def known(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if _LEFT_OUT.fullmatch(member.name):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for name in ("answers.json", "data", "settings.yaml", "store"):
            packed.add(folder / name, name, filter=known)
    archive.with_name(f"{archive.name}.sha256").write_text(f"{files.sha256_of(archive)}  {archive.name}\n", encoding="utf-8")


def main() -> None:
    """Makes the store of the installed line, its archive and its answers."""
    line = ".".join(importlib.metadata.version("tfx").split(".")[:2])
    folder, archive = place(line), HERE / f"store-{line}.tar.xz"
    # What is there may be somebody's: nothing is removed.
    folder.mkdir()
    try:
        run_weeks(folder)
        (folder / "answers.json").write_text(files.to_json(answers.of(folder)), encoding="utf-8")
        pack(folder, archive)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
