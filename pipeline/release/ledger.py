"""The serving ledger: an append-only record of what served, since when, and which run released it.

One JSON object a line; each line carries the SHA-256 of the line before, so a line that was changed or
lost is noticed, but for the newest, which no other line vouches for. The newest entry of an endpoint says
what serves there; a canary's says that a version takes a share of the traffic beside what serves, until it is
promoted or rolled back. It lies on a disk or in Cloud Storage. Light: no TensorFlow.
"""

import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Sequence

from pipeline import storage
from pipeline.errors import PipelineError

_FIRST = "0" * 64

_RUN = "run "


def actor_of(run_id: str) -> str:
    """The actor of what a run does to its canary."""
    return f"{_RUN}{run_id}"


def is_run(actor: str) -> bool:
    """Whether an actor is a run, and no person."""
    return not actor or actor.startswith(_RUN)


class Held(PipelineError):
    """What would have been released is not: since it was pushed, something else came to serve."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One release.

    Attributes:
        number: 1 for the first.
        at: When traffic moved, ISO 8601, UTC.
        endpoint: Where.
        from_version: Version that served before; empty for the first. Of a rollback that ends a canary, the canary's.
        to_version: Version that serves from now on, or takes its share beside what serves.
        path: Folder of its SavedModel.
        share: Share of the traffic, 0 to 1.
        run_id: Run that produced and released it.
        snapshot: Its label snapshot's table.
        snapshot_date: That snapshot's date.
        weights_sha256: Digest of its weights.
        previous: SHA-256 of the ledger's line before; zeros for the first.
        action: `release`, by a run that moves all traffic at once; `canary`, by one that moves a share of it, then `promote` or
            `rollback`, by that run or by a person.
        actor: Who, for a person's; `run RUN_ID` for what a run did to its canary; empty for a run's release.
        reason: Why; may be empty for a run's release.
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
    # Entries from before people could act have none.
    action: str = "release"
    actor: str = ""
    reason: str = ""

    def line(self) -> bytes:
        """The entry as its line of the ledger, without the line end."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False).encode()

    @property
    def line_sha256(self) -> str:
        """SHA-256 of its line: what the next entry carries, and the lineage."""
        return hashlib.sha256(self.line()).hexdigest()

    @property
    def by_run(self) -> bool:
        """Whether a run made it, and no person."""
        return is_run(self.actor)


def read(path: str | os.PathLike) -> list[Entry]:
    """Reads the ledger and checks its chain.

    Args:
        path: The ledger's file; one that does not exist is an empty ledger.

    Raises:
        PipelineError: A line cannot be read or is cut short, or does not follow the line before it.
    """
    return [entry for entry, _ in read_with_digests(path)]


def read_with_digests(path: str | os.PathLike) -> list[tuple[Entry, str]]:
    """As `read`, each entry with the SHA-256 of its line, whichever code wrote that."""
    path = os.fspath(path)
    return _entries(path, storage.read(path) if storage.exists(path) else b"")


def _entries(path: str, content: bytes) -> list[tuple[Entry, str]]:
    entries, previous = [], _FIRST
    for number, line in enumerate(_lines(path, content), start=1):
        try:
            entry = Entry(**json.loads(line.decode()))
        except (ValueError, TypeError) as error:
            raise PipelineError(f"{path}, line {number} is no ledger entry ({error}): restore the file from its backup") from error
        if entry.previous != previous or entry.number != number:
            raise PipelineError(
                f"{path}, line {number} does not follow line {number - 1}: the ledger was changed by hand or lost a "
                "line; restore the file from its backup"
            )
        previous = hashlib.sha256(line).hexdigest()
        entries.append((entry, previous))
    return entries


def _lines(path: str, content: bytes) -> list[bytes]:
    # Bytes: text has more line ends than the one that separates entries, and a path may hold them.
    if content and not content.endswith(b"\n"):
        raise PipelineError(f"{path} ends in the middle of a line: restore the file from its backup")
    return content.split(b"\n")[:-1]


def serving(path: str | os.PathLike, endpoint: str) -> Entry | None:
    """The entry of what serves at `endpoint` now, or None."""
    return now(of_endpoint(path, endpoint))


def of_endpoint(path: str | os.PathLike, endpoint: str) -> list[Entry]:
    """The entries of one endpoint, oldest first."""
    return [entry for entry in read(path) if entry.endpoint == endpoint]


def now(entries: Sequence[Entry]) -> Entry | None:
    """The entry of what serves, or None; a canary does not serve yet.

    Args:
        entries: Of one endpoint, oldest first.
    """
    return next((entry for entry in reversed(entries) if entry.action != "canary"), None)


def canary(entries: Sequence[Entry]) -> Entry | None:
    """The canary that was neither promoted nor rolled back, or None.

    Args:
        entries: Of one endpoint, oldest first.
    """
    return entries[-1] if entries and entries[-1].action == "canary" else None


def shares(entries: Sequence[Entry]) -> dict[str, float]:
    """How the traffic is split now: version -> share, 0 to 1.

    Args:
        entries: Of one endpoint, oldest first.
    """
    serves, beside = now(entries), canary(entries)
    if beside is None:
        return {serves.to_version: 1.0} if serves else {}
    return ({serves.to_version: 1 - beside.share} if serves else {}) | {beside.to_version: beside.share}


def withdrawal(entries: Sequence[Entry], weights_sha256: str) -> Entry | None:
    """The rollback that took these weights from the traffic, unless a later entry brought them back.

    Args:
        entries: Of one endpoint, oldest first.
        weights_sha256: The weights.
    """
    found, serves = None, None
    for entry in entries:
        if entry.action == "rollback" and serves == weights_sha256 != entry.weights_sha256:
            found = entry
        elif entry.weights_sha256 == weights_sha256:
            found = None
        serves = entry.weights_sha256
    return found


def append(
    path: str | os.PathLike,
    *,
    endpoint: str,
    to_version: str,
    model: str,
    run_id: str,
    snapshot: str,
    snapshot_date: str,
    weights_sha256: str,
    from_version: str | None = None,
    action: str = "release",
    actor: str = "",
    reason: str = "",
    share: float = 1.0,
) -> Entry:
    """Records that `to_version` takes all traffic of `endpoint` from now on, or a share of it.

    The file is replaced in one step: a reader sees the ledger before or after, never a part. Of two that release at once, the
    second is refused. A step that is tried again finds the entry that it wrote.

    Args:
        path: The ledger's file.
        endpoint, to_version, run_id, snapshot, snapshot_date, weights_sha256, action, actor, reason, share: As in `Entry`.
        model: Folder of the SavedModel.
        from_version: What serves now as far as the caller knows, empty for nothing; None for one who need not know.

    Returns:
        The entry written.

    Raises:
        Held: Something else serves than the caller decided upon, or another canary is under way.
    """
    path, written = os.fspath(path), []

    def change(content: bytes | None) -> bytes:
        content = content or b""
        entries = [entry for entry, _ in _entries(path, content) if entry.endpoint == endpoint]
        serves, beside = now(entries), canary(entries)
        before = serves.to_version if serves else ""
        same = (run_id, to_version, action, actor)
        mine = [entry for entry in entries if (entry.run_id, entry.to_version, entry.action, entry.actor) == same]
        # A run does a thing to a version once, whatever came after it; people may return to one time and again.
        by_run = action in ("release", "canary") or actor.startswith(_RUN)
        if mine and (by_run or mine[-1] is entries[-1]):
            written[:] = mine[-1:]
            return content
        if beside and action in ("canary", "release"):
            raise Held(
                f"version {beside.to_version} of run {beside.run_id} is a canary at endpoint {endpoint} since {beside.at}: one "
                "release at a time. Wait until it is promoted or rolled back (python -m pipeline release status)"
            )
        if from_version not in (None, before):
            raise Held(
                f"version {before or 'none'} serves at endpoint {endpoint} by now, and this was decided upon while version "
                f"{from_version or 'none'} did: look again (python -m pipeline release status), and decide again"
            )
        lines = _lines(path, content)
        entry = Entry(
            number=len(lines) + 1,
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
            endpoint=endpoint,
            from_version=beside.to_version if beside and action == "rollback" else before,
            to_version=to_version,
            path=model,
            share=share,
            run_id=run_id,
            snapshot=snapshot,
            snapshot_date=snapshot_date,
            weights_sha256=weights_sha256,
            previous=hashlib.sha256(lines[-1]).hexdigest() if lines else _FIRST,
            action=action,
            actor=actor,
            reason=reason,
        )
        written[:] = [entry]
        return b"\n".join([*lines, entry.line()]) + b"\n"

    storage.update(path, change)
    return written[-1]
