"""What each call of Vertex's Vizier API does, one method a call; google.longrunning's Operations too.

A call is one transaction, so that a kill leaves it done or not done. Suggestions alone take two, since they may need
seconds: the request is written down first, and answered by one thread in the order in which they came. A service that
starts again answers what it finds unanswered. Whatever needs no suggestion waits for none.
"""

import logging
import queue
import threading
import time

from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, timestamp_pb2

from pipeline.vizier import algorithms, checks, resources, stopping
from pipeline.vizier.database import Database, Study, Transaction, Trial
from pipeline.vizier.refusals import Code, Refused, invalid, missing, unsupported, untimely
from pipeline.vizier.resources import OperationName, TrialName

_log = logging.getLogger(__name__)

_State = v1.Trial.State
UNFINISHED = (_State.ACTIVE, _State.STOPPING)
"""A trial in one of these states is under way."""

_PROMPT_SECONDS = 0.3
"""How long a call waits for its suggestion, before it answers that the operation is under way. Google's client waits a
whole second before it asks again."""

_PAGE_SIZE, _MAX_PAGE_SIZE = 100, 1000


class Methods:
    """The API over one database.

    Args:
        database: Where the studies are.
        default: The algorithm of studies that leave the choice to the service, one of `algorithms.DEFAULTS`.
        seed: The seed of studies that are made from now on; a study keeps its own, and its algorithm.
    """

    def __init__(self, database: Database, default: str, seed: int):
        self._database = database
        self._default = default
        self._seed = seed
        self._queue: queue.SimpleQueue[tuple[OperationName, v1.SuggestTrialsRequest]] = queue.SimpleQueue()
        self._answered = threading.Condition()
        with database.transaction() as transaction:
            for pending in transaction.pending():
                self._queue.put(pending)
        threading.Thread(target=self._answer_in_turn, name="suggestions", daemon=True).start()

    # --- Studies ---

    def create_study(self, request: v1.CreateStudyRequest) -> v1.Study:
        parent = resources.parse_parent(request.parent)
        study = v1.Study(display_name=request.study.display_name, study_spec=request.study.study_spec)
        checks.check_study(study)
        study.state, study.create_time = v1.Study.State.ACTIVE, _now()
        algorithm = algorithms.algorithm_of(study.study_spec, self._default)
        if algorithm == "eagle" and len(study.study_spec.metrics) > 1:
            raise unsupported(f"the algorithm eagle with {len(study.study_spec.metrics)} metrics")
        with self._database.transaction() as transaction:
            there = transaction.find_study(parent, study.display_name)
            if there:
                raise Refused(Code.ALREADY_EXISTS, f"{there.name} has the display name {study.display_name!r}")
            return transaction.add_study(parent, study, algorithm, self._seed).message

    def get_study(self, request: v1.GetStudyRequest) -> v1.Study:
        with self._database.transaction() as transaction:
            return transaction.study(resources.parse_study(request.name)).message

    def lookup_study(self, request: v1.LookupStudyRequest) -> v1.Study:
        parent = resources.parse_parent(request.parent)
        with self._database.transaction() as transaction:
            study = transaction.find_study(parent, request.display_name)
        if not study:
            raise missing("study with the display name", f"{request.display_name!r} in {parent}")
        return study.message

    def list_studies(self, request: v1.ListStudiesRequest) -> v1.ListStudiesResponse:
        parent = resources.parse_parent(request.parent)
        after, size = _page(request)
        with self._database.transaction() as transaction:
            found = transaction.studies(parent, after, size + 1)
        studies, token = _cut(found, size)
        return v1.ListStudiesResponse(studies=[study.message for study in studies], next_page_token=token)

    def delete_study(self, request: v1.DeleteStudyRequest) -> empty_pb2.Empty:
        with self._database.transaction() as transaction:
            transaction.delete_study(transaction.study(resources.parse_study(request.name)).name)
        return empty_pb2.Empty()

    # --- Suggestions ---

    def suggest_trials(self, request: v1.SuggestTrialsRequest) -> operations_pb2.Operation:
        study_name = resources.parse_study(request.parent)
        if request.suggestion_count < 1:
            raise invalid(f"suggestion_count {request.suggestion_count} is below 1")
        if not request.client_id:
            raise invalid("client_id is empty: a client that starts again finds its trials by it")
        if request.contexts:
            raise unsupported("contexts")
        with self._database.transaction() as transaction:
            study = transaction.study(study_name)
            operation = transaction.add_operation(study.name)
            operation.metadata.Pack(v1.SuggestTrialsMetadata.pb(v1.SuggestTrialsMetadata(client_id=request.client_id)))
            name = resources.parse_operation(operation.name)
            at_hand = _at_hand(transaction, study, request)
            if len(at_hand) == request.suggestion_count or study.message.state != v1.Study.State.ACTIVE:
                return self._answer(transaction, study, name, operation, at_hand)
            transaction.save_operation(name, operation, request)
        self._queue.put((name, request))
        return self._wait(name, _PROMPT_SECONDS)

    def _answer_in_turn(self) -> None:
        while True:
            name, request = self._queue.get()
            try:
                self._suggest(name, request)
            except Refused as refused:
                # The study, and its operations with it, was deleted in the meantime.
                _log.info("%s is not answered: %s", name, refused)
            except Exception as error:
                _log.exception("%s failed", name)
                self._fail(name, error)
            with self._answered:
                self._answered.notify_all()

    def _suggest(self, name: OperationName, request: v1.SuggestTrialsRequest) -> None:
        with self._database.transaction() as transaction:
            study = transaction.study(name.study)
            wanted = request.suggestion_count - len(_at_hand(transaction, study, request))
            trials = transaction.trials(study.name)
        ended = sorted((trial for trial in trials if trial.completed is not None), key=lambda trial: trial.completed)
        question = algorithms.Question(
            spec=study.message.study_spec,
            seed=study.seed,
            drawn=study.drawn,
            memory=study.memory,
            completed=ended,
            active=sorted(
                (trial for trial in trials if trial.message.state in UNFINISHED), key=lambda trial: trial.created
            ),
            count=wanted,
        )
        answer = algorithms.suggest(study.algorithm, question) if wanted > 0 else None
        with self._database.transaction() as transaction:
            # Meanwhile trials may have ended or been added; only this thread draws.
            study, operation = transaction.study(name.study), transaction.operation(name)
            found = _at_hand(transaction, study, request)
            if answer:
                found += [_new_trial(transaction, study, each, request.client_id) for each in answer.suggestions]
                study.drawn += len(answer.suggestions)
                study.memory = answer.memory
                if len(answer.suggestions) < wanted:
                    study.message.state = v1.Study.State.COMPLETED  # the space is exhausted
                transaction.save_study(study)
            self._answer(transaction, study, name, operation, found)

    def _answer(self, transaction: Transaction, study: Study, name: OperationName, operation, trials: list[Trial]):
        response = v1.SuggestTrialsResponse(
            trials=[trial.message for trial in trials], study_state=study.message.state, end_time=_now()
        )
        operation.response.Pack(v1.SuggestTrialsResponse.pb(response))
        operation.done = True
        transaction.save_operation(name, operation)
        return operation

    def _fail(self, name: OperationName, error: Exception) -> None:
        with self._database.transaction() as transaction:
            operation = transaction.operation(name)
            operation.error.code = Code.INTERNAL.value[0]
            operation.error.message = f"no suggestion could be made: {type(error).__name__}: {error}"
            operation.done = True
            transaction.save_operation(name, operation)

    # --- Trials ---

    def create_trial(self, request: v1.CreateTrialRequest) -> v1.Trial:
        with self._database.transaction() as transaction:
            study = transaction.study(resources.parse_study(request.parent))
            spec = study.message.study_spec
            checks.check_values(spec, request.trial)
            message = v1.Trial(parameters=request.trial.parameters, state=_State.REQUESTED)
            trial = _number(study, Trial(TrialName(study.name, 0), message, created=study.tick()))
            if "final_measurement" in request.trial:
                checks.check_measurement(spec, request.trial.final_measurement)
                message.final_measurement = request.trial.final_measurement
                message.start_time = _now()
                _end(study, trial, _State.SUCCEEDED)
            transaction.save_trial(trial)
            transaction.save_study(study)
            return message

    def get_trial(self, request: v1.GetTrialRequest) -> v1.Trial:
        with self._database.transaction() as transaction:
            return transaction.trial(resources.parse_trial(request.name)).message

    def list_trials(self, request: v1.ListTrialsRequest) -> v1.ListTrialsResponse:
        name = resources.parse_study(request.parent)
        after, size = _page(request)
        with self._database.transaction() as transaction:
            transaction.study(name)
            found = transaction.trials(name, after, size + 1)
        trials, token = _cut(found, size)
        return v1.ListTrialsResponse(trials=[trial.message for trial in trials], next_page_token=token)

    def delete_trial(self, request: v1.DeleteTrialRequest) -> empty_pb2.Empty:
        with self._database.transaction() as transaction:
            transaction.delete_trial(transaction.trial(resources.parse_trial(request.name)).name)
        return empty_pb2.Empty()

    def add_trial_measurement(self, request: v1.AddTrialMeasurementRequest) -> v1.Trial:
        with self._database.transaction() as transaction:
            study, trial = _under_way(transaction, request.trial_name, "measured")
            checks.check_measurement(study.message.study_spec, request.measurement)
            # Ordered strictly by step and duration. A client that lost the answer sends the same one again.
            kept = [each for each in trial.message.measurements if _place(each) != _place(request.measurement)]
            trial.message.measurements = sorted([*kept, request.measurement], key=_place)
            transaction.save_trial(trial)
            return trial.message

    def complete_trial(self, request: v1.CompleteTrialRequest) -> v1.Trial:
        with self._database.transaction() as transaction:
            study, trial = _under_way(transaction, request.name, "completed")
            spec, state = study.message.study_spec, _State.SUCCEEDED
            if request.trial_infeasible:
                state, trial.message.infeasible_reason = _State.INFEASIBLE, request.infeasible_reason
            elif request.infeasible_reason:
                raise invalid(f"infeasible_reason {request.infeasible_reason!r} needs trial_infeasible")
            elif "final_measurement" in request:
                checks.check_measurement(spec, request.final_measurement)
                trial.message.final_measurement = request.final_measurement
            elif trial.message.measurements:
                trial.message.final_measurement = _selected(spec, trial.message.measurements)
            else:
                state, trial.message.infeasible_reason = _State.INFEASIBLE, "it was completed without a measurement"
            _end(study, trial, state)
            transaction.save_trial(trial)
            transaction.save_study(study)
            return trial.message

    def stop_trial(self, request: v1.StopTrialRequest) -> v1.Trial:
        with self._database.transaction() as transaction:
            _, trial = _under_way(transaction, request.name, "stopped")
            trial.message.state = _State.STOPPING
            transaction.save_trial(trial)
            return trial.message

    def check_trial_early_stopping_state(self, request: v1.CheckTrialEarlyStoppingStateRequest) -> operations_pb2.Operation:
        with self._database.transaction() as transaction:
            study, trial = _under_way(transaction, request.trial_name, "checked")
            if trial.message.state == _State.ACTIVE and _falls_behind(transaction, study, trial):
                trial.message.state = _State.STOPPING
                transaction.save_trial(trial)
            response = v1.CheckTrialEarlyStoppingStateResponse(should_stop=trial.message.state == _State.STOPPING)
            # The name of this type is misspelt in Vertex's API.
            metadata = v1.CheckTrialEarlyStoppingStateMetatdata(study=str(study.name), trial=str(trial.name))
            operation = transaction.add_operation(study.name)
            operation.metadata.Pack(v1.CheckTrialEarlyStoppingStateMetatdata.pb(metadata))
            operation.response.Pack(v1.CheckTrialEarlyStoppingStateResponse.pb(response))
            operation.done = True
            transaction.save_operation(resources.parse_operation(operation.name), operation)
            return operation

    def list_optimal_trials(self, request: v1.ListOptimalTrialsRequest) -> v1.ListOptimalTrialsResponse:
        with self._database.transaction() as transaction:
            study = transaction.study(resources.parse_study(request.parent))
            trials = transaction.trials(study.name)
        spec = study.message.study_spec
        scored = [
            (trial.message, _scores(spec, trial.message.final_measurement))
            for trial in trials
            if trial.message.state == _State.SUCCEEDED
        ]
        optimal = [
            trial
            for place, (trial, scores) in enumerate(scored)
            if not any(_dominates(other, scores) for _, other in scored)
            and scores not in [earlier for _, earlier in scored[:place]]  # of equals the first
        ]
        return v1.ListOptimalTrialsResponse(optimal_trials=optimal)

    # --- google.longrunning.Operations ---

    def get_operation(self, request: operations_pb2.GetOperationRequest) -> operations_pb2.Operation:
        with self._database.transaction() as transaction:
            return transaction.operation(resources.parse_operation(request.name))

    def delete_operation(self, request: operations_pb2.DeleteOperationRequest) -> empty_pb2.Empty:
        name = resources.parse_operation(request.name)
        with self._database.transaction() as transaction:
            transaction.operation(name)
            transaction.delete_operation(name)
        return empty_pb2.Empty()

    def _wait(self, name: OperationName, seconds: float) -> operations_pb2.Operation:
        deadline = time.monotonic() + seconds
        while True:
            with self._answered:
                operation = self.get_operation(operations_pb2.GetOperationRequest(name=str(name)))
                left = deadline - time.monotonic()
                if operation.done or left <= 0:
                    return operation
                self._answered.wait(left)


def _at_hand(transaction: Transaction, study: Study, request: v1.SuggestTrialsRequest) -> list[Trial]:
    """What a client gets without a suggestion: its trials under way, then those that a user asked for."""
    trials = transaction.trials(study.name)
    own = [each for each in trials if each.message.state in UNFINISHED and each.message.client_id == request.client_id]
    own = own[: request.suggestion_count]
    for trial in trials:
        if len(own) < request.suggestion_count and trial.message.state == _State.REQUESTED:
            trial.message.state, trial.message.client_id = _State.ACTIVE, request.client_id
            trial.message.start_time = _now()
            trial.created = study.tick()
            transaction.save_trial(trial)
            transaction.save_study(study)
            own.append(trial)
    return own


def _new_trial(transaction: Transaction, study: Study, suggestion: algorithms.Suggestion, client_id: str) -> Trial:
    message = v1.Trial(state=_State.ACTIVE, client_id=client_id, start_time=_now())
    message.parameters = [{"parameter_id": name, "value": value} for name, value in suggestion.values.items()]
    made = Trial(TrialName(study.name, 0), message, created=study.tick(), memory=suggestion.memory)
    trial = _number(study, made)
    transaction.save_trial(trial)
    return trial


def _number(study: Study, trial: Trial) -> Trial:
    study.trials += 1
    trial.name = TrialName(study.name, study.trials)
    trial.message.name, trial.message.id = str(trial.name), str(study.trials)
    return trial


def _under_way(transaction: Transaction, name: str, verb: str) -> tuple[Study, Trial]:
    """A trial with its study. Raises Refused unless the trial is under way."""
    trial = transaction.trial(resources.parse_trial(name))
    if trial.message.state not in UNFINISHED:
        raise untimely(f"trial {name} is {trial.message.state.name}: only one that is ACTIVE or STOPPING can be {verb}")
    return transaction.study(trial.name.study), trial


def _end(study: Study, trial: Trial, state: v1.Trial.State) -> None:
    trial.message.state, trial.message.end_time = state, _now()
    trial.completed = study.tick()


def _falls_behind(transaction: Transaction, study: Study, trial: Trial) -> bool:
    spec = study.message.study_spec
    if "median_automated_stopping_spec" not in spec:
        return False
    completed = [each for each in transaction.trials(study.name) if each.message.state == _State.SUCCEEDED]
    # _scores turns what is minimized round, so that more is better.
    curves = [_curve(spec, each.message) for each in completed]
    return stopping.should_stop(_curve(spec, trial.message), curves)


def _curve(spec: v1.StudySpec, trial: v1.Trial) -> stopping.Curve:
    return [(each.step_count, _scores(spec, each)[0]) for each in trial.measurements]


def _scores(spec: v1.StudySpec, measurement: v1.Measurement) -> tuple[float, ...]:
    """The metrics in the study's order, more being better."""
    values = {metric.metric_id: metric.value for metric in measurement.metrics}
    minimize = v1.StudySpec.MetricSpec.GoalType.MINIMIZE
    return tuple(-values[each.metric_id] if each.goal == minimize else values[each.metric_id] for each in spec.metrics)


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other))


def _selected(spec: v1.StudySpec, measurements) -> v1.Measurement:
    """The measurement that becomes the final one when the client names none."""
    if spec.measurement_selection_type == v1.StudySpec.MeasurementSelectionType.BEST_MEASUREMENT:
        return max(measurements, key=lambda each: _scores(spec, each))
    return measurements[-1]


def _place(measurement: v1.Measurement) -> tuple:
    duration = v1.Measurement.pb(measurement).elapsed_duration
    return measurement.step_count, duration.seconds, duration.nanos


def _page(request) -> tuple[int, int]:
    if request.page_size < 0:
        raise invalid(f"page_size {request.page_size} is below 0")
    if request.page_token and not request.page_token.isdecimal():
        raise invalid(f"page_token {request.page_token!r} was not given by this service")
    return int(request.page_token or 0), min(request.page_size or _PAGE_SIZE, _MAX_PAGE_SIZE)


def _cut(found: list, size: int) -> tuple[list, str]:
    page = found[:size]
    return page, str(page[-1].name.number) if len(found) > size else ""


def _now() -> timestamp_pb2.Timestamp:
    stamp = timestamp_pb2.Timestamp()
    stamp.GetCurrentTime()
    return stamp
