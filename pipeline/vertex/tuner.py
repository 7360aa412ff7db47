"""The Tuner on Vertex AI: a study of Vertex Vizier, and a custom job whose replicas each run trials of it.

TFX's own extension runs KerasTuner with a chief whose state is in a temporary folder: when that machine goes, the search
is lost. Here the study is the only state, every replica speaks to it, and a step that runs again finds study and job.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from google.api_core import exceptions
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1

from pipeline import storage, typed
from pipeline.components import tuner
from pipeline.tuning import replica
from pipeline.tuning.results import Results
from pipeline.tuning.supervisor import clients_gone
from pipeline.tuning.task import Task
from pipeline.vertex import jobs, launch
from pipeline.vertex.service import endpoint_of, refusal
from pipeline.vertex.settings import VertexSettings
from pipeline.vizier import regional
from pipeline.vizier.study import Study

_log = logging.getLogger(__name__)

_LABEL = "study"


class Executor(tuner.Executor):
    """Searches in a custom job of `tuning.parallel` replicas, and ends with it."""

    def search(self, task: Task, folder: str, platform: Mapping[str, Any]) -> Results:
        """Runs the study of a task until its budget is spent; arguments and result as of the class above.

        Args:
            task: What is searched.
            folder: Where the arguments of the replicas go; in Cloud Storage, or a folder that every container has.
            platform: `vertex`: `settings`, and `image`, the pipeline's by digest.

        Raises:
            PipelineError: Vertex refuses something or does not answer, or the job did not succeed; the text has its name,
                Vertex's reason and the replicas' own.
        """
        known = platform["vertex"]
        settings = typed.from_dict(VertexSettings, known["settings"], "vertex")
        endpoint, parent = endpoint_of(settings.region), f"projects/{settings.project}/locations/{settings.region}"
        study = task.open(regional.client_of(endpoint), parent, {"endpoint": endpoint})
        _log.info("study %s: %d of %d trials", study.name, len(study.trials()), task.tuning.trials)
        try:
            client = launch.JobClient(settings.region)
            _await_others(client, settings, task)
            if not study.is_complete() and not task.over:
                _write_arguments(task, study, endpoint, parent, folder)
                job = launch.run(client, settings, settings.tuning, _job_of(settings, task, known["image"], folder), "tuning")
                launch.require_success(
                    job, settings, "tuning",
                    f"{_said(folder)}What was tried is in the study: the same run, started again, goes on with it",
                )  # fmt: skip
        except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
            raise refusal(error, settings) from error
        return task.ended(study)


def _await_others(client: launch.JobClient, settings: VertexSettings, task: Task) -> None:
    """Waits for the jobs that are at work on the study already: of this step before it was killed, or of another run.

    Two jobs at once would have replicas of the same names, of which each took the other's trials for its own.
    """
    for job in client.under_way(settings.project, _LABEL, _digest(task)):
        _log.info("%s searches already, since %s; waiting for it", job.name, job.create_time)
        client.follow(job.name)
        is_spot = job.job_spec.scheduling.strategy == v1.Scheduling.Strategy.SPOT
        launch.ended(client, settings.tuning if is_spot else None)


def _write_arguments(task: Task, study: Study, endpoint: str, parent: str, folder: str) -> None:
    count = task.tuning.parallel
    own = [replica.Replica(number, count).client_id for number in range(count)]
    arguments = {**task.worker_arguments(parent), "endpoint": endpoint, "gone": clients_gone(study.trials(), own)}
    # A step that is tried again may find what an earlier job said.
    storage.remove_folder(storage.join(folder, replica.ERRORS))
    storage.write(storage.join(folder, replica.ARGUMENTS), json.dumps(arguments, indent=2, sort_keys=True).encode())


def _job_of(settings: VertexSettings, task: Task, image: str, folder: str):
    def made(spot: bool) -> v1.CustomJob:
        return jobs.custom_job(
            settings,
            settings.tuning,
            name=f"{task.pipeline}-tune-{task.run_id}",
            workers=task.tuning.parallel,
            image=image,
            command=["python", "-m", "pipeline.tuning.replica", folder],
            environment={"TF_USE_LEGACY_KERAS": "1"},
            labels={**jobs.labels_of(settings, task.pipeline, task.snapshot_date), _LABEL: _digest(task)},
            output=folder,
            spot=spot,
        )

    return made


def _digest(task: Task) -> str:
    """The study's name as a label: of its display name the digest at the end, which everything else is in."""
    return task.display_name.rpartition("-")[2]


def _said(folder: str) -> str:
    """What the replicas said that failed, as a sentence each."""
    errors = storage.join(folder, replica.ERRORS)
    try:
        said = {name: storage.read(storage.join(errors, name)).decode(errors="replace") for name in storage.names(errors)}
    except OSError as error:
        return f"(What its replicas said cannot be read: {error}.) "
    return "".join(f"{name} said: {text[:1000]}. " for name, text in sorted(said.items()))
