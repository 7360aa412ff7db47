"""The Trainer as TFX runs it: in one process here, and on machines of a job, chief and worker, by the command that Vertex uses."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tfx.types import artifact_utils, standard_artifacts

from models.errors import TrainingError
from pipeline import workers
from pipeline.artifacts import RunManifest
from pipeline.components import facts
from pipeline.components.trainer import Executor, with_window
from tests.models.conftest import make_week
from tests.pipeline.conftest import ROOT


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return make_week(tmp_path_factory.mktemp("week") / "data", shards=8)


@pytest.fixture
def task(week, tmp_path):
    """Settings of the training -> inputs, outputs and parameters of the step."""

    def task(**training):
        for split in ("train", "val"):
            folder = tmp_path / "labels" / f"Split-{split}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(week.root / f"Split-{split}" / "labels", folder)
        (tmp_path / "schema").mkdir(exist_ok=True)
        shutil.copy(week.schema, tmp_path / "schema")
        examples = standard_artifacts.Examples()
        examples.uri, examples.split_names = str(tmp_path / "labels"), artifact_utils.encode_split_names(["train", "val"])
        schema, model, model_run = standard_artifacts.Schema(), standard_artifacts.Model(), standard_artifacts.ModelRun()
        schema.uri, model.uri, model_run.uri = (str(tmp_path / name) for name in ("schema", "model", "model_run"))
        custom = week.fn_args(tmp_path, training=training).custom_config
        parameters = {
            "run_fn": "models.training.run_fn",
            "train_args": json.dumps({"splits": ["train"]}),
            "eval_args": json.dumps({"splits": ["val"]}),
            "custom_config": json.dumps(custom),
        }
        manifest = RunManifest()
        facts.record(manifest, {"run_id": "run-1"})
        return {"examples": [examples], "schema": [schema], "manifest": [manifest]}, {"model": [model], "model_run": [model_run]}, parameters

    return task


def record(tmp_path):
    return json.loads((tmp_path / "model_run" / "training.json").read_text())


def test_one_worker_trains_in_this_process(task, tmp_path, monkeypatch):
    monkeypatch.delattr(workers, "train")
    Executor().Do(*task())
    assert record(tmp_path)["workers"] == 1 and (tmp_path / "model" / "Format-Serving" / "saved_model.pb").is_file()


@pytest.mark.parametrize("end", [None, 1772532000.0])
def test_the_training_is_told_when_its_runs_window_ends(task, end):
    inputs, _, parameters = task()
    if end:
        facts.record(inputs["manifest"][0], {"window_end": end})
    assert json.loads(with_window(inputs, parameters)["custom_config"])["window_end"] == end
    assert "window_end" not in json.loads(parameters["custom_config"])  # what the lineage keeps is the run's own


@pytest.mark.parametrize(
    ("hours", "searched_until", "expected"),
    [
        (12.0, 1772800000.0, 1772843200.0),  # a search of three days, and the training has its night all the same
        (12.0, None, 1772532000.0),
        (None, 1772800000.0, 1772532000.0),  # somebody said when the run must be done
    ],
)
def test_the_hours_of_a_window_count_from_the_end_of_a_search(task, hours, searched_until, expected):
    inputs, _, parameters = task()
    known = standard_artifacts.HyperParameters()
    inputs["hyperparameters"] = [known]
    if searched_until:
        facts.record(known, {"searched_until": searched_until})
    facts.record(inputs["manifest"][0], {"window_end": 1772532000.0, **({"window_hours": hours} if hours else {})})
    assert json.loads(with_window(inputs, parameters)["custom_config"])["window_end"] == expected


def test_several_train_in_processes_of_their_own(task, tmp_path):
    Executor().Do(*task(workers=2))
    assert record(tmp_path)["workers"] == 2 and (tmp_path / "model" / "Format-Serving" / "saved_model.pb").is_file()


def test_what_they_find_wrong_ends_the_step(task, tmp_path):
    with pytest.raises(TrainingError, match="training.backbone .*none.npz cannot be read"):
        Executor().Do(*task(workers=2, backbone=str(tmp_path / "none.npz")))


def test_chief_and_worker_of_a_job_both_end_well(task, tmp_path):
    inputs, outputs, parameters = task(workers=2)
    command = [
        sys.executable, "-m", "tfx.scripts.run_executor",
        "--executor_class_path", "tfx.components.trainer.executor.GenericExecutor",
        "--inputs", artifact_utils.jsonify_artifact_dict(inputs),
        "--outputs", artifact_utils.jsonify_artifact_dict(outputs),
        "--exec-properties", json.dumps(parameters),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1"}
    configs = workers.loopback(2)
    for config in configs:
        # The third pool, which on Vertex are reduction servers: they answer no TensorFlow.
        config["cluster"]["ps"] = ["127.0.0.1:9", "127.0.0.1:10"]
    team = [
        subprocess.Popen(
            command, env={**environment, "TF_CONFIG": json.dumps(config)}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        for config in configs
    ]
    ends = [process.communicate(timeout=300)[1].decode(errors="replace")[-2000:] for process in team]
    assert [process.returncode for process in team] == [0, 0], ends
    assert record(tmp_path)["workers"] == 2
