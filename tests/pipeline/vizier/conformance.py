"""What Vertex's Vizier API does, as the pipeline relies on it; one class that each implementation's tests inherit.

Everything goes through Google's own client, so what is tested is what a worker meets.
"""

import contextlib
import threading
import uuid

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

State = v1.Trial.State


def space(**fields) -> v1.StudySpec:
    """A small search; fields replace its own."""
    parameter = v1.StudySpec.ParameterSpec
    content = {
        "metrics": [{"metric_id": "accuracy", "goal": "MAXIMIZE"}],
        "parameters": [
            parameter(
                parameter_id="rate", double_value_spec={"min_value": 1e-4, "max_value": 1e-2}, scale_type="UNIT_LOG_SCALE"
            ),
            parameter(parameter_id="batch", discrete_value_spec={"values": [8, 16, 32]}),
            parameter(parameter_id="layers", integer_value_spec={"min_value": 1, "max_value": 4}),
            parameter(parameter_id="colour", categorical_value_spec={"values": ["grey", "rgb"]}),
        ],
    }
    return v1.StudySpec(content | fields)


def values_of(trial: v1.Trial) -> dict:
    return {parameter.parameter_id: parameter.value for parameter in trial.parameters}


def measured(step: int, value: float, metric: str = "accuracy") -> v1.Measurement:
    return v1.Measurement(step_count=step, metrics=[{"metric_id": metric, "value": value}])


class Vizier:
    """Google's client with the few words that tests say again and again.

    Args:
        client: Google's client.
        parent: The location of all studies.
    """

    def __init__(self, client: v1.VizierServiceClient, parent: str):
        self.client = client
        self.parent = parent
        self.made: list[str] = []

    def study(self, display_name: str = "", **fields) -> str:
        """Makes a study and returns its name."""
        study = v1.Study(display_name=display_name or f"conformance-{uuid.uuid4().hex}", study_spec=space(**fields))
        self.made.append(self.client.create_study(parent=self.parent, study=study).name)
        return self.made[-1]

    def suggest(self, study: str, client_id: str = "w0", count: int = 1, timeout: float = 300) -> list[v1.Trial]:
        """Asks for trials and waits for them."""
        request = v1.SuggestTrialsRequest(parent=study, suggestion_count=count, client_id=client_id)
        return list(self.client.suggest_trials(request).result(timeout=timeout).trials)

    def measure(self, trial: v1.Trial, step: int, value: float, metric: str = "accuracy") -> v1.Trial:
        """Adds a measurement."""
        return self.client.add_trial_measurement(
            v1.AddTrialMeasurementRequest(trial_name=trial.name, measurement=measured(step, value, metric))
        )

    def complete(self, trial: v1.Trial, **fields) -> v1.Trial:
        """Completes a trial."""
        return self.client.complete_trial(v1.CompleteTrialRequest(name=trial.name, **fields))

    def should_stop(self, trial: v1.Trial) -> bool:
        """Asks whether to stop."""
        request = v1.CheckTrialEarlyStoppingStateRequest(trial_name=trial.name)
        return self.client.check_trial_early_stopping_state(request).result(timeout=60).should_stop

    def trials(self, study: str) -> list[v1.Trial]:
        """All trials, in the order of their numbers."""
        return sorted(self.client.list_trials(parent=study), key=lambda trial: int(trial.id))

    def clean(self) -> None:
        """Deletes what was made."""
        for name in self.made:
            with contextlib.suppress(exceptions.NotFound):
                self.client.delete_study(name=name)


class VizierConformance:
    """Inherit, and give `connected`: a `Vizier`."""

    @pytest.fixture
    def connected(self) -> Vizier:
        raise NotImplementedError

    @pytest.fixture
    def vizier(self, connected):
        yield connected
        connected.clean()

    # --- Studies ---

    def test_a_study_is_found_by_name_by_display_name_and_in_the_list(self, vizier):
        name = vizier.study("conformance-" + uuid.uuid4().hex)
        study = vizier.client.get_study(name=name)
        assert study.name == name and study.state == v1.Study.State.ACTIVE
        assert [each.parameter_id for each in study.study_spec.parameters] == ["rate", "batch", "layers", "colour"]
        found = vizier.client.lookup_study(request={"parent": vizier.parent, "display_name": study.display_name})
        assert found.name == name
        assert name in [each.name for each in vizier.client.list_studies(parent=vizier.parent)]

    def test_a_display_name_is_taken_once(self, vizier):
        display_name = vizier.client.get_study(name=vizier.study()).display_name
        with pytest.raises(exceptions.AlreadyExists, match=display_name):
            vizier.study(display_name)

    def test_a_deleted_study_is_gone_with_its_trials(self, vizier):
        name = vizier.study()
        trial = vizier.suggest(name)[0]
        vizier.client.delete_study(name=name)
        for ask in (
            lambda: vizier.client.get_study(name=name),
            lambda: vizier.client.delete_study(name=name),
            lambda: vizier.client.get_trial(name=trial.name),
            lambda: vizier.client.suggest_trials(request={"parent": name, "suggestion_count": 1, "client_id": "w0"}),
        ):
            with pytest.raises(exceptions.NotFound):
                ask()

    def test_a_study_that_is_not_there(self, vizier):
        with pytest.raises(exceptions.NotFound):
            vizier.client.lookup_study(request={"parent": vizier.parent, "display_name": "nobody"})
        with pytest.raises(exceptions.NotFound):
            vizier.client.get_study(name=f"{vizier.parent}/studies/999999999")

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"metrics": []}, id="no metric"),
            pytest.param({"metrics": [{"metric_id": "a b"}]}, id="white space in an id"),
            pytest.param({"parameters": []}, id="no parameter"),
            pytest.param({"parameters": [{"parameter_id": "a"}]}, id="neither bounds nor values"),
            pytest.param(
                {"parameters": [{"parameter_id": "a", "double_value_spec": {"min_value": 2, "max_value": 1}}]},
                id="a range upside down",
            ),
            pytest.param(
                {"parameters": [{"parameter_id": "a", "discrete_value_spec": {"values": [2, 1]}}]}, id="falling values"
            ),
            pytest.param(
                {
                    "parameters": [
                        {
                            "parameter_id": "a",
                            "double_value_spec": {"min_value": 0, "max_value": 1},
                            "scale_type": "UNIT_LOG_SCALE",
                        }
                    ]
                },
                id="the logarithm of 0",
            ),
            pytest.param(
                {"parameters": [{"parameter_id": "a", "discrete_value_spec": {"values": [1, 2]}}] * 2}, id="an id twice"
            ),
            pytest.param({"algorithm": "GRID_SEARCH"}, id="a grid of a continuous parameter"),
        ],
    )
    def test_a_search_that_cannot_be(self, vizier, fields):
        with pytest.raises(exceptions.InvalidArgument):
            vizier.study(**fields)

    # --- Suggestions ---

    def test_a_suggestion_lies_in_the_space_and_belongs_to_its_client(self, vizier):
        trial = vizier.suggest(vizier.study(), "worker-3")[0]
        values = values_of(trial)
        assert list(values) == ["rate", "batch", "layers", "colour"]
        assert 1e-4 <= values["rate"] <= 1e-2 and values["batch"] in (8, 16, 32)
        assert values["layers"] in (1, 2, 3, 4) and values["colour"] in ("grey", "rgb")
        assert (trial.state, trial.client_id, trial.id) == (State.ACTIVE, "worker-3", trial.name.rsplit("/", 1)[1])
        assert "start_time" in trial and "end_time" not in trial

    def test_a_client_that_asks_again_gets_its_trial_with_what_it_reported(self, vizier):
        study = vizier.study()
        trial = vizier.suggest(study, "w0")[0]
        vizier.measure(trial, 1, 0.25)
        vizier.measure(trial, 2, 0.5)
        again = vizier.suggest(study, "w0")[0]
        assert (again.name, again.parameters) == (trial.name, trial.parameters)
        assert [(each.step_count, each.metrics[0].value) for each in again.measurements] == [(1, 0.25), (2, 0.5)]
        vizier.complete(trial)
        assert vizier.suggest(study, "w0")[0].name != trial.name

    def test_each_client_has_its_own_trials(self, vizier):
        study = vizier.study()
        one, two = vizier.suggest(study, "w0", count=2), vizier.suggest(study, "w1")
        assert len({trial.name for trial in one + two}) == len(one) + len(two) == 3

    def test_clients_in_parallel(self, vizier):
        study, found = vizier.study(), {}

        def work(client_id):
            for _ in range(3):
                trial = vizier.suggest(study, client_id)[0]
                found.setdefault(client_id, []).append(trial.name)
                vizier.complete(trial, final_measurement=measured(1, 0.5))

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        trials = vizier.trials(study)
        assert sorted(name for names in found.values() for name in names) == sorted(trial.name for trial in trials)
        assert len(trials) == 12 and {trial.state for trial in trials} == {State.SUCCEEDED}

    @pytest.mark.parametrize("fields", [{"suggestion_count": 0}, {"client_id": ""}])
    def test_a_request_without_a_count_or_a_client(self, vizier, fields):
        request = {"parent": vizier.study(), "suggestion_count": 1, "client_id": "w0"} | fields
        with pytest.raises(exceptions.InvalidArgument):
            vizier.client.suggest_trials(request=request)

    def test_random_search(self, vizier):
        trials = vizier.suggest(vizier.study(algorithm="RANDOM_SEARCH"), count=3)
        assert len({str(values_of(trial)) for trial in trials}) == 3

    def test_a_grid_gives_each_point_once_and_then_ends_the_study(self, vizier):
        parameters = [
            {"parameter_id": "a", "discrete_value_spec": {"values": [1, 2]}},
            {"parameter_id": "b", "categorical_value_spec": {"values": ["x", "y", "z"]}},
        ]
        study = vizier.study(algorithm="GRID_SEARCH", parameters=parameters)
        seen = []
        while trials := vizier.suggest(study):
            seen.append(tuple(values_of(trials[0]).values()))
            vizier.complete(trials[0], final_measurement=measured(1, 0.5))
        assert sorted(seen) == [(a, b) for a in (1, 2) for b in "xyz"]
        assert vizier.client.get_study(name=study).state == v1.Study.State.COMPLETED

    def test_an_operation_is_found_by_its_name(self, vizier):
        request = {"parent": vizier.study(), "suggestion_count": 1, "client_id": "w0"}
        operation = vizier.client.suggest_trials(request=request)
        trial = operation.result(timeout=300).trials[0]
        found = vizier.client.get_operation({"name": operation.operation.name})
        assert found.done and v1.SuggestTrialsResponse.deserialize(found.response.value).trials[0].name == trial.name
        assert operation.metadata.client_id == "w0"

    # --- Trials ---

    def test_measurements_are_in_the_order_of_steps(self, vizier):
        trial = vizier.suggest(vizier.study())[0]
        for step in (1, 3, 2):
            vizier.measure(trial, step, step / 10)
        assert [each.step_count for each in vizier.client.get_trial(name=trial.name).measurements] == [1, 2, 3]

    def test_a_trial_ends_with_the_measurement_that_its_client_names(self, vizier):
        trial = vizier.suggest(vizier.study())[0]
        vizier.measure(trial, 1, 0.9)
        done = vizier.complete(trial, final_measurement=measured(2, 0.75))
        assert (done.state, done.final_measurement.metrics[0].value) == (State.SUCCEEDED, 0.75)
        assert done.end_time >= done.start_time
        assert vizier.client.get_trial(name=trial.name) == done

    @pytest.mark.parametrize("chosen, value", [("LAST_MEASUREMENT", 0.5), ("BEST_MEASUREMENT", 0.9)])
    def test_or_with_one_of_those_it_reported(self, vizier, chosen, value):
        trial = vizier.suggest(vizier.study(measurement_selection_type=chosen))[0]
        vizier.measure(trial, 1, 0.9)
        vizier.measure(trial, 2, 0.5)
        assert vizier.complete(trial).final_measurement.metrics[0].value == value

    def test_an_infeasible_trial_keeps_its_reason_and_the_study_goes_on(self, vizier):
        study = vizier.study()
        trial = vizier.suggest(study)[0]
        done = vizier.complete(trial, trial_infeasible=True, infeasible_reason="out of memory at batch 32")
        assert (done.state, done.infeasible_reason) == (State.INFEASIBLE, "out of memory at batch 32")
        assert "final_measurement" not in done
        assert vizier.suggest(study)[0].name != trial.name

    def test_a_trial_without_any_measurement_is_infeasible(self, vizier):
        assert vizier.complete(vizier.suggest(vizier.study())[0]).state == State.INFEASIBLE

    def test_what_has_ended_cannot_be_changed(self, vizier):
        trial = vizier.suggest(vizier.study())[0]
        vizier.complete(trial, final_measurement=measured(1, 0.5))
        for change in (
            lambda: vizier.complete(trial, final_measurement=measured(1, 0.6)),
            lambda: vizier.measure(trial, 2, 0.6),
            lambda: vizier.should_stop(trial),
            lambda: vizier.client.stop_trial(request={"name": trial.name}),
        ):
            with pytest.raises(exceptions.FailedPrecondition, match="SUCCEEDED"):
                change()

    @pytest.mark.parametrize("measurement", [measured(1, 0.5, "loss"), measured(-1, 0.5), v1.Measurement(step_count=1)])
    def test_a_measurement_that_is_none(self, vizier, measurement):
        trial = vizier.suggest(vizier.study())[0]
        with pytest.raises(exceptions.InvalidArgument):
            vizier.client.add_trial_measurement(request={"trial_name": trial.name, "measurement": measurement})
        with pytest.raises(exceptions.InvalidArgument):
            vizier.complete(trial, final_measurement=measurement)

    def test_a_trial_that_is_not_there(self, vizier):
        study = vizier.study()
        nowhere = v1.Trial(name=f"{study}/trials/77")
        for ask in (
            lambda: vizier.client.get_trial(name=nowhere.name),
            lambda: vizier.client.delete_trial(name=nowhere.name),
            lambda: vizier.client.stop_trial(request={"name": nowhere.name}),
            lambda: vizier.measure(nowhere, 1, 0.5),
            lambda: vizier.complete(nowhere, final_measurement=measured(1, 0.5)),
            lambda: vizier.should_stop(nowhere),
        ):
            with pytest.raises(exceptions.NotFound):
                ask()

    def test_a_deleted_trial_is_gone_and_its_number_is_not_given_again(self, vizier):
        study = vizier.study()
        trial = vizier.suggest(study)[0]
        vizier.client.delete_trial(name=trial.name)
        assert vizier.trials(study) == []
        assert int(vizier.suggest(study)[0].id) > int(trial.id)

    def test_a_trial_of_the_user_s_own_is_suggested_first(self, vizier):
        study = vizier.study()
        parameters = [
            {"parameter_id": name, "value": value}
            for name, value in {"rate": 0.001, "batch": 16, "layers": 2, "colour": "rgb"}.items()
        ]
        made = vizier.client.create_trial(parent=study, trial=v1.Trial(parameters=parameters))
        assert made.state == State.REQUESTED
        trial = vizier.suggest(study, "w5")[0]
        assert (trial.name, trial.state, trial.client_id) == (made.name, State.ACTIVE, "w5")
        parameters[1]["value"] = 17
        with pytest.raises(exceptions.InvalidArgument):
            vizier.client.create_trial(parent=study, trial=v1.Trial(parameters=parameters))

    def test_trials_are_listed_in_pages(self, vizier):
        study = vizier.study()
        names = {trial.name for trial in vizier.suggest(study, count=5)}
        pages = list(vizier.client.list_trials(request={"parent": study, "page_size": 2}).pages)
        assert [len(page.trials) for page in pages] == [2, 2, 1]
        assert {trial.name for page in pages for trial in page.trials} == names
        with pytest.raises(exceptions.InvalidArgument):
            vizier.client.list_trials(request={"parent": study, "page_size": -1})

    @pytest.mark.parametrize("goal, best", [("MAXIMIZE", 0.9), ("MINIMIZE", 0.1)])
    def test_the_optimal_trial(self, vizier, goal, best):
        study = vizier.study(metrics=[{"metric_id": "accuracy", "goal": goal}])
        assert not vizier.client.list_optimal_trials(request={"parent": study}).optimal_trials
        for trial, value in zip(vizier.suggest(study, count=4), (0.4, 0.9, 0.1, None)):
            if value is None:
                vizier.complete(trial, trial_infeasible=True)
            else:
                vizier.complete(trial, final_measurement=measured(1, value))
        found = vizier.client.list_optimal_trials(request={"parent": study}).optimal_trials
        assert [trial.final_measurement.metrics[0].value for trial in found] == [best]

    # --- Stopping ---

    def finished(self, vizier, study, count, curve):
        for trial in vizier.suggest(study, "others", count=count):
            for step, value in enumerate(curve, 1):
                vizier.measure(trial, step, value)
            vizier.complete(trial)

    def test_a_trial_far_below_the_median_is_stopped_and_one_above_it_is_not(self, vizier):
        study = vizier.study(median_automated_stopping_spec={"use_elapsed_duration": False})
        self.finished(vizier, study, 6, [0.5, 0.7, 0.9])
        bad, good = vizier.suggest(study, "w0", count=2)
        for trial, value in ((bad, 0.01), (good, 0.95)):
            vizier.measure(trial, 1, value)
            vizier.measure(trial, 2, value)
        assert vizier.should_stop(bad) and not vizier.should_stop(good)
        assert vizier.client.get_trial(name=bad.name).state == State.STOPPING
        assert vizier.complete(bad).state == State.SUCCEEDED

    def test_nothing_is_stopped_before_a_few_trials_are_completed(self, vizier):
        study = vizier.study(median_automated_stopping_spec={"use_elapsed_duration": False})
        self.finished(vizier, study, 1, [0.5, 0.7])
        trial = vizier.suggest(study, "w0")[0]
        vizier.measure(trial, 1, 0.01)
        assert not vizier.should_stop(trial)

    def test_without_a_rule_nothing_is_stopped(self, vizier):
        study = vizier.study()
        self.finished(vizier, study, 6, [0.9])
        trial = vizier.suggest(study, "w0")[0]
        vizier.measure(trial, 1, 0.0)
        assert not vizier.should_stop(trial)

    def test_a_trial_that_its_user_stops(self, vizier):
        study = vizier.study()
        trial = vizier.suggest(study)[0]
        assert vizier.client.stop_trial(request={"name": trial.name}).state == State.STOPPING
        vizier.measure(trial, 1, 0.5)
        assert vizier.complete(trial).state == State.SUCCEEDED
