"""Drift of the train split, by TFDV: found when there is some, not found when there is none."""

import json
import pathlib

import numpy as np
import pandas as pd
import pytest
import tensorflow_data_validation as tfdv
from tfx.types import artifact_utils, standard_artifacts

from pipeline.components import facts
from pipeline.components.distribution_validator import Executor, config_of
from pipeline.served import statistics
from pipeline.validation import histograms
from pipeline.validation.facts import read_anomalies, read_drift

FEATURES = ("width", "height", "bytes")
LIMITS = {"label": 0.02, **dict.fromkeys(FEATURES, 0.05)}


def week(seed=0, rows=2000, cups=0.5, **shifts) -> pd.DataFrame:
    """Rows of a train split; a shift is added to that feature of every row."""
    chance = np.random.default_rng(seed)
    content = {"label": np.where(chance.random(rows) < cups, "cup", "hat")}
    for feature in FEATURES:
        content[feature] = (300 + chance.gamma(4, 80, rows) + shifts.get(feature, 0)).astype(int)
    return pd.DataFrame(content)


@pytest.fixture
def compared(tmp_path):
    """f(this week's rows, the baseline's or None, drift) -> (feature -> divergence, anomalies)."""

    def statistics(name, frame):
        artifact = standard_artifacts.ExampleStatistics()
        artifact.uri = str(tmp_path / name)
        facts.record(artifact, {"bootstrap": frame is None})
        artifact.split_names = artifact_utils.encode_split_names([] if frame is None else ["train"])
        if frame is not None:
            path = pathlib.Path(artifact.uri, "Split-train", "FeatureStats.pb")
            path.parent.mkdir(parents=True)
            path.write_bytes(tfdv.generate_statistics_from_dataframe(frame, n_jobs=1).SerializeToString())
        return artifact

    def run(now, before, drift=LIMITS):
        output = standard_artifacts.ExampleAnomalies()
        output.uri = str(tmp_path / "anomalies")
        given = {"statistics": [statistics("now", now)], "baseline_statistics": [statistics("before", before)]}
        known = {key: artifact.uri for key, (artifact,) in given.items()}
        Executor().Do(
            given,
            {"anomalies": [output]},
            {
                "distribution_validator_config": json.dumps(to_json(config_of(drift))),
                "include_split_pairs": json.dumps([["train", "train"]]),
            },
        )
        assert {key: artifact.uri for key, (artifact,) in given.items()} == known
        found = {item.feature: item.value for item in read_drift(output.uri)}
        return found, read_anomalies(output.uri, judged=before is not None)

    return run


def to_json(message):
    from google.protobuf import json_format

    return json_format.MessageToDict(message)


def test_an_equal_distribution_does_not_drift_and_every_feature_is_compared(compared):
    found, anomalies = compared(week(seed=1), week(seed=2))
    assert anomalies == [] and set(found) == set(LIMITS)
    assert all(value < 0.01 for value in found.values())


@pytest.mark.parametrize("feature", FEATURES)
def test_a_shifted_distribution_is_found_with_its_figure_and_its_limit(compared, feature):
    found, (anomaly,) = compared(week(seed=1, **{feature: 160}), week(seed=2))
    assert found[feature] > 0.1 and all(found[other] < 0.05 for other in FEATURES if other != feature)
    assert anomaly.startswith(f"train_train: {feature}: ") and "Jensen-Shannon" in anomaly
    assert f"{found[feature]:.4f}"[:5] in anomaly and "0.05" in anomaly


def test_labels_are_compared_as_words(compared):
    found, (anomaly,) = compared(week(seed=1, cups=0.2), week(seed=2))
    assert found["label"] > 0.05 and anomaly.startswith("train_train: label: ")


def test_a_figure_on_its_limit_passes_and_just_above_it_does_not(compared, tmp_path):
    found, _ = compared(week(seed=1, width=40), week(seed=2), {"width": 1.0})
    for number, (limit, count) in enumerate([(found["width"], 0), (found["width"] - 1e-9, 1)]):
        (tmp_path / "anomalies").rename(tmp_path / f"anomalies-{number}")
        for folder in ("now", "before"):
            (tmp_path / folder).rename(tmp_path / f"{folder}-{number}")
        _, anomalies = compared(week(seed=1, width=40), week(seed=2), {"width": limit})
        assert len(anomalies) == count


@pytest.mark.parametrize("shifts", [{}, {"width": 160, "bytes": 20}])
def test_requests_are_compared_by_the_same_figures(compared, shifts):
    """What `histograms.divergences` gives the command `drift` is what this validator measures."""
    now, before = week(seed=1, rows=300, **shifts), week(seed=2)
    found, _ = compared(now, before)
    measured = histograms.divergences(*(statistics.of({name: frame[name] for name in FEATURES}) for frame in (now, before)))
    assert measured == pytest.approx({name: found[name] for name in FEATURES}, abs=1e-9)
    assert (measured["width"] > 0.05) == bool(shifts)


@pytest.mark.parametrize("which", ["now", "before", "both"])
def test_one_panorama_is_no_drift(compared, which):
    weeks = {"now": week(seed=1), "before": week(seed=2)}
    for name, frame in weeks.items():
        if which in (name, "both"):
            frame.loc[0, "width"] = 20_000
    _, anomalies = compared(weeks["now"], weeks["before"])
    assert anomalies == []


@pytest.mark.parametrize(("width", "count"), [(300, 0), (310, 1)])
def test_photographs_of_one_size_are_compared(compared, width, count):
    before = week(seed=2).assign(width=300)
    _, anomalies = compared(week(seed=1).assign(width=width), before)
    assert len(anomalies) == count


def test_a_feature_that_cannot_be_compared_is_an_anomaly(compared):
    _, (anomaly,) = compared(week(seed=1).drop(columns="bytes"), week(seed=2))
    assert anomaly.startswith("train_train: bytes: ")
    assert "Validation could not be done" in anomaly or "missing" in anomaly


def test_in_a_bootstrap_nothing_is_compared(compared):
    assert compared(week(), None) == ({}, [])
