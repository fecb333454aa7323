"""The plan as a graph: ops in rows by actor, the data that flows, and the waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from ..graph.answers.folding import folded, rate_words
from ..graph.plan import Edge, Plan
from ..graph.planner.events import plan_edges
from .drawn import ghost_edges, ghost_title, short, summary, wait_label, wait_title
from .routing import LABEL_SIZE, Link, Rect, Routed, route
from .svg import clipped, document, flowed, legend_lines, number, tag, text, text_width, title
from .words import later

MARGIN, TOP, LEAST_WIDTH = 14, 62, 640
RULES = (
    ".dag .node{fill:@node;stroke:@muted;stroke-width:1}"
    ".dag .critical{stroke:@ink;stroke-width:2.4}"
    ".dag .order path{stroke:@muted;stroke-width:1.3}"
    ".dag .launch path{stroke:@muted;stroke-width:1.1;stroke-dasharray:5 3}"
    ".dag .data path{stroke:@data;stroke-width:1}.dag .data-words{fill:@data}"
    ".dag .ghost path{stroke-width:.8;opacity:.7}"
    ".dag .wait path{stroke-width:2.6}.dag .wait-words{fill:@wait}"
)
_RANKS = ".dag .comm path{stroke:@data;stroke-width:1.6;stroke-dasharray:8 3 2 3}"


WHOSE = ("data_wait", "data_edges")  # say whose label a text is


@dataclass(frozen=True)
class _Drawn:
    """A link with what its lines mean: class, title and attributes by target."""

    link: Link
    kind: str
    titles: Mapping[str, str]
    data: Mapping[str, Mapping[str, str]]


def dag_svg(plan: Plan, *, title: str | None = None) -> str:
    """One step of the plan as one SVG: what flows where, what is launched, what waits.

    Columns follow the order within a step; lines that run back to the left go to a later step,
    and `@-1` says how many steps later the value is read.
    """
    heading = title or f"{plan.graph.name}: the plan as a graph"
    plan = folded(plan)
    grid, rows = _grid(plan)
    names = {op: _named(plan, op) for op in grid}
    left = MARGIN + max(text_width(actor, 13, bold=True) for actor, _ in rows) + 12
    left = max(left, MARGIN + 70)
    drawn = [*_orders(plan, grid), *_launches(plan), *_data(plan), *_waits(plan)]
    drawn += _meetings(plan)
    laid = route(
        [each.link for each in drawn],
        grid,
        {op: _width(lines) for op, lines in names.items()},
        left=left,
        top=TOP,
    )
    width = max(laid.width + MARGIN, LEAST_WIDTH)
    legend = flowed("", _legend(plan), width - 2 * MARGIN, 12, " ")
    bottom = laid.height + 14
    parts = [
        text(MARGIN, 28, clipped(heading, 16, width - 2 * MARGIN, bold=True), size=16, bold=True),
        text(MARGIN, 48, clipped(summary(plan), 13, width - 2 * MARGIN), size=13, class_="muted"),
        *_bands(rows, laid, width),
        *_ghosts(plan, grid, laid, drawn),
        *_order_arrows(plan, grid, laid),
        *_lines(drawn, laid),
        *_nodes(plan, names, laid),
        *_labels(drawn, laid),
        *legend_lines(legend, MARGIN, bottom),
    ]
    rules = RULES + _RANKS if plan.graph.ranks else RULES
    return document("dag", heading, width, bottom + 16 * len(legend), parts, rules)


# --- where ops stand ------------------------------------------------------------------------------


def _grid(plan: Plan) -> tuple[dict[str, tuple[int, int]], list[tuple[str, int]]]:
    """(column, row) of each op; a row is an actor's ops for the same step of its iteration."""
    order = nx.DiGraph()
    order.add_nodes_from(plan.graph.vertices)
    rows: list[tuple[str, int]] = []
    row: dict[str, int] = {}
    for actor, program in plan.actors.items():
        for offset in sorted({at for _, at in program}):
            chain = [op for op, at in program if at == offset]
            nx.add_path(order, chain)
            row |= dict.fromkeys(chain, len(rows))
            rows.append((actor, offset))
    order.add_edges_from((u, v) for u, v, d, _ in plan_edges(plan) if d == 0 and u != v)
    order.add_edges_from(
        (edge.source, edge.target)
        for edge in plan.edges
        if edge.distance == 0 and edge.source != edge.target
    )
    return {
        op: (column, row[op])
        for column, layer in enumerate(nx.topological_generations(order))
        for op in layer
    }, rows


def _named(plan: Plan, op: str) -> tuple[str, ...]:
    """The lines in a box: the name, on two lines where it is long, then the side and the cost."""
    name, cost = short(op), plan.costs.get(op)
    breaks = [k + 1 for k, letter in enumerate(name[:-1]) if letter in "._"]
    vertex, about = plan.graph.vertices[op], f" · {cost:,.0f} µs" if cost else ""
    note = f"{vertex.side}{about}" + (f" · {rate}" if (rate := rate_words(vertex.node)) else "")
    if len(name) <= 8 or not breaks:
        return name, note
    middle = min(breaks, key=lambda k: abs(k - len(name) / 2))
    return name[:middle], name[middle:], note


def _width(lines: Sequence[str]) -> float:
    *name, note = lines
    return 12 + max(text_width(note, 10), *(text_width(line, 12, bold=True) for line in name))


# --- what is drawn between them -------------------------------------------------------------------


def _one(
    kind: str, source: str, target: str, distance: int, said: str, words: str = "", **data: str
) -> _Drawn:
    link = Link(source, (target,), words, bold=kind == "wait")
    return _Drawn(link, kind, {target: said}, {target: {"data_distance": str(distance), **data}})


def _orders(plan: Plan, grid: Mapping[str, tuple[int, int]]) -> Iterator[_Drawn]:
    """Program order, where it is more than the next op of a row."""
    for u, v, d, kind in plan_edges(plan):
        if kind == "order" and u != v and not _next_in_row(grid, u, v):
            said = f"{v} {later(d)}".strip() + f" runs after {u} on the same actor"
            yield _one("order", u, v, d, said)


def _next_in_row(grid: Mapping[str, tuple[int, int]], u: str, v: str) -> bool:
    return grid[u][1] == grid[v][1] and grid[u][0] < grid[v][0]


def _launches(plan: Plan) -> Iterator[_Drawn]:
    for u, v, d, kind in plan_edges(plan):
        if kind == "launch":
            yield _one("launch", u, v, d, f"{u} launches {v}")


def _meetings(plan: Plan) -> Iterator[_Drawn]:
    """What the ends of a comm node wait for."""
    for u, v, d, kind in plan_edges(plan):
        if kind == "comm":
            yield _one("comm", u, v, d, f"{v} {later(d)}".strip() + f" ends after {u} has begun")


def _waits(plan: Plan) -> Iterator[_Drawn]:
    for index, wait in enumerate(plan.waits):
        yield _one(
            "wait",
            wait.source,
            wait.target,
            wait.distance,
            wait_title(plan, wait),
            ", ".join(filter(None, [wait_label(plan, wait), later(wait.distance)])),
            data_wait=str(index),
        )


def _data(plan: Plan) -> Iterator[_Drawn]:
    """What each op writes to whom: one link for each value and distance."""
    nets: dict[tuple[str, str, int], list[int]] = {}
    for index, edge in enumerate(plan.edges):
        if edge.hazard == "RAW" and edge.source != edge.target:
            nets.setdefault((edge.source, edge.value, edge.distance), []).append(index)
    for (source, _, distance), indices in nets.items():
        edges = {plan.edges[k].target: k for k in indices}
        yield _Drawn(
            Link(source, tuple(edges), _flows(plan.edges[indices[0]])),
            "data",
            {target: ghost_title(plan, [k]) for target, k in edges.items()},
            {
                target: {"data_distance": str(distance), "data_edges": str(k)}
                for target, k in edges.items()
            },
        )


def _flows(edge: Edge) -> str:
    """`sampled`, or `sampled@-1` where the next step reads it."""
    if edge.distance <= 0:
        return edge.value
    return f"{edge.value}@-{edge.distance}"


def _ghosts(
    plan: Plan, grid: Mapping[str, tuple[int, int]], laid: Routed, drawn: Sequence[_Drawn]
) -> Iterator[str]:
    """WAR and WAW between actors that need no wait, as faint straight dots behind the rest."""
    vertices = plan.graph.vertices
    for (source, target, distance), edges in ghost_edges(plan).items():
        if vertices[source].actor == vertices[target].actor:
            continue
        if any(plan.edges[k].hazard == "RAW" for k in edges):
            continue
        yield tag(
            "g",
            title(ghost_title(plan, edges)),
            tag("path", d=_line_between(laid.boxes[source], laid.boxes[target])),
            class_="ghost",
            data_edges=",".join(map(str, edges)),
            data_from=source,
            data_to=target,
            data_distance=str(distance),
        )


def _line_between(a: Rect, b: Rect) -> str:
    down = b.y > a.y
    x1, y1 = a.x + a.width / 2, a.y + (a.height if down else 0)
    x2, y2 = b.x + b.width / 2, b.y + (0 if down else b.height)
    return f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"


def _order_arrows(plan: Plan, grid: Mapping[str, tuple[int, int]], laid: Routed) -> Iterator[str]:
    """From each op to the next in its row."""
    for u, v, d, kind in plan_edges(plan):
        if kind != "order" or u == v or not _next_in_row(grid, u, v):
            continue
        a, b = laid.boxes[u], laid.boxes[v]
        y = number(a.y + a.height / 2)
        yield tag(
            "g",
            title(f"{v} runs after {u} on the same actor"),
            tag(
                "path",
                d=f"M{number(a.x + a.width)} {y}L{number(b.x)} {y}",
                marker_end="url(#dag-tip-muted)",
            ),
            class_="order",
            data_from=u,
            data_to=v,
            data_distance=str(d),
        )


_TIPS = {"order": "muted", "launch": "muted", "comm": "data", "data": "data", "wait": "wait"}


def _lines(drawn: Sequence[_Drawn], laid: Routed) -> Iterator[str]:
    for index, each in enumerate(drawn):
        for target in each.link.targets:
            yield tag(
                "g",
                title(each.titles[target]),
                tag(
                    "path",
                    d=laid.paths[index, target],
                    marker_end=f"url(#dag-tip-{_TIPS[each.kind]})",
                ),
                class_=each.kind,
                data_from=each.link.source,
                data_to=target,
                **each.data[target],
            )


def _labels(drawn: Sequence[_Drawn], laid: Routed) -> Iterator[str]:
    """Above all lines, so that none runs through a word."""
    for index, x, y in laid.labels:
        link, kind, data = drawn[index].link, drawn[index].kind, drawn[index].data.values()
        of = {key: ",".join(each[key] for each in data) for key in WHOSE if key in next(iter(data))}
        yield text(
            x, y, link.words, size=LABEL_SIZE, bold=link.bold, class_=f"halo {kind}-words", data=of
        )


# --- boxes and what is around them ----------------------------------------------------------------


def _nodes(plan: Plan, names: Mapping[str, tuple[str, ...]], laid: Routed) -> Iterator[str]:
    critical = {op for op, _ in plan.critical_cycle}
    for op, (*name, note) in names.items():
        box, vertex = laid.boxes[op], plan.graph.vertices[op]
        x, y = box.x + box.width / 2, box.y + box.height / 2 + 11 - 7 * len(name)
        yield tag(
            "g",
            title(f"{op} on {vertex.actor}, {note}"),
            tag(
                "rect",
                class_="node critical" if op in critical else "node",
                x=box.x,
                y=box.y,
                width=box.width,
                height=box.height,
                rx=6,
            ),
            *(
                text(x, y - 4 + 13 * k, line, anchor="middle", bold=True)
                for k, line in enumerate(name)
            ),
            text(x, y - 4 + 13 * len(name), note, size=10, anchor="middle", class_="muted"),
            class_="op",
            data_op=op,
            data_node=vertex.node.name,
            data_actor=vertex.actor,
        )


def _bands(rows: Sequence[tuple[str, int]], laid: Routed, width: float) -> Iterator[str]:
    for (actor, offset), (top, bottom) in zip(rows, laid.rows, strict=True):
        yield tag("rect", class_="band", x=0, y=top - 6, width=width, height=bottom - top + 12)
        middle = (top + bottom) / 2
        yield text(MARGIN, middle - 1, clipped(actor, 13, 200, bold=True), size=13, bold=True)
        which = "step t" if offset == 0 else f"step t {'−' if offset > 0 else '+'} {abs(offset)}"
        yield text(MARGIN, middle + 14, which, size=11, class_="muted")


def _legend(plan: Plan) -> Iterator[str]:
    yield "Blue: data, labelled with its value; value@-1 is read one step later."
    yield "Grey: program order; dashed: launches; dotted: other orderings that need no wait."
    if any(node.comm for node in plan.graph.nodes):
        yield "Dash-dotted: ranks that meet; neither ends before the other has begun."
    if plan.waits:
        yield "Red: the waits, and what they protect (+2: and two more)."
    yield "Outlined: the cycle that sets the period."
