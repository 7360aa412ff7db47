"""The pipeline's side of a study: names, space and budget; and whole studies over the service on this machine."""

import concurrent.futures
import dataclasses
import inspect
import signal
import threading
import time

import grpc
import pytest
from google.api_core import timeout

import models.study
from models.config import TuningConfig
from pipeline.errors import PipelineError, SettingsError
from pipeline.vizier import local, study
from pipeline.vizier.study import Budget, open_study, study_name, study_spec

SPEC = study_spec(TuningConfig(), "val_accuracy")


@pytest.mark.parametrize("name", ["trials", "suggest", "measure", "should_stop", "complete", "infeasible", "discard"])
def test_what_workers_know_of_a_study_is_what_it_does(name):
    wanted, found = (inspect.signature(getattr(kind, name)) for kind in (models.study.Study, study.Study))
    assert found.parameters == wanted.parameters and found.return_annotation == wanted.return_annotation


class TestSpace:
    def test_each_hyperparameter_has_its_kind_and_scale(self):
        found = {each.parameter_id: each for each in SPEC.parameters}
        assert list(found) == ["learning_rate", "weight_decay", "batch_size", "dropout", "augmentation", "label_smoothing"]
        assert [name for name, each in found.items() if each.scale_type.name == "UNIT_LOG_SCALE"] == [
            "learning_rate",
            "weight_decay",
        ]
        assert list(found["batch_size"].discrete_value_spec.values) == [128, 256, 512]
        assert found["dropout"].double_value_spec.max_value == 0.5
        assert SPEC.metrics[0].metric_id == "val_accuracy" and SPEC.metrics[0].goal.name == "MAXIMIZE"
        assert "median_automated_stopping_spec" in SPEC

    def test_equal_bounds_hold_a_parameter(self):
        spec = study_spec(TuningConfig(dropout=(0.25, 0.25)), "val_accuracy")
        assert list(spec.parameters[3].discrete_value_spec.values) == [0.25]

    def test_batch_sizes_are_put_in_order_and_each_is_named_once(self):
        spec = study_spec(TuningConfig(batch_size=(64, 16, 32)), "val_accuracy")
        assert list(spec.parameters[2].discrete_value_spec.values) == [16, 32, 64]
        with pytest.raises(SettingsError, match=r"tuning\.batch_size: \[16, 32, 16\] has a value twice"):
            study_spec(TuningConfig(batch_size=(16, 32, 16)), "val_accuracy")

    @pytest.mark.parametrize("count, says", [(5, "6 are the least"), (9, "8 are the most that 60 trials can tell apart")])
    def test_six_to_eight_parameters(self, count, says):
        spec = type(SPEC)(SPEC)
        spec.parameters = [*SPEC.parameters, *SPEC.parameters][:count]
        with pytest.raises(SettingsError, match=f"has {count} parameters .*{says}"):
            study.check_space(spec)


class TestName:
    def test_is_a_function_of_pipeline_snapshot_and_space(self):
        name = study_name("product-photographs", "labels_20260302", SPEC)
        assert name == study_name("product-photographs", "labels_20260302", study_spec(TuningConfig(), "val_accuracy"))
        assert name.startswith("product-photographs-labels-20260302-")
        wider = study_spec(TuningConfig(dropout=(0.0, 0.6)), "val_accuracy")
        others = [("product", "labels_20260302", SPEC), ("product-photographs", "labels_20260309", SPEC)]
        names = {
            name,
            *(study_name(*other) for other in others),
            study_name("product-photographs", "labels_20260302", wider),
        }
        assert len(names) == 4

    def test_is_the_same_on_every_machine_and_version(self):
        assert study_name("p", "labels_20260302", SPEC) == "p-labels-20260302-453f8261372ae07f"

    def test_is_short_enough_for_vertex(self):
        one, two = (study_name("p" * 127 + end, "labels_20260302", SPEC) for end in "ab")
        assert len(one) == len(two) == 128 and one != two


class TestBudget:
    @pytest.mark.parametrize(
        "trials, parallel, says",
        [
            (61, 8, "61 trials are not possible, 1 to 60 are"),
            (0, 1, "0 trials are not possible"),
            (60, 9, "9 trials at once are not possible, 1 to 8 are"),
            (60, 0, "0 trials at once"),
            (3, 4, "4 trials at once exceed the 3 in all"),
        ],
    )
    def test_what_is_not_possible(self, trials, parallel, says):
        with pytest.raises(SettingsError, match=says):
            Budget(trials, parallel)


@pytest.fixture
def opened(service, request):
    """Returns f(trials, parallel) -> a study of this test, over a connection of its own."""

    def opened(trials=60, parallel=8, spec=SPEC):
        return open_study(service.client(), local.PARENT, request.node.name[:100], spec, Budget(trials, parallel))

    return opened


def test_a_trial_from_its_begin_to_its_end(opened):
    searched = opened(3, 1)
    assert searched.trials() == [] and searched.best() is None and searched.remaining() == 3
    trial = searched.suggest("w0")
    assert (
        trial.under_way
        and trial.client_id == "w0"
        and list(trial.values) == [each.parameter_id for each in SPEC.parameters]
    )
    searched.measure(trial, 1, 0.5)
    assert not searched.should_stop(trial)
    done = searched.complete(trial, 1, 0.5)
    assert (done.state, done.value, done.step, done.curve) == ("SUCCEEDED", 0.5, 1, ((1, 0.5),)) and done.seconds >= 0
    nan = searched.suggest("w0")
    with pytest.raises(ValueError, match="val_accuracy is nan at step 2 of trial 2"):
        searched.measure(nan, 2, float("nan"))
    assert searched.complete(nan, 2, float("nan")).reason == "val_accuracy was nan at step 2"
    assert searched.infeasible(searched.suggest("w0"), "out of memory").state == "INFEASIBLE"
    assert searched.suggest("w0") is None and searched.is_complete() and searched.remaining() == 0
    assert searched.best() == done


def test_the_best_is_the_least_where_less_is_better_and_of_equals_the_first(opened):
    searched = opened(spec=study_spec(TuningConfig(), "val_loss", maximize=False))
    for value in (0.5, 0.25, 0.25):
        searched.complete(searched.suggest("w0"), 1, value)
    assert searched.best().number == 2


def test_a_worker_that_starts_again_goes_on_where_it_was(opened):
    trial = opened().suggest("w0")
    opened().measure(trial, 1, 0.5)
    again = opened().suggest("w0")
    assert (again.name, again.curve) == (trial.name, ((1, 0.5),))
    opened().measure(again, 1, 0.75)  # the step before the last checkpoint, trained once more
    assert opened().trials()[0].curve == ((1, 0.5),)
    opened()._client.stop_trial(request={"name": trial.name})
    assert opened().suggest("w0").state == "STOPPING"


def test_completing_twice_is_harmless(opened):
    searched = opened()
    trial = searched.suggest("w0")
    assert searched.complete(trial, 1, 0.5) == searched.complete(trial, 1, 0.5)


def test_a_trial_that_is_taken_back_does_not_count(opened):
    searched = opened(2, 2)
    kept, back = searched.suggest("w0"), searched.suggest("w1")
    searched.discard(back)
    assert [one.number for one in searched.trials()] == [kept.number] and searched.remaining() == 1
    again = searched.suggest("w1")
    assert again.under_way and searched.remaining() == 0
    searched.discard(again)
    searched.discard(again)  # asked twice, because an answer was lost


def test_workers_in_parallel_spend_exactly_the_budget(opened):
    """Eight at once, who all look at the same moment whether a trial is left."""
    done = []

    def work(client_id):
        searched = opened(20, 8)
        while trial := searched.suggest(client_id):
            searched.measure(trial, 1, trial.values["dropout"])
            searched.should_stop(trial)
            done.append(searched.complete(trial, 1, trial.values["dropout"]).number)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    searched = opened(20, 8)
    assert len(done) == len(set(done)) == 20 and searched.is_complete()
    assert sorted(done) == [trial.number for trial in searched.trials()]
    assert searched._all() == searched.trials(), "nothing beyond the budget is left"


def test_what_a_killed_worker_left_beyond_the_budget_is_deleted(opened):
    searched = opened(3, 3)
    request = {"parent": searched.name, "suggestion_count": 5, "client_id": "w9"}
    searched._client.suggest_trials(request=request).result(timeout=60)
    assert searched.remaining() == 0 and len(searched._all()) == 5
    assert searched.suggest("w0") is None
    assert [trial.number for trial in searched._all()] == [1, 2, 3]
    assert not searched.is_complete(), "three are under way"


def test_a_ninth_worker_is_refused_and_told_who_is_at_work(opened):
    searched = opened(60, 8)
    held = [searched.suggest(f"w{number}") for number in range(8)]
    with pytest.raises(PipelineError, match=r"may have 8 trials at once, and has 8 \(trial 1 of w0, .*8 of w7\)"):
        searched.suggest("w8")
    searched.complete(held[0], 1, 0.5)
    assert searched.suggest("w8").number == 9


def test_another_space_under_an_existing_study_is_refused_with_the_difference(opened):
    opened()
    changed = study_spec(TuningConfig(dropout=(0.0, 0.6), batch_size=(64, 128)), "val_accuracy")
    with pytest.raises(SettingsError) as raised:
        opened(spec=changed)
    lines = str(raised.value).splitlines()
    assert lines[1:-1] == [
        "  parameter batch_size: was discrete [128.0, 256.0, 512.0], is discrete [64.0, 128.0]",
        "  parameter dropout: was double [0.0, 0.5], is double [0.0, 0.6]",
    ]
    with pytest.raises(SettingsError, match="metric val_loss: was not there, is maximized"):
        opened(spec=study_spec(TuningConfig(), "val_loss"))


def test_what_the_service_says_reaches_the_user(opened):
    searched = opened()
    trial = searched.suggest("w0")
    searched._client.delete_study(name=searched.name)
    with pytest.raises(PipelineError, match=f"Vizier could not complete trial 1: there is no study {searched.name}"):
        searched.complete(trial, 1, 0.5)


def test_a_service_that_is_not_there(monkeypatch):
    monkeypatch.setattr(study, "_RETRY", study._RETRY.with_timeout(1.0))
    with pytest.raises(PipelineError, match="Vizier did not answer .* is its service running"):
        open_study(local.client_of("127.0.0.1:9"), local.PARENT, "a study", SPEC, Budget())


def test_a_service_that_never_answers(monkeypatch):
    """Nothing waits for ever: each call has its own patience, and all together have theirs."""
    answer = threading.Event()
    handler = grpc.method_handlers_generic_handler(
        "google.cloud.aiplatform.v1.VizierService",
        {"CreateStudy": grpc.unary_unary_rpc_method_handler(lambda request, context: answer.wait(60) and b"")},
    )
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setattr(study, "_RETRY", study._RETRY.with_timeout(1.0))
    monkeypatch.setattr(study, "_EACH", timeout.ConstantTimeout(0.6))
    try:
        with pytest.raises(PipelineError, match="Vizier did not answer .* to open the study a study .* is its service running"):
            open_study(local.client_of(f"127.0.0.1:{port}"), local.PARENT, "a study", SPEC, Budget())
    finally:
        answer.set()
        server.stop(None)


def test_a_study_under_kills_of_the_service_ends_with_exactly_its_budget(tmp_path):
    """Workers do not notice more than a pause: calls are sent again until the service is back."""
    database, errors = tmp_path / "studies.sqlite", []
    with local.running(database, "quasi_random") as service:
        port = int(service.address.rpartition(":")[2])
        searched = open_study(service.client(), local.PARENT, "a study", SPEC, Budget(24, 4))

        def work(client_id):
            try:
                own = dataclasses.replace(service).client()
                mine = open_study(own, local.PARENT, "a study", SPEC, Budget(24, 4))
                while trial := mine.suggest(client_id):
                    for step in range(1, 4):
                        mine.measure(trial, step, trial.values["dropout"] * step)
                        if mine.should_stop(trial):
                            break
                    mine.complete(trial, step, trial.values["dropout"] * step)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
    with local.running(database, "quasi_random", port=port) as service:
        while len(searched.trials()) < 8:
            time.sleep(0.05)
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
    with local.running(database, "quasi_random", port=port):
        for thread in threads:
            thread.join(60)
        assert not errors and searched.is_complete()
        trials = searched.trials()
        assert len(searched._all()) == len(trials) == 24
        assert {trial.state for trial in trials} == {"SUCCEEDED"}
        assert all([step for step, _ in trial.curve] == list(range(1, trial.step + 1)) for trial in trials)
