"""The lineage of a run as a picture: its steps in layers from top to bottom, what they hand on as lines between them.

Sugiyama, Tagawa and Toda (1981), "Methods for visual understanding of hierarchical system structures": layers by the longest
way from a source, lines that pass a layer get a place of their own in it, orders by the mean place of the neighbours. All that
a step hands down to several layers shares one such place, so that lines run together until they part.
"""

import bisect
import dataclasses
import html
import itertools
from collections.abc import Mapping

from pipeline.lineage.base import Artifact, Execution, Run
from pipeline.validation.text import printable

_WIDTH, _HEIGHT = 194, 40
"""Of a step, in pixels."""

_LINE = 10
"""Width that a line takes in a layer that it passes, in pixels."""

_GAP, _RISE, _MARGIN = 16, 34, 12
"""Between two things of one layer, between two layers, around the picture; in pixels."""

_SWEEPS = 12

_Id = int | str

# A step's id, or (its id, layer) for a line of it that passes that layer.
_Node = _Id | tuple[_Id, int]


@dataclasses.dataclass(frozen=True)
class Edge:
    """What one step hands to another.

    Attributes:
        source: Id of the step that made it.
        target: Id of the step that used it.
        artifacts: What it is.
        implied: Whether there is a longer way from source to target, which says the same.
    """

    source: _Id
    target: _Id
    artifacts: tuple[Artifact, ...]
    implied: bool


@dataclasses.dataclass(frozen=True)
class Picture:
    """Where everything lies, in pixels from the top left corner.

    Attributes:
        steps: Step's id -> middle of its box.
        edges: Each with the points that it passes: two a layer, where it enters and where it leaves.
        width, height: Of the whole.
    """

    steps: Mapping[_Id, tuple[float, float]]
    edges: tuple[tuple[Edge, tuple[tuple[float, float], ...]], ...]
    width: float
    height: float


def edges_of(run: Run) -> list[Edge]:
    """What the steps of a run hand to one another; what came from outside the run has no edge."""
    makers = {artifact.id: step.id for step in run.executions for group in step.outputs.values() for artifact in group}
    handed: dict[tuple[_Id, _Id], list[Artifact]] = {}
    started: set[_Id] = set()
    for step in run.executions:
        for artifact in itertools.chain.from_iterable(step.inputs.values()):
            source = makers.get(artifact.id)
            # Nothing is handed back to a step that started before.
            if source in started:
                handed.setdefault((source, step.id), []).append(artifact)
        started.add(step.id)
    below: dict[_Id, set[_Id]] = {}
    for source, target in handed:
        below.setdefault(source, set()).add(target)
    reached: dict[_Id, set[_Id]] = {}
    for step in reversed(run.executions):
        direct = below.get(step.id, set())
        reached[step.id] = direct.union(*(reached[other] for other in direct))
    return [
        Edge(source, target, tuple(artifacts), any(target in reached[other] for other in below[source] if other != target))
        for (source, target), artifacts in handed.items()
    ]


def arranged(run: Run) -> Picture:
    """Where the steps of a run and the lines between them lie."""
    edges = edges_of(run)
    layers = _layers(run, edges)
    rows: list[list[_Node]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for step, layer in layers.items():
        rows[layer].append(step)
    links: set[tuple[_Node, _Node]] = set()
    ways: dict[tuple[_Id, _Id], list[_Node]] = {}
    for edge in edges:
        way: list[_Node] = [edge.source]
        for layer in range(layers[edge.source] + 1, layers[edge.target]):
            node = (edge.source, layer)
            if node not in rows[layer]:
                rows[layer].append(node)
            way.append(node)
        way.append(edge.target)
        ways[edge.source, edge.target] = way
        links |= set(itertools.pairwise(way))
    rows = _ordered(rows, links)
    x = _placed(rows, links)
    left = min((x[node] - _size(node) / 2 for row in rows for node in row), default=0) - _MARGIN
    width = max((x[node] + _size(node) / 2 for row in rows for node in row), default=0) - left + _MARGIN
    y = {node: _MARGIN + _HEIGHT / 2 + layer * (_HEIGHT + _RISE) for layer, row in enumerate(rows) for node in row}
    drawn = []
    for edge in edges:
        points = []
        for node in ways[edge.source, edge.target]:
            points += [(x[node] - left, y[node] - _HEIGHT / 2), (x[node] - left, y[node] + _HEIGHT / 2)]
        # A line leaves at the lower end of its source and ends at the upper end of its target.
        drawn.append((edge, tuple(points[1:-1])))
    # Those that say something new are drawn last, above the others.
    drawn.sort(key=lambda item: not item[0].implied)
    steps = {step: (x[step] - left, y[step]) for step in layers}
    return Picture(steps, tuple(drawn), width, len(rows) * (_HEIGHT + _RISE) - _RISE + 2 * _MARGIN)


def svg(run: Run) -> str:
    """The picture as inline SVG; each step and line links to `#step-ID` or `#artifact-ID` of the same page."""
    picture = arranged(run)
    lines = "".join(_line(edge, points, run) for edge, points in picture.edges)
    boxes = "".join(_box(step, *picture.steps[step.id]) for step in run.executions)
    return (
        f'<svg class="graph" viewBox="0 0 {picture.width:.0f} {picture.height:.0f}" width="{picture.width:.0f}" '
        f'height="{picture.height:.0f}" role="img" aria-label="The steps of the run and what they handed to one another">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{lines}{boxes}</svg>"
    )


def _layers(run: Run, edges: list[Edge]) -> dict[_Id, int]:
    above: dict[_Id, list[_Id]] = {}
    below: dict[_Id, list[_Id]] = {}
    for edge in edges:
        above.setdefault(edge.target, []).append(edge.source)
        below.setdefault(edge.source, []).append(edge.target)
    layers: dict[_Id, int] = {}
    for step in run.executions:
        layers[step.id] = 1 + max((layers[source] for source in above.get(step.id, ())), default=-1)
    for step in reversed(run.executions):
        # What begins a line goes down to where it is used first.
        if step.id not in above and step.id in below:
            layers[step.id] = min(layers[target] for target in below[step.id]) - 1
    return layers


def _ordered(rows: list[list[_Node]], links: set[tuple[_Node, _Node]]) -> list[list[_Node]]:
    """The rows, each in an order with few crossings."""
    best, fewest = rows, _crossings(rows, links)
    for sweep in range(_SWEEPS):
        rows = [list(row) for row in rows]
        down = sweep % 2 == 0
        for layer in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            place = {node: position for position, node in enumerate(rows[layer - 1 if down else layer + 1])}
            neighbours: dict[_Node, list[int]] = {}
            for source, target in links:
                node, other = (target, source) if down else (source, target)
                if other in place:
                    neighbours.setdefault(node, []).append(place[other])
            now = {node: position for position, node in enumerate(rows[layer])}
            means = {node: sum(found) / len(found) if (found := neighbours.get(node)) else now[node] for node in rows[layer]}
            rows[layer].sort(key=lambda node: (means[node], now[node]))
        count = _crossings(rows, links)
        if count < fewest:
            best, fewest = rows, count
    return best


def _crossings(rows: list[list[_Node]], links: set[tuple[_Node, _Node]]) -> int:
    place = {node: position for row in rows for position, node in enumerate(row)}
    layer = {node: number for number, row in enumerate(rows) for node in row}
    beneath: dict[int, list[tuple[int, int]]] = {}
    for source, target in links:
        beneath.setdefault(layer[source], []).append((place[source], place[target]))
    found = 0
    for pairs in beneath.values():
        # From left to right, a link crosses those before it that end further to the right; those of one source come sorted by
        # their ends and so cross none of each other.
        ends: list[int] = []
        for _, end in sorted(pairs):
            at = bisect.bisect_right(ends, end)
            found += len(ends) - at
            ends.insert(at, end)
    return found


def _placed(rows: list[list[_Node]], links: set[tuple[_Node, _Node]]) -> dict[_Node, float]:
    """Horizontal middles: each thing as near to the middle of its neighbours as the order of its row allows."""
    neighbours: dict[_Node, list[_Node]] = {}
    for source, target in links:
        neighbours.setdefault(source, []).append(target)
        neighbours.setdefault(target, []).append(source)
    x: dict[_Node, float] = {}
    for row in rows:
        at = -sum(_size(node) + _GAP for node in row) / 2
        for node in row:
            x[node] = at + _size(node) / 2
            at += _size(node) + _GAP
    for _ in range(_SWEEPS):
        for row in rows:
            found = [neighbours.get(node) or [node] for node in row]
            wanted = [sum(x[other] for other in others) / len(others) for others in found]
            apart = [(_size(one) + _size(other)) / 2 + _GAP for one, other in itertools.pairwise(row)]
            from_left, from_right = list(wanted), list(wanted)
            for number, distance in enumerate(apart):
                from_left[number + 1] = max(from_left[number + 1], from_left[number] + distance)
            for number in range(len(apart) - 1, -1, -1):
                from_right[number] = min(from_right[number], from_right[number + 1] - apart[number])
            # Both keep the distances, so their mean does.
            x |= {node: (one + other) / 2 for node, one, other in zip(row, from_left, from_right, strict=True)}
    return x


def _size(node: _Node) -> int:
    return _LINE if isinstance(node, tuple) else _WIDTH


def _line(edge: Edge, points: tuple[tuple[float, float], ...], run: Run) -> str:
    (x, y), *rest = points
    path = f"M{x:.1f} {y:.1f}"
    for number, (to_x, to_y) in enumerate(rest):
        middle = (y + to_y) / 2
        # Between layers a curve, through a layer a straight line.
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}" if number % 2 == 0 else f"V{to_y:.1f}"
        x, y = to_x, to_y
    names = {step.id: step.step for step in run.executions}
    told = ", ".join(f"{artifact.type} {artifact.id}" for artifact in edge.artifacts)
    title = html.escape(printable(f"{names[edge.source]} to {names[edge.target]}: {told}"))
    kind = "implied" if edge.implied else "direct"
    return (
        f'<a href="#artifact-{html.escape(str(edge.artifacts[0].id))}"><path class="{kind}" d="{path}" marker-end="url(#tip)">'
        f"<title>{title}</title></path></a>"
    )


def _box(step: Execution, x: float, y: float) -> str:
    seconds = (step.updated - step.started).total_seconds()
    # A name longer than the box would run out of it; the link's page has the whole.
    name = step.step if len(step.step) <= 24 else f"{step.step[:23]}…"
    told = step.state.lower() if step.state != "COMPLETE" else f"{seconds:.1f} s"
    return (
        f'<a href="#step-{html.escape(str(step.id))}"><g class="step {html.escape(step.state.lower())}" '
        f'transform="translate({x - _WIDTH / 2:.1f} {y - _HEIGHT / 2:.1f})">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="4"/><rect class="state" width="5" height="{_HEIGHT}" rx="2"/>'
        f'<text class="name" x="14" y="17">{html.escape(printable(name))}</text>'
        f'<text x="14" y="32">{html.escape(told)}</text><title>{html.escape(printable(step.step))}</title></g></a>'
    )
