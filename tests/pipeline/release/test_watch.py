"""The watch over a canary: what it asks, when it stops, and what it says."""

import itertools

import pytest

from pipeline.release import watch
from pipeline.vertex.settings import EndpointSettings

CLASSES = ["bird", "flower"]
SMOKE_SET = {
    "classes": CLASSES,
    "photographs": [{"request": {"n": number}, "probabilities": [number / 10, 1 - number / 10]} for number in range(3)],
}


def limits(**changes) -> EndpointSettings:
    known = {"image": f"x@sha256:{'0' * 64}", "watch_minutes": 0.0001, "watch_answers": 100, "max_error_share": 0.02}
    return EndpointSettings(**{**known, **changes})


class Traffic:
    """An endpoint of which every nth request goes to the canary; `canary` changes the prediction that this gives."""

    def __init__(self, every: int = 2, canary=lambda prediction, answered: prediction):
        self._every, self._canary = every, canary
        self.asked, self.answered = 0, 0

    def __call__(self, request):
        self.asked += 1
        right = {"classes": CLASSES, "probabilities": SMOKE_SET["photographs"][request["n"]]["probabilities"]}
        if self.asked % self._every:
            return "old", {"classes": ["another"], "probabilities": [1.0]}
        self.answered += 1
        return "new", self._canary(right, self.answered)


def seen(traffic, percent=50, **changes) -> watch.Finding:
    return watch.watch(traffic, SMOKE_SET, "new", percent, limits(**changes))


def test_a_canary_that_answers_as_its_trainer_passes_whatever_the_other_says():
    traffic = Traffic()
    found = seen(traffic)
    assert found.passed and traffic.answered >= 100
    assert found.told.startswith("3 photographs answered as by the trainer; watched for 0.0001 minutes: 100 answers, 0 errors")


def fails(nth, problem=watch.NoAnswer("500 the server died")):
    def canary(prediction, answered):
        if answered % nth == 0:
            raise problem
        return prediction

    return canary


def test_5_percent_of_errors_end_the_watch_before_its_time():
    traffic = Traffic(canary=fails(20))
    found = seen(traffic, watch_minutes=0.0001)
    assert not found.passed and traffic.answered == 60
    assert found.told == "3 of 57 requests failed or were answered wrongly (5.3 %, at most 2 %); the last: 500 the server died"


def test_errors_below_the_limit_pass_and_are_counted():
    found = seen(Traffic(canary=fails(60)))
    assert found.passed and " 1 errors" in found.told


def wrong(from_answer, **changes):
    return lambda prediction, answered: prediction | changes if answered >= from_answer else prediction


@pytest.mark.parametrize(
    ("prediction", "told"),
    [
        ({"probabilities": [0.5, 0.5]}, "a probability lies 0.4 from the trainer's, at most 0.005 is allowed"),
        ({"probabilities": [0.5]}, "a probability lies inf from"),
        ({"probabilities": None}, "a probability lies inf from"),
        ({"classes": ["flower", "bird"]}, "its classes are ['flower', 'bird']"),
    ],
)
def test_one_wrong_answer_fails_the_probe(prediction, told):
    traffic = Traffic(canary=wrong(1, **prediction))
    found = seen(traffic)
    assert not found.passed and traffic.answered == 1
    assert found.told.startswith("the probe of its answers failed: ") and told in found.told


def test_an_answer_that_is_no_prediction_fails_the_probe():
    found = seen(Traffic(canary=lambda prediction, answered: "<html>"))
    assert not found.passed and "the answer is no prediction: <html>" in found.told


def test_wrong_answers_later_count_as_errors():
    found = seen(Traffic(canary=wrong(50, probabilities=[0.5, 0.5])))
    assert not found.passed and found.told.startswith("3 of 49 requests failed or were answered wrongly")


def test_a_canary_without_traffic_was_not_evaluated():
    found = seen(Traffic(every=10**9))
    assert not found.passed and "it answered 0, and 3 photographs are left unanswered" in found.told


def test_too_few_answers_are_a_failure(monkeypatch):
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(clock))
    found = seen(Traffic(), watch_minutes=1.0, watch_answers=1000)
    assert not found.passed and "and 1000 were wanted: it was not evaluated" in found.told


def test_answers_that_come_late_are_a_failure(monkeypatch):
    clock = itertools.count(0.0, 0.25)
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(clock))
    found = seen(Traffic(), max_latency_ms=200.0, watch_answers=5)
    assert not found.passed and found.told == "95 % of the answers took up to 250 ms, at most 200 ms"


def test_the_first_answers_of_a_server_that_has_just_started_may_take_longer(monkeypatch):
    now = [0.0]

    def canary(prediction, answered):
        now[0] += 30.0 if answered <= 3 else 0.1
        return prediction

    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    found = seen(Traffic(canary=canary), max_latency_ms=200.0, watch_answers=5)
    assert found.passed and "95 % within 100 ms" in found.told


def test_requests_are_spread_over_the_watch(monkeypatch):
    slept = []
    now = [0.0]

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch.time, "sleep", sleep)
    traffic = Traffic(every=10)
    assert seen(traffic, percent=10, watch_minutes=1.0, watch_answers=12).passed
    # 12 answers of a tenth of the traffic are 120 requests in 60 seconds.
    assert slept[:5] == pytest.approx([0.5] * 5) and sum(slept) == pytest.approx(60, abs=1)
