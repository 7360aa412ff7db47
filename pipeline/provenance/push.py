"""What the push of a model does for its provenance."""

import datetime
from collections.abc import Mapping, Sequence

from tfx.types import artifact, artifact_utils, component_spec, standard_artifacts

from pipeline import files, storage
from pipeline.artifacts import GateReport, ImageShards, RunManifest
from pipeline.components import facts
from pipeline.lineage.base import Artifact
from pipeline.provenance import beside, statement

INPUTS = {
    "manifest": component_spec.ChannelParameter(type=RunManifest),
    "shards": component_spec.ChannelParameter(type=ImageShards),
    "gate": component_spec.ChannelParameter(type=GateReport),
    "labels": component_spec.ChannelParameter(type=standard_artifacts.Examples),
    "hyperparameters": component_spec.ChannelParameter(type=standard_artifacts.HyperParameters),
    "model_run": component_spec.ChannelParameter(type=standard_artifacts.ModelRun),
}
"""What a step must be given, beside what every push has, to say what a model was made of."""

_ALSO = ("snapshot", "model_blessing")


def write(inputs: Mapping[str, Sequence[artifact.Artifact]], model: str, destination: str, pushed: artifact.Artifact) -> None:
    """Writes the statement beside where a model will be, and records its digest and the instant.

    Args:
        inputs: The step's, `INPUTS` among them.
        model: Folder of the SavedModel that is pushed.
        destination: Folder that it is pushed to.
        pushed: Gets the custom properties `provenance_sha256` and `pushed_at`.

    Raises:
        OSError: A record of the run cannot be read, or the statement not written.
    """
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    sources = {name: _recorded(artifact_utils.get_single_instance(inputs[name])) for name in (*INPUTS, *_ALSO)}
    content = statement.to_bytes(statement.build(sources, model, finished=now))
    storage.write(beside.statement(destination), content)
    facts.record(pushed, {"pushed_at": now, "provenance_sha256": files.sha256(content)})


def _recorded(source: artifact.Artifact) -> Artifact:
    """An artifact of a step as the lineage gives it."""
    known = {name: _value(source, name) for name in source.mlmd_artifact.custom_properties}
    return Artifact(source.id, source.type_name, source.uri, {name: value for name, value in known.items() if value is not None})


def _value(source: artifact.Artifact, name: str):
    # From Vertex every property comes as JSON, of which TFX's reading of any kind loses zeros and empty texts.
    value = source.get_json_value_custom_property(name)
    return source.get_custom_property(name) if value is None else value
