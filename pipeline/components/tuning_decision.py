"""Decides whether a week searches for hyperparameters, and gives it the best-known ones."""

import json
import logging

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import storage, typed
from pipeline.artifacts import GateReport, RunManifest
from pipeline.components import facts
from pipeline.settings import RetuneSettings
from pipeline.tuning import decision as decisions

log = logging.getLogger(__name__)


@component
def TuningDecision(
    verdict: InputArtifact[GateReport],
    manifest: InputArtifact[RunManifest],
    asked: Parameter[int],
    retune: Parameter[str],
    configuration_folder: Parameter[str],
    quality_folder: Parameter[str],
    hyperparameters: OutputArtifact[standard_artifacts.HyperParameters],
):
    """Decides, and gives the hyperparameters of the newest tuned and released run of an earlier date.

    Earlier and not newest of all: a week that is run again finds what it found the first time.

    Args:
        verdict: The gate's; it orders this step behind the gate.
        manifest: Knows the date of this run's snapshot.
        asked: 1 when a person asked for a search.
        retune: `RetuneSettings` as JSON.
        configuration_folder: Folder of the best-known configurations.
        quality_folder: Folder of the records how well runs trained.
        hyperparameters: `best_hyperparameters.txt` in KerasTuner's format, without values when nothing was tuned yet, so
            that the settings' own values hold. As custom properties `tune` (1 when a search is to replace them), `reason`,
            `warning`, `origin` (who found the values), `configuration` (the run that did, or "") and `values` (JSON).
    """
    del verdict
    settings = typed.from_dict(RetuneSettings, json.loads(retune), "retune")
    date = facts.text(manifest, "snapshot_date")
    decision = decisions.for_week(date, bool(asked), settings, configuration_folder, quality_folder)
    if decision.warning:
        log.warning("%s", decision.warning)
    known = decision.known
    config = known.hyperparameters if known else {"space": [], "values": {}}
    storage.write(storage.join(hyperparameters.uri, "best_hyperparameters.txt"), json.dumps(config).encode())
    facts.record(
        hyperparameters,
        {
            "tune": decision.tune,
            "reason": decision.reason,
            "warning": decision.warning,
            "origin": f"tuned by run {known.run_id}" if known else "settings",
            "configuration": known.run_id if known else "",
            "values": json.dumps(config["values"], sort_keys=True),
        },
    )
