"""The verdict on a snapshot: accepted, rejected, or accepted because a person answers for the rules that failed."""

import dataclasses
import json
from collections.abc import Sequence

from pipeline.errors import PipelineError
from pipeline.validation.rules import RULES, Finding
from pipeline.validation.text import printable


@dataclasses.dataclass(frozen=True)
class Override:
    """A person's decision that a snapshot passes although it breaks rules.

    Attributes:
        rules: Names of the rules that may fail, each once.
        by: Who decided.
        reason: Why.

    Raises:
        PipelineError: There is no rule of that name, no rule is named, or person or reason is empty.
    """

    rules: tuple[str, ...]
    by: str
    reason: str

    def __post_init__(self):
        object.__setattr__(self, "rules", tuple(dict.fromkeys(self.rules)))
        known = f"The rules are {', '.join(RULES)}"
        unknown = [rule for rule in self.rules if rule not in RULES]
        if unknown:
            raise PipelineError(f"an override names {', '.join(map(repr, unknown))}, which is no rule of the gate. {known}")
        if not self.rules:
            raise PipelineError(f"an override names no rule: name each rule that may fail. {known}")
        for field in ("by", "reason"):
            if not getattr(self, field).strip():
                raise PipelineError(
                    f"an override of {', '.join(self.rules)} needs a person and a reason: its {field!r} is empty. {known}"
                )

    def to_json(self) -> str:
        """The override as `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Override | None":
        """Reads `to_json`'s text; None for ''.

        Raises:
            PipelineError: It is no JSON, has other fields than rules, by and reason, or these cannot be used.
        """
        if not text:
            return None
        try:
            content = json.loads(text)
        except ValueError as error:
            raise PipelineError(f"the override {printable(text)} is no JSON: {error}") from error
        whole = (
            isinstance(content, dict)
            and content.keys() == {"rules", "by", "reason"}
            and isinstance(content["rules"], list)
            and all(isinstance(value, str) for value in [*content["rules"], content["by"], content["reason"]])
        )
        if not whole:
            raise PipelineError(
                f"the override {printable(text)} cannot be read: it must be "
                '{"rules": ["RULE", ...], "by": "NAME", "reason": "TEXT"}. '
                f"The rules are {', '.join(RULES)}"
            )
        return cls(tuple(content["rules"]), content["by"], content["reason"])


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the gate decides.

    Attributes:
        findings: Every rule, judged.
        override: A person's decision about rules that fail, or None.
    """

    findings: Sequence[Finding]
    override: Override | None = None

    @property
    def failed(self) -> list[str]:
        """Rules that failed, overridden or not."""
        return [finding.rule for finding in self.findings if not finding.passed]

    @property
    def overridden(self) -> list[str]:
        """Rules that failed and that the override names."""
        return [rule for rule in self.failed if self.override and rule in self.override.rules]

    @property
    def broken(self) -> list[str]:
        """Rules that failed and that no override names: any rejects the snapshot."""
        return [rule for rule in self.failed if rule not in self.overridden]

    @property
    def unused(self) -> list[str]:
        """Rules that the override names and that did not fail."""
        return [rule for rule in self.override.rules if rule not in self.failed] if self.override else []

    @property
    def accepted(self) -> bool:
        """Whether anything may train on the snapshot."""
        return not self.broken

    def word(self, rule: str) -> str:
        """`passed`, `failed` or `overridden`."""
        return "overridden" if rule in self.overridden else "failed" if rule in self.failed else "passed"

    def record(self) -> dict | None:
        """The override as reports and the lineage keep it: rules let pass, unused ones, by, reason; None without one."""
        if self.override is None:
            return None
        return {"rules": self.overridden, "unused": self.unused, "by": self.override.by, "reason": self.override.reason}
