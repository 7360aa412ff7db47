"""TFX's Pusher, which also refuses to put an older week's model in front of a newer one: to a folder, or to Vertex AI."""

import json
import logging
import time

from tfx.components.pusher import component, executor
from tfx.dsl.components.base import base_component, executor_spec
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils, channel, component_spec, standard_artifacts, standard_component_specs
from tfx.utils import path_utils, proto_utils

from models.serving import weights_digest
from pipeline import storage, typed
from pipeline.artifacts import LabelSnapshot
from pipeline.components import facts
from pipeline.places import Places
from pipeline.provenance import beside
from pipeline.provenance import push as provenance
from pipeline.release import ledger

log = logging.getLogger(__name__)


def reason_to_hold(
    blessed: bool, snapshot_date: str, weights: str, judged_against: str, entries: list[ledger.Entry]
) -> str:
    """Why a candidate is not pushed; empty when it is.

    Args:
        blessed: Verdict of ReleaseGate.
        snapshot_date: Date of the candidate's snapshot, YYYY-MM-DD.
        weights: Digest of its weights.
        judged_against: Version that it was compared with; empty when nothing served.
        entries: What the ledger says of the endpoint, oldest first.
    """
    if not blessed:
        return "the evaluation did not bless it"
    withdrawn = ledger.withdrawal(entries, weights)
    if withdrawn:
        return (
            f"these very weights were rolled back at {withdrawn.at} by {withdrawn.actor}: {withdrawn.reason}. If they shall "
            "serve again: python -m pipeline release promote RUN_ID --reason TEXT"
        )
    serving = ledger.now(entries)
    if serving is None:
        return ""
    if serving.weights_sha256 == weights:
        return f"these very weights serve already, as version {serving.to_version} of run {serving.run_id}"
    if snapshot_date < serving.snapshot_date:
        return f"it is of {snapshot_date}, and a model of {serving.snapshot_date} serves (run {serving.run_id})"
    if serving.to_version != judged_against:
        return (
            f"it was compared with version {judged_against or 'none'}, and since then version {serving.to_version} serves: run "
            "the week again, so that it is compared with that"
        )
    return ""


class Executor(executor.Executor):
    """Pushes a blessed model unless the ledger says that a newer one, or the same, serves."""

    def CheckBlessing(self, input_dict):
        """Whether to push; the reason against it is kept for `Do`."""
        self._hold = self._unfit(input_dict)
        if not self._hold:
            self._weights = _weights(input_dict)
            self._hold = self._reason_to_hold(input_dict, ledger.of_endpoint(self._ledger, self._endpoint))
        return not self._hold

    def Do(self, input_dict, output_dict, exec_properties):
        """As TFX's, to a folder or an endpoint; records why nothing was pushed as the custom property `reason`.

        Raises:
            PipelineError: Vertex refuses, has no machines or does not answer, or somebody changed the endpoint by hand.
        """
        self._ledger, self._endpoint = exec_properties["ledger"], exec_properties["endpoint"]
        pushed = artifact_utils.get_single_instance(output_dict[standard_component_specs.PUSHED_MODEL_KEY])
        if exec_properties.get("vertex"):
            self._release(input_dict, pushed, json.loads(exec_properties["vertex"]))
        elif self.CheckBlessing(input_dict):
            self._push(input_dict, _export(input_dict), _versions_folder(exec_properties), pushed)
        else:
            self._MarkNotPushed(pushed)
        facts.record(pushed, {"reason": self._hold})
        log.info("not pushed: %s" if self._hold else "pushed%s", self._hold)

    def _unfit(self, input_dict) -> str:
        smoke_test = artifact_utils.get_single_instance(input_dict[standard_component_specs.INFRA_BLESSING_KEY])
        return "" if facts.number(smoke_test, "blessed") else "the smoke test refused its export"

    def _reason_to_hold(self, input_dict, entries: list[ledger.Entry]) -> str:
        return reason_to_hold(
            super().CheckBlessing(input_dict),
            facts.text(artifact_utils.get_single_instance(input_dict["snapshot"]), "date"),
            self._weights,
            facts.text(artifact_utils.get_single_instance(input_dict["serving_model"]), "version"),
            entries,
        )

    def _release(self, input_dict, pushed, known: dict) -> None:
        """Releases to the endpoint, canary first; the ledger has it when this returns."""
        # Google's clients: only those wait for them who release to Vertex.
        from pipeline.release import vertex
        from pipeline.vertex.settings import VertexSettings

        self._hold = self._unfit(input_dict)
        if self._hold:
            self._MarkNotPushed(pushed)
            return
        self._weights = _weights(input_dict)
        snapshot = artifact_utils.get_single_instance(input_dict["snapshot"])
        candidate = vertex.Candidate(
            run_id=facts.text(artifact_utils.get_single_instance(input_dict["manifest"]), "run_id"),
            snapshot=facts.text(snapshot, "table"),
            snapshot_date=facts.text(snapshot, "date"),
            weights_sha256=self._weights,
            model=_export(input_dict),
        )
        settings = typed.from_dict(VertexSettings, known["settings"], "vertex")
        target = vertex.Target(settings, self._endpoint, known["pipeline"], Places(store=settings.store))
        target.keep(candidate)
        outcome = target.release(candidate, hold=lambda entries: self._reason_to_hold(input_dict, entries))
        if outcome.released:
            provenance.write(input_dict, candidate.model, outcome.path, pushed)
            storage.copy_folder(candidate.model, pushed.uri)
            self._MarkPushed(pushed, pushed_destination=outcome.path, pushed_version=outcome.version)
        else:
            self._hold = outcome.reason
            self._MarkNotPushed(pushed)
        made = vertex.outcome_entries(target.entries(), candidate.run_id, outcome.version)
        facts.record(pushed, {"ledger_numbers": json.dumps([entry.number for entry in made])})

    def _push(self, input_dict, model: str, versions: str, pushed) -> None:
        version = int(time.time())
        while storage.names(storage.join(versions, str(version))):
            version += 1
        destination = storage.join(versions, str(version))
        try:
            provenance.write(input_dict, model, destination, pushed)
            # A server takes a version for whole when it has this file.
            storage.copy_folder(model, destination, last="saved_model.pb")
            storage.copy_folder(model, pushed.uri)
        except BaseException:
            # A full disk or Ctrl-C: what was copied serves nowhere and would only take room.
            storage.remove_folder(destination)
            beside.remove(destination)
            raise
        self._MarkPushed(pushed, pushed_destination=destination, pushed_version=str(version))


def _export(input_dict) -> str:
    return path_utils.serving_model_dir(artifact_utils.get_single_instance(input_dict[standard_component_specs.MODEL_KEY]).uri)


def _weights(input_dict) -> str:
    with storage.on_disk(_export(input_dict)) as folder:
        return weights_digest(folder)


def _versions_folder(exec_properties) -> str:
    destination = pusher_pb2.PushDestination()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.PUSH_DESTINATION_KEY], destination)
    return destination.filesystem.base_directory


class ReleasePusherSpec(component_spec.ComponentSpec):
    """Pusher's, with the snapshot, the model that serves and what the candidate was made of, the ledger, and Vertex's settings."""

    PARAMETERS = {
        **standard_component_specs.PusherSpec.PARAMETERS,
        "ledger": component_spec.ExecutionParameter(type=str),
        "endpoint": component_spec.ExecutionParameter(type=str),
        "vertex": component_spec.ExecutionParameter(type=str),
    }
    INPUTS = {
        **standard_component_specs.PusherSpec.INPUTS,
        "snapshot": component_spec.ChannelParameter(type=LabelSnapshot),
        "serving_model": component_spec.ChannelParameter(type=standard_artifacts.Model),
        **provenance.INPUTS,
    }
    OUTPUTS = standard_component_specs.PusherSpec.OUTPUTS


class ReleasePusher(component.Pusher):
    """Brings a blessed model to where it serves: a folder, or an endpoint of Vertex AI; and writes its provenance beside it.

    Args:
        model: Channel of the candidate.
        model_blessing: Channel of ReleaseGate's verdict.
        infra_blessing: Channel of SmokeTest's verdict.
        serving_model: Channel of the model that it was compared with.
        snapshot: Channel of the snapshot that it was trained on.
        push_destination: `pusher_pb2.PushDestination`: the folder of versions.
        ledger: File of the serving ledger.
        endpoint: Endpoint in the ledger.
        made_of: Channels of what the candidate was made of: `provenance.INPUTS`, the run's manifest among them.
        vertex: JSON of `settings`, a `VertexSettings` with `release`, and `pipeline`, the pipeline's name; '' for the folder.
    """

    SPEC_CLASS = ReleasePusherSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        model,
        model_blessing,
        infra_blessing,
        serving_model,
        snapshot,
        push_destination,
        ledger,
        endpoint,
        made_of,
        vertex="",
    ):
        spec = ReleasePusherSpec(
            model=model,
            model_blessing=model_blessing,
            infra_blessing=infra_blessing,
            serving_model=serving_model,
            snapshot=snapshot,
            push_destination=push_destination,
            ledger=ledger,
            endpoint=endpoint,
            **made_of,
            vertex=vertex,
            pushed_model=channel.Channel(type=standard_artifacts.PushedModel),
        )
        base_component.BaseComponent.__init__(self, spec=spec)
