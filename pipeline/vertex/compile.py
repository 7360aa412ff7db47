"""Compiles the pipeline for Vertex AI Pipelines: the same steps as on one machine, on Vertex's machines.

What is not known before a run starts reaches its first step through Vertex's placeholders and three parameters, whose
defaults the compiler drops: whoever starts a run passes each of them.
"""

import dataclasses
import pathlib

from tfx import v1 as tfx
from tfx.dsl.components.base import executor_spec
from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner

from pipeline import typed
from pipeline.components.run_alert import RunAlert
from pipeline.errors import SettingsError
from pipeline.evaluation.thresholds import Thresholds
from pipeline.origin import Origin
from pipeline.pipeline import Platform, create_pipeline
from pipeline.places import Places
from pipeline.settings import BEAM_HERE, Settings
from pipeline.start import Start
from pipeline.validation.rules import Limits
from pipeline.vertex import jobs, trainer, tuner
from pipeline.vertex.images import require_digest

_PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent

_DAG = "tfx-dag"


def compiled(settings: Settings, limits: Limits, thresholds: Thresholds, origin: Origin, image: str, tune: bool) -> dict:
    """The pipeline job, as Vertex takes it.

    Args:
        settings: The settings, with `vertex`.
        limits: The gate's limits.
        thresholds: What a candidate must reach before it serves.
        origin: What the run is made of.
        image: The pipeline's image, by digest.
        tune: Whether runs search for hyperparameters.

    Raises:
        SettingsError: The settings are not for Vertex.
    """
    settings = _for_vertex(settings)
    vertex = settings.vertex
    places = Places(store=vertex.store, images=vertex.images, schema=f"{vertex.code}/schema")
    start = Start(
        run_id="{{$.pipeline_job_name}}",
        snapshot_date=_parameter("snapshot_date"),
        override=_parameter("override"),
        window_end=_parameter("window_end"),
        window_hours=vertex.window_hours,
        created_at="{{$.pipeline_job_create_time_utc}}",
        scheduled_at="{{$.pipeline_job_schedule_time_utc}}",
    )
    known = {"settings": typed.to_dict(vertex), "image": image}
    platform = Platform(
        beam=beam_args(settings, image),
        trainer=executor_spec.ExecutorClassSpec(trainer.Executor),
        training={"vertex": {**known, "pipeline": settings.name, "workers": settings.training.workers}},
        tuner=executor_spec.ExecutorClassSpec(tuner.Executor),
        tuning={"vertex": known},
        release={"settings": known["settings"], "pipeline": settings.name} if vertex.release else {},
    )
    week = create_pipeline(settings, limits, thresholds, places, dataclasses.replace(origin, image=image), start, tune, platform)
    config = kubeflow_v2_dag_runner.KubeflowV2DagRunnerConfig(default_image=image, use_pipeline_spec_2_1=True)
    runner = kubeflow_v2_dag_runner.KubeflowV2DagRunner(config)
    if not vertex.alert_topic:
        return runner.run(week, write_out=False)
    runner.set_exit_handler(
        RunAlert(
            final_status=tfx.orchestration.experimental.FinalStatusStr(),
            run_id=start.run_id,
            pipeline=settings.name,
            topic=vertex.alert_topic,
            reports=places.all_reports,
            ledger_path=places.ledger,
            endpoint=settings.release.endpoint,
        )
    )
    return _with_parameters_inside(runner.run(week, write_out=False))


def _with_parameters_inside(job: dict) -> dict:
    """Passes the pipeline's parameters on to the DAG into which the compiler puts all steps when there is an exit handler.

    The compiler forgets that: the steps would ask their own DAG for parameters that it does not have.
    """
    spec = job["pipelineSpec"]
    definitions = spec["root"]["inputDefinitions"]
    spec["components"][_DAG]["inputDefinitions"] = definitions
    spec["root"]["dag"]["tasks"][_DAG]["inputs"] = {
        "parameters": {name: {"componentInputParameter": name} for name in definitions["parameters"]}
    }
    return job


def _parameter(name: str) -> tfx.dsl.experimental.RuntimeParameter:
    return tfx.dsl.experimental.RuntimeParameter(name=name, ptype=str)


def _for_vertex(settings: Settings) -> Settings:
    if settings.vertex is None:
        raise SettingsError("the settings have no vertex: pipeline/configs/vertex.yaml shows what it holds")
    if settings.warehouse.kind != "bigquery":
        raise SettingsError(
            f"warehouse.kind {settings.warehouse.kind} keeps labels in a file of one machine, and each step on Vertex has a "
            "machine of its own: use bigquery"
        )
    if settings.vertex.release:
        require_digest(settings.vertex.release.image, "vertex.release.image")
    backbone = settings.training.backbone
    if not backbone or "://" in backbone:
        return settings
    path = pathlib.PurePath(backbone)
    if not path.is_relative_to(_PROJECT):
        raise SettingsError(
            f"training.backbone {backbone} is a path of this machine: name one in Cloud Storage, or a file of the project, "
            "which the image holds too"
        )
    moved = f"{settings.vertex.code}/{path.relative_to(_PROJECT).as_posix()}"
    return dataclasses.replace(settings, training=dataclasses.replace(settings.training, backbone=moved))


def beam_args(settings: Settings, image: str) -> list[str]:
    """Beam's options: on Dataflow with the same image, or in the container of each step."""
    vertex = settings.vertex
    if vertex.dataflow is None:
        return list(BEAM_HERE)
    temporary = f"{vertex.store}/dataflow"
    found = [
        "--runner=DataflowRunner",
        f"--project={vertex.project}",
        f"--region={vertex.region}",
        f"--temp_location={temporary}/temp",
        f"--staging_location={temporary}/staging",
        f"--sdk_container_image={image}",
        "--sdk_location=container",
        f"--worker_machine_type={vertex.dataflow.machine}",
        f"--max_num_workers={vertex.dataflow.max_workers}",
    ]
    if not vertex.dataflow.public_ips:
        found.append("--no_use_public_ips")
    if vertex.dataflow.subnetwork:
        found.append(f"--subnetwork={vertex.dataflow.subnetwork}")
    account = vertex.dataflow.service_account or vertex.service_account
    if account:
        found.append(f"--service_account_email={account}")
    labels = {**vertex.labels, "pipeline": jobs.label_value(settings.name)}
    return found + [f"--labels={name}={value}" for name, value in sorted(labels.items())]
