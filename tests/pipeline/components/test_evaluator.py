"""The Evaluator run for real: predictions kept beside TFMA's figures, other classes, bad serving models, refused exports."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from google.protobuf import json_format
from tfx.types import standard_artifacts

from models import network, serving
from models.config import NetworkConfig
from pipeline import typed
from pipeline.components import evaluator, facts
from pipeline.errors import PipelineError
from pipeline.evaluation import extractors, predictions
from pipeline.evaluation.thresholds import Thresholds
from pipeline.settings import BEAM_HERE
from pipeline.validation import evaluation as evaluations
from tests.models.conftest import CLASSES, IMAGE_SIZE, SHORT_SIDE, make_week
from tests.pipeline.conftest import ROOT


def classifier(classes, seed):
    """A network whose answers depend on what it sees."""
    config = NetworkConfig(blocks=(1, 1), width=8, bottleneck=False, image_size=IMAGE_SIZE)
    found = network.Classifier(config, len(classes), seed)
    found.head.kernel.assign(100 * found.head.kernel)
    return found


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    """A split `eval` of 24 labelled photographs, a candidate, and a serving model that lacks a class and has another."""
    root = tmp_path_factory.mktemp("evaluator")
    made = make_week(root / "data")
    (root / "examples").mkdir()
    (root / "data" / "Split-train").rename(root / "examples" / "Split-eval")
    pathlib.Path(root / "examples" / "Split-eval" / "labels").unlink()
    for name, classes, seed in (("candidate", CLASSES, 0), ("serving", ("chalk", "door", "amber"), 1)):
        folder = root / name / "Format-Serving"
        serving.export(classifier(classes, seed), classes, IMAGE_SIZE, SHORT_SIDE, str(folder))
        (folder / "assets.extra").mkdir()
        smoke_set = {"classes": classes, "photographs": [{"request": {}, "probabilities": [0.0] * len(classes)}]}
        (folder / "assets.extra" / "smoke.json").write_text(json.dumps(smoke_set))
    return root, made


@pytest.fixture
def evaluate(week, tmp_path):
    """Runs the executor: (artifact of the evaluation, artifact of the blessing)."""
    root, _ = week
    thresholds = typed.load(Thresholds, ROOT / "schema" / "release.yaml")

    def run(passed=1, bootstrap=0, baseline=None):
        examples, model, known = standard_artifacts.Examples(), standard_artifacts.Model(), standard_artifacts.Model()
        smoke_test, found = standard_artifacts.InfraBlessing(), standard_artifacts.ModelEvaluation()
        blessing = standard_artifacts.ModelBlessing()
        examples.uri, examples.split_names = str(root / "examples"), '["eval"]'
        model.uri, known.uri = str(root / "candidate"), str(baseline or root / "serving")
        found.uri, blessing.uri = str(tmp_path / "evaluation"), str(tmp_path / "blessing")
        facts.record(smoke_test, {"blessed": passed})
        facts.record(known, {"bootstrap": bootstrap, "version": "7", "run_id": "run-1"})
        context = evaluator.Executor.Context(beam_pipeline_args=list(BEAM_HERE))
        evaluator.Executor(context).Do(
            {"examples": [examples], "model": [model], "baseline_model": [known], "smoke_test": [smoke_test]},
            {"evaluation": [found], "blessing": [blessing]},
            {
                "eval_config": json_format.MessageToJson(evaluator.config_of(thresholds)),
                "example_splits": '["eval"]', "batch_size": 7, "max_batch_bytes": 10_000,
            },
        )  # fmt: skip
        return found, blessing

    return run


def asked(root, name, week):
    """Probabilities of every photograph, asked for one by one."""
    serve = tf.saved_model.load(str(root / name / "Format-Serving")).signatures["serving_examples"]
    files = tf.io.gfile.glob(str(root / "examples" / "Split-eval" / "*"))
    found = {}
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        image_id = feature["image_id"].bytes_list.value[0].decode()
        label = feature["label_index"].int64_list.value[0]
        found[image_id] = label, serve(examples=tf.constant([record]))["probabilities"].numpy()[0]
    return found


def test_every_prediction_is_kept_and_agrees_with_tfma(evaluate, week):
    root, made = week
    artifact, _ = evaluate()
    kept, own, other = predictions.read(artifact.uri), asked(root, "candidate", made), asked(root, "serving", made)
    assert kept.image_ids.tolist() == sorted(made.train_ids) == sorted(own)
    for place, image_id in enumerate(kept.image_ids):
        label, probabilities = own[image_id]
        assert kept.labels[place] == label and kept.candidate.predicted[place] == probabilities.argmax()
        assert kept.candidate.p_true[place] == pytest.approx(probabilities[label], abs=1e-5)
        assert kept.candidate.rank[place] == (probabilities > probabilities[label]).sum()
        # The serving model's classes are chalk, door, amber; asked in the candidate's, it gives blue nothing.
        aligned = np.array([other[image_id][1][2], 0.0, other[image_id][1][0]])
        assert kept.serving.p_true[place] == pytest.approx(aligned[label], abs=1e-5)
        assert kept.serving.predicted[place] == aligned.argmax()
    assert json.loads(facts.text(artifact, "serving_classes")) == ["chalk", "door", "amber"]
    assert facts.number(artifact, "evaluated") == 1
    assert not pathlib.Path(artifact.uri, "serving_model_aligned").exists()
    right = kept.candidate.predicted == kept.labels
    found = evaluations.read(artifact.uri)
    assert (found.examples, found.accuracy) == (len(kept), pytest.approx(right.mean()))
    assert found.log_loss == pytest.approx(-np.log(kept.candidate.p_true).mean(), rel=1e-4)
    worst = predictions.read_worst(artifact.uri)
    wrong = sorted(kept.candidate.p_true[~right])
    assert [each["p_true"] for each in worst] == pytest.approx(wrong[: extractors.WORST_SHOWN])
    assert all(each["jpeg"].startswith("/9j/") for each in worst)


def test_what_the_smoke_test_refused_is_not_even_loaded(evaluate, week):
    pathlib.Path(week[0], "candidate", "Format-Serving", "saved_model.pb").rename(week[0] / "graph")
    try:
        artifact, blessing = evaluate(passed=0)
    finally:
        pathlib.Path(week[0], "graph").rename(week[0] / "candidate" / "Format-Serving" / "saved_model.pb")
    assert facts.number(blessing, "blessed") == 0 and facts.number(artifact, "evaluated") == 0
    assert [path.name for path in pathlib.Path(blessing.uri).iterdir()] == ["NOT_BLESSED"]
    assert not pathlib.Path(artifact.uri).exists()


def test_a_serving_model_that_no_longer_loads_is_named_with_what_to_do(evaluate, tmp_path):
    (tmp_path / "broken" / "Format-Serving").mkdir(parents=True)
    (tmp_path / "broken" / "Format-Serving" / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(PipelineError, match="version 7 of run run-1, cannot be compared with: .*release rollback"):
        evaluate(baseline=tmp_path / "broken")


def test_sources_read_by_bytes_while_evaluating_and_not_after():
    from tfx_bsl.coders import batch_util

    with extractors.tapped(extractors.Tap("nowhere", 1, 1)):
        assert "element_size_fn" in batch_util.GetBatchElementsKwargs(None)
    assert "element_size_fn" not in batch_util.GetBatchElementsKwargs(None)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([99], [(0, 1)]),  # alone larger than a batch may be
        ([5, 5, 5, 5], [(0, 2), (2, 4)]),
        ([1, 1, 1, 1], [(0, 3), (3, 4)]),
        ([9, 99, 1], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_batches_are_bounded_by_photographs_and_bytes(sizes, expected):
    assert extractors.parts(np.array(sizes), most=3, most_bytes=10) == expected


def test_sources_bound_their_batches_by_bytes_while_it_runs(tmp_path):
    name = "tfxio_use_byte_size_batching"
    if name not in flags.FLAGS:
        flags.DEFINE_bool(name, False, "As versions of tfx_bsl have it that know it.")
    before = flags.FLAGS[name].default
    with extractors.tapped(extractors.Tap(str(tmp_path), 1, 1)):
        assert flags.FLAGS[name].default is True
    assert flags.FLAGS[name].default == before
