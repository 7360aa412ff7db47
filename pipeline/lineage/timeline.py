"""Which model took which share of an endpoint's traffic, and when: the lineage and the serving ledger, read together.

Either may know a release that the other does not: a machine that dies between the two leaves a line in the ledger alone,
a ledger that was lost leaves the lineage alone. Their numbers bring them together, and where they disagree, that is told.
"""

import dataclasses
import datetime
from collections.abc import Sequence

from pipeline.errors import PipelineError
from pipeline.lineage.base import LineageStore, Release, same
from pipeline.release import ledger


_TOLD = ("at", "endpoint", "run_id", "version", "share", "path")
"""What lineage and ledger both tell of a release."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """One interval in which one model took one share of an endpoint's traffic.

    Attributes:
        number: The release in which it began, as the ledger counts.
        run_id: The run that produced the model.
        endpoint: Where it served.
        version: Version of the model.
        share: Share of the traffic, 0 to 1.
        since: When it began to serve so, UTC.
        until: When it ceased, UTC; None while it serves.
        recorded: `lineage and ledger`, `lineage` or `ledger`: what knows of the release.
    """

    number: int
    run_id: str
    endpoint: str
    version: str
    share: float
    since: datetime.datetime
    until: datetime.datetime | None
    recorded: str


@dataclasses.dataclass(frozen=True)
class Timeline:
    """All serving intervals, in the order in which they began, and what is wrong with their records."""

    intervals: tuple[Interval, ...]
    problems: tuple[str, ...]

    def of_run(self, run_id: str) -> list[Interval]:
        """The intervals of the model of a run."""
        return [interval for interval in self.intervals if interval.run_id == run_id]


def read(store: LineageStore, ledger_path: str) -> Timeline:
    """Reads lineage and ledger.

    Args:
        store: The lineage.
        ledger_path: File of the serving ledger.

    Returns:
        The timeline. A ledger that cannot be read is a problem, and the lineage alone tells then.
    """
    try:
        entries, problems = [_of_entry(*found) for found in ledger.read_with_digests(ledger_path)], []
    except PipelineError as error:
        entries, problems = None, [f"the serving ledger cannot be used: {error}"]
    except OSError as error:
        entries, problems = None, [f"the serving ledger {ledger_path} cannot be read: {error.strerror}"]
    return build(store.releases(), entries, problems)


def build(releases: Sequence[Release], entries: Sequence[Release] | None, problems: Sequence[str] = ()) -> Timeline:
    """Brings the records of releases together.

    Args:
        releases: Those of the lineage.
        entries: Those of the ledger; None when it cannot be read.
        problems: What is wrong already.

    Returns:
        The timeline. A release of share 1 ends whatever served at its endpoint; a smaller share leaves the rest to what served
        there, in the proportion that it had.
    """
    found = list(problems)
    known = {release.number: release for release in releases}
    written = {entry.number: entry for entry in entries or ()}
    serving: dict[str, dict[str, Interval]] = {}
    intervals: list[Interval] = []
    latest: dict[str, tuple[int, datetime.datetime]] = {}
    for number in sorted(known.keys() | written.keys()):
        release, entry = known.get(number), written.get(number)
        found += _disagreements(release, entry, entries is not None)
        told = entry or release
        since = datetime.datetime.fromisoformat(told.at)
        before = latest.get(told.endpoint)
        if before and since < before[1]:
            found.append(
                f"release {number} at {told.endpoint} is recorded at {told.at}, before release {before[0]} at "
                f"{before[1].isoformat()}: a clock went backwards. The order of the numbers counts"
            )
            since = before[1]
        latest[told.endpoint] = number, since
        by = "lineage and ledger" if release and entry else "lineage" if release else "ledger"
        intervals += _move(serving.setdefault(told.endpoint, {}), told, since, by)
    for rest in serving.values():
        intervals += rest.values()
    intervals.sort(key=lambda interval: (interval.since, interval.number, interval.version))
    return Timeline(tuple(intervals), tuple(found))


def _move(serving: dict[str, Interval], release: Release, since, recorded: str) -> list[Interval]:
    """Moves traffic of one endpoint; changes `serving` and returns the intervals that end."""
    ended = [dataclasses.replace(interval, until=since) for interval in serving.values() if interval.since < since]
    others = {version: interval for version, interval in serving.items() if version != release.version}
    left = sum(interval.share for interval in others.values())
    serving.clear()
    if release.share < 1 and left:
        for version, interval in others.items():
            share = (1 - release.share) * interval.share / left
            serving[version] = dataclasses.replace(interval, share=share, since=since)
    if release.share > 0:
        serving[release.version] = Interval(
            release.number, release.run_id, release.endpoint, release.version, release.share, since, None, recorded
        )
    return ended


def _of_entry(entry: ledger.Entry, line_sha256: str) -> Release:
    return Release(
        number=entry.number,
        at=entry.at,
        endpoint=entry.endpoint,
        run_id=entry.run_id,
        version=entry.to_version,
        share=entry.share,
        path=entry.path,
        line_sha256=line_sha256,
    )


def _disagreements(release: Release | None, entry: Release | None, readable: bool) -> list[str]:
    if release is None:
        return [
            f"release {entry.number} (run {entry.run_id}) is in the ledger and not in the lineage: its run ended before it "
            "could record it, or somebody added it"
        ]
    if entry is None:
        return [f"release {release.number} (run {release.run_id}) is in the lineage and not in the ledger"] if readable else []
    differing = [
        f"{name} {getattr(release, name)!r} in the lineage, {getattr(entry, name)!r} in the ledger"
        for name in _TOLD
        if not same(getattr(release, name), getattr(entry, name))
    ]
    if not differing and release.line_sha256 not in (None, entry.line_sha256):
        differing = ["the digest of its line in the ledger is not the one that the lineage recorded"]
    return [f"release {release.number} is not the same in lineage and ledger: {'; '.join(differing)}"] if differing else []
