"""What is searched, on what, under which name: the same wherever the workers run."""

import dataclasses
import datetime
import time
from collections.abc import Mapping
from typing import Any

from google.cloud import aiplatform_v1 as v1

from models.config import TUNED, TuningConfig
from models.study import OBJECTIVE, leave
from pipeline import files, storage, typed
from pipeline.tuning.results import Results
from pipeline.vizier.study import Budget, Study, open_study, study_name, study_spec


@dataclasses.dataclass(frozen=True)
class Task:
    """A search.

    Attributes:
        pipeline: Name of the pipeline.
        snapshot: Name of the snapshot's table.
        snapshot_date: Its date, YYYY-MM-DD.
        run_id: The run.
        train_files: Glob patterns of labelled examples that trials learn from.
        eval_files: The same, that they are judged by.
        schema_path: The schema, which names the classes.
        custom_config: `network`, `training`, `short_side` and `tuning`, as `models.tuning.tuner_fn` reads them.
        database: The file of studies of the service on this machine.
        records: Folder of what `tune status` knows of each study.
        until: Unix time at which no trial may go on, so that the training fits its window; None for no such time.
    """

    pipeline: str
    snapshot: str
    snapshot_date: str
    run_id: str
    train_files: list[str]
    eval_files: list[str]
    schema_path: str
    custom_config: Mapping[str, Any]
    database: str
    records: str
    until: float | None = None

    @property
    def over(self) -> bool:
        """Whether there is no time for trials any more."""
        return self.until is not None and time.time() >= self.until

    @property
    def tuning(self) -> TuningConfig:
        """The settings of the search. Raises SettingsError."""
        return typed.from_dict(TuningConfig, dict(self.custom_config["tuning"]), "tuning")

    @property
    def display_name(self) -> str:
        """The study's: the same for a rerun. Raises SettingsError."""
        return study_name(self.pipeline, self.snapshot, study_spec(self.tuning, OBJECTIVE), self.settings())

    def settings(self) -> dict[str, Any]:
        """What a trial's value depends on beside the values that are searched."""
        training = dict(self.custom_config["training"])
        # No weight of a trial depends on the first three, and the search sets the others.
        free = ("workers", "reserve_minutes", "checkpoint_minutes", *TUNED)
        return {
            "network": dict(self.custom_config["network"]),
            "training": {name: value for name, value in training.items() if name not in free},
            "short_side": self.custom_config["short_side"],
            "epochs": self.tuning.epochs,
        }

    def open(self, client: v1.VizierServiceClient, parent: str, where: Mapping[str, str]) -> Study:
        """Makes the study, or finds it, and records what `tune status` needs to find it too.

        Args:
            client: Google's client.
            parent: Where studies are, in Vertex's words.
            where: What the record says of the service that keeps it.

        Raises:
            SettingsError, PipelineError: As `pipeline.vizier.study.open_study`.
        """
        tuning = self.tuning
        study = open_study(
            client, parent, self.display_name, study_spec(tuning, OBJECTIVE), Budget(tuning.trials, tuning.parallel)
        )
        content = {
            "name": study.name,
            "display_name": self.display_name,
            **where,
            "trials": tuning.trials,
            "parallel": tuning.parallel,
            "epochs": tuning.epochs,
            "run_id": self.run_id,
            "snapshot_date": self.snapshot_date,
            "objective": OBJECTIVE,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        storage.write(storage.join(self.records, f"{self.display_name}.json"), files.to_json(content).encode())
        return study

    def worker_arguments(self, parent: str) -> dict[str, Any]:
        """What each worker is told, but where Vizier is, who it is and where it may write."""
        return {
            "parent": parent,
            "display_name": self.display_name,
            "train_files": self.train_files,
            "eval_files": self.eval_files,
            "schema_path": self.schema_path,
            "custom_config": {**self.custom_config, "until": self.until},
        }

    def ended(self, study: Study) -> Results:
        """Deletes trials beyond the budget, and tells what the study came to. Raises PipelineError.

        Trials of workers that are gone may still be under way where the window leaves no time for them.
        """
        study.trim()
        for trial in study.trials():
            if trial.under_way and self.over:
                leave(study, trial)
        return Results(
            name=study.name,
            display_name=self.display_name,
            objective=OBJECTIVE,
            total=self.tuning.trials,
            epochs=self.tuning.epochs,
            snapshot_date=self.snapshot_date,
            run_id=self.run_id,
            trials=tuple(study.trials()),
        )
