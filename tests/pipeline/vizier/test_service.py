"""The service on this machine, and Vertex's own where an account is given: both through Google's client."""

import json
import os
import signal
import subprocess
import threading

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import PipelineError
from pipeline.vizier import local
from tests.pipeline.vizier.conformance import Vizier, VizierConformance, measured, values_of


class TestLocalService(VizierConformance):
    """The whole of it, on this machine."""

    @pytest.fixture
    def connected(self, service):
        return Vizier(service.client(), local.PARENT)

    @pytest.mark.parametrize(
        "name", ["", "studies/1", "projects/p/locations/l/studies/x", "projects/p/locations/l/studies/0"]
    )
    def test_a_name_that_is_none(self, vizier, name):
        with pytest.raises(exceptions.InvalidArgument, match="studies/NUMBER"):
            vizier.client.get_study(name=name)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_value_that_is_not_finite(self, vizier, value):
        trial = vizier.suggest(vizier.study())[0]
        with pytest.raises(exceptions.InvalidArgument, match="infeasible instead"):
            vizier.measure(trial, 1, value)

    def test_a_measurement_that_is_sent_twice_counts_once(self, vizier):
        trial = vizier.suggest(vizier.study())[0]
        vizier.measure(trial, 1, 0.5)
        assert len(vizier.measure(trial, 1, 0.5).measurements) == 1

    def test_a_trial_that_is_stopping_is_its_client_s_until_it_is_completed(self, vizier):
        study = vizier.study()
        trial = vizier.suggest(study)[0]
        vizier.client.stop_trial(request={"name": trial.name})
        assert vizier.suggest(study)[0].name == trial.name and vizier.should_stop(trial)

    def test_two_metrics_have_a_front(self, vizier):
        study = vizier.study(
            metrics=[{"metric_id": "accuracy", "goal": "MAXIMIZE"}, {"metric_id": "ms", "goal": "MINIMIZE"}]
        )
        for trial, (accuracy, ms) in zip(vizier.suggest(study, count=4), [(0.9, 9), (0.8, 4), (0.7, 5), (0.9, 9)]):
            metrics = [{"metric_id": "accuracy", "value": accuracy}, {"metric_id": "ms", "value": ms}]
            vizier.complete(trial, final_measurement=v1.Measurement(step_count=1, metrics=metrics))
        found = vizier.client.list_optimal_trials(request={"parent": study}).optimal_trials
        assert [trial.id for trial in found] == ["1", "2"]

    @pytest.mark.parametrize(
        "fields",
        [
            {"decay_curve_stopping_spec": {}},
            {"study_stopping_config": {}},
            {"median_automated_stopping_spec": {"use_elapsed_duration": True}},
        ],
    )
    def test_what_only_vertex_does_is_refused_and_not_ignored(self, vizier, fields):
        with pytest.raises(exceptions.MethodNotImplemented, match="not supported by the service on this machine"):
            vizier.study(**fields)

    def test_operations_are_deleted(self, vizier):
        request = {"parent": vizier.study(), "suggestion_count": 1, "client_id": "w0"}
        operation = vizier.client.suggest_trials(request=request)
        operation.result(timeout=30)
        vizier.client.delete_operation({"name": operation.operation.name})
        with pytest.raises(exceptions.NotFound):
            vizier.client.get_operation({"name": operation.operation.name})


@pytest.mark.skipif(
    not os.environ.get("VIZIER_PROJECT"),
    reason="needs a Google Cloud account: VIZIER_PROJECT, VIZIER_REGION and Application Default Credentials",
)
class TestVertex(VizierConformance):
    """The same on Vertex AI: makes studies named conformance-* and deletes them."""

    @pytest.fixture
    def connected(self):
        region = os.environ.get("VIZIER_REGION", "us-central1")
        client = v1.VizierServiceClient(client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"})
        return Vizier(client, f"projects/{os.environ['VIZIER_PROJECT']}/locations/{region}")


class Killed:
    """A service that is killed and started again on the same file and port."""

    def __init__(self, folder, algorithm="quasi_random"):
        self.database = folder / "studies.sqlite"
        self._algorithm = algorithm
        self._block = local.running(self.database, algorithm)
        self.service = self._block.__enter__()
        self._port = int(self.service.address.rpartition(":")[2])
        self.vizier = Vizier(self.service.client(), local.PARENT)

    def kill(self):
        self.service.process.send_signal(signal.SIGKILL)
        self.service.process.wait()

    def start_again(self):
        self._block.__exit__(None, None, None)
        self._block = local.running(self.database, self._algorithm, port=self._port)
        self.service = self._block.__enter__()
        self.vizier = Vizier(self.service.client(), local.PARENT)

    def close(self):
        self._block.__exit__(None, None, None)


@pytest.fixture
def killed(tmp_path):
    killed = Killed(tmp_path)
    yield killed
    killed.close()


def story(vizier: Vizier, study: str, before=lambda moment: None) -> None:
    """Three workers and nine trials: measured, stopped, infeasible; `before(moment)` is called all along the way."""
    for round_number in range(3):
        for worker in ("w0", "w1", "w2"):
            before(f"suggest {round_number} {worker}")
            trial = vizier().suggest(study, worker)[0]
            for step in (1, 2):
                before(f"measure {round_number} {worker} {step}")
                vizier().measure(trial, step, values_of(trial)["rate"] * step)
            before(f"complete {round_number} {worker}")
            if worker == "w2":
                vizier().complete(trial, trial_infeasible=True, infeasible_reason="out of memory")
            else:
                vizier().complete(trial)


def facts(trials: list[v1.Trial]) -> list:
    """All that a study is, without the clock."""
    return [
        (each.id, each.state.name, each.client_id, each.infeasible_reason, values_of(each))
        + (list(each.measurements), each.final_measurement)
        for each in trials
    ]


def test_a_study_survives_kills_at_any_moment_and_ends_the_same(killed, service):
    whole = Vizier(service.client(), local.PARENT)
    study = whole.study("unbroken")
    story(lambda: whole, study)
    unbroken = facts(whole.trials(study))
    assert len(unbroken) == 9
    moments = {"suggest 0 w1", "measure 1 w2 2", "complete 2 w2"}
    study = killed.vizier.study("broken")

    def before(moment):
        if moment in moments:
            moments.remove(moment)
            killed.kill()
            killed.start_again()

    story(lambda: killed.vizier, study, before)
    assert not moments and facts(killed.vizier.trials(study)) == unbroken


def test_a_kill_during_a_suggestion_neither_loses_nor_doubles_the_trial(killed):
    study = killed.vizier.study("a study")
    # The first suggestion loads JAX, which takes seconds: the kill falls into that.
    request = {"parent": study, "suggestion_count": 1, "client_id": "w0"}
    operation = killed.vizier.client.suggest_trials(request=request)
    assert not operation.operation.done
    killed.kill()
    killed.start_again()
    # The worker asks again, as one that was killed too would; the operation from before is answered as well.
    trial = killed.vizier.suggest(study, "w0")[0]
    found = killed.vizier.client.get_operation({"name": operation.operation.name})
    assert found.done, "they are answered in turn"
    assert v1.SuggestTrialsResponse.deserialize(found.response.value).trials[0].name == trial.name
    assert [each.name for each in killed.vizier.trials(study)] == [trial.name]


def test_kills_in_the_middle_of_traffic_lose_nothing_that_was_acknowledged(killed):
    study = killed.vizier.study("a study")
    trial = killed.vizier.suggest(study)[0]
    for _ in range(2):
        acknowledged = []

        def report():
            try:
                for step in range(10_000):
                    killed.vizier.measure(trial, step, 0.5)
                    acknowledged.append(step)
            except exceptions.GoogleAPICallError:
                pass

        reporter = threading.Thread(target=report)
        reporter.start()
        reporter.join(0.4)
        killed.kill()
        reporter.join()
        killed.start_again()
        found = {each.step_count for each in killed.vizier.client.get_trial(name=trial.name).measurements}
        assert acknowledged and found >= set(acknowledged)


def test_completed_between_the_deed_and_the_answer(killed):
    """The answer was lost, and the call is sent again: it is refused, and the trial is as it was completed."""
    trial = killed.vizier.suggest(killed.vizier.study("a study"))[0]
    killed.vizier.complete(trial, final_measurement=measured(3, 0.75))
    killed.kill()
    killed.start_again()
    with pytest.raises(exceptions.FailedPrecondition):
        killed.vizier.complete(trial, final_measurement=measured(3, 0.75))
    assert killed.vizier.client.get_trial(name=trial.name).final_measurement == measured(3, 0.75)


def test_a_study_keeps_its_algorithm_and_seed(tmp_path):
    """Whatever the service is started with later."""
    with local.running(tmp_path / "studies.sqlite", "quasi_random", seed=1) as service:
        vizier = Vizier(service.client(), local.PARENT)
        expected = [values_of(trial) for trial in vizier.suggest(vizier.study("in one go"), count=3)]
        begun = vizier.study("begun")
        assert values_of(vizier.suggest(begun)[0]) == expected[0]
    with local.running(tmp_path / "studies.sqlite", "eagle", seed=2) as service:
        vizier = Vizier(service.client(), local.PARENT)
        assert [values_of(trial) for trial in vizier.suggest(begun, count=3)] == expected
        assert values_of(vizier.suggest(vizier.study("new"))[0]) != expected[0]


@pytest.mark.parametrize("algorithm, count", [("eagle", 12), ("gaussian_process", 2)])
def test_the_same_seed_and_history_give_the_same_suggestions(tmp_path, algorithm, count):
    """Bit for bit; and a service that was killed in between suggests what it would have suggested."""
    killed = Killed(tmp_path, algorithm)

    def go_on(study, numbers):
        values = []
        for _ in range(numbers):
            trial = killed.vizier.suggest(study)[0]
            values.append(values_of(trial))
            killed.vizier.complete(trial, final_measurement=measured(1, values[-1]["rate"]))
        return values

    try:
        expected = go_on(killed.vizier.study("one"), count)
        study = killed.vizier.study("other")
        found = go_on(study, count - 1)
        killed.kill()
        killed.start_again()
        assert found + go_on(study, 1) == expected
        assert len({str(each) for each in expected}) == count
    finally:
        killed.close()


class TestProcess:
    """The command itself."""

    def refused(self, *words) -> subprocess.CompletedProcess:
        command = [local.PYTHON, "-m", "pipeline.vizier.service", *map(str, words)]
        done = subprocess.run(command, cwd=local.ROOT, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        return done

    def test_ends_cleanly_when_told_to_and_when_its_input_ends(self, tmp_path):
        for end in (lambda process: process.terminate(), lambda process: process.stdin.close()):
            words = [local.PYTHON, "-m", "pipeline.vizier.service", "--database", tmp_path / "s.sqlite", "--with-stdin"]
            with subprocess.Popen(
                words, cwd=local.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process:
                line = json.loads(process.stdout.readline())
                assert line["pid"] == process.pid and line["address"].startswith("127.0.0.1:")
                end(process)
                assert process.wait(20) == 0

    def test_one_server_a_file(self, tmp_path):
        with local.running(tmp_path / "s.sqlite", "quasi_random") as service:
            says = f"did not start.*belongs to the Vizier service of process {service.process.pid}"
            with pytest.raises(PipelineError, match=says), local.running(tmp_path / "s.sqlite"):
                pass

    def test_a_port_that_is_taken(self, service, tmp_path):
        port = service.address.rpartition(":")[2]
        done = self.refused("--database", tmp_path / "s.sqlite", "--port", port)
        assert done.returncode == 1 and f"port {port} of the loopback cannot be had" in done.stderr

    def test_a_file_of_something_else(self, tmp_path):
        (tmp_path / "notes.txt").write_text("not a database, and longer than the hundred bytes of its header\n" * 3)
        done = self.refused("--database", tmp_path / "notes.txt")
        assert done.returncode == 1 and "file is not a database" in done.stderr
        done = self.refused("--database", tmp_path / "notes.txt" / "s.sqlite")
        assert done.returncode == 1 and "name another --database" in done.stderr

    @pytest.mark.parametrize("words", [["--port", "70000"], ["--algorithm", "best"]])
    def test_a_command_line_that_cannot_be_used(self, words):
        assert self.refused("--database", "s", *words).returncode == 2
