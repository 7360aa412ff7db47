"""Accepted, rejected, or accepted because a person answers for it."""

import pytest

from pipeline.errors import PipelineError
from pipeline.validation.rules import RULES, Finding
from pipeline.validation.verdict import Override, Verdict


def override(*names, by="ana", reason="catalogue doubled") -> Override:
    return Override(names, by, reason)


def verdict(failed, person=None) -> Verdict:
    return Verdict([Finding(rule, rule not in failed, "1", "0") for rule in RULES], person)


@pytest.mark.parametrize(
    ("failed", "named", "accepted", "overridden", "broken", "unused"),
    [
        ([], None, True, [], [], []),
        (["max_orphans"], None, False, [], ["max_orphans"], []),
        (["max_orphans"], ["max_orphans"], True, ["max_orphans"], [], []),
        (["max_orphans", "max_rows"], ["max_orphans"], False, ["max_orphans"], ["max_rows"], []),
        (["max_orphans", "max_rows"], ["max_orphans", "max_rows"], True, ["max_rows", "max_orphans"], [], []),
        (["max_orphans"], ["max_orphans", "min_edits"], True, ["max_orphans"], [], ["min_edits"]),
        (["max_orphans"], ["min_edits"], False, [], ["max_orphans"], ["min_edits"]),
        ([], ["min_edits"], True, [], [], ["min_edits"]),
        (list(RULES), list(RULES), True, list(RULES), [], []),
    ],
)
def test_an_override_applies_only_to_rules_that_failed_and_any_other_rejects(
    failed, named, accepted, overridden, broken, unused
):
    found = verdict(failed, override(*named) if named else None)
    assert (found.accepted, found.overridden, found.broken, found.unused) == (accepted, overridden, broken, unused)
    assert set(found.failed) == set(failed)
    words = {rule: found.word(rule) for rule in RULES}
    for rule, word in words.items():
        assert word == ("overridden" if rule in overridden else "failed" if rule in failed else "passed")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: override("max_orphan"), ["'max_orphan'", "no rule of the gate"]),
        (lambda: override("min_rows, max_rows"), ["'min_rows, max_rows'"]),
        (lambda: override(""), ["''", "no rule of the gate"]),
        (lambda: override(), ["names no rule"]),
        (lambda: override("max_orphans", by=""), ["max_orphans", "'by' is empty"]),
        (lambda: override("max_orphans", by=" \t"), ["'by' is empty"]),
        (lambda: override("max_orphans", reason="\n"), ["'reason' is empty"]),
        (lambda: Override.from_json("{"), ["is no JSON"]),
        (lambda: Override.from_json("[]"), ["cannot be read", '"rules": ["RULE", ...]']),
        (lambda: Override.from_json('{"rules": "max_orphans", "by": "a", "reason": "b"}'), ["cannot be read"]),
        (lambda: Override.from_json('{"rules": ["max_orphans"], "by": null, "reason": "b"}'), ["cannot be read"]),
        (lambda: Override.from_json('{"rules": ["max_orphans"], "by": "a"}'), ["cannot be read"]),
        (lambda: Override.from_json('{"rules": ["max_orphan"], "by": "a", "reason": "b"}'), ["'max_orphan'"]),
    ],
)
def test_an_override_that_cannot_be_says_why(make, words):
    with pytest.raises(PipelineError) as raised:
        make()
    assert raised.value.exit_status == 1
    for word in words:
        assert word in str(raised.value)
    if "JSON" not in words[0]:
        assert all(rule in str(raised.value) for rule in RULES)


def test_an_override_travels_as_json():
    person = override("max_orphans", "min_edits", "max_orphans", reason='é "quoted"\n')
    assert person.rules == ("max_orphans", "min_edits")
    assert Override.from_json(person.to_json()) == person and Override.from_json("") is None


def test_the_record_says_what_was_let_pass_and_what_was_not_needed():
    assert verdict(["max_orphans"], override("max_orphans", "min_edits")).record() == {
        "rules": ["max_orphans"], "unused": ["min_edits"], "by": "ana", "reason": "catalogue doubled",
    }  # fmt: skip
    assert verdict([]).record() is None
