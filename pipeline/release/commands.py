"""`python -m pipeline release`: what serves, and a person's decision that something else shall. Light: no TensorFlow.

A decision is an entry of the serving ledger, with who decided and why, and takes effect at once. The lineage gets a copy of
it, so that the audit knows what served. With `--settings` of a pipeline that releases to Vertex AI, all is about its endpoint
there (`pipeline.release.vertex_commands`).
"""

import argparse
import contextlib
import dataclasses
import getpass
import json
import os
import pathlib
import shutil
import sys
import time
import warnings
from collections.abc import Sequence

from pipeline import files
from pipeline.errors import PipelineError
from pipeline.places import DEFAULT_STORE, Places
from pipeline.release import ledger
from pipeline.validation.text import printable

# Where TFX's Trainer puts the SavedModel in its artifact (tfx/utils/path_utils.py).
_SERVING_MODEL = "Format-Serving"

# Entries that `status` shows.
_SHOWN = 10

_ENDPOINT = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--store", metavar="DIR", help="where runs left their things (default: store)")
    common.add_argument("--endpoint", metavar="NAME", help=f"endpoint of the serving ledger (default: {_ENDPOINT})")
    common.add_argument(
        "--settings", metavar="FILE", help="settings with vertex.release: their endpoint on Vertex AI, and their store"
    )
    decision = argparse.ArgumentParser(add_help=False)
    decision.add_argument(
        "--accept-endpoint", action="store_true", help="go on although somebody changed the endpoint on Vertex AI by hand"
    )
    decision.add_argument("--reason", required=True, metavar="TEXT", help="why; recorded")
    decision.add_argument("--by", metavar="NAME", help="who decided so; recorded (default: your user name)")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    status = actions.add_parser("status", parents=[common], help="what serves, since when, and what served before")
    status.add_argument("--json", action="store_true", help="every entry of the endpoint, for machines")
    back = actions.add_parser("rollback", parents=[common, decision], help="return to a model that served before")
    back.add_argument("--to", metavar="RUN_ID", help="whose model shall serve (default: the one that served before)")
    promote = actions.add_parser(
        "promote", parents=[common, decision], help="let the model of a run serve, also one that was refused"
    )
    promote.add_argument("run_id", metavar="RUN_ID", help="the run, as its summary names it")
    actions.add_parser(
        "tidy", parents=[common], help="undeploy from Vertex AI what served before and whose grace time is over"
    )


def release(options: argparse.Namespace) -> int:
    """Answers one of them; returns the exit status. Raises PipelineError."""
    for name in ("reason", "by"):
        given = getattr(options, name, None)
        if given is not None and not given.strip():
            raise PipelineError(f"--{name} is empty: the ledger records {'why' if name == 'reason' else 'who decided'}")
    if options.settings:
        return _on_vertex(options)
    if options.action == "tidy" or getattr(options, "accept_endpoint", False):
        named = "release tidy" if options.action == "tidy" else "--accept-endpoint"
        raise PipelineError(f"{named} is for an endpoint on Vertex AI: name its settings by --settings")
    options.endpoint = options.endpoint or _ENDPOINT
    options.store = options.store or DEFAULT_STORE
    places = Places(store=str(pathlib.Path(options.store).resolve()))
    if options.action == "status":
        return _status(places, options)
    entries = ledger.of_endpoint(places.ledger, options.endpoint)
    if options.action == "rollback":
        entry = _rollback(places, entries, options)
    else:
        entry = _promote(places, entries, options)
    now = f"version {entry.to_version} of run {entry.run_id} ({entry.snapshot})"
    print(f"{now} serves at endpoint {entry.endpoint}, before it {entry.from_version or 'nothing'}")
    _complete_lineage(places)
    return 0


def _on_vertex(options) -> int:
    if options.store or options.endpoint:
        raise PipelineError("--settings names store and endpoint already: leave --store and --endpoint out")
    from pipeline import settings

    config = settings.load(options.settings)
    if config.vertex is None or config.vertex.release is None:
        raise PipelineError(
            f"{options.settings} has no vertex.release, so nothing is released to Vertex AI: name the store by --store instead"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Google's clients say of the Python they run on
        from pipeline.release import vertex_commands

    return vertex_commands.release(options, config)


def _status(places: Places, options) -> int:
    entries = ledger.of_endpoint(places.ledger, options.endpoint)
    if options.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=2, ensure_ascii=False))
        return 0
    if not entries:
        raise PipelineError(
            f"nothing was ever released at endpoint {options.endpoint!r} of the store {options.store}: run the pipeline first, "
            "or name another store by --store"
        )
    now = ledger.now(entries)
    print(f"endpoint {now.endpoint} serves version {now.to_version} of run {now.run_id} ({now.snapshot}) since {now.at}")
    print(f"  {now.path}" + ("" if _is_model(now.path) else "  IS NOT THERE: bring it back, or roll back"))
    print("\nnewest first:")
    tell_entries(entries)
    _complete_lineage(places)
    return 0


def tell_entries(entries: Sequence[ledger.Entry]) -> None:
    """Prints the newest entries of an endpoint, a line each, the newest first."""
    for entry in entries[: -_SHOWN - 1 : -1]:
        share = f" at {100 * entry.share:g} %" if entry.share < 1 else ""
        by = f" by {printable(entry.actor)}" if entry.actor else ""
        why = f"{by}: {printable(entry.reason)}" if entry.reason else by
        print(f"  {entry.at[:19]}  {entry.action:<8}  version {entry.to_version}{share}  run {entry.run_id}{why}")
    if len(entries) > _SHOWN:
        print(f"  and {len(entries) - _SHOWN} older: --json")


def previous(entries: Sequence[ledger.Entry]) -> ledger.Entry | None:
    """What a rollback without a name returns to: the newest that served before the present version first did.

    Not merely the entry before: after a rollback, that is what was rolled back.

    Args:
        entries: Of one endpoint, oldest first.
    """
    serves = ledger.now(entries)
    if serves is None:
        return None
    # What only was a canary has not served.
    served = [entry for entry in entries if entry.action != "canary"]
    first = next(place for place, entry in enumerate(served) if entry.to_version == serves.to_version)
    older = [entry for entry in served[:first] if not ledger.withdrawal(entries, entry.weights_sha256)]
    return older[-1] if older else None


def returning(entries: Sequence[ledger.Entry], to: str | None, endpoint: str) -> ledger.Entry:
    """What a rollback returns to.

    Args:
        entries: Of one endpoint, oldest first.
        to: The run whose model shall serve; None for what served before, or, beside a canary, for what serves.
        endpoint: Its name.

    Raises:
        PipelineError: There is nothing to return to; the text names what there is.
    """
    serves = ledger.now(entries)
    served = sorted({entry.run_id for entry in entries if entry.action != "canary"} - {serves.run_id}) if serves else []
    if to is None:
        target = serves if ledger.canary(entries) else previous(entries)
        if target is None:
            raise PipelineError(
                f"there is nothing to return to at endpoint {endpoint}: "
                + (f"run {serves.run_id} is the first that served" if serves else "nothing was ever released there")
                + (f". Name one of {', '.join(served)} by --to" if served else "")
            )
        return target
    target = next((entry for entry in reversed(entries) if entry.run_id == to and entry.action != "canary"), None)
    if target is None:
        known = f": name one of {', '.join(served)}" if served else ""
        raise PipelineError(
            f"no model of run {to!r} ever served at endpoint {endpoint}{known}. A run's model that never "
            "served is promoted: python -m pipeline release promote RUN_ID --reason TEXT"
        )
    return target


def _rollback(places: Places, entries, options) -> ledger.Entry:
    target = returning(entries, options.to, options.endpoint)
    _require_change(entries, target.to_version, target.run_id)
    _require_model(target.path, target.run_id)
    return _append(places, entries, options, "rollback", target, target.to_version, target.path)


def _promote(places: Places, entries, options) -> ledger.Entry:
    known = next((entry for entry in reversed(entries) if entry.run_id == options.run_id), None)
    if known:
        _require_change(entries, known.to_version, known.run_id)
        _require_model(known.path, known.run_id)
        return _append(places, entries, options, "promote", known, known.to_version, known.path)
    candidate, model = _of_lineage(places, options.run_id)
    version = str(int(time.time()))
    path = os.path.join(places.versions, version)
    # Whole or not at all, and gone again when somebody else was faster.
    with files.new_folder(path) as folder:
        shutil.copytree(model, folder, dirs_exist_ok=True)
    try:
        return _append(places, entries, options, "promote", candidate, version, path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """What the ledger wants to know of a run that never served."""

    run_id: str
    snapshot: str
    snapshot_date: str
    weights_sha256: str


def _of_lineage(places: Places, run_id: str) -> tuple[_Candidate, str]:
    """A run that ended without serving, and the folder of its model."""
    from pipeline.lineage.mlmd import MLMDLineage

    run = MLMDLineage(places.metadata).run(run_id)
    known, trainer, smoke = run.output("pipeline.ServingRelease"), run.step("Trainer"), run.output("InfraBlessing")
    if known is None or trainer is None:
        last = run.executions[-1] if run.executions else None
        where = f"it ended at {last.step} ({last.state})" if last else "it did nothing"
        raise PipelineError(f"run {run_id} has no model that could serve: {where}")
    if smoke is None or int(smoke.facts.get("blessed", 0)) != 1:
        reasons = "; ".join(json.loads(smoke.facts.get("reasons", "[]"))) if smoke else "it was not tested"
        raise PipelineError(
            f"the export of run {run_id} does not pass its smoke test and would answer wrongly or not at all ({reasons}): it "
            "cannot be promoted. Run the week again"
        )
    model = os.path.join(trainer.outputs["model"][0].uri, _SERVING_MODEL)
    _require_model(model, run_id)
    facts = {field.name: known.facts[field.name] for field in dataclasses.fields(_Candidate)}
    return _Candidate(**facts), model


def _require_change(entries, version: str, run_id: str) -> None:
    serves = ledger.now(entries)
    if serves and serves.to_version == version:
        raise PipelineError(f"version {version} of run {run_id} serves already, since {serves.at}: nothing was changed")


def _is_model(path: str) -> bool:
    return all(pathlib.Path(path, name).is_file() for name in ("saved_model.pb", "variables/variables.index"))


def _require_model(path: str, run_id: str) -> None:
    if not _is_model(path):
        raise PipelineError(
            f"the model of run {run_id}, {path}, is not there or not whole: restore the folder from a backup, or choose another"
        )


def _append(places: Places, entries, options, action: str, target, version: str, path: str) -> ledger.Entry:
    serves = ledger.now(entries)
    return ledger.append(
        places.ledger,
        endpoint=options.endpoint,
        from_version=serves.to_version if serves else "",
        to_version=version,
        model=path,
        run_id=target.run_id,
        snapshot=target.snapshot,
        snapshot_date=target.snapshot_date,
        weights_sha256=target.weights_sha256,
        action=action,
        actor=decider(options),
        reason=options.reason,
    )


def decider(options) -> str:
    """Who decides, for the ledger: `--by`, or the name of the user. Raises PipelineError for one that only a run may have."""
    if options.by and ledger.is_run(options.by):
        raise PipelineError(f"--by {options.by!r} is how the ledger names a run: give a person's name")
    if options.by:
        return options.by
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"


def _complete_lineage(places: Places) -> None:
    """Copies people's entries that the lineage lacks into it; says so when it cannot, and the next command tries again."""
    decided = [entry for entry in ledger.read(places.ledger) if not entry.by_run]
    if not decided:
        return
    from pipeline.lineage import mlmd_writer

    try:
        mlmd_writer.record_releases(places.metadata, decided)
    except PipelineError as error:
        print(f"the ledger has it; the lineage does not yet: {error}. `release status` tries again", file=sys.stderr)
