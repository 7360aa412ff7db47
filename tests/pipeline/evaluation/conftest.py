"""Predictions made by hand, and thresholds that they are judged by."""

import numpy as np
import pytest

from pipeline import typed
from pipeline.evaluation.predictions import Answers, Predictions
from pipeline.evaluation.thresholds import Thresholds

CLASSES = ("cup", "hat", "pen", "toy")


def answers(probabilities, labels) -> Answers:
    """What is kept of probabilities, float [n, classes]; written anew, in plain Python."""
    rows = []
    for row, label in zip(np.asarray(probabilities, float).tolist(), labels, strict=True):
        order = sorted(range(len(row)), key=lambda place: (-row[place], place))
        rows.append((order[0], row[label], row[order[0]], order.index(label)))
    return Answers(*(np.array(column) for column in zip(*rows, strict=True)))


def certain(predicted, labels, probability=0.7) -> Answers:
    """A model that gives each photograph's class `probability`, and the other classes what is left."""
    rest = (1 - probability) / (len(CLASSES) - 1)
    rows = [[probability if place == index else rest for place in range(len(CLASSES))] for index in predicted]
    return answers(rows, labels)


def split(labels, candidate, serving=None, sources=None, sides=None) -> Predictions:
    """A split whose photographs are named p000, p001 and so on."""
    labels = np.asarray(labels)
    return Predictions(
        image_ids=np.array([f"p{number:03d}" for number in range(len(labels))], dtype=object),
        sources=np.array(sources or ["import"] * len(labels), dtype=object),
        labels=labels,
        longer_sides=np.array(sides or [120] * len(labels)),
        candidate=certain(candidate, labels),
        serving=None if serving is None else certain(serving, labels),
    )


@pytest.fixture
def thresholds():
    """Thresholds that hardly anything misses, changed by the test: `slices__label__min_examples=3`."""

    def make(**changes) -> Thresholds:
        easy = {"min_examples": 5, "min_accuracy": 0.0, "max_certain_drop": 1.0}
        content = {
            "smoke": {"max_probability_difference": 0.001, "max_latency_ms": 1000, "max_seconds": 60},
            "absolute": {
                "min_accuracy": 0.0, "min_balanced_accuracy": 0.0, "min_top_3_accuracy": 0.0, "max_log_loss": 10.0,
                "max_calibration_error": 1.0, "max_confusion": 1.0,
            },
            "comparison": {
                "confidence": 0.95, "replicates": 200, "seed": 0, "max_accuracy_drop": 1.0,
                "max_balanced_accuracy_drop": 1.0, "max_top_3_accuracy_drop": 1.0, "max_log_loss_rise": 10.0,
                "max_calibration_error_rise": 1.0,
            },
            "slices": {
                "label": dict(easy), "source": dict(easy), "size": dict(easy), "new": {**easy, "required": False},
                "size_edges": [113, 150],
            },
        }  # fmt: skip
        for path, value in changes.items():
            *parents, name = path.split("__")
            place = content
            for parent in parents:
                place = place[parent]
            place[name] = value
        return typed.from_dict(Thresholds, content, "the test's thresholds")

    return make
