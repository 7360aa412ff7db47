"""The best trials of a search are trained in full, each once; TensorFlow's part is left to tests of the training."""

import argparse
import fcntl
import json
import os
import pathlib

import pytest

from models.errors import TrainingError
from pipeline.errors import PipelineError
from pipeline.places import Places
from pipeline.tuning.verify import verify_ranking
from tests.pipeline.lineage.conftest import HandWritten

RUN = "20260302-20261201T053000Z"
ROWS = [
    {"trial_id": "0", "score": 0.9, "dropout": 0.0, "batch_size": 16},
    {"trial_id": "3", "score": 0.8, "dropout": 0.3, "batch_size": 8},
    {"trial_id": "1", "score": 0.7, "dropout": 0.1, "batch_size": 16},
    {"trial_id": "2", "score": 0.6, "dropout": 0.2, "batch_size": 16},
]
FULL = {0.1: 0.96, 0.2: 0.92, 0.3: 0.94}
"""What a full training with that dropout comes to; the run itself trained with 0.0."""


class Search:
    """A store with one run that searched and trained, and a training that remembers what it was asked for."""

    def __init__(self, folder: pathlib.Path, rows=ROWS):
        self.places, self.trained = Places(store=str(folder)), []
        self.to = folder / "rankings" / RUN
        written = HandWritten(self.places)

        def put(kind, name, files, facts=None):
            for path, text in files.items():
                (folder / "artifacts" / name / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / "artifacts" / name / path).write_text(text)
            return [written.artifact(kind, facts or {}, uri=str(folder / "artifacts" / name))]

        run = written.run(RUN)
        values = {"space": [], "values": {"dropout": 0.0, "batch_size": 16}}
        best = put("HyperParameters", "best", {"best_hyperparameters.txt": json.dumps(values)})
        if rows is not None:
            text = rows if isinstance(rows, str) else json.dumps(rows)
            # A week that hands on what is known has no trials.
            results = put("TunerResults", "results", {"tuner_results.json": text}, {"tune": int(bool(rows))})
            written.step(run, "Tuner", outputs={"best_hyperparameters": best, "tuner_results": results})
        record = {"weights_sha256": "a" * 64, "phases": [], "val_accuracy": 0.95, "hyperparameters": values["values"]}
        written.step(
            run, "Trainer",
            inputs={
                "examples": put("Examples", "labels", {"Split-train/labels": "", "Split-val/labels": ""}),
                "schema": put("Schema", "schema", {"schema.pbtxt": ""}),
                "hyperparameters": best,
            },
            outputs={
                "model": put("Model", "model", {"Format-Serving/saved_model.pb": ""}),
                "model_run": put("ModelRun", "model_run", {"training.json": json.dumps(record)}),
            },
            parameters={
                "train_args": '{"splits": ["train"]}', "eval_args": '{"splits": ["val"]}',
                "custom_config": json.dumps({"training": {"batch_size": 16}, "checkpoints": "/c", "window_end": 1.0}),
            },
        )  # fmt: skip

    def verify(self, count=4, fail=None):
        def train(fn_args, workers):
            values = fn_args["hyperparameters"]["values"]
            if values["dropout"] == fail:
                raise TrainingError("no memory")
            assert workers == 1 and not {"checkpoints", "window_end"} & set(fn_args["custom_config"])
            self.trained.append(values)
            for name in ("serving_model_dir", "model_run_dir"):
                os.makedirs(fn_args[name])
            record = {"val_accuracy": FULL[values["dropout"]]}
            pathlib.Path(fn_args["model_run_dir"], "training.json").write_text(json.dumps(record))

        return verify_ranking(argparse.Namespace(run_id=RUN, trials=count, to=None, store=self.places.store), train)


@pytest.fixture
def search(tmp_path):
    return Search(tmp_path)


def test_the_best_trials_are_trained_in_full_but_the_winner_which_the_run_trained(search, capsys):
    assert search.verify() == 0
    assert [values["dropout"] for values in search.trained] == [0.3, 0.1, 0.2]
    assert search.trained[0] == {"dropout": 0.3, "batch_size": 8}
    result = json.loads((search.to / "ranking.json").read_text())
    assert [(row["trial"], row["metric"], row["full"]) for row in result["trials"]] == [
        ("0", 0.9, 0.95), ("3", 0.8, 0.94), ("1", 0.7, 0.96), ("2", 0.6, 0.92),
    ]  # fmt: skip
    assert result["ranking"]["spearman"] == pytest.approx(0.4) and result["ranking"]["winner_rank"] == 2
    assert "of 4 trials the best one is number 2 on the full snapshot, 0.010 behind" in capsys.readouterr().out
    names = sorted(str(path.relative_to(search.to)) for path in search.to.rglob("*") if path.is_file())
    trials = [f"trial-{number}/{file}" for number in "123" for file in ("training.json", "trial.json")]
    assert names == sorted(["ranking.json", "verify.log", *trials]), "no model is kept"


def test_only_as_many_as_are_asked_for(search):
    search.verify(3)
    assert [values["dropout"] for values in search.trained] == [0.3, 0.1]


def test_what_was_trained_is_not_trained_again_after_a_failure(search):
    with pytest.raises(PipelineError, match=f"trial 1 of run {RUN} cannot be trained in full: no memory"):
        search.verify(fail=0.1)
    assert sorted(path.name for path in search.to.iterdir()) == ["trial-3", "verify.log"], "nothing half-written"
    assert search.verify() == 0
    assert [values["dropout"] for values in search.trained] == [0.3, 0.1, 0.2]


def test_a_folder_of_something_else_is_not_touched(search):
    search.verify(3)
    path = search.to / "trial-3" / "trial.json"
    path.write_text(path.read_text().replace(RUN, "another"))
    with pytest.raises(PipelineError, match="trial-3 is of another run or trial: nothing was touched"):
        search.verify()
    assert "another" in path.read_text()


def test_two_at_once_are_refused(search):
    search.to.mkdir(parents=True)
    held = os.open(search.to, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match="another command writes to"):
            search.verify()
    finally:
        os.close(held)


@pytest.mark.parametrize(
    "rows, count, words",
    [
        (ROWS, 2, "a ranking of 2 trials says nothing"),
        (ROWS, 5, "4 of 4 have one; ask for 4 at most"),
        (None, 3, "did not search for hyperparameters"),
        ([], 3, "did not search for hyperparameters"),
        ("[", 3, "holds no trials"),
        ([{"score": 1.0}] * 3, 3, "holds no trials .*trial_id"),
        ([{"trial_id": "../x", "score": 1.0}] * 3, 3, "the id '../x' cannot name a folder"),
    ],
)
def test_a_run_that_cannot_be_ranked(tmp_path, rows, count, words):
    search = Search(tmp_path, rows)
    with pytest.raises(PipelineError, match=words):
        search.verify(count)
    assert search.trained == [] and not search.to.exists()
