"""Histograms of numeric features: read from TFDV's statistics, put on common buckets, drawn."""

import copy
import dataclasses
import html
import math
from collections.abc import Sequence

from tensorflow_metadata.proto.v0 import statistics_pb2

from pipeline import storage
from pipeline.validation.rules import jensen_shannon

_Kind = statistics_pb2.Histogram.HistogramType


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The distribution of one numeric feature in one split.

    Attributes:
        buckets: (low, high, count) in ascending order; a bucket may be a single value.
        median: The median; likewise `mean`, `low` (smallest) and `high` (largest).
        count: Number of values.
    """

    buckets: Sequence[tuple[float, float, float]]
    count: int
    low: float
    median: float
    mean: float
    high: float


def read(folder: str, split: str = "train") -> dict[str, Histogram]:
    """Reads the histogram of equal buckets of every numeric feature.

    Args:
        folder: Folder of an ExampleStatistics artifact.
        split: Which split.

    Returns:
        Feature -> histogram; nothing when the split has no statistics.
    """
    statistics = read_statistics(folder, split)
    return of_statistics(statistics) if statistics else {}


def read_statistics(folder: str, split: str) -> statistics_pb2.DatasetFeatureStatisticsList | None:
    """Reads TFDV's statistics of one split; None when there are none. Raises OSError."""
    uri = storage.join(folder, f"Split-{split}", "FeatureStats.pb")
    return statistics_pb2.DatasetFeatureStatisticsList.FromString(storage.read(uri)) if storage.exists(uri) else None


def of_statistics(statistics: statistics_pb2.DatasetFeatureStatisticsList) -> dict[str, Histogram]:
    """Feature -> histogram of equal buckets, of every numeric feature of TFDV's statistics."""
    found = {}
    for dataset in statistics.datasets:
        for feature in dataset.features:
            numbers = feature.num_stats
            for histogram in numbers.histograms:
                if histogram.type == _Kind.STANDARD and histogram.buckets:
                    found[_name(feature)] = Histogram(
                        [(bucket.low_value, bucket.high_value, bucket.sample_count) for bucket in histogram.buckets],
                        round(sum(bucket.sample_count for bucket in histogram.buckets)),
                        numbers.min,
                        numbers.median,
                        numbers.mean,
                        numbers.max,
                    )
    return found


def on_common_buckets(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, baseline: statistics_pb2.DatasetFeatureStatisticsList
) -> None:
    """Gives each numeric feature of both statistics a STANDARD histogram over the same buckets, the baseline's deciles.

    TFDV computes the Jensen-Shannon divergence of numeric features from their STANDARD histograms, ten equal buckets from
    the smallest to the largest value, and spreads each bucket evenly where two grids differ. One panorama 20,000 pixels
    wide among 100,000 photographs then stretches the grid, and the divergence from the same distribution is 0.43; that of
    a true shift by half a standard deviation is 0.11. Deciles do not move for one value, and the outermost two are open.

    Args:
        statistics: This week's, changed in place.
        baseline: The last accepted week's, changed in place.
    """
    for dataset, before in zip(statistics.datasets, baseline.datasets, strict=False):
        features = {_name(feature): feature for feature in dataset.features if feature.HasField("num_stats")}
        for other in before.features:
            feature = features.get(_name(other))
            if feature is None or not other.HasField("num_stats"):
                continue
            pair = [_quantiles(item) for item in (feature, other)]
            if all(pair):
                edges = _edges(pair[1], pair[0])
                for item, quantiles in zip((feature, other), pair, strict=True):
                    _replace(item, edges, _rebinned(quantiles, edges))


def divergences(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, baseline: statistics_pb2.DatasetFeatureStatisticsList
) -> dict[str, float]:
    """Feature -> Jensen-Shannon divergence of every numeric feature that both have, as DistributionValidator measures it.

    Args:
        statistics: Of what is judged.
        baseline: Of what it is compared with; its deciles are the buckets (`on_common_buckets`).
    """
    pair = copy.deepcopy(statistics), copy.deepcopy(baseline)
    on_common_buckets(*pair)
    now, before = (
        {name: {str(place): count for place, (_, _, count) in enumerate(found.buckets)} for name, found in each.items()}
        for each in map(of_statistics, pair)
    )
    return {name: jensen_shannon(now[name], before[name]) for name in sorted(now.keys() & before.keys())}


def _name(feature) -> str:
    return feature.name or ".".join(feature.path.step)


def _quantiles(feature) -> list[tuple[float, float, float]]:
    for histogram in feature.num_stats.histograms:
        if histogram.type == _Kind.QUANTILES:
            return [
                (bucket.low_value, bucket.high_value, bucket.sample_count)
                for bucket in histogram.buckets
                if bucket.sample_count
            ]
    return []


def _edges(quantiles, others) -> list[float]:
    """Ends of the common buckets, ascending: every decile of `quantiles` begins one, and a single value fills its own."""
    inner = set()
    for low, high, _ in quantiles:
        inner |= {low, high} if high > low else {low, math.nextafter(low, math.inf)}
    # The smallest and the largest value of the baseline bound nothing: beyond them there is no room of its own for a few.
    ordered = sorted(inner)
    if quantiles[0][0] < quantiles[0][1]:
        ordered = ordered[1:]
    if quantiles[-1][0] < quantiles[-1][1]:
        ordered = ordered[:-1]
    both = [*quantiles, *others]
    return [min(low for low, _, _ in both) - 1, *ordered, max(high for _, high, _ in both) + 1]


def _rebinned(buckets, edges) -> list[float]:
    """Counts of `buckets` in [edges[i], edges[i + 1]), each bucket spread evenly over its width."""
    counts = [0.0] * (len(edges) - 1)
    for low, high, count in buckets:
        for position, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
            if high > low:
                counts[position] += count * max(0.0, min(high, end) - max(low, start)) / (high - low)
            elif start <= low < end:
                counts[position] += count
    return counts


def _replace(feature, edges, counts) -> None:
    kept = [histogram for histogram in feature.num_stats.histograms if histogram.type != _Kind.STANDARD]
    common = statistics_pb2.Histogram(type=_Kind.STANDARD)
    for start, end, count in zip(edges, edges[1:], counts, strict=False):
        common.buckets.add(low_value=start, high_value=end, sample_count=count)
    del feature.num_stats.histograms[:]
    feature.num_stats.histograms.extend([common, *kept])


# Size of a drawing, in SVG's units: the plot, and the line for the numbers below it.
_WIDTH, _HEIGHT, _BELOW = 560, 120, 18


def svg(name: str, now: Histogram | None, before: Histogram | None, what: str = "this week") -> str:
    """Draws a feature of both weeks as one SVG: this week filled, the baseline as a line, both with area 1.

    Args:
        name: The feature.
        now: This week's histogram, or None.
        before: The baseline's, or None.
        what: What `now` is of.

    Returns:
        SVG without scripts, styles or references; '' when there is nothing to draw.
    """
    shown = [histogram for histogram in (now, before) if histogram and histogram.count]
    if not shown:
        return ""
    low, high = min(item.low for item in shown), max(item.high for item in shown)
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    room = (high - low) * 0.02 or 1.0
    low, high = low - room, high + room
    tallest = max(density for item in shown for _, _, density in _densities(item, room))

    def x(value: float) -> str:
        return f"{(value - low) / (high - low) * _WIDTH:.1f}"

    def y(density: float) -> str:
        return f"{_HEIGHT - density / tallest * (_HEIGHT - 4):.1f}"

    def path(histogram: Histogram) -> str:
        steps = _densities(histogram, room)
        points = [f"M{x(steps[0][0])},{_HEIGHT}"]
        points += [f"V{y(density)}H{x(end)}" for _, end, density in steps]
        return "".join([*points, f"V{_HEIGHT}"])

    drawn = f'<path class="now" d="{path(now)}Z"/>' if now and now.count else ""
    drawn += f'<path class="then" d="{path(before)}"/>' if before and before.count else ""
    label = html.escape(
        f"Histogram of {name}: " + "; ".join(f"{when} {described(item)}" for when, item in ((what, now), ("baseline", before)))
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _BELOW}" role="img" aria-label="{label}">'
        f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>{drawn}'
        f'<text x="0" y="{_HEIGHT + 14}">{low + room:,.10g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end">{high - room:,.10g}</text></svg>'
    )


def described(histogram: Histogram | None) -> str:
    """A histogram's figures in words."""
    if histogram is None or not histogram.count:
        return "none"
    return (
        f"{histogram.count:,} values, {histogram.low:,.10g} to {histogram.high:,.10g}, "
        f"median {histogram.median:,.5g}, mean {histogram.mean:,.5g}"
    )


def _densities(histogram: Histogram, room: float) -> list[tuple[float, float, float]]:
    """(start, end, share of the values per unit of width); a single value is as wide as can be seen."""
    wide = [
        (low, high, count) if high > low else (low - room / 2, high + room / 2, count)
        for low, high, count in histogram.buckets
    ]
    return [(start, end, count / histogram.count / (end - start)) for start, end, count in wide]
