"""Finds the model that serves: the one that a candidate is judged against."""

from tfx.types import standard_artifacts
from tfx.utils import path_utils
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import storage
from pipeline.artifacts import GateReport
from pipeline.components import facts
from pipeline.errors import PipelineError
from pipeline.release import ledger


@component
def ServingModel(
    verdict: InputArtifact[GateReport],
    ledger_path: Parameter[str],
    endpoint: Parameter[str],
    model: OutputArtifact[standard_artifacts.Model],
):
    """Gives the model that the ledger names, not merely the last one that was blessed.

    Args:
        verdict: The gate's; it orders this step behind the gate.
        ledger_path: File of the serving ledger.
        endpoint: Endpoint whose model is wanted.
        model: A copy of that model; before the first release, empty and with `bootstrap` = 1.

    Raises:
        PipelineError: The ledger names a model that is not there.
    """
    del verdict
    entry = ledger.serving(ledger_path, endpoint)
    if entry is None:
        facts.record(model, {"bootstrap": True})
        return
    if not storage.exists(storage.join(entry.path, "saved_model.pb")):
        raise PipelineError(
            f"version {entry.to_version} of run {entry.run_id} serves, says the ledger, and its folder {entry.path} is not "
            "there or not whole: restore it from a backup, or return to an older one: python -m pipeline release rollback "
            "--reason TEXT"
        )
    storage.copy_folder(entry.path, path_utils.serving_model_dir(model.uri))
    facts.record(
        model,
        {
            "bootstrap": False,
            "version": entry.to_version,
            "run_id": entry.run_id,
            "snapshot": entry.snapshot,
            "snapshot_date": entry.snapshot_date,
            "weights_sha256": entry.weights_sha256,
        },
    )
