"""The provenance of a model: an in-toto statement (v1) with the provenance predicate of SLSA (v1).

The push writes it beside the model, and `audit export` makes it again from the lineage: the same code, fed by the artifacts
of a step there and by those of a recorded run here, so the two have the same bytes.

    https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
    https://slsa.dev/spec/v1.0/provenance
"""

import datetime
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline import files, storage
from pipeline.errors import PipelineError
from pipeline.lineage import digests
from pipeline.lineage.base import Artifact, Run

NAMESPACE = "urn:x-image-classification-pipeline"
"""Begins the names that this pipeline gives to things of its own."""

BUILD_TYPE = f"{NAMESPACE}:weekly-retrain:1"
"""What the parameters of the statement mean; docs/audit.md says it. Another meaning needs another number."""

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

_SOURCES = {
    "manifest": ("pipeline.RunManifest", None),
    "snapshot": ("pipeline.LabelSnapshot", None),
    "shards": ("pipeline.ImageShards", None),
    "labels": ("Examples", "labels"),
    "gate": ("pipeline.GateReport", None),
    "model_run": ("ModelRun", None),
    "model_blessing": ("ModelBlessing", "verdict"),
}
"""Name of a source, as ReleasePusher has it -> type of the artifact, and the key under which a step put it out."""


def of_run(run: Run) -> dict[str, Artifact]:
    """The sources of a recorded run's statement by their names; what it did not reach is missing."""
    found = {name: run.output(kind, key) for name, (kind, key) in _SOURCES.items()}
    found["hyperparameters"] = run.output("HyperParameters", "best_hyperparameters") or run.output("HyperParameters")
    return {name: artifact for name, artifact in found.items() if artifact}


def build(sources: Mapping[str, Artifact], model: str, finished: str, started: str = "", pushed: bool = True) -> dict:
    """The statement.

    Args:
        sources: `manifest`, `snapshot`, `shards`, `labels`, `gate`, `hyperparameters`, `model_run`, `model_blessing`; one
            that a run has not is left out.
        model: Folder of the SavedModel.
        finished: When it was pushed, or a run that pushed nothing ended: ISO 8601 with its offset.
        started: When the run started, where the manifest is so old that it does not say.
        pushed: Whether the model was pushed.

    Returns:
        The statement, checked against the messages of in-toto and of SLSA.

    Raises:
        OSError: A file that belongs to it is not there or cannot be read.
        PipelineError: A record that belongs to it is no record.
    """
    facts = {name: _Facts(artifact) for name, artifact in sources.items()}
    manifest = facts["manifest"]
    training, training_digest = _record(sources.get("model_run"), "training.json")
    evaluation, evaluation_digest = _record(sources.get("model_blessing"), "evaluation.json")
    gate = facts.get("gate", _Facts())
    provenance = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": _without_nothing(
                {
                    "snapshot_date": manifest.text("snapshot_date"),
                    "settings": manifest.json("settings"),
                    "gate_override": gate.json("override"),
                }
            ),
            "internalParameters": _without_nothing(
                {
                    "hyperparameters": _hyperparameters(sources.get("hyperparameters")),
                    "seed": training.get("seed"),
                    "platform": manifest.text("platform"),
                    "launched_by": manifest.text("launched_by"),
                }
            ),
            "resolvedDependencies": _dependencies(facts, training),
        },
        "runDetails": {
            "builder": {
                "id": f"{NAMESPACE}:builder:{'container' if manifest.text('image') else 'machine'}",
                "version": _without_nothing(
                    {
                        "python": manifest.text("python"),
                        "tensorflow": (training.get("tensorflow") or {}).get("version"),
                        "lock": manifest.text("lock"),
                    }
                ),
            },
            "metadata": _without_nothing(
                {
                    "invocationId": manifest.text("run_id"),
                    "startedOn": _instant(manifest.text("started_at") or started),
                    "finishedOn": _instant(finished),
                }
            ),
            "byproducts": [
                *_byproduct("gate.json", gate.text("report_sha256"), **gate.verdict()),
                *_byproduct("training.json", training_digest, weights_sha256=training.get("weights_sha256")),
                *_byproduct("evaluation.json", evaluation_digest, **_judgement(evaluation)),
            ],
        },
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": _subjects(model, pushed),
        "predicateType": PREDICATE_TYPE,
        "predicate": provenance,
    }
    check(statement)
    return statement


def to_bytes(statement: dict) -> bytes:
    """The statement as a file has it: the same bytes for the same statement."""
    return files.to_json(statement).encode()


def check(statement: dict) -> None:
    """Holds a statement against the messages of in-toto and SLSA: names, types, what must be there.

    Raises:
        ValueError: It is none.
    """
    # Here: none of the audit's questions needs protobuf's JSON.
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement as in_toto
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

    try:
        message = json_format.ParseDict(statement, statement_pb2.Statement())
        provenance = json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance())
    except (json_format.ParseError, KeyError, TypeError) as error:
        raise ValueError(f"it is no statement of provenance: {error}") from error
    in_toto.Statement.copy_from_pb(message).validate()
    if message.predicate_type != PREDICATE_TYPE or not provenance.build_definition.build_type:
        raise ValueError(f"it is a statement of another kind, {message.predicate_type!r}")
    for each in [*provenance.build_definition.resolved_dependencies, *provenance.run_details.byproducts]:
        ResourceDescriptor.copy_from_pb(each).validate()


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two statements differ, as paths such as `predicate.runDetails.metadata.finishedOn`, in order."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [found for key in keys for found in differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [found for i, pair in enumerate(zip(one, other, strict=True)) for found in differences(*pair, f"{path}[{i}]")]
    return [] if one == other else [path]


class _Facts:
    """Facts of an artifact by name; empty where one was not recorded."""

    def __init__(self, artifact: Artifact | None = None):
        self._facts = artifact.facts if artifact else {}
        self.uri = artifact.uri if artifact else ""

    def text(self, name: str) -> str:
        return str(self._facts.get(name) or "")

    def whole(self, name: str) -> int | None:
        # Vertex gives whole numbers back as floats.
        value = self._facts.get(name)
        return None if value is None else int(value)

    def json(self, name: str):
        return json.loads(self.text(name)) if self.text(name) else None

    def verdict(self) -> dict:
        """What the gate said."""
        flags = {name: bool(self.whole(name)) for name in ("accepted", "bootstrap") if self.whole(name) is not None}
        return flags | {"verdict": self.text("verdict"), "failed_rules": self.json("failed")}


def _subjects(model: str, pushed: bool) -> list[dict]:
    found = digests.of_files(model)
    go = hashlib.sha256("".join(f"{digest}  {path}\n" for path, digest in found.items()).encode()).hexdigest()
    whole = {"sha256": digests.of_listing(found), "dirHash": go}
    return [
        {"name": "model", "digest": whole, "annotations": {"pushed": pushed}},
        *({"name": f"model/{path}", "digest": {"sha256": digest}} for path, digest in found.items()),
    ]


def _dependencies(facts: Mapping[str, _Facts], training: Mapping) -> list[dict]:
    nothing = _Facts()
    manifest, snapshot = facts["manifest"], facts.get("snapshot", nothing)
    shards, labels = facts.get("shards", nothing), facts.get("labels", nothing)
    commit, image = manifest.text("commit"), manifest.text("image")
    described = [
        _descriptor(
            snapshot.text("table"), uri=snapshot.text("table_uri"), digest={"sha256": snapshot.text("checksum")},
            rows=snapshot.whole("rows"), as_of=snapshot.text("as_of"), source=snapshot.text("source"),
        ),
        _descriptor(
            "image shards", uri=shards.text("folder"), digest={"sha256": shards.text("digest")},
            generation=shards.whole("number"), images=shards.whole("images"),
        ),
        _descriptor("label records", uri=labels.uri, digest={"sha256": labels.text("sha256")}),
        _descriptor(
            "source code", digest={"gitCommit": commit},
            tree=manifest.text("tree"), changes_sha256=manifest.text("changes_sha256"),
        ),
        _descriptor("container image", uri=image, digest={"sha256": image.partition("@sha256:")[2]}),
        _descriptor(manifest.text("lock"), digest={"sha256": manifest.text("lock_sha256")}),
        _descriptor("backbone weights", digest={"sha256": training.get("backbone_sha256")}),
    ]  # fmt: skip
    return [each for each in described if "digest" in each]


def _descriptor(name: str, uri: str = "", digest: Mapping[str, str | None] | None = None, **annotations) -> dict:
    """A resource descriptor of in-toto; without a digest where none is known."""
    known = {algorithm: value for algorithm, value in (digest or {}).items() if value}
    return _without_nothing({"name": name, "uri": uri, "digest": known, "annotations": _without_nothing(annotations)})


def _byproduct(name: str, digest: str, **annotations) -> list[dict]:
    return [_descriptor(name, digest={"sha256": digest}, **annotations)] if digest else []


def _judgement(evaluation: Mapping) -> dict:
    known = {name: evaluation.get(name) for name in ("blessed", "evaluated", "examples", "failures")}
    metrics = evaluation.get("metrics") or {}
    return known | {name: metrics.get(name) for name in ("accuracy", "log_loss")}


def _hyperparameters(artifact: Artifact | None):
    """Values that took the place of the settings' own."""
    if artifact is None:
        return None
    if artifact.facts.get("values"):
        return json.loads(artifact.facts["values"])
    names = storage.names(artifact.uri) if artifact.uri else []
    return _read(storage.join(artifact.uri, names[0]))[0].get("values") if names else None


def _record(artifact: Artifact | None, name: str) -> tuple[dict, str]:
    return _read(storage.join(artifact.uri, name)) if artifact else ({}, "")


def _read(uri: str) -> tuple[dict, str]:
    """Content and digest of a record."""
    content = storage.read(uri)
    try:
        record = json.loads(content)
        if not isinstance(record, dict):
            raise ValueError("it holds no record")
    except ValueError as error:
        raise PipelineError(f"{uri} is damaged: {error}; `audit verify` says what else is not as it was") from error
    return record, files.sha256(content)


def _without_nothing(known: dict) -> dict:
    return {name: value for name, value in known.items() if value not in (None, "", {})}


def _instant(text: str) -> str | None:
    """As SLSA wants an instant: UTC, to the second, with a Z."""
    if not text:
        return None
    return datetime.datetime.fromisoformat(text).astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
