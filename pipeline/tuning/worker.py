"""One worker of a study, in a process of its own: `python -m pipeline.tuning.worker FILE`, which `supervisor` starts.

FILE holds the arguments of `search` as JSON, and where Vizier answers: `address`, its service on this machine, or `endpoint`,
Vertex's of a region. A worker that is killed loses nothing: the next one of the same client id goes on with its trial.
"""

import sys
import types
from collections.abc import Mapping
from typing import Any

from google.cloud import aiplatform_v1 as v1

from models import started
from models.config import TuningConfig
from models.errors import TrainingError
from models.study import OBJECTIVE
from pipeline import typed
from pipeline.errors import PipelineError
from pipeline.vizier import local, regional
from pipeline.vizier.study import Budget, open_study, study_spec


def search(client: v1.VizierServiceClient, arguments: Mapping[str, Any]) -> None:
    """Runs trials of a study until it has no more.

    Args:
        client: Google's client, for the service of this machine or for Vertex.
        arguments: `parent` and `display_name` of the study; `client_id`, who asks for trials; `train_files`, `eval_files`,
            `schema_path`, `working_dir` and `custom_config` as `models.tuning.tuner_fn` reads them, without the study.

    Raises:
        PipelineError: Vizier refuses something or does not answer.
        TrainingError: Settings or data cannot be used.
    """
    custom = arguments["custom_config"]
    tuning = typed.from_dict(TuningConfig, custom["tuning"], "tuning")
    study = open_study(
        client, arguments["parent"], arguments["display_name"], study_spec(tuning, OBJECTIVE),
        Budget(tuning.trials, tuning.parallel),
    )  # fmt: skip
    # Late: it loads TensorFlow, and the study may be refused.
    from models.tuning import tuner_fn

    result = tuner_fn(
        types.SimpleNamespace(
            train_files=arguments["train_files"],
            eval_files=arguments["eval_files"],
            schema_path=arguments["schema_path"],
            working_dir=arguments["working_dir"],
            hyperparameters=None,
            custom_config={**custom, "study": study, "client_id": arguments["client_id"]},
        )
    )
    result.tuner.search(**result.fit_kwargs)


def client_of(arguments: Mapping[str, Any]) -> v1.VizierServiceClient:
    """Google's client for the `endpoint` or the `address` of the arguments. Raises PipelineError."""
    if "endpoint" in arguments:
        return regional.client_of(arguments["endpoint"])
    return local.client_of(arguments["address"])


if __name__ == "__main__":
    sys.exit(
        started.run(
            lambda arguments: search(client_of(arguments), arguments),
            known=(TrainingError, PipelineError),
            heard=("models", "pipeline"),
        )
    )
