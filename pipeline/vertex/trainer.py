"""The Trainer on Vertex AI: a custom job on machines of its own, waited for, spot first and on demand after.

TFX's own extension overwrites the command of every pool, the reduction servers' too, waits for ever for a job that
expired, and cannot change from spot to on demand. What the replicas run is TFX's: `tfx.scripts.run_executor`.
"""

import json

from google.api_core import exceptions
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1
from tfx.components.trainer import executor as trainer_executor
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils, standard_component_specs
from tfx.utils import name_utils

from pipeline import typed
from pipeline.components import facts
from pipeline.components.trainer import with_window
from pipeline.vertex import jobs, launch
from pipeline.vertex.service import refusal
from pipeline.vertex.settings import VertexSettings


class Executor(base_executor.BaseExecutor):
    """Trains in a custom job, and ends with it."""

    def Do(self, input_dict, output_dict, exec_properties):  # noqa: N802
        """Trains; arguments as TFX's.

        Raises:
            PipelineError: The job could not be started, or did not succeed; the text has its name and Vertex's reason.
        """
        exec_properties = with_window(input_dict, exec_properties)
        key = standard_component_specs.CUSTOM_CONFIG_KEY
        custom = json.loads(exec_properties[key])
        known = custom.pop("vertex")
        exec_properties[key] = json.dumps(custom)
        settings = typed.from_dict(VertexSettings, known["settings"], "vertex")
        manifest = artifact_utils.get_single_instance(input_dict["manifest"])
        run_id, date = facts.text(manifest, "run_id"), facts.text(manifest, "snapshot_date")
        model_run = artifact_utils.get_single_instance(output_dict[standard_component_specs.MODEL_RUN_KEY])
        try:
            client = launch.JobClient(settings.region)
            # What the chief and the workers run: TFX's Trainer in their own process.
            path = name_utils.get_full_name(trainer_executor.GenericExecutor)
            command = client.generate_container_command(input_dict, output_dict, exec_properties, path)

            def made(spot: bool) -> v1.CustomJob:
                return jobs.custom_job(
                    settings,
                    settings.training,
                    name=f"{known['pipeline']}-train-{run_id}",
                    workers=known["workers"],
                    image=known["image"],
                    command=command,
                    environment={"TF_USE_LEGACY_KERAS": "1"},
                    labels=jobs.labels_of(settings, known["pipeline"], date),
                    output=model_run.uri,
                    spot=spot,
                )

            job = launch.run(client, settings, settings.training, made, "training")
        except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
            raise refusal(error, settings) from error
        launch.require_success(
            job, settings, "training",
            "What it learnt is in its checkpoints: the same run, started again, goes on from there",
        )  # fmt: skip
