"""Gives the best-known hyperparameters, and says whether this run searches for better ones."""

import json

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import storage
from pipeline.artifacts import GateReport, RunManifest
from pipeline.components import facts
from pipeline.release import configurations


@component
def KnownHyperparameters(
    verdict: InputArtifact[GateReport],
    manifest: InputArtifact[RunManifest],
    folder: Parameter[str],
    tune: Parameter[int],
    hyperparameters: OutputArtifact[standard_artifacts.HyperParameters],
):
    """Gives the hyperparameters of the newest tuned and released run of an earlier date.

    Earlier and not newest of all: a week that is run again finds what it found the first time.

    Args:
        verdict: The gate's; it orders this step behind the gate.
        manifest: Knows the date of this run's snapshot.
        folder: Folder of the known configurations.
        tune: 1 if this run was asked to tune.
        hyperparameters: In KerasTuner's format; without values when nothing was tuned yet, so that the settings' own values
            hold. Its properties: `tune`, which the Tuner obeys, and `reason`; `origin` and `values` of what is known.
    """
    del verdict
    known = configurations.newest_before(folder, facts.text(manifest, "snapshot_date"))
    config = known.hyperparameters if known else {"space": [], "values": {}}
    storage.write(storage.join(hyperparameters.uri, "best_hyperparameters.txt"), json.dumps(config).encode())
    facts.record(
        hyperparameters,
        {
            "tune": bool(tune),
            "reason": "asked for by --tune" if tune else "tuning was not asked for",
            "origin": f"tuned by run {known.run_id}" if known else "settings",
            "values": json.dumps(config["values"]),
        },
    )
