"""The serving ledger: an append-only record of what served, since when, and which run released it.

One JSON object a line; each line carries the SHA-256 of the line before, so a line that was changed or
lost is noticed, but for the newest, which no other line vouches for. The newest entry of an endpoint is
what serves there. Light: no TensorFlow.
"""

import dataclasses
import datetime
import hashlib
import json
import pathlib

from pipeline import files
from pipeline.errors import PipelineError

_FIRST = "0" * 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """One release.

    Attributes:
        number: 1 for the first.
        at: When traffic moved, ISO 8601, UTC.
        endpoint: Where.
        from_version: Version that served before; empty for the first.
        to_version: Version that serves from now on.
        path: Folder of its SavedModel.
        share: Share of the traffic, 0 to 1.
        run_id: Run that produced and released it.
        snapshot: Its label snapshot's table.
        snapshot_date: That snapshot's date.
        weights_sha256: Digest of its weights.
        previous: SHA-256 of the ledger's line before; zeros for the first.
    """

    number: int
    at: str
    endpoint: str
    from_version: str
    to_version: str
    path: str
    share: float
    run_id: str
    snapshot: str
    snapshot_date: str
    weights_sha256: str
    previous: str


def read(path: str | pathlib.Path) -> list[Entry]:
    """Reads the ledger and checks its chain.

    Args:
        path: The ledger's file; one that does not exist is an empty ledger.

    Raises:
        PipelineError: A line cannot be read or is cut short, or does not follow the line before it.
    """
    path = pathlib.Path(path)
    entries, previous = [], _FIRST
    for number, line in enumerate(_lines(path), start=1):
        try:
            entry = Entry(**json.loads(line.decode()))
        except (ValueError, TypeError) as error:
            raise PipelineError(f"{path}, line {number} is no ledger entry ({error}): restore the file from its backup") from error
        if entry.previous != previous or entry.number != number:
            raise PipelineError(
                f"{path}, line {number} does not follow line {number - 1}: the ledger was changed by hand or lost a "
                "line; restore the file from its backup"
            )
        entries.append(entry)
        previous = hashlib.sha256(line).hexdigest()
    return entries


def _lines(path: pathlib.Path) -> list[bytes]:
    # Bytes: text has more line ends than the one that separates entries, and a path may hold them.
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        raise PipelineError(f"{path} ends in the middle of a line: restore the file from its backup")
    return content.split(b"\n")[:-1]


def serving(path: str | pathlib.Path, endpoint: str) -> Entry | None:
    """The entry of what serves at `endpoint` now, or None."""
    return next((entry for entry in reversed(read(path)) if entry.endpoint == endpoint), None)


def append(
    path: str | pathlib.Path,
    *,
    endpoint: str,
    to_version: str,
    model: str,
    run_id: str,
    snapshot: str,
    snapshot_date: str,
    weights_sha256: str,
) -> Entry:
    """Records that `to_version` takes all traffic of `endpoint` from now on.

    The file is replaced in one step: a reader sees the ledger before or after, never a part.

    Returns:
        The entry written.
    """
    path = pathlib.Path(path)
    entries = read(path)
    before = serving(path, endpoint)
    lines = _lines(path)
    entry = Entry(
        number=len(entries) + 1,
        at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        endpoint=endpoint,
        from_version=before.to_version if before else "",
        to_version=to_version,
        path=model,
        share=1.0,
        run_id=run_id,
        snapshot=snapshot,
        snapshot_date=snapshot_date,
        weights_sha256=weights_sha256,
        previous=hashlib.sha256(lines[-1]).hexdigest() if lines else _FIRST,
    )
    lines.append(json.dumps(dataclasses.asdict(entry), sort_keys=True, ensure_ascii=False).encode())
    files.write_atomically(path, b"\n".join(lines) + b"\n")
    return entry
