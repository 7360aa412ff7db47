"""The picture of a run: nothing lies on anything else, every line ends where it should, whatever the run."""

import datetime
import itertools
import random
import xml.etree.ElementTree

import pytest

from pipeline.lineage import graph
from pipeline.lineage.base import Artifact, Execution, Run
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.weeks import STEPS

NOW = datetime.datetime(2026, 3, 2, tzinfo=datetime.timezone.utc)


def run_of(edges: list[tuple[int, int]], count: int, names=None) -> Run:
    """A run of `count` steps of which each puts out one artifact, used along `edges`."""
    made = {number: Artifact(100 + number, "Model", "", {}) for number in range(count)}
    used = {number: tuple(made[source] for source, target in edges if target == number) for number in range(count)}
    return Run("r", tuple(
        Execution(number, (names or {}).get(number, f"Step{number}"), "COMPLETE", NOW, NOW, {}, {"in": used[number]}, {"out": (made[number],)})
        for number in range(count)
    ))  # fmt: skip


def random_run(seed: int) -> Run:
    dice = random.Random(seed)
    count = dice.randint(1, 40)
    edges = [(one, other) for one, other in itertools.combinations(range(count), 2) if dice.random() < 3 / count]
    return run_of(edges, count)


@pytest.fixture(params=["a week", *range(8)])
def run(request, weeks):
    if request.param == "a week":
        return MLMDLineage(weeks[0].places.metadata).run(weeks[1]["first"])
    return random_run(request.param)


def test_no_two_steps_overlap_and_nothing_leaves_the_picture(run):
    picture = graph.arranged(run)
    assert picture.steps.keys() == {step.id for step in run.executions}
    for (x, y), (other_x, other_y) in itertools.combinations(picture.steps.values(), 2):
        assert abs(x - other_x) >= graph._WIDTH or abs(y - other_y) >= graph._HEIGHT
    for x, y in [*picture.steps.values(), *itertools.chain.from_iterable(points for _, points in picture.edges)]:
        assert 0 <= x <= picture.width and 0 <= y <= picture.height


def test_every_line_leads_down_from_its_source_to_its_target_and_through_no_other_step(run):
    picture = graph.arranged(run)
    for edge, points in picture.edges:
        (x, y), (to_x, to_y) = picture.steps[edge.source], picture.steps[edge.target]
        assert points[0] == (x, y + graph._HEIGHT / 2) and points[-1] == (to_x, to_y - graph._HEIGHT / 2)
        assert [point[1] for point in points] == sorted(point[1] for point in points)
        for (through_x, top), (_, bottom) in itertools.pairwise(points[1:-1]):
            if bottom - top != graph._HEIGHT:
                continue
            for step, (box_x, box_y) in picture.steps.items():
                if abs(box_y - (top + bottom) / 2) < 1:
                    assert abs(box_x - through_x) > graph._WIDTH / 2, f"the line {edge} goes through {step}"


def test_all_that_steps_hand_on_has_a_line(weeks):
    run = MLMDLineage(weeks[0].places.metadata).run(weeks[1]["first"])
    names = {step.id: step.step for step in run.executions}
    wanted = {(source.split(".")[0], step) for step, (inputs, _) in STEPS.items() for source in inputs.values()}
    edges = graph.edges_of(run)
    assert {(names[edge.source], names[edge.target]) for edge in edges} == wanted
    light = {(names[edge.source], names[edge.target]) for edge in edges if edge.implied}
    assert ("SnapshotGen", "ServingLedger") in light and ("SnapshotGen", "SnapshotGate") in light
    assert ("ReleasePusher", "ServingLedger") not in light and ("SnapshotGate", "LabelJoin") not in light


def test_a_week_fits_a_page_and_crosses_few_lines(weeks):
    picture = graph.arranged(MLMDLineage(weeks[0].places.metadata).run(weeks[1]["first"]))
    assert len(picture.steps) == len(STEPS) and picture.width < 940 and picture.height < 1100


def test_lines_that_cross_can_be_uncrossed():
    # Two chains whose second steps are numbered the other way round.
    run = run_of([(0, 3), (1, 2)], 4)
    picture = graph.arranged(run)
    (x0, _), (x1, _), (x2, _), (x3, _) = (picture.steps[number] for number in range(4))
    assert (x0 < x1) == (x3 < x2)


def test_the_picture_is_well_formed_whatever_the_names():
    run = run_of([(0, 1), (1, 2)], 3, {0: '<script>alert("x")</script>', 1: "a\n\x1b[2J&", 2: "x" * 500})
    drawn = xml.etree.ElementTree.fromstring(graph.svg(run))
    words = "".join(drawn.itertext())
    assert not [element for element in drawn.iter() if element.tag.endswith("script")] and "\x1b" not in words
    assert "<script>alert" in words
    links = [element.get("href") for element in drawn.iter("a")]
    assert {"#step-0", "#step-1", "#step-2", "#artifact-100", "#artifact-101"} == set(links)
    assert max(len(element.text or "") for element in drawn.iter("text")) <= 24


def test_an_input_of_another_run_has_no_line_and_no_step_has_no_picture():
    step = Execution(1, "Trainer", "FAILED", NOW, NOW, {}, {"in": (Artifact(7, "Model", "", {}),)}, {})
    assert graph.edges_of(Run("r", (step,))) == []
    assert 'class="step failed"' in graph.svg(Run("r", (step,)))
    assert graph.svg(Run("r", ())).startswith("<svg")


@pytest.mark.parametrize("seed", range(20))
def test_crossings_are_those_that_two_links_at_a_time_show(seed):
    chance = random.Random(seed)
    rows = [[f"{layer}-{place}" for place in range(chance.randint(1, 6))] for layer in range(4)]
    links = {(chance.choice(rows[layer]), chance.choice(rows[layer + 1])) for layer in range(3) for _ in range(12)}
    place = {node: number for row in rows for number, node in enumerate(row)}
    crossed = sum(
        a[0] == c[0] and (place[a] - place[c]) * (place[b] - place[d]) < 0 for (a, b), (c, d) in itertools.combinations(links, 2)
    )
    assert graph._crossings(rows, links) == crossed
