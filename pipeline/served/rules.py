"""What makes requests drift: the gate's rules, on what the model that serves says of them and on their sizes. Pure functions.

Each rule compares one figure with one limit of `schema/served.yaml` and has that limit's name. A rule that could not be judged
is a failure.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pydantic

from pipeline import typed
from pipeline.validation.rules import Finding, classes_moved, exceeds, jensen_shannon
from pipeline.validation.text import figure, limit_percent, percent, printable, shortened

SIZES = ("width", "height", "bytes")
"""The features of a photograph, as a shard would store it: names in TFDV's statistics of a snapshot."""

RULES = (
    "min_images", "max_unusable_share", "max_class_share_change", "max_class_divergence", "drift.confidence",
    *(f"drift.{name}" for name in SIZES),
)  # fmt: skip
"""Names of the rules, in the order of `judge`."""

_SHOWN = 8


@typed.frozen
class DriftLimits:
    """Jensen-Shannon divergence, 0 to 1, allowed between the requests and what the model was trained and judged on.

    Attributes:
        confidence: Of the probability of the most probable class, in ten bins.
        width, height: Pixels, as a shard would store the photograph.
        bytes: Likewise.
    """

    confidence: float = pydantic.Field(ge=0, le=1)
    width: float = pydantic.Field(ge=0, le=1)
    height: float = pydantic.Field(ge=0, le=1)
    bytes: float = pydantic.Field(ge=0, le=1)


@typed.frozen
class ServedLimits:
    """The limits of requests, edited by people in `schema/served.yaml`. A figure on its limit passes.

    Attributes:
        min_images: Fewest photographs that a sample must have to be judged.
        max_unusable_share: Share of the sample that the model refuses or that cannot be read, 0 to 1.
        max_class_share_change: How far any class's share of the predictions may move, 0 to 1.
        max_class_divergence: Jensen-Shannon divergence of the predictions by class.
        drift: See there.
    """

    min_images: int = pydantic.Field(ge=1)
    max_unusable_share: float = pydantic.Field(ge=0, le=1)
    max_class_share_change: float = pydantic.Field(ge=0, le=1)
    max_class_divergence: float = pydantic.Field(ge=0, le=1)
    drift: DriftLimits


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a model says of photographs.

    Attributes:
        classes: Class -> photographs of which it is the most probable one; every class of the model.
        confidence: Bin of the most probable class's probability -> photographs; every bin.
    """

    classes: Mapping[str, int]
    confidence: Mapping[str, int]

    @property
    def images(self) -> int:
        """Photographs."""
        return sum(self.classes.values())


@dataclasses.dataclass(frozen=True)
class Unusable:
    """Requests that have no prediction, or no size.

    Attributes:
        reasons: Why -> how many.
        examples: The first of them, as `name: reason`.
    """

    reasons: Mapping[str, int]
    examples: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.reasons.values())


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a sample of requests.

    Attributes:
        now: Predictions for the sample.
        before: Those for the eval split, when the model was judged.
        unusable: What of the sample could not be judged.
        sizes: Feature of `SIZES` -> divergence from the training snapshot's train split; one that could not be measured is
            missing.
    """

    now: Predictions
    before: Predictions
    unusable: Unusable
    sizes: Mapping[str, float]


def bin_names(count: int) -> list[str]:
    """Names of equally wide bins of a probability.

    >>> bin_names(4)
    ['0.00 to 0.25', '0.25 to 0.50', '0.50 to 0.75', '0.75 to 1.00']
    """
    digits = 2 if count % 10 else 1
    return [f"{place / count:.{digits}f} to {(place + 1) / count:.{digits}f}" for place in range(count)]


def by_chance(bins: int, one: int, other: int) -> float:
    """Jensen-Shannon divergence that two samples of one distribution have in the mean, by chance alone.

    (bins - 1) / (8 ln 2) · (1 / one + 1 / other), the first term of its expansion, right where every bin has a few.

    >>> round(by_chance(7, 200, 38), 4)
    0.0339

    Args:
        bins: Bins that are not empty in both.
        one: Size of the one sample.
        other: Size of the other.
    """
    return min(1.0, max(0, bins - 1) / (8 * math.log(2)) * (1 / one + 1 / other)) if one and other else 1.0


def judge(facts: Facts, limits: ServedLimits) -> list[Finding]:
    """Judges a sample: one finding for each of `RULES`, in that order."""
    now, before = facts.now, facts.before
    asked = now.images + facts.unusable.count
    share = facts.unusable.count / asked if asked else 1.0
    more = facts.unusable.count - len(facts.unusable.examples)
    details = tuple(facts.unusable.examples) + ((f"and {more} more",) if more > 0 else ())
    found = [
        Finding(
            "min_images", now.images >= limits.min_images, str(now.images), f"at least {limits.min_images}",
            remedy="with so few, chance decides: take more requests",
        ),
        Finding(
            "max_unusable_share", not exceeds(share, limits.max_unusable_share),
            f"{percent(share, limits.max_unusable_share)} ({facts.unusable.count} of {asked})",
            limit_percent(limits.max_unusable_share), details,
            "a client sends what is no photograph, or photographs in another format: look at the reasons",
        ),
        *classes_moved(
            now.classes, before.classes, limits.max_class_share_change, limits.max_class_divergence, "predictions",
            (
                "other products are photographed, or otherwise: look at photographs of the class that grew, and label some",
                "the predictions are not spread as in the evaluation: look at photographs of the classes that grew",
            ),
        ),
    ]  # fmt: skip
    found[-1] = _with_chance(found[-1], now.classes, before.classes)
    confidence = _divergence(
        "drift.confidence", jensen_shannon(now.confidence, before.confidence), limits.drift.confidence,
        "the model is more or less sure than it was on the eval split: look at photographs of low probability, and label some",
    )  # fmt: skip
    found.append(_with_chance(confidence, now.confidence, before.confidence))
    for name in SIZES:
        found.append(
            _divergence(
                f"drift.{name}", facts.sizes.get(name), getattr(limits.drift, name),
                "a client sends photographs of another size or shape than the model was trained on: find out which",
            )
        )  # fmt: skip
    return found if now.images else [_not_judged(finding) for finding in found]


def _divergence(rule: str, value: float | None, limit: float, remedy: str) -> Finding:
    if value is None:
        return Finding(rule, False, "not measured", f"{limit:.10g}", remedy="the statistics of the snapshot do not have it")
    return Finding(rule, not exceeds(value, limit), figure(value, limit), f"{limit:.10g}", remedy=remedy)


def _with_chance(finding: Finding, now: Mapping[str, int], before: Mapping[str, int]) -> Finding:
    bins = sum(1 for name in now.keys() | before.keys() if now.get(name, 0) + before.get(name, 0))
    chance = by_chance(bins, sum(now.values()), sum(before.values()))
    return dataclasses.replace(finding, value=f"{finding.value} (by chance alone about {chance:.2g})")


def _not_judged(finding: Finding) -> Finding:
    if finding.rule in ("min_images", "max_unusable_share"):
        return finding
    return Finding(finding.rule, False, "not judged", finding.limit, remedy="no photograph of the sample has a prediction")


def described(name: str, reason: str) -> str:
    """One unusable photograph, on one line."""
    return f"{printable(shortened(name))}: {printable(shortened(reason, 200))}"


def shown(examples: Sequence[str]) -> tuple[str, ...]:
    """Those that a report lists."""
    return tuple(examples[:_SHOWN])
