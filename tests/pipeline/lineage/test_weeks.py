"""The weeks that tests of the audit write are those of the pipeline."""

import pathlib

from tests.pipeline.lineage.weeks import STEPS

GOLDEN = pathlib.Path(__file__).parents[1] / "vertex" / "golden" / "weekly.txt"
"""The compiled pipeline, which a test of its own keeps true."""


def test_every_step_of_the_pipeline_is_there_with_its_inputs():
    compiled: dict[str, dict[str, str]] = {}
    for line in GOLDEN.read_text().splitlines():
        if line and line[0].isupper():
            inputs = compiled.setdefault(line, {})
        elif line.startswith("  reads "):
            key, _, source = line.removeprefix("  reads ").partition(": ")
            inputs[key] = source
    # What only runs on Vertex have, and no step: Beam's options.
    del compiled["RunAlert"], compiled["Beam"]
    assert {step: inputs for step, (inputs, _) in STEPS.items()} == compiled


def test_a_step_comes_after_those_whose_outputs_it_reads():
    made = set()
    for step, (inputs, outputs) in STEPS.items():
        assert set(inputs.values()) <= made, step
        made |= {f"{step}.{key}" for key in outputs}
