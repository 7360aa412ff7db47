"""TFX's Tuner over a study of Vizier: workers search, on this machine or elsewhere, or what was known is handed on."""

import json
import time
from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.components.trainer import fn_args_utils
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.proto import trainer_pb2
from tfx.types import artifact_utils, component_spec, standard_artifacts, standard_component_specs

from models.config import TrainingConfig
from pipeline import storage
from pipeline.artifacts import RunManifest
from pipeline.components import facts
from pipeline.tuning import end, page, results, supervisor
from pipeline.tuning.task import Task
from pipeline.warehouse.base import parse_date, snapshot_table

BEST = "best_hyperparameters.txt"
"""The file of a HyperParameters artifact, as TFX's Tuner names it."""

_HANDED_ON = ("reason", "warning", "origin", "values")

_GOES_ON = "the same week, run again with --tune and a later end of its window, goes on with the study"


class Executor(base_executor.BaseExecutor):
    """Searches if the hyperparameters that come in say so, here in processes of this machine; else it hands them on."""

    def search(self, task: Task, folder: str, platform: Mapping[str, Any]) -> results.Results:
        """Runs the study of a task until its budget is spent, or its time is over.

        Args:
            task: What is searched.
            folder: The step's own, for what the workers are told.
            platform: What `Platform.tuning` says of where they run.

        Returns:
            All trials, none under way.

        Raises:
            PipelineError: It cannot be searched; what was searched by then is kept.
        """
        del folder, platform
        return supervisor.search(task)

    def Do(self, input_dict, output_dict, exec_properties):  # noqa: N802
        """Searches or hands on; arguments as TFX's. Raises PipelineError or TrainingError."""
        known = artifact_utils.get_single_instance(input_dict["hyperparameters"])
        best = artifact_utils.get_single_instance(output_dict[standard_component_specs.BEST_HYPERPARAMETERS_KEY])
        found = artifact_utils.get_single_instance(output_dict[standard_component_specs.TUNER_RESULTS_KEY])
        if not facts.number(known, "tune"):
            _hand_on(known, best)
            results.write(found.uri, results.Results("", "", "", 0, 0, "", "", ()))
            facts.record(found, {"tune": False, "trials": 0})
            return
        custom = json.loads(exec_properties["custom_config"])
        task = _task(input_dict, exec_properties, custom)
        study = self.search(task, found.uri, custom["platform"])
        # First what was found: a study without a feasible trial is told of all the same.
        results.write(found.uri, study)
        page.write(storage.join(custom["reports"], task.run_id, "tuning.html"), study)
        _record_trials(found, study)
        cut = task.until is not None and len(study.trials) < study.total
        if cut and study.best is None:
            # The week trains all the same, and tunes next time: what is due or asked for was not done.
            _hand_on(known, best, f"{_cut(study)}, none of them with a value; the known values hold. {_GOES_ON.capitalize()}")
            return
        _record_best(best, study, task, facts.text(known, "reason"))
        if cut:
            facts.record(best, {"warning": f"{_cut(study)}, and the best of these holds; {_GOES_ON}"})


def _task(input_dict, exec_properties, custom: Mapping[str, Any]) -> Task:
    manifest = artifact_utils.get_single_instance(input_dict["manifest"])
    date = facts.text(manifest, "snapshot_date")
    fn_args = fn_args_utils.get_common_fn_args(input_dict, exec_properties)
    # Of a window of so many hours the search moves the end (see the Trainer), so it may take what it takes.
    window_end = 0.0 if facts.real(manifest, "window_hours") else facts.real(manifest, "window_end")
    reserve = custom["training"].get("reserve_minutes", TrainingConfig.reserve_minutes)
    return Task(
        train_files=list(fn_args.train_files),
        eval_files=list(fn_args.eval_files),
        schema_path=fn_args.schema_path,
        custom_config={name: custom[name] for name in ("network", "training", "short_side", "tuning")},
        snapshot=snapshot_table(parse_date(date)),
        snapshot_date=date,
        run_id=facts.text(manifest, "run_id"),
        until=end.search_until(window_end, reserve, end.last_training(custom["profile"]), time.time()) if window_end else None,
        **{name: custom[name] for name in ("pipeline", "database", "records")},
    )


def _record_best(best, study: results.Results, task: Task, reason: str) -> None:
    # Late: it loads TensorFlow.
    from models import tuning

    hyperparameters = tuning.best_hyperparameters(study.trials, task.tuning)
    storage.write(storage.join(best.uri, BEST), json.dumps(hyperparameters.get_config()).encode())
    facts.record(
        best,
        {
            "tune": True,
            "reason": reason,
            "origin": f"trial {study.best.number} of study {study.display_name}",
            "values": json.dumps(hyperparameters.values),
            "study": study.name,
            "trial": study.best.number,
            "objective": study.objective,
            "metric": float(study.best.value),
            "snapshot_date": study.snapshot_date,
            "run_id": study.run_id,
            # From here the Trainer counts the hours of its window.
            "searched_until": time.time(),
        },
    )


def _cut(study: results.Results) -> str:
    return f"the window left time for {len(study.trials)} of {study.total} trials"


def _hand_on(known, best, warning: str = "") -> None:
    storage.write(storage.join(best.uri, BEST), storage.read(storage.join(known.uri, BEST)))
    told = {name: facts.text(known, name) for name in _HANDED_ON}
    told["warning"] = "; ".join(filter(None, (told["warning"], warning)))
    facts.record(best, {"tune": False, **{name: value for name, value in told.items() if value}})


def _record_trials(found, study: results.Results) -> None:
    """Every trial with its parameters, curve, duration and state, where lineage shows it without a file."""
    content = results.as_json(study)
    facts.record(
        found,
        {
            "tune": True,
            **{name.replace(" ", "_"): count for name, count in study.counts().items()},
            # `name` is TFX's own: the artifact's.
            "study": study.name,
            **{name: value for name, value in content.items() if name not in ("name", "trials")},
            "all_trials": json.dumps(content["trials"], sort_keys=True),
        },
    )


class TunerSpec(component_spec.ComponentSpec):
    """TFX's Tuner with the hyperparameters that are known, and no module of a user."""

    PARAMETERS = {
        "train_args": component_spec.ExecutionParameter(type=trainer_pb2.TrainArgs),
        "eval_args": component_spec.ExecutionParameter(type=trainer_pb2.EvalArgs),
        "custom_config": component_spec.ExecutionParameter(type=str),
    }
    INPUTS = {
        "manifest": component_spec.ChannelParameter(type=RunManifest),
        "examples": component_spec.ChannelParameter(type=standard_artifacts.Examples),
        "schema": component_spec.ChannelParameter(type=standard_artifacts.Schema),
        "hyperparameters": component_spec.ChannelParameter(type=standard_artifacts.HyperParameters),
    }
    OUTPUTS = {
        standard_component_specs.BEST_HYPERPARAMETERS_KEY: component_spec.ChannelParameter(
            type=standard_artifacts.HyperParameters
        ),
        standard_component_specs.TUNER_RESULTS_KEY: component_spec.ChannelParameter(
            type=standard_artifacts.TunerResults
        ),
    }


class Tuner(base_component.BaseComponent):
    """Gives this run's hyperparameters: those of a study's best trial, or the ones that are known.

    Args:
        manifest: Knows the run's id and the date of its snapshot.
        examples: Labelled examples of the tuning sample, splits train and val.
        schema: Names the classes.
        hyperparameters: What is known, with the property `tune`: 1 to search, 0 to use it; and `reason`, `origin`, `values`.
        custom_config: `network`, `training`, `short_side` and `tuning`, as `models.tuning.tuner_fn` reads them, and the other
            fields of `pipeline.tuning.task.Task` but the files and what follows from the manifest; `reports`, the folder of
            pages; `profile`, the file that points to the newest training; `platform`, what the executor is told of where
            workers run.
        custom_executor_spec: Where the search runs when not on this machine.
    """

    SPEC_CLASS = TunerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(self, manifest, examples, schema, hyperparameters, custom_config, custom_executor_spec=None):
        super().__init__(
            spec=TunerSpec(
                manifest=manifest,
                examples=examples,
                schema=schema,
                hyperparameters=hyperparameters,
                train_args=trainer_pb2.TrainArgs(splits=["train"]),
                eval_args=trainer_pb2.EvalArgs(splits=["val"]),
                custom_config=json.dumps(custom_config),
                best_hyperparameters=types.Channel(type=standard_artifacts.HyperParameters),
                tuner_results=types.Channel(type=standard_artifacts.TunerResults),
            ),
            custom_executor_spec=custom_executor_spec,
        )
