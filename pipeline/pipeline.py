"""The pipeline, from top to bottom like the diagram in the README."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import v1 as tfx

from pipeline import typed
from pipeline.components.distribution_validator import DistributionValidator
from pipeline.components.distribution_validator import config_of as drift_config_of
from pipeline.components.evaluator import Evaluator
from pipeline.components.evaluator import config_of as evaluation_config_of
from pipeline.components.image_sharder import ImageSharder
from pipeline.components.label_join import LabelJoin
from pipeline.components.last_accepted import LastAccepted
from pipeline.components.release_gate import ReleaseGate
from pipeline.components.release_pusher import ReleasePusher
from pipeline.components.run_manifest import RunManifest
from pipeline.components.serving_ledger import ServingLedger
from pipeline.components.serving_model import ServingModel
from pipeline.components.smoke_test import SmokeTest
from pipeline.components.snapshot_example_gen import SnapshotExampleGen
from pipeline.components.snapshot_gate import SnapshotGate
from pipeline.components.snapshot_gen import SnapshotGen
from pipeline.components.trainer import Trainer
from pipeline.components.tuner import Tuner
from pipeline.components.tuning_decision import TuningDecision
from pipeline.evaluation.thresholds import Thresholds
from pipeline.origin import Origin
from pipeline.places import Places
from pipeline.settings import BEAM_HERE, Settings
from pipeline.start import Start
from pipeline.validation.rules import Limits
from pipeline.warehouse import Location


@dataclasses.dataclass(frozen=True)
class Platform:
    """Where the steps of a pipeline run. The defaults are this machine.

    Attributes:
        metadata: Connection to ML Metadata; None where the orchestrator keeps the lineage itself.
        beam: Beam's options.
        trainer: Specification of the executor that trains; None for this machine.
        training: What that executor finds in `custom_config`.
        tuner: Specification of the executor that searches for hyperparameters; None for this machine.
        tuning: What that executor is told of where its workers run.
        release: What the step that releases to an endpoint of Vertex AI is told; empty for a folder of the store.
    """

    metadata: Any = None
    beam: Sequence[str] = BEAM_HERE
    trainer: Any = None
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tuner: Any = None
    tuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    release: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def on_this_machine(places: Places) -> Platform:
    """This machine, with the lineage in the store."""
    return Platform(metadata=tfx.orchestration.metadata.sqlite_metadata_connection_config(places.metadata))


def create_pipeline(
    settings: Settings,
    limits: Limits,
    thresholds: Thresholds,
    places: Places,
    origin: Origin,
    start: Start,
    tune: bool,
    platform: Platform | None = None,
) -> tfx.dsl.Pipeline:
    """Wires one weekly retrain.

    Args:
        settings: The settings.
        limits: The gate's limits.
        thresholds: What a candidate must reach before it serves.
        places: Where things lie.
        origin: What the run is made of.
        start: What the run is started with; training stops in time for what comes after it in its window.
        tune: Whether a person asks for a search for hyperparameters; without that, TuningDecision decides.
        platform: Where the steps run; None for this machine.

    Returns:
        The pipeline, for any TFX runner.
    """
    platform = platform or Platform()
    warehouse = json.dumps(dataclasses.asdict(_location(settings, places)))
    training_config = {
        "network": typed.to_dict(settings.network),
        "training": typed.to_dict(settings.training),
        "short_side": settings.short_side,
    }

    # What the run is made of, the photographs, the labels.
    manifest = RunManifest(
        run_id=start.run_id,
        snapshot_date=start.snapshot_date,
        window_end=start.window_end,
        window_hours=float(start.window_hours),
        created_at=start.created_at,
        scheduled_at=start.scheduled_at,
        origin=json.dumps(dataclasses.asdict(origin)),
        settings=json.dumps(typed.to_dict(settings), sort_keys=True),
    )
    shards = ImageSharder(
        images=places.images,
        root=places.shards,
        settings=json.dumps(typed.to_dict(settings.shards)),
        warehouse=warehouse,
    )
    snapshot = SnapshotGen(manifest=manifest.outputs["manifest"], warehouse=warehouse)
    examples = SnapshotExampleGen(
        snapshot=snapshot.outputs["snapshot"],
        shards=shards.outputs["shards"],
        warehouse=warehouse,
        splits=settings.splits,
    )

    # Is this week fit to train on? Everything below the gate waits for its verdict.
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    schema = tfx.components.ImportSchemaGen(schema_file=f"{places.schema}/schema.pbtxt")
    example_validator = tfx.components.ExampleValidator(
        statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
    )
    baseline = LastAccepted(snapshot=snapshot.outputs["snapshot"], accepted=places.accepted)
    distribution_validator = DistributionValidator(
        statistics=statistics.outputs["statistics"],
        baseline_statistics=baseline.outputs["statistics"],
        config=drift_config_of(limits.drift),
        include_split_pairs=[("train", "train")],
    )
    gate = SnapshotGate(
        manifest=manifest.outputs["manifest"],
        snapshot=snapshot.outputs["snapshot"],
        shards=shards.outputs["shards"],
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        statistics=statistics.outputs["statistics"],
        baseline=baseline.outputs["statistics"],
        schema_anomalies=example_validator.outputs["anomalies"],
        drift_anomalies=distribution_validator.outputs["anomalies"],
        limits=json.dumps(typed.to_dict(limits), sort_keys=True),
        bootstrap=int(settings.gate.bootstrap),
        override=start.override,
        accepted=places.accepted,
        reports=places.all_reports,
        warehouse=warehouse,
    )
    verdict = gate.outputs["verdict"]

    # Labels to pixels, hyperparameters, weights.
    join = LabelJoin(
        verdict=verdict,
        examples=examples.outputs["examples"],
        shards=shards.outputs["shards"],
        schema=schema.outputs["schema"],
        tuning_share=settings.splits.tuning_share,
    )
    decision = TuningDecision(
        verdict=verdict,
        manifest=manifest.outputs["manifest"],
        asked=int(tune),
        retune=json.dumps(typed.to_dict(settings.retune)),
        configuration_folder=places.configurations,
        quality_folder=places.quality,
    )
    tuner = Tuner(
        manifest=manifest.outputs["manifest"],
        examples=join.outputs["tuning_examples"],
        schema=schema.outputs["schema"],
        hyperparameters=decision.outputs["hyperparameters"],
        custom_config={
            **training_config,
            "tuning": typed.to_dict(settings.tuning),
            "pipeline": settings.name,
            "database": places.studies,
            "records": places.study_records,
            "reports": places.all_reports,
            "profile": places.newest_profile,
            "platform": dict(platform.tuning),
        },
        custom_executor_spec=platform.tuner,
    )
    hyperparameters = tuner.outputs["best_hyperparameters"]
    trainer = Trainer(
        manifest=manifest.outputs["manifest"],
        run_fn="models.training.run_fn",
        examples=join.outputs["labels"],
        schema=schema.outputs["schema"],
        hyperparameters=hyperparameters,
        train_args=tfx.proto.TrainArgs(splits=["train"]),
        eval_args=tfx.proto.EvalArgs(splits=["val"]),
        custom_config={**training_config, "checkpoints": places.checkpoints, **platform.training},
        custom_executor_spec=platform.trainer,
    )

    # Is the candidate fit to serve? Then it serves, and the ledger says so.
    smoke_test = SmokeTest(
        manifest=manifest.outputs["manifest"],
        model=trainer.outputs["model"],
        thresholds=json.dumps(typed.to_dict(thresholds.smoke), sort_keys=True),
        reports=places.all_reports,
    )
    serving = ServingModel(verdict=verdict, ledger_path=places.ledger, endpoint=settings.release.endpoint)
    evaluator = Evaluator(
        examples=join.outputs["eval_examples"],
        model=trainer.outputs["model"],
        baseline_model=serving.outputs["model"],
        smoke_test=smoke_test.outputs["blessing"],
        eval_config=evaluation_config_of(thresholds),
        batch_size=settings.evaluation.batch_size,
        max_batch_bytes=settings.evaluation.max_batch_bytes,
    )
    release_gate = ReleaseGate(
        manifest=manifest.outputs["manifest"],
        snapshot=snapshot.outputs["snapshot"],
        baseline=baseline.outputs["statistics"],
        schema=schema.outputs["schema"],
        eval_examples=join.outputs["eval_examples"],
        serving_model=serving.outputs["model"],
        smoke_test=smoke_test.outputs["blessing"],
        evaluation=evaluator.outputs["evaluation"],
        tfma_blessing=evaluator.outputs["blessing"],
        thresholds=json.dumps(typed.to_dict(thresholds), sort_keys=True),
        bootstrap=int(settings.release.bootstrap),
        reports=places.all_reports,
        warehouse=warehouse,
    )
    pusher = ReleasePusher(
        model=trainer.outputs["model"],
        model_blessing=release_gate.outputs["verdict"],
        infra_blessing=smoke_test.outputs["blessing"],
        serving_model=serving.outputs["model"],
        snapshot=snapshot.outputs["snapshot"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=places.versions)
        ),
        ledger=places.ledger,
        endpoint=settings.release.endpoint,
        made_of={
            "manifest": manifest.outputs["manifest"],
            "shards": shards.outputs["shards"],
            "gate": verdict,
            "labels": join.outputs["labels"],
            "hyperparameters": hyperparameters,
            "model_run": trainer.outputs["model_run"],
        },
        vertex=json.dumps(platform.release, sort_keys=True) if platform.release else "",
    )
    release = ServingLedger(
        manifest=manifest.outputs["manifest"],
        snapshot=snapshot.outputs["snapshot"],
        decision=decision.outputs["hyperparameters"],
        hyperparameters=hyperparameters,
        model=trainer.outputs["model"],
        model_run=trainer.outputs["model_run"],
        serving_model=serving.outputs["model"],
        verdict=release_gate.outputs["verdict"],
        pushed_model=pusher.outputs["pushed_model"],
        ledger_path=places.ledger,
        endpoint=settings.release.endpoint,
        configuration_folder=places.configurations,
        quality_folder=places.quality,
        profile_pointer=places.newest_profile,
    )

    return tfx.dsl.Pipeline(
        pipeline_name=settings.name,
        pipeline_root=places.artifacts,
        metadata_connection_config=platform.metadata,
        components=[
            manifest,
            shards,
            snapshot,
            examples,
            statistics,
            schema,
            example_validator,
            baseline,
            distribution_validator,
            gate,
            join,
            decision,
            tuner,
            trainer,
            smoke_test,
            serving,
            evaluator,
            release_gate,
            pusher,
            release,
        ],
        # Every run leaves its own record; what is expensive (shards, snapshot) is idempotent by itself.
        enable_cache=False,
        beam_pipeline_args=list(platform.beam),
    )


def _location(settings: Settings, places: Places) -> Location:
    warehouse = settings.warehouse
    if warehouse.kind == "duckdb":
        return Location(kind="duckdb", labels=places.labels, database=places.warehouse)
    return Location(**typed.to_dict(warehouse))
