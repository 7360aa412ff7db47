"""The accepted snapshots: one folder each, written by the gate, read by the next week's baseline.

    accepted/labels_20260302/accepted.json      which snapshot, by which run, by which override
    accepted/labels_20260302/statistics/        its TFDV statistics, a folder a split
"""

import dataclasses
import json
import pathlib
import shutil

from pipeline import files
from pipeline.errors import PipelineError


@dataclasses.dataclass(frozen=True)
class Accepted:
    """An accepted snapshot.

    Attributes:
        table: Its table.
        date: Its date, YYYY-MM-DD.
        checksum: Its content checksum.
        run_id: The run whose gate accepted it first.
        statistics: Folder of its statistics.
        override: The override that this run was given (`Verdict.record`), or None.
    """

    table: str
    date: str
    checksum: str
    run_id: str
    statistics: str
    override: dict | None = None


def newest_before(folder: str, date: str) -> Accepted | None:
    """The newest accepted snapshot whose date is before `date`, or None."""
    found = [accepted for accepted in _all(folder) if accepted.date < date]
    return max(found, key=lambda accepted: accepted.date, default=None)


def record(
    folder: str, table: str, date: str, checksum: str, run_id: str, statistics: str, override: dict | None = None
) -> None:
    """Records that a snapshot was accepted; a snapshot that was accepted before stays as it is.

    Args:
        folder: Folder of the accepted snapshots.
        table, date, checksum, run_id, override: As in `Accepted`.
        statistics: Folder of its statistics, which are copied.

    Raises:
        PipelineError: A snapshot of that name with another checksum was accepted before.
    """
    destination = pathlib.Path(folder, table)
    if destination.exists():
        before = _read(destination)
        if before.checksum != checksum:
            raise PipelineError(
                f"{table} was accepted with checksum {before.checksum[:12]} by run {before.run_id} and has "
                f"{checksum[:12]} now: the snapshot was altered; restore it from its backup"
            )
        return
    with files.new_folder(destination) as new:
        shutil.copytree(statistics, new / "statistics")
        facts = {"table": table, "date": date, "checksum": checksum, "run_id": run_id, "override": override}
        (new / "accepted.json").write_text(files.to_json(facts), encoding="utf-8")


def encode_splits(splits: list[str]) -> str:
    """Split names as TFX writes them on an artifact."""
    return json.dumps(splits)


def _all(folder: str) -> list[Accepted]:
    return [_read(path.parent) for path in sorted(pathlib.Path(folder).glob("labels_*/accepted.json"))]


def _read(folder: pathlib.Path) -> Accepted:
    content = json.loads((folder / "accepted.json").read_text(encoding="utf-8"))
    return Accepted(**content, statistics=str(folder / "statistics"))
