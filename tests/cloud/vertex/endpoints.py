"""Endpoints: models that are deployed, how traffic is split among them, and their answers."""

import http.client
import json
import re
import socket
import threading
import time

from google.api import httpbody_pb2
from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format, struct_pb2

from tests.cloud.vertex import listing, names
from tests.cloud.vertex.containers import Container, Containers, is_prebuilt
from tests.cloud.vertex.metadata import merge
from tests.cloud.vertex.models import Models
from tests.cloud.vertex.refusals import Code, Refused, invalid, untimely
from tests.cloud.vertex.state import State

_READY_SECONDS = 180
_PREDICT_SECONDS = 60
_GRACE_SECONDS = 2.0


class Endpoints:
    """The calls of EndpointService and PredictionService.

    Args:
        state: What the fake shares.
        models: The registry.
        containers: What runs the models' containers.

    Attributes:
        machines: How many models may be deployed at once; None for any number.
        failing: Id of a deployed model -> n: every nth of its requests fails.
    """

    def __init__(self, state: State, models: Models, containers: Containers):
        self._state, self._models, self._containers = state, models, containers
        self._endpoints: dict[str, types.Endpoint] = {}
        self._servers: dict[tuple[str, str], _Server] = {}
        self._asked: dict[str, dict[str, int]] = {}
        self._answered: dict[str, int] = {}
        self.machines: int | None = None
        self.failing: dict[str, int] = {}

    # --- EndpointService ---

    def create_endpoint(self, request: types.CreateEndpointRequest):
        endpoint = types.Endpoint(request.endpoint)
        names.check_display_name(endpoint.display_name)
        names.check_labels(endpoint.labels)
        endpoint.name = f"{request.parent}/endpoints/{request.endpoint_id or names.new_number()}"

        def create():
            if endpoint.name in self._endpoints:
                raise Refused(Code.ALREADY_EXISTS, f"{endpoint.name} is there already")
            endpoint.create_time = self._state.clock.now()
            self._touch(endpoint)
            self._endpoints[endpoint.name] = endpoint
            return types.Endpoint(endpoint)

        return self._state.operations.start("CreateEndpoint", endpoint.name, create)

    def get_endpoint(self, request: types.GetEndpointRequest) -> types.Endpoint:
        with self._state.changed:
            return types.Endpoint(self._find(request.name))

    def list_endpoints(self, request: types.ListEndpointsRequest) -> types.ListEndpointsResponse:
        with self._state.changed:
            ours = [each for name, each in self._endpoints.items() if name.startswith(f"{request.parent}/")]
            endpoints = [types.Endpoint(each) for each in ours]
            found, token = listing.page(endpoints, request, derived={"endpoint": lambda each: names.last(each.name)})
            return types.ListEndpointsResponse(endpoints=found, next_page_token=token)

    def update_endpoint(self, request: types.UpdateEndpointRequest) -> types.Endpoint:
        names.check_labels(request.endpoint.labels)
        with self._state.changed:
            endpoint = self._find(request.endpoint.name)
            if request.endpoint.etag not in ("", endpoint.etag):
                raise Refused(Code.ABORTED, f"The etag of {endpoint.name} is {endpoint.etag}, not {request.endpoint.etag}.")
            if "traffic_split" in request.update_mask.paths:
                self._check_split(dict(request.endpoint.traffic_split), {each.id for each in endpoint.deployed_models})
            for path in request.update_mask.paths:
                if path.split(".")[0] not in ("display_name", "description", "labels", "traffic_split"):
                    raise invalid(f"update_mask: {path} of an Endpoint cannot be changed")
            merge(request.endpoint, endpoint, request.update_mask)
            self._touch(endpoint)
            self._asked.pop(endpoint.name, None)
            return types.Endpoint(endpoint)

    def delete_endpoint(self, request: types.DeleteEndpointRequest):
        with self._state.changed:
            if self._find(request.name).deployed_models:
                raise untimely(f"{request.name} has deployed models: undeploy them first")
            return self._state.operations.start(
                "DeleteEndpoint", request.name, lambda: self._endpoints.pop(request.name, None) and None
            )

    def deploy_model(self, request: types.DeployModelRequest):
        deployed = types.DeployedModel(request.deployed_model)
        resources = deployed.dedicated_resources
        with self._state.changed:
            endpoint = self._find(request.endpoint)
            model = self._models.version(deployed.model)
            if deployed.id and not re.fullmatch(r"[0-9]{1,10}", deployed.id):
                raise invalid(f"deployed_model.id {deployed.id!r} is not 1 to 10 digits")
            if not resources.machine_spec.machine_type:
                raise invalid("deployed_model.dedicated_resources.machine_spec.machine_type is missing")
            if resources.min_replica_count < 1:
                raise invalid(f"min_replica_count must be at least 1 and is {resources.min_replica_count}")
            split = dict(request.traffic_split)
            if split:
                self._check_split(split, {"0", *(each.id for each in endpoint.deployed_models)})

        def deploy():
            self._check_servable(model)
            if any(each.id == deployed.id for each in endpoint.deployed_models):
                raise Refused(Code.ALREADY_EXISTS, f"{deployed.id} is deployed to {endpoint.name} already")
            if self.machines is not None and sum(len(each.deployed_models) for each in self._endpoints.values()) >= self.machines:
                quota = "CustomModelServingCPUsPerProjectPerRegion"
                raise Refused(Code.RESOURCE_EXHAUSTED, f"The following quota metrics exceed quota limits: {quota}")
            deployed.id = deployed.id or str(names.new_number())
            deployed.model, deployed.model_version_id = model.name, model.version_id
            deployed.display_name = deployed.display_name or model.display_name
            deployed.create_time = self._state.clock.now()
            self._touch(endpoint)
            resources.max_replica_count = resources.max_replica_count or resources.min_replica_count
            endpoint.deployed_models.append(deployed)
            model.deployed_models.append({"endpoint": endpoint.name, "deployed_model_id": deployed.id})
            if split:
                self._set_split(endpoint, {(deployed.id if key == "0" else key): share for key, share in split.items()})
            return types.DeployModelResponse(deployed_model=deployed)

        return self._state.operations.start("DeployModel", request.endpoint, deploy)

    def undeploy_model(self, request: types.UndeployModelRequest):
        with self._state.changed:
            endpoint = self._find(request.endpoint)
            left = {each.id for each in endpoint.deployed_models} - {request.deployed_model_id}
            if len(left) == len(endpoint.deployed_models):
                raise Refused(Code.NOT_FOUND, f"{request.deployed_model_id} is not deployed to {endpoint.name}")
            split = dict(request.traffic_split) or dict(endpoint.traffic_split)
            if request.traffic_split:
                self._check_split(split, left)
            if left and split.get(request.deployed_model_id):
                share = split[request.deployed_model_id]
                raise untimely(f"{request.deployed_model_id} has {share} % of the traffic: give it to others first")

        def undeploy():
            [deployed] = [each for each in endpoint.deployed_models if each.id == request.deployed_model_id]
            endpoint.deployed_models = [each for each in endpoint.deployed_models if each.id in left]
            self._set_split(endpoint, {key: share for key, share in split.items() if key in left} if left else {})
            self._touch(endpoint)
            try:
                model = self._models.version(f"{deployed.model}@{deployed.model_version_id}")
            except Refused:
                model = None  # deleted by a test behind the fake's back
            if model:
                model.deployed_models = [each for each in model.deployed_models if each.deployed_model_id != deployed.id]
            if server := self._servers.pop((endpoint.name, deployed.id), None):
                server.stop()
            return types.UndeployModelResponse()

        return self._state.operations.start("UndeployModel", request.endpoint, undeploy)

    # --- PredictionService ---

    def predict(self, request: types.PredictRequest) -> types.PredictResponse:
        raw = types.PredictRequest.pb(request)
        body = {"instances": [json_format.MessageToDict(instance) for instance in raw.instances]}
        if raw.HasField("parameters"):
            body["parameters"] = json_format.MessageToDict(raw.parameters)
        deployed, status, content = self._ask(request.endpoint, "application/json", json.dumps(body).encode())
        if status != 200:
            raise invalid(content.decode(errors="replace"))
        answer = types.PredictResponse(
            deployed_model_id=deployed.id, model=deployed.model, model_version_id=deployed.model_version_id,
            model_display_name=deployed.display_name,
        )  # fmt: skip
        predictions = json_format.ParseDict(json.loads(content)["predictions"], struct_pb2.ListValue())
        types.PredictResponse.pb(answer).predictions.extend(predictions.values)
        return answer

    def raw_predict(self, request: types.RawPredictRequest) -> httpbody_pb2.HttpBody:
        body = request.http_body
        _, status, content = self._ask(request.endpoint, body.content_type or "application/json", body.data)
        if status != 200:
            raise invalid(content.decode(errors="replace"))
        return httpbody_pb2.HttpBody(content_type="application/json", data=content)

    def close(self) -> None:
        """Ends what answers."""
        with self._state.changed:
            servers = list(self._servers.values())
        for server in servers:
            server.stop()

    # --- Inside ---

    def _find(self, name: str) -> types.Endpoint:
        if name not in self._endpoints:
            raise Refused(Code.NOT_FOUND, f"The Endpoint {name!r} does not exist.")
        return self._endpoints[name]

    def _check_split(self, split: dict[str, int], known: set[str]) -> None:
        if unknown := set(split) - known:
            raise invalid(f"traffic_split names {', '.join(sorted(unknown))}, which is not deployed")
        if sum(split.values()) != 100 or min(split.values()) < 0:
            raise invalid(f"traffic_split must sum to 100 and is {split}")

    def _touch(self, endpoint: types.Endpoint) -> None:
        endpoint.update_time = self._state.clock.now()
        endpoint.etag = str(names.new_number())

    def _set_split(self, endpoint: types.Endpoint, split: dict[str, int]) -> None:
        endpoint.traffic_split = split
        self._asked.pop(endpoint.name, None)

    def _check_servable(self, model: types.Model) -> None:
        """Raises Refused if the model's server could not become ready."""
        if not self._containers.has(model.container_spec.image_uri):
            raise invalid(f"Failed to pull the image {model.container_spec.image_uri!r}: not found.")
        if is_prebuilt(model.container_spec.image_uri):
            if not self._state.has(f"{self._state.to_local(model.artifact_uri)}/saved_model.pb"):
                raise untimely(f"Model server never became ready: there is no {model.artifact_uri}/saved_model.pb")

    def _ask(self, name: str, kind: str, body: bytes) -> tuple[types.DeployedModel, int, bytes]:
        with self._state.changed:
            deployed = self._choose(self._find(name))
            self._answered[deployed.id] = self._answered.get(deployed.id, 0) + 1
            if deployed.id in self.failing and self._answered[deployed.id] % self.failing[deployed.id] == 0:
                raise Refused(Code.INTERNAL, "the fake was told so: the model server failed")
            key = name, deployed.id
            server = self._servers.get(key)
            if not server:
                model = self._models.version(f"{deployed.model}@{deployed.model_version_id}")
                server = self._servers[key] = _Server(self._state, self._containers, model, name, deployed.id)
        return (deployed, *server.ask(kind, body))

    def _choose(self, endpoint: types.Endpoint) -> types.DeployedModel:
        """The deployed model that is furthest behind its share of the traffic: the same each time."""
        split = {key: share for key, share in endpoint.traffic_split.items() if share}
        if not split:
            raise untimely(f"no model of {endpoint.name} has traffic")
        asked = self._asked.setdefault(endpoint.name, dict.fromkeys(split, 0))
        chosen = min(sorted(split), key=lambda key: (asked.get(key, 0) + 1) / split[key])
        asked[chosen] = asked.get(chosen, 0) + 1
        return next(each for each in endpoint.deployed_models if each.id == chosen)


class _Server:
    """The container of a deployed model, started when it is first asked."""

    def __init__(self, state: State, containers: Containers, model: types.Model, endpoint: str, deployed: str):
        self._state, self._containers, self._model = state, containers, model
        self._endpoint, self._deployed = names.last(endpoint), deployed
        self._lock = threading.Lock()
        self._container: Container | None = None
        self._port = 0

    def ask(self, kind: str, body: bytes) -> tuple[int, bytes]:
        """Status and content of the model's answer."""
        with self._lock:
            if self._container is None or self._container.status is not None:
                self._start()
        return self._http("POST", self._route("predict"), {"Content-Type": kind}, body)

    def stop(self) -> None:
        """Ends it."""
        if self._container:
            self._container.stop(_GRACE_SECONDS)

    def _route(self, kind: str) -> str:
        given = getattr(self._model.container_spec, f"{kind}_route")
        default = f"/v1/endpoints/{self._endpoint}/deployedModels/{self._deployed}"
        return given or default + (":predict" if kind == "predict" else "")

    def _start(self) -> None:
        spec = self._model.container_spec
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        environment = {each.name: each.value for each in spec.env}
        environment |= {
            "AIP_HTTP_PORT": str(self._port), "AIP_MODE": "PREDICTION",
            "AIP_HEALTH_ROUTE": self._route("health"), "AIP_PREDICT_ROUTE": self._route("predict"),
            "AIP_STORAGE_URI": self._state.to_local(self._model.artifact_uri),
            "AIP_ENDPOINT_ID": self._endpoint, "AIP_DEPLOYED_MODEL_ID": self._deployed,
        }  # fmt: skip
        log = self._state.folder / "endpoints" / self._endpoint / f"{self._deployed}.log"
        self._container = self._containers.start(spec.image_uri, list(spec.command), list(spec.args), environment, log)
        deadline = time.monotonic() + _READY_SECONDS
        while not self._is_healthy():
            if self._container.wait(0.02) is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:]
                raise Refused(Code.FAILED_PRECONDITION, f"Model server never became ready. Its log:\n{said}")

    def _is_healthy(self) -> bool:
        try:
            return self._http("GET", self._route("health"), {}, b"")[0] == 200
        except OSError:
            return False

    def _http(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PREDICT_SECONDS)
        try:
            connection.request(verb, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
