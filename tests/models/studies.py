"""A study in memory, behind the Protocol that workers know."""

import dataclasses
import math
import time

from models.study import Trial


def trial(number, state="SUCCEEDED", value=None, curve=(), seconds=60.0, **changes):
    """A trial, by default one that succeeded with its value after as many steps as its curve has."""
    return Trial(
        **{
            "name": f"studies/1/trials/{number}",
            "number": number,
            "state": state,
            "client_id": "w",
            "values": {"dropout": 0.1},
            "curve": tuple(curve),
            "value": value,
            "step": len(curve) or None,
            "reason": "",
            "begun": 1000.0,
            "seconds": seconds if state in ("SUCCEEDED", "INFEASIBLE") else None,
            **changes,
        }
    )


class MemoryStudy:
    """Suggests given values in their order.

    Args:
        values: Of each trial.
        stops: (number, step) of trials that are not worth going on with.
    """

    def __init__(self, values, stops=()):
        self._values, self._stops = list(values), set(stops)
        self._trials: dict[int, Trial] = {}
        self.reports: list[tuple[int, int]] = []

    def trials(self):
        return [self._trials[number] for number in sorted(self._trials)]

    def suggest(self, client_id):
        own = [one for one in self.trials() if one.under_way and one.client_id == client_id]
        if own or len(self._trials) == len(self._values):
            return own[0] if own else None
        number = max(self._trials, default=0) + 1
        made = trial(number, "ACTIVE", client_id=client_id, values=self._values[number - 1], begun=time.time())
        self._trials[number] = made
        return made

    def measure(self, given, step, value):
        if step in dict(given.curve):
            return
        assert math.isfinite(value)
        self.reports.append((given.number, step))
        now = self._trials[given.number]
        self._trials[given.number] = dataclasses.replace(now, curve=(*now.curve, (step, value)))

    def should_stop(self, given):
        stop = (given.number, self._trials[given.number].curve[-1][0]) in self._stops
        if stop:
            self._trials[given.number] = dataclasses.replace(self._trials[given.number], state="STOPPING")
        return stop

    def complete(self, given, step, value):
        return self._end(given, state="SUCCEEDED", step=step, value=value)

    def infeasible(self, given, reason):
        return self._end(given, state="INFEASIBLE", reason=reason)

    def discard(self, given):
        assert not self._trials.pop(given.number).curve

    def _end(self, given, **fields):
        now = self._trials[given.number]
        assert now.under_way
        self._trials[given.number] = dataclasses.replace(now, seconds=time.time() - now.begun, **fields)
        return self._trials[given.number]
