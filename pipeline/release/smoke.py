"""The smoke test of an export: does it answer as the trainer did, refuse what is no photograph, and do so fast enough?

The export is loaded by `pipeline.release.probe`, a process with TensorFlow alone, and asked as Vertex asks. What it is asked
and what the trainer answered travels with it (`models.smoke`). Light: no TensorFlow in this process.
"""

import base64
import dataclasses
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import storage
from pipeline.evaluation.thresholds import SmokeThresholds
from pipeline.validation.rules import Finding

_PROBE = pathlib.Path(__file__).with_name("probe.py")

SMOKE_SET = "assets.extra/smoke.json"
"""Where the trainer puts the smoke set in a SavedModel's folder: `models.smoke.FILE`, which needs TensorFlow."""

_OURS = ("models", "pipeline")

# Single requests whose time counts, after one of each photograph that does not.
_TIMED = 20

# A header that announces 60,000 x 60,000 pixels, and nothing behind it: 10 GB for whoever believes it.
_HUGE = bytes.fromhex("ffd8ffc0001108ea60ea6003012200021101031101ffd9")
_PNG = b"\x89PNG\r\n\x1a\n" + bytes.fromhex("0000000d4948445200000001000000010802000000907753de")


@dataclasses.dataclass(frozen=True)
class SmokeTest:
    """What came of a smoke test.

    Attributes:
        findings: Every check, judged; a check that could not be made has failed.
        facts: Figures for the report: seconds to load, latencies in milliseconds, TensorFlow's version.
    """

    findings: tuple[Finding, ...]
    facts: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Whether the export may be evaluated and released."""
        return all(finding.passed for finding in self.findings)

    @property
    def reasons(self) -> list[str]:
        """Each failed check as a sentence."""
        failed = [finding for finding in self.findings if not finding.passed]
        return [f"{finding.rule} is {finding.value}, wanted: {finding.limit}" for finding in failed]


def run(model: str, limits: SmokeThresholds) -> SmokeTest:
    """Asks an export.

    Args:
        model: Folder of the SavedModel: a path, or a URI that TensorFlow reads.
        limits: What it must reach.

    Returns:
        The verdict; whatever the export does is a finding, and no exception.
    """
    try:
        reference = read(model)
        requests = _Requests(reference)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
        return SmokeTest((_finding("smoke_set", False, problem, f"the trainer's answers in {SMOKE_SET}"),), {})
    lines, died = _probe(model, requests.bodies, limits.max_seconds)
    return judge(reference, requests, lines, died, limits)


def read_classes(model: str) -> tuple[str, ...]:
    """The classes of an export that passed, in the order of the probabilities, as its smoke set names them."""
    return tuple(read(model)["classes"])


def read(model: str) -> dict:
    """The smoke set of an export, as `models.smoke` describes it.

    Raises:
        OSError, ValueError, KeyError, TypeError: It is not there, or is none.
    """
    reference = json.loads(storage.read(storage.join(model, SMOKE_SET)))
    photographs = reference["photographs"]
    if not photographs:
        raise ValueError("it has no photograph")
    for photograph in photographs:
        if len(photograph["probabilities"]) != len(reference["classes"]):
            raise ValueError(f"{len(photograph['probabilities'])} probabilities for {len(reference['classes'])} classes")
    return reference


class _Requests:
    """The bodies in the order in which they are sent, and which of them are which."""

    def __init__(self, reference: Mapping):
        good = [photograph["request"] for photograph in reference["photographs"]]
        first = base64.b64decode(good[0]["bytes_inputs"]["b64"])
        self.garbage = {
            "no bytes": b"",
            "text": b"this is no photograph",
            "zeros": bytes(4096),
            "a PNG": _PNG,
            "half a photograph": first[: len(first) // 2],
            "60,000 x 60,000 pixels": _HUGE,
        }
        singles = [[instance] for instance in good]
        bad = [[{"bytes_inputs": {"b64": base64.b64encode(content).decode()}}] for content in self.garbage.values()]
        timed = [[good[number % len(good)]] for number in range(_TIMED)]
        batches = [*singles, good, *bad, [bad[1][0], good[0]], *singles, *timed]
        self.bodies = [json.dumps({"instances": instances}) for instances in batches]
        count, position = len(good), 0
        self.single = slice(position, position := position + count)
        self.batch = position
        position += 1
        self.bad = slice(position, position := position + len(bad))
        self.mixed = position
        position += 1
        self.after = slice(position, position := position + count)
        self.timed = slice(position, position + _TIMED)


def _probe(model: str, bodies: Sequence[str], seconds: float) -> tuple[list[dict], str]:
    """The lines that the probe wrote, and why it ended early; empty when it did not."""
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        requests, answers = pathlib.Path(folder, "requests.json"), pathlib.Path(folder, "answers.jsonl")
        requests.write_text(json.dumps({"model": model, "bodies": list(bodies)}), encoding="utf-8")
        # -I: neither the current folder nor PYTHONPATH, so nothing of this project can be imported.
        command = [sys.executable, "-I", str(_PROBE), str(requests), str(answers)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        died = ""
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=seconds
            )
        except subprocess.TimeoutExpired:
            died = f"it did not finish within {seconds:.0f} s"
        else:
            if done.returncode < 0:
                died = f"it died of {signal.Signals(-done.returncode).name}"
            elif done.returncode:
                died = f"it ended with status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:300]}"
        text = answers.read_text(encoding="utf-8") if answers.exists() else ""
    # The last line is cut off where the process was killed while it wrote.
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")], died


def judge(reference: Mapping, requests: _Requests, lines: Sequence[Mapping], died: str, limits: SmokeThresholds) -> SmokeTest:
    """Judges what the probe wrote."""
    if not lines or "error" in lines[0]:
        problem = lines[0]["error"] if lines else died or "it wrote nothing"
        return SmokeTest((_finding("loads", False, problem, "a SavedModel that TensorFlow alone loads"),), {})
    loaded, answers = lines[0], list(lines[1:])
    strangers = [name for name in loaded["modules"] if name in _OURS]
    beside = f"beside {', '.join(strangers) or 'nothing of the project'}"
    findings = [_finding("loads", not strangers, beside, "TensorFlow alone")]
    if died or len(answers) < len(requests.bodies):
        named = f"{died or 'it ended early'}, {_place(requests, len(answers))}"
        findings.append(_finding("survives", False, named, "an answer to every request"))
        return SmokeTest(tuple(findings), _facts(loaded, []))
    findings.append(_finding("survives", True, f"{len(answers)} requests", "an answer to every request"))
    findings += _right(reference, requests, answers, limits)
    findings += _refuses(requests, answers)
    times = sorted(1000 * answer["seconds"] for answer in answers[requests.timed])
    findings.append(
        _finding(
            "latency", statistics.median(times) <= limits.max_latency_ms,
            f"{statistics.median(times):.1f} ms for one photograph (median of {len(times)}, the slowest {times[-1]:.1f} ms)",
            f"at most {limits.max_latency_ms:g} ms",
        )
    )  # fmt: skip
    return SmokeTest(tuple(findings), _facts(loaded, times))


def _place(requests: _Requests, position: int) -> str:
    """Which request it was that has no answer."""
    if position == len(requests.bodies):
        return "after the last request"
    named = f"at request {position + 1} of {len(requests.bodies)}"
    if requests.bad.start <= position < requests.bad.stop:
        return f"{named}: {list(requests.garbage)[position - requests.bad.start]}"
    return named


def _facts(loaded: Mapping, times: Sequence[float]) -> dict:
    facts = {"tensorflow": loaded["tensorflow"], "load_seconds": round(loaded["seconds"], 3)}
    if times:
        facts |= {"latency_ms_median": round(statistics.median(times), 3), "latency_ms_max": round(times[-1], 3)}
    return facts


def _right(reference: Mapping, requests: _Requests, answers: Sequence[Mapping], limits: SmokeThresholds) -> list[Finding]:
    """Classes, and probabilities: one by one, in a batch, and after the garbage."""
    wanted = [photograph["probabilities"] for photograph in reference["photographs"]]
    allowed = limits.max_probability_difference
    given = {
        "one by one": [_prediction(answer, 0) for answer in answers[requests.single]],
        "in a batch": [_prediction(answers[requests.batch], row) for row in range(len(wanted))],
        "after garbage": [_prediction(answer, 0) for answer in answers[requests.after]],
    }
    predictions = [prediction for group in given.values() for prediction in group]
    named = [prediction.get("classes") for prediction in predictions]
    classes = next((name for name in named if name != reference["classes"]), reference["classes"])
    told, expected = (", ".join(map(str, each or ["none"])) for each in (classes, reference["classes"]))
    findings = [_finding("classes", classes == reference["classes"], told, expected)]
    worst, where = 0.0, ""
    for how, group in given.items():
        for prediction, expected in zip(group, wanted, strict=True):
            distance = difference(prediction.get("probabilities"), expected)
            if distance > worst:
                worst, where = distance, how
    findings.append(
        _finding(
            "probabilities", worst <= allowed,
            f"{worst:.2g} from the trainer's at most" + (f" ({where})" if worst > allowed else ""), f"at most {allowed:g}",
            remedy="The export prepares photographs differently from training, or holds other weights: see models/serving.py",
        )
    )  # fmt: skip
    spread = max((difference(one, other) for one in wanted for other in wanted), default=0.0)
    findings.append(
        _finding(
            "telling", spread > 2 * allowed, f"{spread:.2g} between the trainer's answers to different photographs",
            f"more than {2 * allowed:g}, or any preprocessing would pass",
            remedy="The model answers much the same whatever it sees: it has learnt nothing",
        )
    )  # fmt: skip
    return findings


def _prediction(answer: Mapping, row: int) -> Mapping:
    rows = answer.get("predictions", [])
    return rows[row] if row < len(rows) else {}


def difference(given: Sequence[float] | None, expected: Sequence[float]) -> float:
    """How far two answers lie apart where they do most; infinite when one of them is none."""
    if not isinstance(given, Sequence) or len(given) != len(expected):
        return float("inf")
    differences = [abs(one - other) for one, other in zip(given, expected, strict=True)]
    return max(differences) if all(map(math.isfinite, differences)) else float("inf")


def _refuses(requests: _Requests, answers: Sequence[Mapping]) -> list[Finding]:
    taken = [name for name, answer in zip(requests.garbage, answers[requests.bad], strict=True) if answer["status"] == 200]
    if answers[requests.mixed]["status"] == 200:
        taken.append("text beside a photograph")
    count = len(requests.garbage) + 1
    told = f"{count - len(taken)} of {count}" + (f"; it answers {', '.join(taken)}" if taken else "")
    return [_finding("refuses_garbage", not taken, told, "an error for each request that holds no photograph")]


def _finding(rule: str, passed: bool, value: str, limit: str, remedy: str = "") -> Finding:
    return Finding(rule=rule, passed=passed, value=value, limit=limit, remedy="" if passed else remedy)
