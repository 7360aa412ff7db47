"""Histograms of numeric features: common buckets for both weeks, and a drawing."""

import html.parser

import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2

from pipeline.validation import histograms
from pipeline.validation.histograms import Histogram

STANDARD, QUANTILES = statistics_pb2.Histogram.STANDARD, statistics_pb2.Histogram.QUANTILES


def statistics(name="width", standard=(), quantiles=(), text=False) -> statistics_pb2.DatasetFeatureStatisticsList:
    """Statistics of one feature; a histogram is a sequence of (low, high, count)."""
    found = statistics_pb2.DatasetFeatureStatisticsList()
    feature = found.datasets.add().features.add()
    feature.path.step.append(name)
    if text:
        feature.string_stats.unique = 1
        return found
    buckets = standard or quantiles
    feature.num_stats.min, feature.num_stats.max = buckets[0][0], buckets[-1][1]
    for kind, content in ((STANDARD, standard), (QUANTILES, quantiles)):
        histogram = feature.num_stats.histograms.add(type=kind)
        for low, high, count in content:
            histogram.buckets.add(low_value=low, high_value=high, sample_count=count)
    return found


def common(now, before):
    """The common buckets of two weeks: (their ends, this week's counts, the baseline's)."""
    histograms.on_common_buckets(now, before)
    found = []
    for week in (now, before):
        (histogram,) = [item for item in week.datasets[0].features[0].num_stats.histograms if item.type == STANDARD]
        found.append([(bucket.low_value, bucket.high_value, bucket.sample_count) for bucket in histogram.buckets])
    assert [bucket[:2] for bucket in found[0]] == [bucket[:2] for bucket in found[1]]
    edges = [found[0][0][0], *(high for _, high, _ in found[0])]
    return edges, *([count for *_, count in week] for week in found)


DECILES = [(0, 10, 5), (10, 20, 5), (20, 40, 5), (40, 100, 5)]


def test_both_weeks_get_the_deciles_of_the_baseline_the_outermost_open():
    now = statistics(quantiles=[(5, 15, 10), (15, 30, 10)])
    edges, counts, before = common(now, statistics(quantiles=DECILES))
    assert edges == [-1, 10, 20, 40, 101]
    assert counts == pytest.approx([5, 5 + 10 / 3, 10 * 2 / 3, 0]) and before == pytest.approx([5, 5, 5, 5])


def test_one_enormous_value_moves_only_what_lies_beyond_the_last_decile():
    now = statistics(quantiles=[*DECILES[:-1], (40, 20_000, 5)])
    edges, counts, before = common(now, statistics(quantiles=DECILES))
    assert edges == [-1, 10, 20, 40, 20_001] and counts == before == [5, 5, 5, 5]


def test_a_single_value_has_a_bucket_of_its_own():
    edges, counts, before = common(statistics(quantiles=[(310, 310, 9)]), statistics(quantiles=[(300, 300, 9)]))
    assert sum(counts) == sum(before) == 9 and not any(one and other for one, other in zip(counts, before, strict=True))
    _, counts, before = common(statistics(quantiles=[(300, 300, 4)]), statistics(quantiles=[(300, 300, 9)]))
    assert [count / 4 for count in counts] == [count / 9 for count in before]


@pytest.mark.parametrize("seed", range(5))
def test_no_value_is_lost(seed):
    import random

    chance = random.Random(seed)
    ends = [sorted(chance.choices(range(30), k=11)) for _ in range(2)]
    weeks = [statistics(quantiles=[(low, high, 7) for low, high in zip(end, end[1:], strict=False)]) for end in ends]
    edges, counts, before = common(*weeks)
    assert edges == sorted(set(edges)) and sum(counts) == pytest.approx(70) and sum(before) == pytest.approx(70)


def test_what_cannot_be_put_on_common_buckets_stays_as_it_is():
    for now, before in [
        (statistics(text=True), statistics(text=True)),
        (statistics("width", standard=DECILES), statistics("height", standard=DECILES)),
        (statistics(standard=DECILES), statistics(quantiles=DECILES)),
        (statistics(standard=DECILES), statistics(text=True)),
    ]:
        known = now.SerializeToString(), before.SerializeToString()
        histograms.on_common_buckets(now, before)
        assert (now.SerializeToString(), before.SerializeToString()) == known


def test_statistics_are_read_by_split(tmp_path):
    (tmp_path / "Split-train").mkdir()
    content = statistics(standard=[(0, 5, 2.0), (5, 10, 3.0)], quantiles=DECILES)
    (tmp_path / "Split-train" / "FeatureStats.pb").write_bytes(content.SerializeToString())
    found = histograms.read(str(tmp_path))
    assert found == {"width": Histogram([(0, 5, 2.0), (5, 10, 3.0)], 5, 0, 0, 0, 10)}
    assert histograms.read(str(tmp_path), "eval") == {}


class Paths(html.parser.HTMLParser):
    """The paths of a drawing by class, and all its numbers."""

    def __init__(self, text):
        super().__init__()
        self.paths = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "path":
            self.paths[dict(attributes)["class"]] = dict(attributes)["d"]


def test_equal_shares_are_equally_high_however_wide_their_buckets():
    one = Histogram([(0, 10, 10), (10, 20, 10)], 20, 0, 10, 10, 20)
    other = Histogram([(0, 5, 100), (5, 10, 100), (10, 20, 200)], 400, 0, 10, 10, 20)
    paths = Paths(histograms.svg("width", one, other)).paths
    heights = {kind: {part.split("H")[0] for part in path.split("V")[1:-1]} for kind, path in paths.items()}
    assert heights == {"now": {"4.0"}, "then": {"4.0"}}


@pytest.mark.parametrize(
    "histogram",
    [
        Histogram([(7, 7, 100)], 100, 7, 7, 7, 7),
        Histogram([(0, 0, 1), (0, 10, 1)], 2, 0, 0, 0, 10),
        Histogram([(-1e9, 1e12, 1)], 1, -1e9, 0, 0, 1e12),
    ],
)
def test_drawings_at_the_ends_of_what_can_be(histogram):
    drawn = histograms.svg("width", histogram, None)
    assert drawn.startswith("<svg") and "nan" not in drawn and "inf" not in drawn


def test_nothing_to_draw():
    empty = Histogram([], 0, 0, 0, 0, 0)
    boundless = Histogram([(0, float("inf"), 1)], 1, 0, 0, 0, float("inf"))
    assert (
        histograms.svg("width", None, None)
        == histograms.svg("width", empty, None)
        == histograms.svg("x", boundless, None)
        == ""
    )


def test_the_name_of_a_feature_is_escaped():
    assert "<b>" not in histograms.svg('<b>"', Histogram([(1, 2, 1)], 1, 1, 1, 1, 2), None)
