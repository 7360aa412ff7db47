"""Asks the model that serves about photographs that were sent, and measures them as the sharder would store them."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pipeline import predict
from pipeline.errors import PipelineError
from pipeline.evaluation.metrics import BINS
from pipeline.served.requests import Photograph
from pipeline.served.rules import SIZES, Predictions, Unusable, bin_names, described, shown
from pipeline.settings import ShardSettings
from pipeline.shards import photographs
from pipeline.validation.text import printable

# A batch: photographs, and bytes of their files. One that alone has more is a batch of its own.
_BATCH, _BATCH_BYTES = 32, 8 * 2**20

# Kinds of reasons that are counted one by one: an error may have a number in it.
_REASONS = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """What came of a sample.

    Attributes:
        predictions: What the model says of those that it answered.
        sizes: Feature of `SIZES` -> int [n], of the same ones.
        unusable: The others.
    """

    predictions: Predictions
    sizes: Mapping[str, np.ndarray]
    unusable: Unusable


def ask(model: str, sample: Iterable[Photograph], shards: ShardSettings, classes: Sequence[str]) -> Observed:
    """Asks a model, a few photographs at a time.

    Args:
        model: Folder of the SavedModel.
        sample: The photographs; they are read as they are needed.
        shards: How the snapshot's photographs were packed.
        classes: The classes that the model must know, in the order of its probabilities.

    Raises:
        PipelineError: The model does not load, or knows other classes.
    """
    tf, serve = predict.load(model)
    labels, bins, sizes = collections.Counter(), np.zeros(BINS, int), {name: [] for name in SIZES}
    reasons, examples = collections.Counter(), []

    def refuse(photograph: Photograph, reason: str) -> None:
        known = reason in reasons or len(reasons) < _REASONS
        reasons[reason if known else "other reasons"] += 1
        if len(examples) < 100:
            examples.append(described(photograph.name, reason))

    for batch in batches(sample, refuse):
        for photograph, answer in zip(batch, _answers(tf, serve, batch), strict=True):
            if isinstance(answer, str):
                refuse(photograph, answer)
                continue
            if answer.classes != tuple(classes):
                raise PipelineError(
                    f"the model that serves, {model}, knows the classes {_listed(answer.classes)}, and the report of its "
                    f"release has {_listed(classes)}: one of them is not what was released. Restore both from a backup"
                )
            size = _size(photograph, shards)
            if isinstance(size, str):
                refuse(photograph, f"answered, but no shard would take it: {size}")
                continue
            labels[answer.label] += 1
            bins[min(int(answer.probability * BINS), BINS - 1)] += 1
            for name, value in zip(SIZES, size, strict=True):
                sizes[name].append(value)
    return Observed(
        Predictions({name: labels[name] for name in classes}, dict(zip(bin_names(BINS), bins.tolist(), strict=True))),
        {name: np.array(values, int) for name, values in sizes.items()},
        Unusable(dict(reasons.most_common()), shown(examples)),
    )


def _listed(classes: Sequence[str]) -> str:
    return printable(", ".join(classes))


def batches(sample: Iterable[Photograph], refuse) -> Iterator[list[Photograph]]:
    """Divides photographs into batches of bounded bytes; hands those with a problem to `refuse`, with the problem."""
    batch, held = [], 0
    for photograph in sample:
        problem = photograph.problem or ("" if photograph.content else "the file is empty")
        if problem:
            refuse(photograph, problem)
            continue
        if batch and (len(batch) == _BATCH or held + len(photograph.content) > _BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(photograph)
        held += len(photograph.content)
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True)
class _Answer:
    label: str
    probability: float
    classes: tuple[str, ...]


def _answers(tf, serve, batch: Sequence[Photograph]) -> list[_Answer | str]:
    """One answer a photograph, or why there is none. What the model refuses makes it refuse the batch: then one by one."""
    try:
        outputs = serve(bytes_inputs=tf.constant([photograph.content for photograph in batch]))
    except tf.errors.InvalidArgumentError as error:
        if len(batch) > 1:
            return list(itertools.chain.from_iterable(_answers(tf, serve, [photograph]) for photograph in batch))
        return ["it has too many pixels"] if "too many pixels" in str(error) else [predict.NO_JPEG]
    columns = (outputs[name].numpy().tolist() for name in ("label", "probability", "classes"))
    return [
        _Answer(label.decode(), probability, tuple(name.decode() for name in classes))
        for label, probability, classes in zip(*columns, strict=True)
    ]


def _size(photograph: Photograph, shards: ShardSettings) -> tuple[int, int, int] | str:
    """Width, height and bytes as a shard would store it, or why none would. Small ones count: they are drift, not damage."""
    packed = photographs.pack(photograph.name, photograph.content, dataclasses.replace(shards, min_side=1))
    if isinstance(packed, photographs.Quarantined):
        return packed.reason
    return packed.width, packed.height, len(packed.encoded)
