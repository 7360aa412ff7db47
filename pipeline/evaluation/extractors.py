"""What the Evaluator adds to TFMA: batches bounded by bytes, and every prediction kept.

One pass over the eval split serves both: TFMA's own metrics, and the comparison photograph by photograph that they cannot
make. What is kept of a prediction is a few numbers, so a million photographs fit into memory; of the worst, the pixels too.

    predictions-*.parquet    one row a photograph, `SCHEMA`
    worst.jsonl              the photographs that the candidate is most wrong about
"""

import base64
import contextlib
import contextvars
import dataclasses
import json
from collections.abc import Iterator

import apache_beam as beam
import numpy as np
import pyarrow as pa
import tensorflow as tf
from absl import flags
from apache_beam.io.parquetio import WriteToParquetBatched
# Not from TFMA's top level, which holds other names in other versions.
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.api import model_eval_lib
from tensorflow_model_analysis.extractors import extractor

from pipeline import storage

_ANSWER = (("predicted", pa.int32()), ("p_true", pa.float32()), ("p_predicted", pa.float32()), ("rank", pa.int32()))

SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("source", pa.string()),
        ("label_index", pa.int32()),
        ("longer_side", pa.int32()),
        # predicted: index of the most probable class; p_true: probability of the label; p_predicted: of that class; rank: how
        # many classes are more probable than the label. `serving_` is null where nothing serves.
        *((f"{model}_{name}", kind) for model in ("candidate", "serving") for name, kind in _ANSWER),
    ]
)

PREDICTIONS, WORST = "predictions", "worst.jsonl"

WORST_SHOWN = 12
"""How many photographs `worst.jsonl` has at most."""


@dataclasses.dataclass(frozen=True)
class Tap:
    """Where predictions go, and how large a batch may be.

    Attributes:
        folder: The folder of the evaluation.
        batch_size: Photographs a batch.
        max_batch_bytes: Bytes of a batch's records.
    """

    folder: str
    batch_size: int
    max_batch_bytes: int


_BY_BYTES = "tfxio_use_byte_size_batching"

# TFX finds `custom_extractors` by its name and hands it no settings.
_tap: contextvars.ContextVar[Tap] = contextvars.ContextVar("tap")


@contextlib.contextmanager
def tapped(tap: Tap) -> Iterator[str]:
    """Gives the name by which TFX's Evaluator finds `custom_extractors`, which does as `tap` says inside the block."""
    token = _tap.set(tap)
    try:
        with _read_by_bytes():
            yield "pipeline.evaluation.tfx_hook.custom_extractors"
    finally:
        _tap.reset(token)


@contextlib.contextmanager
def _read_by_bytes() -> Iterator[None]:
    """Bounds what a source reads at once by bytes, and not by 1,000 records, however large. Not every tfx_bsl can."""
    if _BY_BYTES not in flags.FLAGS:
        yield
        return
    before = flags.FLAGS[_BY_BYTES].default
    flags.FLAGS.set_default(_BY_BYTES, True)
    try:
        yield
    finally:
        flags.FLAGS.set_default(_BY_BYTES, before)


def custom_extractors(eval_shared_model, eval_config, tensor_adapter_config):
    """TFMA's extractors, with smaller batches before the models and a tap behind them."""
    tap = _tap.get()
    extractors = model_eval_lib.default_extractors(
        eval_shared_model=eval_shared_model, eval_config=eval_config, tensor_adapter_config=tensor_adapter_config
    )
    names = [each.stage_name for each in extractors]
    behind = names.index("ExtractPredictions") + 1
    split = extractor.Extractor("SplitBatches", _SplitBatches(tap))
    keep = extractor.Extractor("KeepPredictions", _KeepPredictions(tap))
    return [split, *extractors[:behind], keep, *extractors[behind:]]


def parts(sizes: np.ndarray, most: int, most_bytes: int) -> list[tuple[int, int]]:
    """Divides rows into batches, in order.

    >>> parts(np.array([4, 4, 4, 9, 1]), most=2, most_bytes=8)
    [(0, 2), (2, 3), (3, 4), (4, 5)]

    Args:
        sizes: int [n]; bytes of each row.
        most: Rows of a batch.
        most_bytes: Bytes of a batch; a row that alone has more is a batch of its own.

    Returns:
        Begin and end of each batch.
    """
    found, begin, held = [], 0, 0
    for position, size in enumerate(sizes):
        if position > begin and (position - begin == most or held + size > most_bytes):
            found.append((begin, position))
            begin, held = position, 0
        held += int(size)
    return [*found, (begin, len(sizes))] if len(sizes) else []


class _SplitBatches(beam.PTransform):
    def __init__(self, tap: Tap):
        super().__init__()
        self._tap = tap

    def expand(self, extracts):
        return extracts | beam.FlatMap(_split, self._tap.batch_size, self._tap.max_batch_bytes)


def _split(extracts, most, most_bytes):
    batch = extracts[constants.ARROW_RECORD_BATCH_KEY]
    sizes = np.array([len(record[0]) for record in _records(batch)])
    for begin, end in parts(sizes, most, most_bytes):
        yield {**extracts, constants.ARROW_RECORD_BATCH_KEY: batch.slice(begin, end - begin)}


def _records(batch):
    return batch.column(batch.schema.get_field_index(constants.ARROW_INPUT_COLUMN)).to_pylist()


class _KeepPredictions(beam.PTransform):
    def __init__(self, tap: Tap):
        super().__init__()
        self._folder = tap.folder

    def expand(self, extracts):
        kept = extracts | "Answers" >> beam.Map(_kept)
        _ = (
            kept
            | "Rows" >> beam.Map(lambda pair: pair[0])
            | "WriteRows" >> WriteToParquetBatched(storage.join(self._folder, PREDICTIONS), SCHEMA, file_name_suffix=".parquet")
        )
        _ = (
            kept
            | "Wrong" >> beam.FlatMap(lambda pair: pair[1])
            | "Worst" >> beam.combiners.Top.Of(WORST_SHOWN, key=lambda wrong: (-wrong["p_true"], wrong["image_id"]))
            | "Lines" >> beam.FlatMap(lambda worst: [json.dumps(wrong, sort_keys=True) for wrong in worst])
            | "WriteWorst" >> beam.io.WriteToText(storage.join(self._folder, WORST), shard_name_template="")
        )
        return extracts


def _kept(extracts) -> tuple[pa.Table, list[dict]]:
    """Rows of a batch, and of those that the candidate is wrong about the worst."""
    examples = [tf.train.Example.FromString(record).features.feature for record in extracts[constants.INPUT_KEY]]
    texts = {
        name: [feature[name].bytes_list.value[0].decode(errors="replace") for feature in examples]
        for name in ("image_id", "source")
    }
    labels = np.array([feature["label_index"].int64_list.value[0] for feature in examples])
    sides = [
        max(feature[name].int64_list.value[0] for name in ("image/width", "image/height")) for feature in examples
    ]
    candidate, serving = _probabilities(extracts[constants.PREDICTIONS_KEY])
    rows = {**texts, "label_index": labels, "longer_side": sides}
    rows |= {f"candidate_{name}": values for name, values in answers(candidate, labels).items()}
    empty = dict.fromkeys((name for name, _ in _ANSWER), [None] * len(labels))
    rows |= {f"serving_{name}": values for name, values in (empty if serving is None else answers(serving, labels)).items()}
    table = pa.Table.from_arrays([pa.array(rows[field.name], field.type) for field in SCHEMA], schema=SCHEMA)
    wrong = np.flatnonzero(rows["candidate_predicted"] != labels)
    worst = sorted(wrong, key=lambda position: rows["candidate_p_true"][position])[:WORST_SHOWN]
    return table, [
        {
            "image_id": texts["image_id"][position],
            "label_index": int(labels[position]),
            "predicted": int(rows["candidate_predicted"][position]),
            "p_true": float(rows["candidate_p_true"][position]),
            "p_predicted": float(rows["candidate_p_predicted"][position]),
            "jpeg": base64.b64encode(examples[position]["image/encoded"].bytes_list.value[0]).decode(),
        }
        for position in worst
    ]


def _probabilities(predictions):
    """float [n, classes] of the candidate and of the serving model, or None."""
    if isinstance(predictions, dict) and constants.BASELINE_KEY in predictions:
        return _array(predictions[constants.CANDIDATE_KEY]), _array(predictions[constants.BASELINE_KEY])
    return _array(predictions), None


def _array(value) -> np.ndarray:
    return np.asarray(value["probabilities"] if isinstance(value, dict) else value)


def answers(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """What is kept of probabilities, float [n, classes], given the labels, int [n]: the columns of `SCHEMA`, each [n]."""
    if not len(labels):
        return {name: np.zeros(0) for name, _ in _ANSWER}
    positions = np.arange(len(labels))
    own = probabilities[positions, labels]
    # Of equals, the first counts as the more probable, as argmax has it.
    before = (probabilities == own[:, None]) & (np.arange(probabilities.shape[1]) < labels[:, None])
    predicted = probabilities.argmax(axis=1)
    return {
        "predicted": predicted,
        "p_true": own,
        "p_predicted": probabilities[positions, predicted],
        "rank": ((probabilities > own[:, None]) | before).sum(axis=1),
    }
