"""What `audit export` hands over: provenance statement, bill of materials, lineage events, in one folder."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile

from pipeline import files, storage
from pipeline.errors import PipelineError
from pipeline.lineage.base import DONE, Artifact, Run
from pipeline.lineage.facts import RunFacts
from pipeline.lineage.verify import SERVING_MODEL
from pipeline.provenance import beside, bom, events, packages, statement

STATEMENT, BOM, EVENTS = "provenance.intoto.json", "bom.cdx.json", "openlineage.ndjson"
MODEL_SIGNATURE, STATEMENT_SIGNATURE = "model.sig", f"{STATEMENT}.sig"

FILES = (STATEMENT, BOM, EVENTS, MODEL_SIGNATURE, STATEMENT_SIGNATURE)
"""All that a folder of an export may hold."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        run_id: The run.
        folder: Where.
        sha256: File -> digest.
        notes: What a reader must know: what is missing, or was made only now.
    """

    run_id: str
    folder: str
    sha256: dict[str, str]
    notes: tuple[str, ...]


def write(run: Run, facts: RunFacts, folder: str) -> Exported:
    """Writes all of it, or nothing.

    Args:
        run: The run.
        facts: Its facts.
        folder: A folder of this machine that is not there, is empty, or holds a former export, which is replaced.

    Raises:
        PipelineError: The folder holds other things; the statement beside the model is lost, altered, or not what the lineage
            tells; a record that belongs to it is damaged.
        OSError: A record that belongs to it cannot be read, or the folder not be written.
    """
    target = pathlib.Path(storage.absolute(folder))
    _refuse_others(folder, target)
    content, notes = _content(run, facts)
    former = None
    with files.new_folder(target) as made:
        for name, data in content.items():
            (made / name).write_bytes(data)
        events.write(events.of_run(run, facts), str(made / EVENTS))
        digests = {path.name: files.sha256_of(path) for path in sorted(made.iterdir())}
        if target.exists():
            former = tempfile.mkdtemp(prefix=files.TEMPORARY, dir=target.parent)
            os.rename(target, os.path.join(former, target.name))
    if former:
        shutil.rmtree(former)
    return Exported(run.run_id, str(target), digests, tuple(notes))


def remade(run: Run, facts: RunFacts) -> dict | None:
    """The statement of a run, made of what the lineage and the records of the run tell now; None when it has no model.

    Raises:
        PipelineError: A record that belongs to it is damaged.
        OSError: One cannot be read.
    """
    push, model = beside.pushed(run), _model(run)
    if push is None and model is None:
        return None
    return statement.build(
        statement.of_run(run),
        push.model if push else storage.join(model.uri, SERVING_MODEL),
        finished=(push and push.at) or facts.ended,
        # What a push writes knows only what the manifest says.
        started="" if push and push.statement_sha256 else facts.started,
        pushed=push is not None,
    )


def _content(run: Run, facts: RunFacts) -> tuple[dict[str, bytes], list[str]]:
    """The files but for the events, and the notes."""
    try:
        made = remade(run, facts)
    except FileNotFoundError as error:
        raise PipelineError(
            f"the provenance of run {run.run_id} cannot be told, {error.filename} is not there: `audit verify` says what else is "
            "lost; restore it from a backup"
        ) from error
    if made is None:
        return {}, ["the run made no model: no provenance statement and no bill of materials"]
    push, notes, content = beside.pushed(run), [], {}
    if push and push.statement_sha256:
        content[STATEMENT] = _held_against(push, made)
        content |= _signatures(push)
    else:
        why = "pushed its model before statements were written" if push else "pushed no model"
        notes.append(f"the run {why}: its statement was made only now, of what the lineage tells")
        content[STATEMENT] = statement.to_bytes(made)
    locked, missing = packages.of_run(facts)
    if missing:
        notes.append(f"the bill of materials names no packages: {missing}")
    judged = run.output("ModelBlessing", "verdict")
    evaluation = json.loads(storage.read(storage.join(judged.uri, "evaluation.json"))) if judged else {}
    content[BOM] = bom.to_bytes(bom.build(facts, made, evaluation, locked))
    return content, notes


def _held_against(push: beside.Pushed, made: dict) -> bytes:
    """The statement beside the model, when it is what was pushed and what the lineage tells."""
    place = beside.statement(push.model)
    try:
        content = storage.read(place)
    except FileNotFoundError as error:
        raise PipelineError(f"{place} is not there: restore the provenance statement from a backup") from error
    if files.sha256(content) != push.statement_sha256:
        raise PipelineError(
            f"{place} was altered: sha256 {push.statement_sha256} was recorded, {files.sha256(content)} is there. "
            "Restore it from a backup"
        )
    differing = statement.differences(json.loads(content), made)
    if differing:
        shown = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        raise PipelineError(
            f"{place} is what was pushed, and is not what the run's records say now: {shown}. `audit verify` says what was "
            "altered"
        )
    return content


def _signatures(push: beside.Pushed) -> dict[str, bytes]:
    found = {}
    for name, of in ((MODEL_SIGNATURE, push.model), (STATEMENT_SIGNATURE, beside.statement(push.model))):
        with contextlib.suppress(FileNotFoundError):
            found[name] = storage.read(beside.signature(of))
    return found


def _model(run: Run) -> Artifact | None:
    step = run.step("Trainer")
    artifacts = step.outputs.get("model", ()) if step and step.state in DONE else ()
    return artifacts[0] if artifacts else None


def _refuse_others(folder: str, target: pathlib.Path) -> None:
    if storage.is_cloud(folder):
        raise PipelineError(f"--to {folder} lies in Cloud Storage: name a folder of this machine, and copy it there")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PipelineError(f"{target} is there and is no folder: name another by --to")
    others = sorted(set(os.listdir(target)) - set(FILES)) if target.is_dir() else []
    if others:
        shown = ", ".join(map(repr, others[:3]))
        raise PipelineError(f"{target} holds {shown}, which is no export: name another folder by --to")
