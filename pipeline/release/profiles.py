"""Where the newest recorded training is, which the next run's window is planned with. Light: no TensorFlow."""

import dataclasses
import json

from pipeline import files, storage
from pipeline.errors import PipelineError


@dataclasses.dataclass(frozen=True)
class Newest:
    """The training of the newest week that was trained.

    Attributes:
        run_id: Its run.
        snapshot_date: Date of its label snapshot, YYYY-MM-DD.
        training: Its record, `training.json`.
    """

    run_id: str
    snapshot_date: str
    training: str


def record(pointer: str, newest: Newest) -> None:
    """Points to a training, unless it is of an older week than the one that is pointed to.

    Args:
        pointer: The file that points.
        newest: What it points to from now on.
    """

    def change(content: bytes | None) -> bytes:
        before = _parsed(pointer, content)
        if content is not None and before and before.snapshot_date > newest.snapshot_date:
            return content
        return files.to_json(dataclasses.asdict(newest)).encode()

    storage.update(pointer, change)


def find(pointer: str) -> Newest | None:
    """What the file points to; None when there is none. Raises PipelineError."""
    try:
        content = storage.read(pointer) if storage.exists(pointer) else None
    except OSError as error:
        raise PipelineError(f"cannot read {pointer}: {error.strerror or error}") from error
    return _parsed(pointer, content)


def _parsed(pointer: str, content: bytes | None) -> Newest | None:
    if content is None:
        return None
    try:
        return Newest(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise PipelineError(f"{pointer} points to no training ({error}): remove it, the next run writes it anew") from error
