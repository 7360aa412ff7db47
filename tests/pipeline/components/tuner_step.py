"""The Tuner step in a store of its own, over a small week."""

import json
import pathlib
import shutil

from tfx.types import artifact_utils, standard_artifacts

from pipeline.artifacts import RunManifest
from pipeline.components import facts, tuner
from pipeline.places import Places

TUNING = {"trials": 5, "parallel": 2, "algorithm": "quasi_random", "epochs": 3, "batch_size": [4, 8]}


class Step:
    """The step in a store of its own: inputs, outputs, parameters."""

    def __init__(self, week, root, tuning=None, tune=1):
        self.places = Places(store=str(root / "store"))
        for split in ("train", "val"):
            folder = root / "examples" / f"Split-{split}"
            folder.mkdir(parents=True)
            shutil.copy(week.root / f"Split-{split}" / "examples", folder)
        examples, schema = standard_artifacts.Examples(), standard_artifacts.Schema()
        known = standard_artifacts.HyperParameters()
        examples.uri, examples.split_names = str(root / "examples"), artifact_utils.encode_split_names(["train", "val"])
        schema.uri, known.uri = str(root / "schema"), str(root / "known")
        (root / "schema").mkdir()
        shutil.copy(week.schema, root / "schema")
        (root / "known").mkdir()
        (root / "known" / tuner.BEST).write_text('{"space": [], "values": {"dropout": 0.25}}')
        facts.record(known, {"tune": tune, "reason": "a month is over", "origin": "settings", "values": '{"dropout": 0.25}'})
        self.best, self.found = standard_artifacts.HyperParameters(), standard_artifacts.TunerResults()
        self.best.uri, self.found.uri = str(root / "best"), str(root / "found")
        for folder in ("best", "found"):
            (root / folder).mkdir()
        manifest = RunManifest()
        facts.record(manifest, {"run_id": "run-1", "snapshot_date": "2026-03-02"})
        self.inputs = {"manifest": [manifest], "examples": [examples], "schema": [schema], "hyperparameters": [known]}
        custom = week.fn_args(root, network={"blocks": [1], "width": 4}, tuning={**TUNING, **(tuning or {})}).custom_config
        self.custom = custom | {
            "pipeline": "photographs", "database": self.places.studies, "records": self.places.study_records,
            "reports": self.places.all_reports, "profile": self.places.newest_profile, "platform": {},
        }  # fmt: skip

    @property
    def parameters(self):
        splits = {"train_args": json.dumps({"splits": ["train"]}), "eval_args": json.dumps({"splits": ["val"]})}
        return {**splits, "custom_config": json.dumps(self.custom)}

    def do(self, executor=tuner.Executor):
        outputs = {"best_hyperparameters": [self.best], "tuner_results": [self.found]}
        executor().Do(self.inputs, outputs, self.parameters)

    def written(self):
        return json.loads(pathlib.Path(self.best.uri, tuner.BEST).read_text())
