"""What tests ask of the servers that stand for Google: to refuse, to break off, to wait."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Rule:
    """A fault of the requests for which `where` holds, `times` times or, with None, always.

    Attributes:
        status: The answer, as an HTTP status; 0 for none.
        late: Whether the work is done nevertheless.
        action: What is done before the request goes on, instead of a fault.
    """

    where: Callable[[Any], bool]
    times: int | None
    status: int = 0
    late: bool = False
    action: Callable[[], None] | None = None


class Rules:
    """The rules that hold now."""

    def __init__(self):
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def add(self, rule: Rule) -> None:
        """From now on this one too."""
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """None any more."""
        with self._lock:
            self._rules.clear()

    def of(self, call: Any) -> list[Rule]:
        """The rules that hold for a request, each of them counted down."""
        with self._lock:
            found = [rule for rule in self._rules if rule.where(call)]
            for rule in found:
                if rule.times is not None:
                    rule.times -= 1
                    if rule.times == 0:
                        self._rules.remove(rule)
        return found
