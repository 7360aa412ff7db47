"""A lineage on the fake Vertex AI, as pipelines leave it there, without running one."""

import dataclasses
import json

from google.cloud.aiplatform_v1 import types

from pipeline.places import Places
from tests.cloud.vertex import names
from tests.cloud.vertex.server import Vertex
from tests.pipeline.lineage.conftest import TUNING, HandWritten
from tests.pipeline.lineage.weeks import Weeks

PIPELINE = "product-photographs"

_States = types.Execution.State

_STATES = {"CANCELED": _States.CANCELLED}


@dataclasses.dataclass
class _New:
    """An artifact that is not written yet, and its id once it is."""

    fields: dict
    id: str = ""


class VertexWritten(HandWritten):
    """Writes runs into the fake's ML Metadata.

    Args:
        places: The store of the runs.
        vertex: The fake.
        location: Where, by its resource name with the project's number.
        pipeline: Name of the pipeline.
    """

    def __init__(self, places: Places, vertex: Vertex, location: str, pipeline: str = PIPELINE):
        self.places, self.tuning, self.vertex = places, TUNING, vertex
        self._location = location
        self._whole = self._put("contexts", pipeline, display_name=pipeline, schema_title="system.Pipeline").name

    def now(self):
        return self.vertex.state.clock.now()

    def run(self, run_id, job=_States.RUNNING):
        """Begins a run, whose job is in a state; returns the name of its context."""
        context = self._put(
            "contexts", run_id, display_name=run_id, schema_title="system.PipelineRun", parent_contexts=[self._whole]
        ).name
        execution = self._put("executions", f"{run_id}-run", display_name=run_id, schema_title="system.Run", state=job)
        self._link(context, execution.name)
        return context

    def artifact(self, kind, facts, state="LIVE", uri=""):
        return self._keep(self.new_artifact(kind, facts, state, uri))

    def new_artifact(self, kind, facts, state="LIVE", uri=""):
        known = types.Artifact.State.LIVE if state == "LIVE" else types.Artifact.State.STATE_UNSPECIFIED
        title = kind if "." in kind else f"tfx.{kind}"
        return _New({"uri": uri, "state": known, "schema_title": title, "metadata": json.loads(json.dumps(facts))})

    def step(self, context, name, state="COMPLETE", inputs=None, outputs=None, parameters=None):
        execution = self._put(
            "executions", display_name=name, schema_title="system.ContainerExecution",
            state=_STATES.get(state) or _States[state],
            metadata={f"input:{key}": value for key, value in (parameters or {}).items()},
        )  # fmt: skip
        self._link(context, execution.name)
        for kind, puts in ((types.Event.Type.INPUT, inputs or {}), (types.Event.Type.OUTPUT, outputs or {})):
            for key, artifacts in puts.items():
                for artifact in artifacts:
                    artifact_id = artifact if isinstance(artifact, str) else self._keep(artifact)
                    name = f"{self._location}/metadataStores/default/artifacts/{artifact_id}"
                    self.vertex.metadata.add_event(execution.name, name, kind, key)
                    self._link(context, name)
        return names.last(execution.name)

    def _keep(self, artifact: _New) -> str:
        kept = self._put("artifacts", **artifact.fields)
        self.vertex.metadata.link(self._whole, [kept.name])
        artifact.id = names.last(kept.name)
        return artifact.id

    def _put(self, kind: str, node_id: str = "", **fields):
        return self.vertex.metadata.put(kind, self._location, node_id, schema_version="0.0.1", **fields)

    def _link(self, context: str, name: str) -> None:
        for each in (context, self._whole):
            self.vertex.metadata.link(each, [name])


class VertexWeeks(VertexWritten, Weeks):
    """Whole weeks, whose files lie in a folder of this machine and whose lineage is the fake's."""

    def __init__(self, places: Places, vertex: Vertex, location: str, edits: list[str]):
        VertexWritten.__init__(self, places, vertex, location)
        self.begin(edits)
