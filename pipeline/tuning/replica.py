"""One replica of a search on Vertex AI: `python -m pipeline.tuning.replica FOLDER`. No TensorFlow: its worker loads that.

FOLDER, in Cloud Storage, has the arguments that all replicas share. Which one this is says CLUSTER_SPEC, and the client of the
study is named after it: a replica that Vertex starts again, on this machine or another, gets back the trial that it had. Its
worker is a process of its own, so that a trial which ends that (memory that runs out) does not end the job.
"""

import dataclasses
import json
import logging
import os
import pathlib
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from models.config import TuningConfig
from models.study import OBJECTIVE, Trial
from pipeline import storage, typed
from pipeline.errors import PipelineError
from pipeline.tuning.supervisor import Team
from pipeline.vizier import regional
from pipeline.vizier.study import Budget, Study, open_study, study_spec

_log = logging.getLogger(__name__)

ARGUMENTS = "worker.json"
"""The file of arguments in the folder: those of `pipeline.tuning.worker`, `endpoint` and `gone`, clients without a replica."""

ERRORS = "errors"
"""The folder beside it where a replica that fails says why, in a file of its client's name."""

_POLL_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Replica:
    """A replica among all of its job.

    Attributes:
        number: 0 for the chief, then the workers.
        count: How many there are.
    """

    number: int
    count: int

    @property
    def client_id(self) -> str:
        """Who it is to the study, by its pool and its index there; the same when it starts again.

        >>> Replica(number=3, count=8).client_id
        'workerpool1-2'
        """
        return f"workerpool1-{self.number - 1}" if self.number else "workerpool0-0"


def this_replica(environment: Mapping[str, str]) -> Replica:
    """Reads CLUSTER_SPEC as Vertex sets it (https://cloud.google.com/vertex-ai/docs/training/distributed-training).

    Args:
        environment: The environment variables.

    Raises:
        PipelineError: It is not there, or is none of a chief and workers.
    """
    text = environment.get("CLUSTER_SPEC", "")
    try:
        spec = json.loads(text)
        pools, (kind, index) = spec["cluster"], (spec["task"]["type"], int(spec["task"]["index"]))
        # Of a job with one pool Vertex calls the chief so, instead of by its pool.
        place = ["workerpool0" if kind == "chief" else kind, index]
        number = {"workerpool0": 0, "workerpool1": 1 + index}[place[0]]
        count = sum(len(addresses) for addresses in pools.values())
        if not 0 <= number < count or (place[0] == "workerpool0" and index):
            raise ValueError("the task is none of the cluster")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"CLUSTER_SPEC is {text[:200]!r} and names no replica of a search ({type(error).__name__}: {error}): this runs in "
            "the custom job that the Tuner step starts"
        ) from error
    return Replica(number, count)


def run(arguments: Mapping[str, Any], replica: Replica) -> None:
    """Runs trials until the study has no more; the chief, until none is under way.

    Args:
        arguments: What the file of arguments says.
        replica: Which one this is.

    Raises:
        PipelineError: Vizier refuses something or does not answer, or the worker found something wrong.
    """
    tuning = typed.from_dict(TuningConfig, dict(arguments["custom_config"]["tuning"]), "tuning")
    study = open_study(
        regional.client_of(arguments["endpoint"]), arguments["parent"], arguments["display_name"],
        study_spec(tuning, OBJECTIVE), Budget(tuning.trials, tuning.parallel),
    )  # fmt: skip
    gone = arguments["gone"]
    with tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        team = Team(study, {**arguments, "working_dir": folder}, pathlib.Path(folder), 1, 0, queue.Queue())
        # Trials of an earlier job with more replicas: nobody else ends them, and until then they count as under way.
        team.run(gone[replica.number :: replica.count], finish=True)
        _wait(study, lambda trial: trial.client_id in gone)
        team.run([replica.client_id], finish=False)
    if not replica.number:
        # When the chief ends, Vertex ends the job and with it whoever still trains.
        _wait(study, lambda trial: True)


def _wait(study: Study, counts: Callable[[Trial], bool]) -> None:
    """Waits until no trial that counts is under way; the time limit of the job bounds that."""
    while busy := [trial for trial in study.trials() if trial.under_way and counts(trial)]:
        _log.info("waiting for %s", ", ".join(f"trial {trial.number} of {trial.client_id}" for trial in busy))
        time.sleep(_POLL_SECONDS)


def main(folder: str, environment: Mapping[str, str]) -> int:
    """Runs this replica, and says in the folder why it failed if it did.

    Args:
        folder: The folder of the arguments.
        environment: The environment variables.

    Returns:
        The exit status.
    """
    client_id = "unknown"
    try:
        replica = this_replica(environment)
        client_id = replica.client_id
        run(json.loads(storage.read(storage.join(folder, ARGUMENTS))), replica)
    except (PipelineError, OSError) as error:
        _log.error("%s", error)
        storage.write(storage.join(folder, ERRORS, client_id), str(error).encode())
        return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # What the worker has to say of its trials it writes into the same log itself.
    logging.getLogger("models").addHandler(logging.NullHandler())
    logging.getLogger("models").propagate = False
    sys.exit(main(sys.argv[1], os.environ))
