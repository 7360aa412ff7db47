"""Facts survive on artifacts, however an orchestrator gives them back."""

import json
import pathlib

import pytest

import pipeline
from pipeline.artifacts import LabelSnapshot
from pipeline.components import facts

KNOWN = {"table": "labels_20260302", "rows": 152, "zero": 0, "negative": -1, "accuracy": 0.75, "released": True, "held": False}


@pytest.fixture
def artifact():
    artifact = LabelSnapshot()
    facts.record(artifact, KNOWN)
    return artifact


def test_facts_come_back(artifact):
    assert facts.text(artifact, "table") == "labels_20260302"
    assert [facts.number(artifact, name) for name in ("rows", "zero", "negative", "released", "held")] == [152, 0, -1, 1, 0]
    assert artifact.get_float_custom_property("accuracy") == 0.75


def test_facts_are_recorded_in_the_kind_that_machines_compare(artifact):
    kinds = {name: value.WhichOneof("value") for name, value in artifact.mlmd_artifact.custom_properties.items()}
    assert kinds["table"] == "string_value" and kinds["accuracy"] == "double_value"
    assert kinds["rows"] == kinds["released"] == "int_value"


def test_facts_come_back_from_vertex_which_knows_texts_and_floats_only():
    artifact = LabelSnapshot()
    for name, value in {"table": "007", "rows": 152.0, "bootstrap": 1.0, "held": 0.0, "accuracy": 0.75}.items():
        # As TFX's entrypoint for Vertex reads an artifact's metadata.
        artifact.mlmd_artifact.custom_properties[name].struct_value.update({"__value__": value})
    assert [facts.number(artifact, name) for name in ("rows", "bootstrap", "held")] == [152, 1, 0]
    assert isinstance(facts.number(artifact, "rows"), int)
    assert facts.text(artifact, "table") == "007" and artifact.get_float_custom_property("accuracy") == 0.75


def test_a_whole_number_that_was_recorded_as_a_float_is_whole():
    artifact = LabelSnapshot()
    artifact.set_float_custom_property("rows", 152.0)
    assert facts.number(artifact, "rows") == 152 and isinstance(facts.number(artifact, "rows"), int)


def test_what_was_never_recorded_is_nothing():
    assert facts.text(LabelSnapshot(), "table") == "" and facts.number(LabelSnapshot(), "rows") == 0


def test_any_other_value_is_its_text():
    artifact = LabelSnapshot()
    facts.record(artifact, {"number": "007", "path": pathlib.Path("a", "b")})
    assert facts.text(artifact, "number") == "007" and facts.text(artifact, "path") == "a/b"


def test_a_long_text_is_kept_whole():
    artifact, text = LabelSnapshot(), json.dumps({"é☃": list(range(20_000))})
    facts.record(artifact, {"settings": text})
    assert facts.text(artifact, "settings") == text


def test_our_types_are_found_by_the_name_that_stands_in_the_lineage():
    for name in ("GateReport", "ImageShards", "LabelSnapshot", "RunManifest", "ServingRelease"):
        kind = getattr(pipeline, name)
        assert kind.TYPE_NAME == f"pipeline.{name}" and name in dir(pipeline)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        pipeline.Nothing  # noqa: B018
