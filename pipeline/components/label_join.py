"""Writes what training, evaluation and tuning read, once the snapshot is accepted."""

import apache_beam as beam
from tfx.types import standard_artifacts
from tfx.v1.dsl.components import BeamComponentParameter, InputArtifact, OutputArtifact, Parameter, component

from pipeline import storage
from pipeline.artifacts import GateReport, ImageShards
from pipeline.components import facts
from pipeline.components.image_sharder import generation_of
from pipeline.lineage import digests
from pipeline.shards import label_join
from pipeline.validation import acceptance
from pipeline.validation.facts import read_classes


@component(use_beam=True)
def LabelJoin(
    verdict: InputArtifact[GateReport],
    examples: InputArtifact[standard_artifacts.Examples],
    shards: InputArtifact[ImageShards],
    schema: InputArtifact[standard_artifacts.Schema],
    tuning_share: Parameter[float],
    labels: OutputArtifact[standard_artifacts.Examples],
    eval_examples: OutputArtifact[standard_artifacts.Examples],
    tuning_examples: OutputArtifact[standard_artifacts.Examples],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
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
        beam_pipeline: What TFX runs it on.
    """
    del verdict
    images = label_join.run(
        beam_pipeline,
        rows={split: _files(storage.join(examples.uri, f"Split-{split}")) for split in label_join.SPLITS},
        generation=generation_of(shards),
        classes=read_classes(f"{schema.uri}/schema.pbtxt"),
        tuning_share=tuning_share,
        labels=labels.uri,
        eval_examples=eval_examples.uri,
        tuning_examples=tuning_examples.uri,
    )
    labels.split_names = acceptance.encode_splits(list(label_join.LABELLED_SPLITS))
    tuning_examples.split_names = acceptance.encode_splits(list(label_join.LABELLED_SPLITS))
    eval_examples.split_names = acceptance.encode_splits(["eval"])
    label_images = {f"{split}_images": images[split] for split in label_join.LABELLED_SPLITS}
    facts.record(labels, {**label_images, "sha256": digests.of_folder(labels.uri)})
    facts.record(eval_examples, {"eval_images": images["eval"]})
    tuning = {f"{split}_images": images[f"tuning_{split}"] for split in label_join.LABELLED_SPLITS}
    facts.record(tuning_examples, tuning)


def _files(folder: str) -> list[str]:
    return [storage.join(folder, name) for name in storage.names(folder) if not name.startswith(".")]
