"""The watch over a canary: its answers to the smoke set, asked through the endpoint like any client's, for a set time.

Vertex cannot be asked to let one deployed model answer, but says which did. So photographs are sent until the canary has
answered each, and then on. Nobody says which model an error came from: errors count against the canary, because what served
before has served without. Light: no TensorFlow.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.release import smoke
from pipeline.vertex.settings import EndpointSettings

_PATIENCE = 5
"""How many times as many requests as expected are made until the canary has answered the whole smoke set."""


class NoAnswer(Exception):
    """A request that got an error for an answer."""


Ask = Callable[[Mapping[str, Any]], tuple[str, Any]]
"""Sends one instance; returns the id of the deployed model that answered, and its prediction. Raises NoAnswer."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What came of a watch.

    Attributes:
        passed: Whether the canary may take all traffic.
        told: What was seen, as part of a sentence.
    """

    passed: bool
    told: str


class _Watch:
    """What was seen so far."""

    def __init__(self, ask: Ask, reference: Mapping, canary: str, limits: EndpointSettings):
        self._ask, self._reference, self._canary, self._limits = ask, reference, canary, limits
        self.latencies: list[float] = []
        self.errors, self.last_error = 0, ""

    @property
    def answers(self) -> int:
        """Right answers of the canary; those of the probe count until the watch begins."""
        return len(self.latencies)

    def ask(self, photograph: Mapping) -> bool:
        """Asks once; whether the canary answered."""
        began = time.monotonic()
        try:
            answered_by, prediction = self._ask(photograph["request"])
        except NoAnswer as error:
            self._count(str(error))
            return False
        if answered_by != self._canary:
            return False
        if problem := self._problem(prediction, photograph["probabilities"]):
            self._count(problem)
        else:
            self.latencies.append(1000 * (time.monotonic() - began))
        return True

    def _count(self, problem: str) -> None:
        self.errors, self.last_error = self.errors + 1, " ".join(problem.split())[:300]

    def _problem(self, prediction: Any, expected: list[float]) -> str:
        if not isinstance(prediction, Mapping):
            return f"the answer is no prediction: {str(prediction)[:100]}"
        if prediction.get("classes") != self._reference["classes"]:
            return f"its classes are {str(prediction.get('classes'))[:100]}"
        distance = smoke.difference(prediction.get("probabilities"), expected)
        if distance > self._limits.max_probability_difference:
            return (
                f"a probability lies {distance:.2g} from the trainer's, at most "
                f"{self._limits.max_probability_difference:g} is allowed"
            )
        return ""

    def failure(self) -> str:
        """Why the canary has failed by now; empty when it has not."""
        judged = max(self._limits.watch_answers, self.answers + self.errors)
        if self.errors > self._limits.max_error_share * judged:
            share = self.errors / max(self.answers + self.errors, 1)
            return (
                f"{self.errors} of {self.answers + self.errors} requests failed or were answered wrongly "
                f"({100 * share:.2g} %, at most {100 * self._limits.max_error_share:g} %); the last: {self.last_error}"
            )
        return ""

    def slow(self) -> str:
        """Why the canary is too slow; empty when it is not."""
        if self.percentile() > self._limits.max_latency_ms:
            return f"95 % of the answers took up to {self.percentile():.0f} ms, at most {self._limits.max_latency_ms:g} ms"
        return ""

    def percentile(self) -> float:
        """The 95th percentile of the latencies, milliseconds; 0 without any."""
        ordered = sorted(self.latencies)
        return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else 0.0


def watch(ask: Ask, reference: Mapping, canary: str, percent: int, limits: EndpointSettings) -> Finding:
    """Asks until the canary has answered every photograph, then on for as long as the settings say.

    Args:
        ask: Sends a request to the endpoint.
        reference: The smoke set (`smoke.read`).
        canary: Id of the canary, as answers name it.
        percent: Its share of the traffic.
        limits: What it must reach, and for how long it is watched.

    Returns:
        The verdict. It comes early when the canary has failed already.
    """
    seen = _Watch(ask, reference, canary, limits)
    photographs = reference["photographs"]
    probed = _probe(seen, photographs, percent)
    if probed:
        return Finding(False, f"the probe of its answers failed: {probed}")
    # A server that has just started is slow at first, which says nothing of what users will wait for.
    seen.latencies.clear()
    seconds = 60 * limits.watch_minutes
    pause = seconds / math.ceil(limits.watch_answers * 100 / percent)
    began = time.monotonic()
    for number, photograph in enumerate(itertools.cycle(photographs), start=1):
        seen.ask(photograph)
        if failure := seen.failure():
            return Finding(False, failure)
        passed = time.monotonic() - began
        if passed >= seconds and seen.answers >= limits.watch_answers:
            break
        if passed > 2 * seconds + 60:
            return Finding(
                False, f"it answered {seen.answers} requests in {passed / 60:.3g} minutes, and {limits.watch_answers} were "
                "wanted: it was not evaluated",
            )  # fmt: skip
        time.sleep(max(0.0, number * pause - passed))
    if slow := seen.slow():
        return Finding(False, slow)
    return Finding(
        True, f"{len(photographs)} photographs answered as by the trainer; watched for {limits.watch_minutes:g} minutes: "
        f"{seen.answers} answers, {seen.errors} errors, 95 % within {seen.percentile():.0f} ms",
    )  # fmt: skip


def _probe(seen: _Watch, photographs: list, percent: int) -> str:
    """Lets the canary answer each photograph once; why it failed, or empty."""
    waiting, asked, most = list(photographs), 0, math.ceil(_PATIENCE * len(photographs) * 100 / percent) + 50
    while waiting:
        photograph = waiting.pop(0)
        wrong = seen.errors
        answered = seen.ask(photograph)
        asked += 1
        if answered and seen.errors > wrong:
            return seen.last_error
        if failure := seen.failure():
            return failure
        if not answered:
            waiting.append(photograph)
        if waiting and asked >= most:
            return f"of {asked} requests it answered {seen.answers}, and {len(waiting)} photographs are left unanswered"
    return ""
