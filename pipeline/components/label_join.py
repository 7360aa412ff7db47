"""Writes what training, evaluation and tuning read, once the snapshot is accepted."""

import glob
import pathlib

from tfx.types import standard_artifacts
from tfx.v1.dsl.components import InputArtifact, OutputArtifact, Parameter, component

from pipeline.artifacts import GateReport, ImageShards
from pipeline.components import facts
from pipeline.components.image_sharder import generation_of
from pipeline.shards import label_join
from pipeline.validation import acceptance
from pipeline.validation.facts import read_classes


@component
def LabelJoin(
    verdict: InputArtifact[GateReport],
    examples: InputArtifact[standard_artifacts.Examples],
    shards: InputArtifact[ImageShards],
    schema: InputArtifact[standard_artifacts.Schema],
    tuning_share: Parameter[float],
    labels: OutputArtifact[standard_artifacts.Examples],
    eval_examples: OutputArtifact[standard_artifacts.Examples],
    tuning_examples: OutputArtifact[standard_artifacts.Examples],
):
    """Joins labels to image shards; see `pipeline.shards.label_join`.

    Args:
        verdict: The gate's; that it is an input keeps this step from a rejected snapshot.
        examples: Rows of the snapshot, a split each for train, val and eval.
        shards: The image shards.
        schema: Names the classes.
        tuning_share: Share of train and val that the tuning sample takes.
        labels: Label records, splits train and val: no pixels.
        eval_examples: Full examples, split eval.
        tuning_examples: Full examples of the stratified sample, splits train and val.
    """
    del verdict
    generation = generation_of(shards)
    classes = {name: index for index, name in enumerate(read_classes(f"{schema.uri}/schema.pbtxt"))}
    counts = {}
    for split in label_join.LABELLED_SPLITS:
        rows = label_join.read_rows(glob.glob(f"{examples.uri}/Split-{split}/*"))
        counts[split] = len(rows)
        label_join.write_label_records(_file(labels, split, "labels"), rows, generation, classes)
        sample = label_join.stratified_sample(rows, tuning_share)
        label_join.write_labelled_examples(_file(tuning_examples, split, "examples"), sample, generation, classes)
        counts[f"tuning_{split}"] = len(sample)
    rows = label_join.read_rows(glob.glob(f"{examples.uri}/Split-eval/*"))
    counts["eval"] = len(rows)
    label_join.write_labelled_examples(_file(eval_examples, "eval", "examples"), rows, generation, classes)

    labels.split_names = acceptance.encode_splits(list(label_join.LABELLED_SPLITS))
    tuning_examples.split_names = acceptance.encode_splits(list(label_join.LABELLED_SPLITS))
    eval_examples.split_names = acceptance.encode_splits(["eval"])
    facts.record(labels, {f"{split}_images": counts[split] for split in label_join.LABELLED_SPLITS})
    facts.record(eval_examples, {"eval_images": counts["eval"]})
    facts.record(tuning_examples, {f"{split}_images": counts[f"tuning_{split}"] for split in label_join.LABELLED_SPLITS})


def _file(artifact, split: str, name: str) -> pathlib.Path:
    return pathlib.Path(artifact.uri, f"Split-{split}", f"{name}-00000-of-00001.tfrecord")
