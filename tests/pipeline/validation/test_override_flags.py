"""`local_runner.py --override`: all three flags or none, and mistakes told before anything runs."""

import pytest

import local_runner
from pipeline.validation.rules import RULES
from tests.pipeline.conftest import answers

DATE = ["--snapshot-date", "2026-03-02"]
BY, REASON = ["--override-by", "Ana"], ["--override-reason", "the photographs come on Tuesday"]
RULE = ["--override", "max_orphans"]

# Words of the command line, exit status, words of the answer.
MISTAKES = [
    (RULE, 2, ["--override, --override-by and --override-reason go together"]),
    ([*RULE, *BY], 2, ["go together"]),
    ([*RULE, *REASON], 2, ["go together"]),
    ([*BY, *REASON], 2, ["go together"]),
    (["--override", "", *BY], 2, ["go together"]),
    (["--override", "max_orphan", *BY, *REASON], 1, ["'max_orphan', which is no rule of the gate", *RULES]),
    (["--override", "max_orphans,,min_row", *BY, *REASON], 1, ["'min_row', which is no rule"]),
    (["--override", " , ", *BY, *REASON], 1, ["names no rule", *RULES]),
    ([*RULE, "--override-by", " ", *REASON], 1, ["'by' is empty"]),
    ([*RULE, *BY, "--override-reason", ""], 1, ["'reason' is empty"]),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    store = tmp_path_factory.mktemp("flags") / "store"
    found = answers("local_runner", [[*DATE, "--store", str(store), *words] for words, _, _ in MISTAKES])
    assert not store.exists()
    return found


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_told_before_anything_is_loaded(told, number):
    _, status, words = MISTAKES[number]
    assert (told[number].status, told[number].out, told[number].loaded) == (status, "", [])
    assert "Traceback" not in told[number].err
    for word in words:
        assert word in told[number].err


def test_none_or_all():
    assert local_runner.parse(DATE).override is None
    options = local_runner.parse([*DATE, *RULE, *BY, *REASON])
    assert (options.override, options.override_by, options.override_reason) == ("max_orphans", "Ana", REASON[1])
