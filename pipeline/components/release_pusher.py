"""TFX's Pusher, which also refuses to put an older week's model in front of a newer one."""

import logging
import time

from tfx.components.pusher import component, executor
from tfx.dsl.components.base import base_component, executor_spec
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils, channel, component_spec, standard_artifacts, standard_component_specs
from tfx.utils import path_utils, proto_utils

from models.serving import weights_digest
from pipeline import storage
from pipeline.artifacts import LabelSnapshot
from pipeline.components import facts
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
            "serve again: python -m pipeline release promote"
        )
    serving = entries[-1] if entries else None
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
        smoke_test = artifact_utils.get_single_instance(input_dict[standard_component_specs.INFRA_BLESSING_KEY])
        if not facts.number(smoke_test, "blessed"):
            self._hold = "the smoke test refused its export"
            return False
        snapshot = artifact_utils.get_single_instance(input_dict["snapshot"])
        model = artifact_utils.get_single_instance(input_dict[standard_component_specs.MODEL_KEY])
        with storage.on_disk(path_utils.serving_model_dir(model.uri)) as folder:
            weights = weights_digest(folder)
        self._hold = reason_to_hold(
            super().CheckBlessing(input_dict),
            facts.text(snapshot, "date"),
            weights,
            facts.text(artifact_utils.get_single_instance(input_dict["serving_model"]), "version"),
            ledger.of_endpoint(self._ledger, self._endpoint),
        )
        return not self._hold

    def Do(self, input_dict, output_dict, exec_properties):
        """As TFX's, on a disk or in Cloud Storage; records why nothing was pushed as the custom property `reason`."""
        self._ledger, self._endpoint = exec_properties["ledger"], exec_properties["endpoint"]
        pushed = artifact_utils.get_single_instance(output_dict[standard_component_specs.PUSHED_MODEL_KEY])
        if self.CheckBlessing(input_dict):
            model = artifact_utils.get_single_instance(input_dict[standard_component_specs.MODEL_KEY])
            self._push(path_utils.serving_model_dir(model.uri), _versions_folder(exec_properties), pushed)
        else:
            self._MarkNotPushed(pushed)
        facts.record(pushed, {"reason": self._hold})
        log.info("not pushed: %s" if self._hold else "pushed%s", self._hold)


    def _push(self, model: str, versions: str, pushed) -> None:
        version = int(time.time())
        while storage.names(storage.join(versions, str(version))):
            version += 1
        destination = storage.join(versions, str(version))
        try:
            # A server takes a version for whole when it has this file.
            storage.copy_folder(model, destination, last="saved_model.pb")
            storage.copy_folder(model, pushed.uri)
        except BaseException:
            # A full disk or Ctrl-C: what was copied serves nowhere and would only take room.
            storage.remove_folder(destination)
            raise
        self._MarkPushed(pushed, pushed_destination=destination, pushed_version=str(version))


def _versions_folder(exec_properties) -> str:
    destination = pusher_pb2.PushDestination()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.PUSH_DESTINATION_KEY], destination)
    return destination.filesystem.base_directory


class ReleasePusherSpec(component_spec.ComponentSpec):
    """Pusher's, with the snapshot and the model that serves as inputs, and the place of the ledger."""

    PARAMETERS = {
        **standard_component_specs.PusherSpec.PARAMETERS,
        "ledger": component_spec.ExecutionParameter(type=str),
        "endpoint": component_spec.ExecutionParameter(type=str),
    }
    INPUTS = {
        **standard_component_specs.PusherSpec.INPUTS,
        "snapshot": component_spec.ChannelParameter(type=LabelSnapshot),
        "serving_model": component_spec.ChannelParameter(type=standard_artifacts.Model),
    }
    OUTPUTS = standard_component_specs.PusherSpec.OUTPUTS


class ReleasePusher(component.Pusher):
    """Copies a blessed model to where it is served from.

    Args:
        model: Channel of the candidate.
        model_blessing: Channel of ReleaseGate's verdict.
        infra_blessing: Channel of SmokeTest's verdict.
        serving_model: Channel of the model that it was compared with.
        snapshot: Channel of the snapshot that it was trained on.
        push_destination: `pusher_pb2.PushDestination`.
        ledger: File of the serving ledger.
        endpoint: Endpoint in the ledger.
    """

    SPEC_CLASS = ReleasePusherSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self, model, model_blessing, infra_blessing, serving_model, snapshot, push_destination, ledger, endpoint
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
            pushed_model=channel.Channel(type=standard_artifacts.PushedModel),
        )
        base_component.BaseComponent.__init__(self, spec=spec)
