"""The warehouse that a run took its labels from, opened to be asked and never to be changed."""

import dataclasses
import errno
import json
import os

from pipeline.errors import PipelineError
from pipeline.lineage.base import Run
from pipeline.places import Places
from pipeline.warehouse import Location, Warehouse, open_warehouse


def opened(run: Run, places: Places) -> Warehouse:
    """Opens the warehouse of a run; use it in a `with` block, which closes it.

    Args:
        run: A run that reached SnapshotGen.
        places: The store. An embedded warehouse is looked for in it, wherever the store was when the run took place.

    Raises:
        FileNotFoundError: An embedded warehouse is gone.
        PipelineError: The run recorded no warehouse, or it cannot be opened.
    """
    step = run.step("SnapshotGen")
    if step is None or "warehouse" not in step.parameters:
        raise PipelineError(f"run {run.run_id} did not come as far as to name its warehouse")
    try:
        location = Location(**json.loads(step.parameters["warehouse"]))
    except (ValueError, TypeError) as error:  # pydantic's is a ValueError
        raise PipelineError(f"run {run.run_id} recorded a warehouse that this code cannot read: {error}") from error
    if location.kind == "duckdb":
        if not os.path.isfile(places.warehouse):
            raise FileNotFoundError(errno.ENOENT, "there is no such warehouse", places.warehouse)
        location = dataclasses.replace(location, database=places.warehouse)
    return open_warehouse(location, read_only=True)
