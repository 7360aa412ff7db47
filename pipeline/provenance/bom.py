"""The bill of materials of a model: CycloneDX 1.6, a machine-learning model with its card, its data sets and its packages.

The library writes packages and digests; it knows no model cards and no data sets yet, so these are added to its JSON. The
whole is held against CycloneDX's own schema, strictly, without a network.
"""

import json
import uuid
from collections.abc import Mapping, Sequence

from pipeline import files
from pipeline.errors import PipelineError
from pipeline.lineage.facts import RunFacts
from pipeline.provenance.packages import Package
from pipeline.provenance.statement import NAMESPACE

MODEL, LABELS, SHARDS, BACKBONE = "model", "label-snapshot", "image-shards", "backbone"
"""References to the model and to what it was made of."""


def build(facts: RunFacts, statement: Mapping, evaluation: Mapping, packages: Sequence[Package]) -> dict:
    """The bill of materials.

    Args:
        facts: The run's facts.
        statement: Its provenance statement; the digests of the model's files come from it.
        evaluation: The record of its evaluation, `evaluation.json`; empty when there is none.
        packages: Its locked packages.

    Returns:
        CycloneDX 1.6 as plain data, checked.

    Raises:
        PipelineError: It is not what the schema asks for.
    """
    content = json.loads(_of_packages(facts, statement, packages))
    model = content["metadata"]["component"]
    model["modelCard"] = _card(facts, evaluation)
    content["components"] = [*_data(facts), *content.get("components", ())]
    content["dependencies"] = [
        {"ref": MODEL, "dependsOn": [each["bom-ref"] for each in content["components"]]},
        *({"ref": each["bom-ref"]} for each in content["components"]),
    ]
    check(content)
    return content


def to_bytes(content: dict) -> bytes:
    """The bill of materials as a file has it: the same bytes for the same content."""
    return files.to_json(content).encode()


def check(content: dict) -> None:
    """Holds a bill of materials against CycloneDX's schema.

    Raises:
        PipelineError: It breaks it; the text names where.
    """
    # Here: reading the grammar of addresses alone takes it seconds.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    broken = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(content))
    if broken:
        raise PipelineError(
            f"the bill of materials would not be CycloneDX 1.6: {broken.data.json_path}: {broken.data.message[:300]}. "
            "Nothing was written; a fact of the run is not of the kind that the schema allows"
        )


def _of_packages(facts: RunFacts, statement: Mapping, packages: Sequence[Package]) -> str:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    def sha256(digest: str) -> HashType:
        return HashType(alg=HashAlgorithm.SHA_256, content=digest)

    whole = statement["subject"][0]["digest"]["sha256"]
    known = {
        "run": facts.run_id, "git.commit": facts.commit, "git.tree": facts.tree, "image": facts.image, "lock": facts.lock,
        "lock.sha256": facts.lock_sha256, "weights.sha256": facts.release and facts.release.weights_sha256,
    }  # fmt: skip
    model = Component(
        name=str((facts.settings or {}).get("name") or "model"),
        version=facts.run_id,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=MODEL,
        description="SavedModel; the digest is that of its folder, as `audit verify` computes it",
        hashes=[sha256(whole)],
        properties=[Property(name=f"{NAMESPACE}:{name}", value=value) for name, value in known.items() if value],
    )
    libraries = [
        Component(
            name=package.name,
            version=package.version,
            type=ComponentType.LIBRARY,
            bom_ref=f"pypi:{package.name}@{package.version}",
            purl=PackageURL("pypi", None, package.name, package.version),
            hashes=[sha256(digest) for digest in package.sha256],
        )
        for package in packages
    ]
    bom = Bom(
        components=libraries,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{NAMESPACE}:{facts.run_id}:{whole}"),
        metadata=BomMetaData(component=model, timestamp=_instant(statement)),
    )
    bom.register_dependency(model, libraries)  # without it the library warns that the graph is incomplete
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()


def _instant(statement: Mapping):
    import datetime

    return datetime.datetime.fromisoformat(statement["predicate"]["runDetails"]["metadata"]["finishedOn"])


def _data(facts: RunFacts) -> list[dict]:
    """The data sets and the backbone as components."""
    found = []
    if facts.snapshot:
        about = f"labels, dated {facts.snapshot_date}: {facts.rows} rows before {facts.as_of}"
        found.append(_dataset(LABELS, facts.snapshot, facts.checksum, facts.snapshot_uri, about))
    if facts.shards:
        about = f"photographs: {facts.shards.images}; {facts.shards.quarantined} files that could not be used were left out"
        name = f"image shards, generation {facts.shards.number}"
        found.append(_dataset(SHARDS, name, facts.shards.digest, facts.shards.folder, about))
    backbone = (facts.training or {}).get("backbone_sha256")
    if backbone:
        hashes = [{"alg": "SHA-256", "content": backbone}]
        found.append({"bom-ref": BACKBONE, "type": "machine-learning-model", "name": "backbone checkpoint", "hashes": hashes})
    return found


def _dataset(ref: str, name: str, digest: str | None, uri: str | None, about: str) -> dict:
    # A place such as duckdb:/a/b#c is no address that a browser opens, so it is a property and no url.
    places = [{"name": f"{NAMESPACE}:place", "value": uri}] if uri else []
    data = {"type": "dataset", "name": name, "description": about} | ({"contents": {"properties": places}} if places else {})
    hashes = {"hashes": [{"alg": "SHA-256", "content": digest}]} if digest else {}
    return {"bom-ref": ref, "type": "data", "name": name, "data": [data], **hashes}


def _card(facts: RunFacts, evaluation: Mapping) -> dict:
    refs = [LABELS] * bool(facts.snapshot) + [SHARDS] * bool(facts.shards)
    network = (facts.settings or {}).get("network")
    parameters = {
        "approach": {"type": "supervised"},
        "task": "image classification",
        "architectureFamily": "residual convolutional network",
        "datasets": [{"ref": ref} for ref in refs],
        "inputs": [{"format": "JPEG photograph"}],
        "outputs": [{"format": "probability of each class"}],
    }
    if network:
        parameters["modelArchitecture"] = json.dumps(network, sort_keys=True)
    values = {"hyperparameters": facts.hyperparameters, "training": (facts.training or {}).get("training")}
    return {
        "modelParameters": parameters,
        "quantitativeAnalysis": {"performanceMetrics": _metrics(facts, evaluation)},
        "considerations": _considerations(facts, evaluation),
        "properties": [
            {"name": f"{NAMESPACE}:{name}", "value": json.dumps(value, sort_keys=True, ensure_ascii=False)}
            for name, value in values.items()
            if value
        ],
    }


def _metrics(facts: RunFacts, evaluation: Mapping) -> list[dict]:
    """Every figure of the whole eval split, and the accuracy of each slice."""
    judged = facts.evaluation
    overall = evaluation.get("metrics") or ({"accuracy": judged.accuracy, "log_loss": judged.log_loss} if judged else {})
    slices = evaluation.get("slices") or [
        {"kind": "label", "name": name, "accuracy": accuracy}
        for name, (accuracy, _) in ((judged and judged.by_class) or {}).items()
    ]
    found = [{"type": name, "value": repr(value)} for name, value in overall.items() if value is not None]
    return found + [
        {"type": "accuracy", "value": repr(each["accuracy"]), "slice": f"{each['kind']}: {each['name']}"}
        for each in slices
        if each["accuracy"] is not None
    ]


def _considerations(facts: RunFacts, evaluation: Mapping) -> dict:
    """What the run knows of the model's limits, and what nobody looked into."""
    judged = facts.evaluation
    limits = ["It names one of the classes of its labels for every photograph, whatever the photograph shows."]
    if judged and judged.examples:
        limits.append(
            f"Its figures come from {judged.examples} photographs of the same snapshot that trained it, of other products; of "
            "photographs that are made otherwise nothing is known."
        )
        if judged.weakest_class:
            limits.append(f"Its weakest class is {judged.weakest_class}, with an accuracy of {judged.weakest_accuracy:.3f}.")
    else:
        limits.append("It was not evaluated.")
    limits += [f"It did not reach what is asked of a release: {failure}" for failure in (judged.failures if judged else ())]
    limits += [str(note) for note in evaluation.get("notes") or ()]
    if facts.gate and facts.gate.override:
        limits.append(f"A person let its labels pass although rules failed: {', '.join(facts.gate.failed or ())}.")
    return {
        "useCases": ["Naming what a product photograph shows, within the pipeline that retrains it every week."],
        "technicalLimitations": limits,
        "ethicalConsiderations": [{"name": "Fairness towards groups of people was not assessed."}],
    }
