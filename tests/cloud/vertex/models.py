"""The model registry: models, their versions, and the aliases that move between them."""

import re

from google.cloud.aiplatform_v1 import types

from tests.cloud.vertex import listing, names
from tests.cloud.vertex.metadata import merge
from tests.cloud.vertex.refusals import Code, Refused, invalid, unsupported, untimely
from tests.cloud.vertex.state import State

_DEFAULT = "default"
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")


class Models:
    """The calls of ModelService that are about models.

    Args:
        state: What the fake shares.
    """

    def __init__(self, state: State):
        self._state = state
        self._models: dict[str, dict[str, types.Model]] = {}

    def version(self, name: str) -> types.Model:
        """The version that a name means, `.../models/ID@VERSION` or `@ALIAS`; without either the default one.

        Raises:
            Refused: There is none.
        """
        base, _, wanted = name.partition("@")
        versions = self._models.get(base, {})
        for model in versions.values():
            if model.version_id == wanted or (wanted or _DEFAULT) in model.version_aliases:
                return model
        raise Refused(Code.NOT_FOUND, f"The Model {name!r} does not exist.")

    # --- ModelService ---

    def upload_model(self, request: types.UploadModelRequest):
        model = types.Model(request.model)
        names.check_display_name(model.display_name)
        names.check_labels(model.labels)
        if not model.container_spec.image_uri:
            raise invalid("model.container_spec.image_uri is missing")
        if model.artifact_uri:
            names.check_folder(model.artifact_uri, "model.artifact_uri")
        if request.model_id and not re.fullmatch(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", request.model_id):
            raise invalid(f"model_id {request.model_id!r} is not lower-case letters, digits, _ and -, at most 63")
        if request.parent_model and request.model_id:
            raise invalid("parent_model and model_id exclude each other")
        self._check_aliases(model.version_aliases)

        def upload():
            name = request.parent_model or f"{request.parent}/models/{request.model_id or names.new_number()}"
            if request.parent_model and name not in self._models:
                raise Refused(Code.NOT_FOUND, f"The Model {name!r} does not exist.")
            if not request.parent_model and name in self._models:
                raise Refused(Code.ALREADY_EXISTS, f"The Model {name!r} exists: upload a version of it with parent_model")
            versions = self._models.setdefault(name, {})
            model.name, model.version_id = name, str(max(map(int, versions), default=0) + 1)
            aliases = set(model.version_aliases) | (set() if versions else {_DEFAULT})
            model.version_aliases = []
            now = self._state.clock.now()
            model.create_time = next(iter(versions.values())).create_time if versions else now
            model.update_time = model.version_create_time = model.version_update_time = now
            model.supported_deployment_resources_types = [types.Model.DeploymentResourcesType.DEDICATED_RESOURCES]
            versions[model.version_id] = model
            self._move(model, aliases)
            return types.UploadModelResponse(model=name, model_version_id=model.version_id)

        return self._state.operations.start("UploadModel", request.parent_model or request.parent, upload)

    def get_model(self, request: types.GetModelRequest) -> types.Model:
        with self._state.changed:
            return types.Model(self.version(request.name))

    def list_models(self, request: types.ListModelsRequest) -> types.ListModelsResponse:
        with self._state.changed:
            models = [types.Model(self.version(name)) for name in self._models if name.startswith(f"{request.parent}/")]
            found, token = listing.page(models, request, derived={"model": lambda model: names.last(model.name)})
            return types.ListModelsResponse(models=found, next_page_token=token)

    def list_model_versions(self, request: types.ListModelVersionsRequest) -> types.ListModelVersionsResponse:
        with self._state.changed:
            self.version(request.name)
            models = [types.Model(model) for model in self._models[request.name.partition("@")[0]].values()]
            found, token = listing.page(models, request)
            return types.ListModelVersionsResponse(models=found, next_page_token=token)

    def update_model(self, request: types.UpdateModelRequest) -> types.Model:
        for path in request.update_mask.paths:
            if path.split(".")[0] not in ("display_name", "description", "version_description", "labels"):
                raise invalid(f"update_mask: {path} of a Model cannot be changed")
        names.check_labels(request.model.labels)
        with self._state.changed:
            model = self.version(request.model.name)
            changed = types.Model(request.model)
            changed.name = model.name
            merge(changed, model, request.update_mask)
            model.update_time = model.version_update_time = self._state.clock.now()
            return types.Model(model)

    def merge_version_aliases(self, request: types.MergeVersionAliasesRequest) -> types.Model:
        if "@" not in request.name:
            raise invalid(f"name must be that of a version, MODEL@VERSION, and is {request.name!r}")
        self._check_aliases(alias.removeprefix("-") for alias in request.version_aliases)
        with self._state.changed:
            model = self.version(request.name)
            removed = {alias[1:] for alias in request.version_aliases if alias.startswith("-")}
            if _DEFAULT in removed:
                raise invalid("the alias default can be moved to another version, not removed")
            model.version_aliases = [alias for alias in model.version_aliases if alias not in removed]
            self._move(model, {alias for alias in request.version_aliases if not alias.startswith("-")})
            model.version_update_time = self._state.clock.now()
            return types.Model(model)

    def delete_model(self, request: types.DeleteModelRequest):
        with self._state.changed:
            self.version(request.name)
            for model in self._models[request.name].values():
                _check_undeployed(model)
            return self._state.operations.start(
                "DeleteModel", request.name, lambda: self._models.pop(request.name, None) and None
            )

    def delete_model_version(self, request: types.DeleteModelVersionRequest):
        with self._state.changed:
            model = self.version(request.name)
            if "@" not in request.name or _DEFAULT in model.version_aliases:
                raise untimely(f"{request.name} is the default version: move the alias first, or delete the model")
            _check_undeployed(model)
            return self._state.operations.start(
                "DeleteModelVersion", model.name, lambda: self._models[model.name].pop(model.version_id, None) and None
            )

    def export_model(self, request):
        raise unsupported("export of models")

    # --- Inside ---

    def _check_aliases(self, aliases) -> None:
        for alias in aliases:
            if not _ALIAS.fullmatch(alias):
                raise invalid(f"version alias {alias!r} does not match {_ALIAS.pattern}")

    def _move(self, model: types.Model, aliases: set[str]) -> None:
        """Gives a version aliases, and takes them from the others."""
        for other in self._models[model.name].values():
            if other is not model:
                other.version_aliases = [alias for alias in other.version_aliases if alias not in aliases]
        model.version_aliases = sorted(set(model.version_aliases) | aliases)


def _check_undeployed(model: types.Model) -> None:
    if model.deployed_models:
        where = ", ".join(sorted({each.endpoint for each in model.deployed_models}))
        raise untimely(f"version {model.version_id} of {model.name} is deployed to {where}: undeploy it first")
