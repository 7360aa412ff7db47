"""The accepted snapshots: one folder each, written by the gate, read by the next week's baseline.

    accepted/labels_20260302/accepted.json      which snapshot, by which run, by which override
    accepted/labels_20260302/statistics/        its TFDV statistics, a folder a split

On a disk the folder appears whole. In Cloud Storage accepted.json is created last, by one run of all that try, and
names the folder of that run's statistics.
"""

import contextlib
import dataclasses
import json

from pipeline import files, storage
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


def of_table(folder: str, table: str) -> Accepted | None:
    """The accepted snapshot of that table, or None."""
    place = storage.join(folder, table)
    return _read(place) if storage.exists(_pointer(place)) else None


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
    destination = storage.join(folder, table)
    if not storage.exists(_pointer(destination)):
        facts = {"table": table, "date": date, "checksum": checksum, "run_id": run_id, "override": override}
        if not storage.is_cloud(folder):
            with files.new_folder(destination) as new:
                storage.copy_folder(statistics, str(new / "statistics"))
                storage.write(_pointer(str(new)), files.to_json(facts).encode())
            return
        # Each run's apart: what a run wrote that another overtook is nobody's baseline.
        facts["statistics"] = f"statistics-{run_id}"
        storage.copy_folder(statistics, storage.join(destination, facts["statistics"]))
        with contextlib.suppress(FileExistsError):
            storage.create(_pointer(destination), files.to_json(facts).encode())
            return
    before = _read(destination)
    if before.checksum != checksum:
        raise PipelineError(
            f"{table} was accepted with checksum {before.checksum[:12]} by run {before.run_id} and has "
            f"{checksum[:12]} now: the snapshot was altered; restore it from its backup"
        )


def encode_splits(splits: list[str]) -> str:
    """Split names as TFX writes them on an artifact."""
    return json.dumps(splits)


def _all(folder: str) -> list[Accepted]:
    tables = [storage.join(folder, name) for name in storage.names(folder) if name.startswith("labels_")]
    return [_read(table) for table in tables if storage.exists(_pointer(table))]


def _pointer(folder: str) -> str:
    return storage.join(folder, "accepted.json")


def _read(folder: str) -> Accepted:
    content = json.loads(storage.read(_pointer(folder)))
    return Accepted(**content | {"statistics": storage.join(folder, content.get("statistics", "statistics"))})
