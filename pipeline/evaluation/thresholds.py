"""What a candidate must reach before it serves: the dataclasses that `schema/release.yaml` fills.

Every threshold must be written out: one that is missing is an error, never a default.
"""

import dataclasses

import pydantic

from pipeline import typed

_SHARE = {"ge": 0, "le": 1}


@typed.frozen
class AbsoluteThresholds:
    """What the candidate must reach on this week's eval split, whatever serves.

    Attributes:
        min_accuracy: Share of photographs whose most probable class is theirs, 0 to 1.
        min_balanced_accuracy: Mean of the classes' accuracies, so that a common class does not hide a rare one, 0 to 1.
        min_top_3_accuracy: Share of photographs whose class is among the three most probable, 0 to 1.
        max_log_loss: Mean of -log p(true class), nats.
        max_calibration_error: Expected calibration error, 0 to 1: how far the probability of the most probable class lies
            from how often it is right.
        max_confusion: Of all pairs of classes with enough examples (`slices.label.min_examples`), the largest share of the
            photographs of one that is taken for the other, 0 to 1.
    """

    min_accuracy: float = pydantic.Field(**_SHARE)
    min_balanced_accuracy: float = pydantic.Field(**_SHARE)
    min_top_3_accuracy: float = pydantic.Field(**_SHARE)
    max_log_loss: float = pydantic.Field(gt=0)
    max_calibration_error: float = pydantic.Field(**_SHARE)
    max_confusion: float = pydantic.Field(**_SHARE)


@typed.frozen
class ComparisonThresholds:
    """How much worse than the model that serves the candidate may be, on the same photographs.

    The difference has a confidence interval, by bootstrap over the photographs. Its worse end decides: the candidate must be
    shown to be no worse than that, so a small or noisy eval split cannot let a worse model through.

    Attributes:
        confidence: Of the interval, such as 0.95.
        replicates: Of the bootstrap.
        seed: Of the bootstrap; the same predictions give the same verdict.
        max_accuracy_drop, max_balanced_accuracy_drop, max_top_3_accuracy_drop: 0 to 1.
        max_log_loss_rise: Nats.
        max_calibration_error_rise: 0 to 1.
    """

    confidence: float = pydantic.Field(ge=0.5, lt=1)
    replicates: int = pydantic.Field(ge=100, le=100_000)
    seed: int = pydantic.Field(ge=0, lt=2**31)
    max_accuracy_drop: float = pydantic.Field(**_SHARE)
    max_balanced_accuracy_drop: float = pydantic.Field(**_SHARE)
    max_top_3_accuracy_drop: float = pydantic.Field(**_SHARE)
    max_log_loss_rise: float = pydantic.Field(ge=0)
    max_calibration_error_rise: float = pydantic.Field(**_SHARE)


@typed.frozen
class SliceThresholds:
    """What every slice of one kind must reach, if it has enough examples.

    Attributes:
        min_examples: Fewest examples of a slice that is judged; one with fewer is shown.
        min_accuracy: Accuracy, 0 to 1.
        max_certain_drop: How far the slice's accuracy may certainly lie below the serving model's, 0 to 1: the better end
            of the interval decides. There are many slices, all small; were their worse ends to decide, chance would refuse
            every candidate.
        required: Whether at least one slice of the kind must be judged.
    """

    min_examples: int = pydantic.Field(ge=1)
    min_accuracy: float = pydantic.Field(**_SHARE)
    max_certain_drop: float = pydantic.Field(**_SHARE)
    required: bool = True


@typed.frozen
class Slices:
    """The slices that are judged.

    Attributes:
        label: By class. A class without any example in eval is a failure.
        source: By where the label came from.
        size: By pixels of the longer side as packed: what of it the network's square leaves out.
        new: Images that the last accepted snapshot did not have.
        size_edges: Where the bands of `size` end, ascending, pixels; 200 ends one at 199.
    """

    label: SliceThresholds
    source: SliceThresholds
    size: SliceThresholds
    new: SliceThresholds
    size_edges: list[int]

    def __post_init__(self):
        if not self.size_edges or sorted(set(self.size_edges)) != self.size_edges or self.size_edges[0] < 1:
            raise ValueError(f"size_edges {self.size_edges} must be one or more numbers of pixels, ascending")


@typed.frozen
class SmokeThresholds:
    """What an export must do before it is evaluated.

    Attributes:
        max_probability_difference: How far a probability may lie from the trainer's own, 0 to 1. Another processor moves
            the last bits, another way to prepare a photograph a hundred times as much.
        max_latency_ms: Milliseconds, median, for one photograph on the machine that tests; TensorFlow on its processors.
        max_seconds: For the whole test, loading included.
    """

    max_probability_difference: float = pydantic.Field(gt=0, le=0.1)
    max_latency_ms: float = pydantic.Field(gt=0)
    max_seconds: float = pydantic.Field(gt=0)


@typed.frozen
class Thresholds:
    """All of them.

    Attributes:
        smoke, absolute, comparison, slices: See there.
    """

    smoke: SmokeThresholds
    absolute: AbsoluteThresholds
    comparison: ComparisonThresholds
    slices: Slices

    def __post_init__(self):
        absolute = self.absolute
        if absolute.min_top_3_accuracy < absolute.min_accuracy:
            raise ValueError(
                f"absolute.min_top_3_accuracy {absolute.min_top_3_accuracy} is below absolute.min_accuracy "
                f"{absolute.min_accuracy}, which it can never be: whatever is first is among the first three"
            )
        for kind in ("label", "source", "size"):
            wanted = getattr(self.slices, kind).min_accuracy
            if wanted > absolute.min_accuracy:
                raise ValueError(
                    f"slices.{kind}.min_accuracy {wanted} is above absolute.min_accuracy {absolute.min_accuracy}: every "
                    "slice would have to be better than all together; raise the one or lower the other"
                )
        if absolute.max_confusion > 1 - self.slices.label.min_accuracy:
            raise ValueError(
                f"absolute.max_confusion {absolute.max_confusion} is above 1 - slices.label.min_accuracy "
                f"{self.slices.label.min_accuracy}: no class that is accurate enough could be confused so often"
            )


def kinds(slices: Slices) -> dict[str, SliceThresholds]:
    """The kinds of slices by name, in the order in which they are shown."""
    return {field.name: getattr(slices, field.name) for field in dataclasses.fields(slices) if field.name != "size_edges"}
