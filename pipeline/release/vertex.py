"""Releases to an endpoint of Vertex AI: version, canary, probe, watch, then all of the traffic or none. No TensorFlow.

    upload (aliases run-..., candidate) -> deploy as canary -> ledger: canary -> probe and watch -> verdict on the version
        passed: 100 % -> ledger: promote  -> aliases serving, default
        failed: 0 %   -> ledger: rollback -> undeploy

Nothing is kept in between but what the endpoint, the versions and the ledger themselves say. A release whose process was
killed goes on where it was when its run is started again; what a dead run left half done, the next one ends.
"""

import dataclasses
import datetime
import json
import logging
from collections.abc import Callable, Mapping, Sequence

from pipeline import files, storage
from pipeline.errors import PipelineError
from pipeline.places import Places
from pipeline.release import ledger, smoke, watch
from pipeline.vertex import endpoint as endpoints
from pipeline.vertex import jobs
from pipeline.vertex.endpoint import CANDIDATE, DEFAULT, FAILED, PASSED, SERVING, Endpoint, State, Version, run_label
from pipeline.vertex.settings import VertexSettings

_log = logging.getLogger(__name__)

_ALIVE_MINUTES = 150.0
"""A release that began so long ago, beside its watch, is taken for dead: Vertex gives up a deployment after less."""


class EndpointChanged(PipelineError):
    """The endpoint does not do what the ledger says: somebody changed it by hand."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model that may be released.

    Attributes:
        run_id: The run that made it.
        snapshot: Its label snapshot's table.
        snapshot_date: That snapshot's date.
        weights_sha256: Digest of its weights.
        model: Folder of the export.
    """

    run_id: str
    snapshot: str
    snapshot_date: str
    weights_sha256: str
    model: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a release.

    Attributes:
        released: Whether the model has all of the traffic.
        reason: Why, or why not.
        version: Its version; '' when none was made.
        path: Folder that it is served from; '' when none was made.
    """

    released: bool
    reason: str
    version: str = ""
    path: str = ""


class Target:
    """The endpoint together with the ledger that says what it does.

    Args:
        settings: Vertex's settings, with `release`.
        name: Name of the endpoint in the ledger.
        pipeline: Name of the pipeline, for labels.
        places: Where the ledger and the models lie.

    Raises:
        PipelineError: The settings name no image by digest, or there are no credentials.
    """

    def __init__(self, settings: VertexSettings, name: str, pipeline: str, places: Places):
        self._settings, self._limits = settings, settings.release
        self._name, self._pipeline, self._places = name, pipeline, places
        self.endpoint = Endpoint(settings, name)

    # --- What a run does ---

    def release(
        self,
        candidate: Candidate,
        hold: Callable[[Sequence[ledger.Entry]], str] = lambda entries: "",
        actor: str = "",
        reason: str = "",
        accept: bool = False,
    ) -> Outcome:
        """Releases a candidate, or goes on with that.

        Args:
            candidate: The model.
            hold: Says of the endpoint's entries why the candidate is not to be released; '' when it is.
            actor: The person who wants it, for the ledger; '' for the candidate's own run.
            reason: The person's.
            accept: Whether an endpoint that was changed by hand is first put back to what the ledger says.

        Returns:
            The outcome. A canary that fails is an outcome, and so is another release that is under way.

        Raises:
            EndpointChanged: The endpoint does not do what the ledger says.
            PipelineError: Vertex refuses, has no machines, or does not answer. What served goes on serving.
        """
        mine = self.endpoint.version_of(candidate.run_id)
        if mine and (ended := self._ended(candidate, mine)):
            return ended
        try:
            self._end_abandoned(candidate.run_id)
            self.tidy()
            entries, state = self.entries(), self.endpoint.state()
            if held := hold(entries):
                if mine and state.of(mine.number):
                    return self._roll_back(candidate, mine, held)
                return Outcome(False, held)
            if accept and self._disagreement(entries, state, mine):
                reason = f"{reason}{self._put_back(entries, state)}"
                state = self.endpoint.state()
            self._require_agreement(entries, state, mine)
            if not state.exists:
                self.endpoint.create(self._labels(candidate))
            mine = mine or self._upload(candidate)
            if not mine.verdict:
                mine = self._try(candidate, mine, entries)
        except ledger.Held as held:
            return Outcome(False, str(held))
        if mine.verdict == FAILED:
            return self._roll_back(candidate, mine, mine.description)
        return self._promote(candidate, mine, actor, reason)

    def tidy(self) -> list[str]:
        """Undeploys the versions that have served and whose grace time is over; returns them. Raises PipelineError."""
        entries, state = self.entries(), self.endpoint.state()
        now, grace = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(minutes=self._limits.grace_minutes)
        gone = []
        for each in state.deployed:
            since = _idle_since(entries, each.version)
            if each.ours and not each.percent and since and since + grace <= now:
                self.endpoint.undeploy(each.version)
                _log.info("version %s served until %s: undeployed", each.version, since)
                gone.append(each.version)
        return gone

    # --- What a person does ---

    def move(self, target: ledger.Entry, action: str, actor: str, reason: str, accept: bool) -> tuple[ledger.Entry, bool]:
        """Gives all traffic to a version that the ledger knows.

        Args:
            target: An entry of it.
            action: `promote` or `rollback`.
            actor: Who decided so.
            reason: Why.
            accept: Whether an endpoint that was changed by hand may be changed further.

        Returns:
            The new entry, and whether the version had to be deployed first, which takes minutes.

        Raises:
            EndpointChanged: The endpoint does not do what the ledger says, and that is not accepted.
            PipelineError: Vertex refuses, has no machines, or does not answer. What served goes on serving.
        """
        entries, state = self.entries(), self.endpoint.state()
        wanted, version = {target.to_version: 100}, target.to_version
        problem = self.disagreement(entries, state)
        # Somebody was killed between the traffic and the ledger, or did by hand what is decided now: nothing is overwritten.
        if problem and state.split != wanted:
            if not accept:
                raise EndpointChanged(f"{problem}. Look at it, and if it may be overwritten add --accept-endpoint")
            reason += _by_hand(state)
        serves = ledger.now(entries)
        cold = state.of(version) is None
        if not state.exists:
            self.endpoint.create({**self._settings.labels, "pipeline": jobs.label_value(self._pipeline)})
        if cold:
            self.endpoint.deploy(version, wanted)
        else:
            self.endpoint.move(wanted, state)
        entry = self._append(
            target, version, target.path, action=action, actor=actor, reason=reason, from_version=serves.to_version
        )
        self.endpoint.set_aliases(version, add=[SERVING, DEFAULT], remove=[CANDIDATE])
        beside = ledger.canary(entries)
        if beside and beside.to_version != version:
            self.endpoint.set_aliases(beside.to_version, remove=[CANDIDATE])
        return entry, cold

    def entries(self) -> list[ledger.Entry]:
        """The ledger's entries of the endpoint, oldest first."""
        return ledger.of_endpoint(self._places.ledger, self._name)

    def disagreement(self, entries: Sequence[ledger.Entry], state: State) -> str:
        """How the endpoint differs from the ledger, as a sentence; '' when it does not."""
        return self._disagreement(entries, state, None)

    # --- Candidates ---

    def keep(self, candidate: Candidate) -> None:
        """Notes what a later release wants to know of a run's model, whether that was released or not."""
        storage.write(self._note(candidate.run_id), files.to_json(dataclasses.asdict(candidate)).encode())

    def candidate(self, run_id: str) -> Candidate:
        """The model of a run, as `keep` noted it. Raises PipelineError."""
        try:
            return Candidate(**json.loads(storage.read(self._note(run_id))))
        except FileNotFoundError as error:
            known = [name.removesuffix(".json") for name in storage.names(self._places.candidates)][-3:]
            raise PipelineError(
                f"run {run_id!r} has no model that could be released: it did not come so far, or its smoke test refused it"
                + (f". The newest that have: {', '.join(known)}" if known else "")
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise PipelineError(f"{self._note(run_id)} cannot be used ({error}): restore it from its backup") from error

    def _note(self, run_id: str) -> str:
        return storage.join(self._places.candidates, f"{run_label(run_id)}.json")

    # --- The steps ---

    def _labels(self, candidate: Candidate) -> dict[str, str]:
        return jobs.labels_of(self._settings, self._pipeline, candidate.snapshot_date)

    def _upload(self, candidate: Candidate) -> Version:
        path = storage.join(self._places.versions, run_label(candidate.run_id))
        # Whoever reads it takes it for whole when it has this file; so does this step when it is tried again.
        if not storage.exists(storage.join(path, "saved_model.pb")):
            storage.copy_folder(candidate.model, path, last="saved_model.pb")
        labels = {**self._labels(candidate), "weights": candidate.weights_sha256[:16]}
        return self.endpoint.upload(candidate.run_id, path, labels)

    def _try(self, candidate: Candidate, mine: Version, entries: Sequence[ledger.Entry]) -> Version:
        """Deploys the candidate beside what serves, and watches it; returns it with its verdict."""
        serves, number = ledger.now(entries), mine.number
        percent = self._limits.canary_percent if serves else 100
        if self.endpoint.state().of(number) is None:
            split = {serves.to_version: 100 - percent, number: percent} if serves else {number: 100}
            try:
                self._require_agreement(entries, self.endpoint.state(), mine)
                self.endpoint.deploy(number, split)
            except endpoints.CannotServe as error:
                return self._judged(mine, watch.Finding(False, str(error)))
        if serves:
            try:
                self._say_canary(candidate, mine, serves)
            except ledger.Held:
                # Two have deployed at the same moment, and the other one was faster to say so.
                self.endpoint.move(_percents(ledger.shares(self.entries())), self.endpoint.state())
                self.endpoint.undeploy(number)
                raise
        deployed = self.endpoint.state().of(number)
        try:
            reference = smoke.read(mine.path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            finding = watch.Finding(False, f"its smoke set {mine.path}/{smoke.SMOKE_SET} cannot be read ({error})")
        else:
            finding = watch.watch(self.endpoint.ask, reference, deployed.id if deployed else "", percent, self._limits)
        return self._judged(mine, finding)

    def _judged(self, mine: Version, finding: watch.Finding) -> Version:
        verdict = PASSED if finding.passed else FAILED
        self.endpoint.judge(mine.number, verdict, finding.told)
        return dataclasses.replace(mine, verdict=verdict, description=finding.told[:500])

    def _promote(self, candidate: Candidate, mine: Version, actor: str, reason: str) -> Outcome:
        entries, state = self.entries(), self.endpoint.state()
        serves, beside = ledger.now(entries), ledger.canary(entries)
        if serves and (beside is None or beside.to_version != mine.number):
            # A person decided while it was watched.
            ended = self._ended(candidate, mine)
            if ended is None:
                raise EndpointChanged(f"the canary of run {candidate.run_id} is not in the ledger {self._places.ledger}")
            return ended
        self._require_agreement(entries, state, mine)
        self.endpoint.move({mine.number: 100}, state)
        by = actor or (ledger.actor_of(candidate.run_id) if serves else "")
        why = f"{reason} ({mine.description})" if reason else mine.description
        self._append(candidate, mine.number, mine.path, action="promote" if serves or actor else "release", actor=by,
                     reason=why, from_version=serves.to_version if serves else "")  # fmt: skip
        self._end_promoted(mine)
        return Outcome(True, why, mine.number, mine.path)

    def _end_promoted(self, mine: Version) -> None:
        self.endpoint.set_aliases(mine.number, add=[SERVING, DEFAULT], remove=[CANDIDATE])
        self.tidy()

    def _roll_back(self, candidate: Candidate, mine: Version, why: str) -> Outcome:
        entries, state = self.entries(), self.endpoint.state()
        serves, beside = ledger.now(entries), ledger.canary(entries)
        if serves and state.of(mine.number):
            if beside is None or beside.to_version != mine.number:
                if ended := self._ended(candidate, mine):
                    return ended
            self._require_agreement(entries, state, mine)
            if beside is None and state.split.get(mine.number):
                beside = self._say_canary(candidate, mine, serves, late=True)
            self.endpoint.move({serves.to_version: 100}, state)
        if serves and beside and beside.to_version == mine.number:
            self._append(serves, serves.to_version, serves.path, action="rollback",
                         actor=ledger.actor_of(candidate.run_id), reason=why, from_version=serves.to_version)  # fmt: skip
        self._end_rolled_back(mine)
        return Outcome(False, f"its canary was rolled back: {why}" if beside else why, mine.number, mine.path)

    def _end_rolled_back(self, mine: Version) -> None:
        self.endpoint.undeploy(mine.number)
        self.endpoint.set_aliases(mine.number, remove=[CANDIDATE])

    def _say_canary(self, candidate: Candidate, mine: Version, serves: ledger.Entry, late: bool = False) -> ledger.Entry:
        """Records a canary; late is one that took traffic before its run was killed and could not say so."""
        return self._append(
            candidate,
            mine.number,
            mine.path,
            action="canary",
            actor=ledger.actor_of(candidate.run_id),
            from_version=serves.to_version,
            share=self._limits.canary_percent / 100,
            reason="recorded late: its run ended before it could" if late else "",
        )

    def _append(self, about, version: str, path: str, **fields) -> ledger.Entry:
        return ledger.append(
            self._places.ledger,
            endpoint=self._name,
            to_version=version,
            model=path,
            run_id=about.run_id,
            snapshot=about.snapshot,
            snapshot_date=about.snapshot_date,
            weights_sha256=about.weights_sha256,
            **fields,
        )

    # --- What was begun before ---

    def _ended(self, candidate: Candidate, mine: Version) -> Outcome | None:
        """The outcome of a release that the ledger knows to have ended, with what may be left of it done; else None."""
        entries = self.entries()
        serves, beside = ledger.now(entries), ledger.canary(entries)
        if serves and serves.to_version == mine.number:
            self._end_promoted(mine)
            return Outcome(True, serves.reason, mine.number, mine.path)
        if beside and beside.to_version == mine.number:
            return None
        known = [place for place, entry in enumerate(entries) if entry.to_version == mine.number]
        if not known:
            return None
        full = next((entries[place] for place in reversed(known) if entries[place].action != "canary"), None)
        if full:
            # It served, and something else does by now.
            return Outcome(True, full.reason, mine.number, mine.path)
        ending = entries[known[-1] + 1]
        if ending.by_run:
            self._end_rolled_back(mine)
        return Outcome(False, f"its canary was rolled back by {ending.actor}: {ending.reason}", mine.number, mine.path)

    def _end_abandoned(self, run_id: str) -> None:
        """Ends what other runs left half done; refuses while one may be at work.

        Raises:
            Held: Another run releases at this moment.
        """
        entries, state = self.entries(), self.endpoint.state()
        beside = ledger.canary(entries)
        known = {entry.to_version for entry in entries}
        begun = {each.version: each.at for each in state.deployed if each.ours and each.percent and each.version not in known}
        if beside:
            begun[beside.to_version] = datetime.datetime.fromisoformat(beside.at)
        versions = {version.number: version for version in self.endpoint.versions()} if begun else {}
        for number, since in begun.items():
            other = versions.get(number)
            if other is None or other.run in ("", run_label(run_id)):
                continue
            limit = datetime.timedelta(minutes=_ALIVE_MINUTES + 2 * self._limits.watch_minutes)
            if since + limit > datetime.datetime.now(datetime.timezone.utc):
                raise ledger.Held(
                    f"run {other.run} releases version {number} to endpoint {self._name} since {since.isoformat()}: one release "
                    "at a time. Run the week again when it has ended (python -m pipeline release status --settings FILE)"
                )
            self._end_for(other, entries, state, beside)

    def _end_for(self, other: Version, entries: Sequence[ledger.Entry], state: State, beside: ledger.Entry | None) -> None:
        noted = self.candidate(beside.run_id if beside else other.run)
        serves = ledger.now(entries)
        self._require_agreement(entries, state, other)
        _log.warning("run %s ended in the midst of its release of version %s", noted.run_id, other.number)
        if serves and not beside:
            self._say_canary(noted, other, serves, late=True)
        if other.verdict == PASSED:
            self._promote(noted, other, "", "")
        else:
            why = other.description if other.verdict else "its run ended in the midst of the watch"
            self._roll_back(noted, other, why)

    # --- Ledger and endpoint ---

    def _put_back(self, entries: Sequence[ledger.Entry], state: State) -> str:
        """Gives the traffic back to what the ledger says, where that is deployed; returns what was found, for the ledger."""
        wanted = _percents(ledger.shares(entries))
        if not wanted or any(state.of(version) is None for version in wanted):
            return ""
        self.endpoint.move(wanted, state)
        return _by_hand(state)

    def _require_agreement(self, entries: Sequence[ledger.Entry], state: State, mine: Version | None) -> None:
        if problem := self._disagreement(entries, state, mine):
            raise EndpointChanged(
                f"{problem}. Nothing was changed. Look at it (python -m pipeline release status --settings FILE), then say what "
                "shall serve: python -m pipeline release promote RUN_ID --reason TEXT --settings FILE --accept-endpoint"
            )

    def _disagreement(self, entries: Sequence[ledger.Entry], state: State, mine: Version | None) -> str:
        wanted = _percents(ledger.shares(entries))
        if state.split == wanted or mine and state.split in self._on_the_way(entries, mine):
            return ""
        there = f"has {_told(state.split)}" if state.exists else "does not exist"
        return (
            f"the endpoint {self.endpoint.name} {there}, and by the ledger {self._places.ledger} it has {_told(wanted)}: "
            "somebody changed it by hand"
        )

    def _on_the_way(self, entries: Sequence[ledger.Entry], mine: Version) -> list[dict[str, int]]:
        """The splits that a release of a version makes before the ledger says so."""
        serves, beside = ledger.now(entries), ledger.canary(entries)
        if serves is None:
            return [{mine.number: 100}, {}]
        if beside and beside.to_version != mine.number:
            return []
        if not beside and any(entry.to_version == mine.number for entry in entries):
            return []
        percent = round(100 * beside.share) if beside else self._limits.canary_percent
        ways = [{serves.to_version: 100 - percent, mine.number: percent}]
        if mine.verdict == PASSED:
            ways.append({mine.number: 100})
        if mine.verdict == FAILED:
            ways.append({serves.to_version: 100})
        return ways


def outcome_entries(entries: Sequence[ledger.Entry], run_id: str, version: str) -> list[ledger.Entry]:
    """The entries of a run's release: those of its version, and those that it made itself.

    Args:
        entries: Of one endpoint, oldest first.
        run_id: The run.
        version: Its version; '' for none.
    """
    actor = ledger.actor_of(run_id)
    return [entry for entry in entries if entry.actor == actor or version and entry.to_version == version]


def _percents(shares: Mapping[str, float]) -> dict[str, int]:
    return {version: round(100 * share) for version, share in shares.items() if share}


def _told(split: Mapping[str, int]) -> str:
    return ", ".join(f"version {version} at {percent} %" for version, percent in sorted(split.items())) or "no traffic anywhere"


def _by_hand(state: State) -> str:
    return f" (before that, somebody had changed the endpoint by hand: {_told(state.split)})"


def _idle_since(entries: Sequence[ledger.Entry], version: str) -> datetime.datetime | None:
    """When a version lost its traffic, by the ledger; None when it has some, or never had any."""
    since, had = None, False
    for place, entry in enumerate(entries, start=1):
        has = version in ledger.shares(entries[:place])
        if had and not has:
            since = datetime.datetime.fromisoformat(entry.at)
        had = has
    return None if had else since
