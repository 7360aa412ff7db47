"""The predictions of an evaluation as arrays: what the Evaluator kept of each photograph (`pipeline.evaluation.extractors`)."""

import dataclasses
import io
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """What one model says of n photographs.

    Attributes:
        predicted: int [n]; index of the most probable class.
        p_true: float [n]; probability of the label.
        p_predicted: float [n]; probability of the most probable class.
        rank: int [n]; how many classes are more probable than the label.
    """

    predicted: np.ndarray
    p_true: np.ndarray
    p_predicted: np.ndarray
    rank: np.ndarray

    def at(self, rows: np.ndarray) -> "Answers":
        """Those of some photographs: a mask, bool [n]."""
        return Answers(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """The eval split, sorted by image id, with the answers of one or two models.

    Attributes:
        image_ids: str [n].
        sources: str [n]; where the label came from.
        labels: int [n]; index of the class.
        longer_sides: int [n]; pixels as packed.
        candidate: The candidate's answers.
        serving: Those of the model that serves, in the candidate's order of classes; None when nothing serves.
    """

    image_ids: np.ndarray
    sources: np.ndarray
    labels: np.ndarray
    longer_sides: np.ndarray
    candidate: Answers
    serving: Answers | None

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, rows: np.ndarray) -> "Predictions":
        """Those of some photographs: a mask, bool [n]."""
        columns = {name: getattr(self, name)[rows] for name in ("image_ids", "sources", "labels", "longer_sides")}
        return Predictions(**columns, candidate=self.candidate.at(rows), serving=self.serving and self.serving.at(rows))


def read(folder: str) -> Predictions:
    """Reads the predictions in the folder of an evaluation.

    Raises:
        OSError: They cannot be read.
        ValueError: There are none.
    """
    names = sorted(name for name in storage.names(folder) if name.startswith("predictions") and name.endswith(".parquet"))
    tables = [pq.read_table(io.BytesIO(storage.read(storage.join(folder, name)))) for name in names]
    if not any(table.num_rows for table in tables):
        raise ValueError(f"{folder} holds no prediction")
    # Beam's order is nobody's: sorted, the same predictions give the same bootstrap.
    table = pa.concat_tables(tables).sort_by("image_id")
    columns = {name: table.column(name) for name in table.schema.names}

    def answers(model: str) -> Answers:
        return Answers(**{field.name: columns[f"{model}_{field.name}"].to_numpy() for field in dataclasses.fields(Answers)})

    return Predictions(
        image_ids=np.array(columns["image_id"].to_pylist(), dtype=object),
        sources=np.array(columns["source"].to_pylist(), dtype=object),
        labels=columns["label_index"].to_numpy(),
        longer_sides=columns["longer_side"].to_numpy(),
        candidate=answers("candidate"),
        serving=None if columns["serving_predicted"].null_count else answers("serving"),
    )


def read_worst(folder: str) -> list[Mapping]:
    """The photographs that the candidate is most wrong about, the worst first: what `extractors` writes, `jpeg` in base64."""
    lines = storage.read(storage.join(folder, "worst.jsonl")).decode().splitlines()
    return [json.loads(line) for line in lines]
