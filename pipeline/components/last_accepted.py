"""Finds the last accepted snapshot before this one: the baseline that drift is judged against."""

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline import storage
from pipeline.artifacts import LabelSnapshot
from pipeline.components import facts
from pipeline.validation import acceptance


@component
def LastAccepted(
    snapshot: InputArtifact[LabelSnapshot],
    accepted: Parameter[str],
    statistics: OutputArtifact[standard_artifacts.ExampleStatistics],
):
    """Gives the statistics of the newest snapshot that was accepted and is older than this one.

    Not TFX's resolver: on Vertex that asks by artifact type alone and finds any producer's. Older by
    date, so that last week's run, repeated, meets the baseline that it met.

    Args:
        snapshot: This run's snapshot.
        accepted: Folder of the accepted snapshots' pointers.
        statistics: The baseline; without one, an artifact without splits and with `bootstrap` = 1.
    """
    baseline = acceptance.newest_before(accepted, facts.text(snapshot, "date"))
    if baseline is None:
        statistics.split_names = "[]"
        facts.record(statistics, {"bootstrap": True})
        return
    storage.copy_folder(baseline.statistics, statistics.uri)
    names = storage.names(statistics.uri)
    splits = [name.removeprefix("Split-") for name in names if name.startswith("Split-")]
    statistics.split_names = acceptance.encode_splits(splits)
    facts.record(
        statistics,
        {
            "bootstrap": False,
            "table": baseline.table,
            "date": baseline.date,
            "checksum": baseline.checksum,
            "accepted_by": baseline.run_id,
        },
    )
