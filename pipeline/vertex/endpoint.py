"""An endpoint of Vertex AI and the one Model whose versions are deployed to it, by Google's own clients. No TensorFlow.

Every id is known before it is used: the endpoint's and the Model's are names of the settings, and what is deployed has the
number of its version as its id. So whoever starts again after it was killed finds what it left, and makes no second one.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import google.auth
from google.api_core import exceptions
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import json_format, struct_pb2

from pipeline.errors import PipelineError
from pipeline.release.watch import NoAnswer
from pipeline.vertex import jobs
from pipeline.vertex.images import require_digest
from pipeline.vertex.service import endpoint_of, refusal
from pipeline.vertex.settings import VertexSettings

_log = logging.getLogger(__name__)

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)

_TIMEOUT = 60.0

_OPERATION_SECONDS = 2 * 3600.0
"""How long an upload or a deployment is waited for; Vertex itself gives a deployment up after less."""

_POLL_SECONDS = 5.0

CANDIDATE, SERVING, DEFAULT = "candidate", "serving", "default"
"""Aliases of versions. The last is Vertex's own, for who names no version."""

PASSED, FAILED = "passed", "failed"
"""Verdicts on a canary, as a label of its version."""


class CannotServe(PipelineError):
    """A version that Vertex could not deploy, because its container does not start or does not load the model."""


class NoQuota(PipelineError):
    """There are no machines, or no quota for them."""


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of the Model.

    Attributes:
        number: Vertex's own, from 1.
        run: Label of the run that made it; see `run_label`.
        verdict: `PASSED`, `FAILED`, or '' when its canary was not judged yet.
        path: Folder of its SavedModel.
        aliases: Its aliases.
        description: A sentence about it: its run, and once it was judged, what came of its canary.
    """

    number: str
    run: str
    verdict: str
    path: str
    aliases: tuple[str, ...]
    description: str


@dataclasses.dataclass(frozen=True)
class Deployed:
    """A version that is deployed.

    Attributes:
        id: Id of the deployed model.
        version: Its version; of another Model than ours, MODEL@VERSION.
        percent: Its share of the traffic, percent.
        at: When it was deployed.
        ours: Whether it is a version of our Model.
    """

    id: str
    version: str
    percent: int
    at: datetime.datetime
    ours: bool


@dataclasses.dataclass(frozen=True)
class State:
    """What an endpoint is at one moment.

    Attributes:
        exists: Whether there is such an endpoint.
        deployed: What is deployed.
        etag: Changes with the endpoint.
    """

    exists: bool
    deployed: tuple[Deployed, ...] = ()
    etag: str = ""

    @property
    def split(self) -> dict[str, int]:
        """Version -> percent of the traffic, of those that have some."""
        return {each.version: each.percent for each in self.deployed if each.percent}

    def of(self, version: str) -> Deployed | None:
        """What is deployed of a version of ours."""
        return next((each for each in self.deployed if each.version == version), None)


def run_label(run_id: str) -> str:
    """A run's id as a label: itself, where a label takes it; else its end, which differs from week to week, and a digest.

    >>> run_label("product-photographs-20260316190000")
    'product-photographs-20260316190000'
    >>> run_label("20260302-20261203T100037Z")
    '20260302-20261203t100037z-f1450137'
    """
    label = jobs.label_value(run_id) if len(run_id) <= 63 else jobs.label_value(run_id[-54:])
    return label if label == run_id else f"{label[-54:]}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def run_alias(run_id: str) -> str:
    """A run's id as an alias of a version, which begins with a letter and ends with a letter or digit."""
    return f"run-{re.sub('[^a-z0-9-]', '-', run_label(run_id)).strip('-')}"


class Endpoint:
    """The endpoint that the settings name, and the Model of the same name.

    Args:
        settings: Vertex's settings, with `release`.
        name: Name of the endpoint in the serving ledger.

    Raises:
        PipelineError: There are no credentials.
    """

    def __init__(self, settings: VertexSettings, name: str):
        require_digest(settings.release.image, "vertex.release.image")
        self._settings, self._machines = settings, settings.release
        self._id = settings.release.endpoint or name
        with self._told():
            credentials, _ = google.auth.default(scopes=_SCOPES)
            known = {"credentials": credentials, "client_options": {"api_endpoint": endpoint_of(settings.region)}}
            self._models = v1.ModelServiceClient(**known)
            self._endpoints = v1.EndpointServiceClient(**known)
            self._predictions = v1.PredictionServiceClient(**known)
        self._display = name
        self._parent = f"projects/{settings.project}/locations/{settings.region}"
        self._model = f"{self._parent}/models/{name}"
        self.name = f"{self._parent}/endpoints/{self._id}"

    # --- Versions of the Model ---

    def versions(self) -> list[Version]:
        """All versions, the newest first. Raises PipelineError."""
        with self._told():
            try:
                found = list(self._models.list_model_versions(name=self._model, timeout=_TIMEOUT))
            except exceptions.NotFound:
                return []
        return sorted(map(_version, found), key=lambda version: -int(version.number))

    def version_of(self, run_id: str) -> Version | None:
        """The version that a run uploaded, or None.

        An upload that was under way when its process was killed may have been followed by another. The first counts.
        """
        self._await_operations(self._models, self._model)
        found = [version for version in self.versions() if version.run == run_label(run_id)]
        for surplus in found[:-1]:
            _log.warning("version %s is a second upload of run %s: deleted", surplus.number, run_id)
            with self._told():
                self._models.delete_model_version(name=self._named(surplus.number), timeout=_TIMEOUT).result(_OPERATION_SECONDS)
        return found[-1] if found else None

    def upload(self, run_id: str, path: str, labels: Mapping[str, str]) -> Version:
        """Makes a version of a SavedModel, as a candidate.

        Args:
            run_id: The run that made it.
            path: Its folder.
            labels: Labels of the version.

        Raises:
            PipelineError: Vertex refuses, or does not answer.
        """
        model = v1.Model(
            display_name=self._display,
            artifact_uri=path,
            container_spec=v1.ModelContainerSpec(image_uri=self._machines.image),
            labels={**labels, "run": run_label(run_id)},
            version_aliases=[run_alias(run_id), CANDIDATE],
            version_description=f"run {run_id}"[:500],
        )
        request = v1.UploadModelRequest(parent=self._parent, model=model, service_account=self._settings.service_account)
        with self._told():
            if self.versions():
                request.parent_model = self._model
            else:
                request.model_id = self._display
            with contextlib.suppress(exceptions.AlreadyExists):  # an upload of an earlier attempt has ended meanwhile
                self._models.upload_model(request, timeout=_TIMEOUT).result(_OPERATION_SECONDS)
        version = self.version_of(run_id)
        if version is None:
            raise PipelineError(f"Vertex AI uploaded the model of run {run_id} to {self._model} and does not list it: try again")
        return version

    def judge(self, version: str, verdict: str, description: str) -> None:
        """Keeps the verdict on a canary with its version."""
        with self._told():
            labels = dict(self._models.get_model(name=self._named(version), timeout=_TIMEOUT).labels)
            model = v1.Model(
                name=self._named(version), labels={**labels, "verdict": verdict}, version_description=description[:500]
            )
            mask = {"paths": ["labels", "version_description"]}
            self._models.update_model(model=model, update_mask=mask, timeout=_TIMEOUT)

    def set_aliases(self, version: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Gives a version aliases, which leaves others without them, and takes some from it."""
        with self._told():
            has = set(self._models.get_model(name=self._named(version), timeout=_TIMEOUT).version_aliases)
            changes = [alias for alias in add if alias not in has] + [f"-{alias}" for alias in remove if alias in has]
            if changes:
                request = v1.MergeVersionAliasesRequest(name=self._named(version), version_aliases=changes)
                self._models.merge_version_aliases(request, timeout=_TIMEOUT)

    # --- The endpoint ---

    def state(self) -> State:
        """What is deployed, with which share of the traffic, once nothing is under way that an earlier attempt began."""
        self._await_operations(self._endpoints, self.name)
        with self._told():
            try:
                found = self._endpoints.get_endpoint(name=self.name, timeout=_TIMEOUT)
            except exceptions.NotFound:
                return State(False)
        deployed = []
        for each in found.deployed_models:
            model = each.model.partition("@")[0].rpartition("/")[2]
            ours = model == self._display
            version = each.model_version_id if ours else f"{model}@{each.model_version_id}"
            deployed.append(Deployed(each.id, version, found.traffic_split.get(each.id, 0), each.create_time, ours))
        return State(True, tuple(deployed), found.etag)

    def create(self, labels: Mapping[str, str]) -> None:
        """Makes the endpoint, unless it is there.

        Raises:
            PipelineError: Its id is one that only Vertex can give.
        """
        if self._id.isdigit():
            raise PipelineError(
                f"vertex.release.endpoint {self._id}: there is no such endpoint in {self._settings.project}, "
                f"{self._settings.region}. Name one that is there, or leave it out: then one is made"
            )
        request = v1.CreateEndpointRequest(
            parent=self._parent, endpoint_id=self._id, endpoint=v1.Endpoint(display_name=self._display, labels=dict(labels))
        )
        with self._told(), contextlib.suppress(exceptions.AlreadyExists):
            self._endpoints.create_endpoint(request, timeout=_TIMEOUT).result(_OPERATION_SECONDS)

    def deploy(self, version: str, split: Mapping[str, int]) -> None:
        """Deploys a version, and splits the traffic in the same step.

        Args:
            version: The version.
            split: Version -> percent; the version itself included.

        Raises:
            CannotServe: Its container does not become ready.
            NoQuota: There are no machines for it. In both cases nothing has changed.
            PipelineError: Vertex refuses, or does not answer.
        """
        ids = {each.version: each.id for each in self.state().deployed}
        traffic = {"0" if name == version else ids[name]: percent for name, percent in split.items() if percent}
        traffic |= {ids[name]: 0 for name in ids if ids[name] not in traffic}
        deployed = v1.DeployedModel(
            id=version,
            model=self._named(version),
            display_name=f"{self._display}-{version}",
            service_account=self._machines.service_account or self._settings.service_account,
            dedicated_resources=v1.DedicatedResources(
                machine_spec=jobs.machine_spec(self._machines.machine),
                min_replica_count=self._machines.min_replicas,
                max_replica_count=self._machines.max_replicas,
            ),
        )
        request = v1.DeployModelRequest(endpoint=self.name, deployed_model=deployed, traffic_split=traffic)
        with self._told():
            try:
                self._endpoints.deploy_model(request, timeout=_TIMEOUT).result(_OPERATION_SECONDS)
            except exceptions.ResourceExhausted as error:
                raise NoQuota(
                    f"version {version} cannot be deployed to {self.name}: Vertex AI has no quota or no machines left "
                    f"({_said(error)}). Nothing was changed, and what served goes on serving. Ask for more of "
                    f"{self._machines.machine}, then: python -m pipeline release promote RUN_ID "
                    "--reason TEXT --settings FILE"
                ) from error
            except exceptions.GoogleAPICallError as error:
                # Vertex: "Model server never became ready", "Model server exited unexpectedly".
                if isinstance(error, exceptions.FailedPrecondition) or "model server" in str(error).lower():
                    raise CannotServe(f"Vertex AI cannot serve it: {_said(error)}") from error
                raise

    def move(self, split: Mapping[str, int], state: State) -> None:
        """Splits the traffic anew; nothing when it is so already.

        Args:
            split: Version -> percent, of versions that are deployed.
            state: The endpoint as the caller saw it.

        Raises:
            PipelineError: Somebody changed the endpoint since.
        """
        split = {version: percent for version, percent in split.items() if percent}
        if state.split == split:
            return
        traffic = {each.id: split.get(each.version, 0) for each in state.deployed}
        endpoint = v1.Endpoint(name=self.name, traffic_split=traffic, etag=state.etag)
        with self._told():
            try:
                self._endpoints.update_endpoint(
                    endpoint=endpoint, update_mask={"paths": ["traffic_split"]}, timeout=_TIMEOUT
                )
            except exceptions.Aborted as error:
                raise PipelineError(
                    f"somebody changed {self.name} at this moment ({_said(error)}): look at it (python -m pipeline release "
                    "status), and try again"
                ) from error

    def undeploy(self, version: str) -> None:
        """Takes a version without traffic from the endpoint, or the last one; nothing when it is not there."""
        found = self.state().of(version)
        if found:
            request = v1.UndeployModelRequest(endpoint=self.name, deployed_model_id=found.id)
            with self._told():
                self._endpoints.undeploy_model(request, timeout=_TIMEOUT).result(_OPERATION_SECONDS)

    def ask(self, instance: Mapping[str, Any]) -> tuple[str, Any]:
        """Sends one instance, as any client does.

        Returns:
            Id of the deployed model that answered, and its prediction.

        Raises:
            NoAnswer: There is none. Vertex does not say which of the deployed models failed.
            PipelineError: Who asks may not.
        """
        value = json_format.ParseDict(dict(instance), struct_pb2.Value())
        with self._told():
            try:
                answer = self._predictions.predict(endpoint=self.name, instances=[value], retry=None, timeout=_TIMEOUT)
            except (exceptions.Unauthenticated, exceptions.PermissionDenied, exceptions.NotFound):
                raise
            except exceptions.GoogleAPICallError as error:
                raise NoAnswer(_said(error)) from error
        raw = v1.PredictResponse.pb(answer)
        predictions = [json_format.MessageToDict(prediction) for prediction in raw.predictions]
        return answer.deployed_model_id, predictions[0] if predictions else None

    # --- Inside ---

    def _named(self, version: str) -> str:
        return f"{self._model}@{version}"

    def _await_operations(self, client, name: str) -> None:
        """Waits for what is under way at a resource: an earlier attempt that was killed began it, or somebody else."""
        deadline = time.monotonic() + _OPERATION_SECONDS
        with self._told():
            while True:
                try:
                    listed = client.list_operations(operations_pb2.ListOperationsRequest(name=name), timeout=_TIMEOUT)
                except exceptions.NotFound:
                    return
                running = [operation.name for operation in listed.operations if not operation.done]
                if not running:
                    return
                if time.monotonic() > deadline:
                    raise futures.TimeoutError
                _log.info("waiting for %s", ", ".join(running))
                time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What Google's clients raise as an error that a person can act on."""
        try:
            yield
        except (exceptions.RetryError, futures.TimeoutError) as error:
            raise PipelineError(
                f"an operation on {self.name} did not end within {_OPERATION_SECONDS / 3600:g} hours. Nothing else was begun; "
                "the same again waits for it"
            ) from error
        except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
            raise refusal(error, self._settings) from error


def _version(model: v1.Model) -> Version:
    labels = dict(model.labels)
    return Version(
        number=model.version_id,
        run=labels.get("run", ""),
        verdict=labels.get("verdict", ""),
        path=model.artifact_uri,
        aliases=tuple(sorted(model.version_aliases)),
        description=model.version_description,
    )


def _said(error: exceptions.GoogleAPICallError) -> str:
    return " ".join(str(error.message or error).split())[:400]
