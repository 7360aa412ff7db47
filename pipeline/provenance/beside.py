"""What lies beside a model, never in it: a digest of the model's folder is a digest of the model alone."""

import dataclasses

from pipeline import storage
from pipeline.lineage.base import Run


@dataclasses.dataclass(frozen=True)
class Pushed:
    """Where a model was pushed to.

    Attributes:
        model: Folder of its SavedModel.
        at: When, ISO 8601.
        statement_sha256: Digest of the statement beside it; None when the run is of a time when none was written.
    """

    model: str
    at: str
    statement_sha256: str | None


def pushed(run: Run) -> Pushed | None:
    """The push of a run; None when it pushed nothing, or the ledger held it and what was pushed was removed."""
    artifact, release = run.output("PushedModel"), run.output("pipeline.ServingRelease")
    if artifact is None or not artifact.facts.get("pushed") or (release and not release.facts.get("released")):
        return None
    known = artifact.facts
    return Pushed(str(known["pushed_destination"]), str(known.get("pushed_at") or ""), known.get("provenance_sha256"))


def statement(model: str) -> str:
    """Where the provenance statement of a model is.

    >>> statement("/store/serving/versions/1764000000/")
    '/store/serving/versions/1764000000.intoto.json'
    """
    return f"{storage.absolute(model)}.intoto.json"


def signature(of: str) -> str:
    """Where the signature of a model, or of its statement, is.

    >>> signature("gs://bucket/versions/7")
    'gs://bucket/versions/7.sig'
    """
    return f"{storage.absolute(of)}.sig"


def remove(model: str) -> None:
    """Removes all that lies beside a model, which goes itself. Raises OSError."""
    for uri in (statement(model), signature(model), signature(statement(model))):
        storage.remove(uri)
