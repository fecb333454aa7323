"""The plan as one HTML file to explore: its drawings, every fact about it, and nothing to load.

The drawings and the tables are in the file itself, so it can be read without scripts too. The
script only moves them about and picks out what one asks for (`assets/page*.js`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from html import escape
from string import Template
from urllib.parse import quote

from ..graph import arguments
from ..graph.answers.explain import explain_wait
from ..graph.answers.leases import explain_lease
from ..graph.plan import Edge, Lease, Plan
from .html import asset, embedded, palette, policy
from .page_data import page_data
from .svg_dag import dag_svg
from .svg_lanes import lanes_svg
from .svg_slots import slots_svg
from .words import across, carried, count, later, per_step

SCRIPTS = ("page_state.js", "page_details.js", "page_sight.js", "page.js")  # one, in this order


def plan_page(plan: Plan, *, steps: int = 3, title: str | None = None) -> str:
    """The plan as one self-contained HTML file. Raises `GraphError` if `plan` is not a plan.

    `steps` are drawn; `title` is the name if not the graph's.
    """
    arguments.a("plan_page", "plan", plan, Plan, arguments.A_PLAN)
    name = title or plan.graph.name
    script = "\n".join(map(asset, SCRIPTS))
    return Template(asset("page.html")).substitute(
        policy=policy(script),
        title=escape(name),
        digest=plan.digest[:12],
        facts=escape(_facts(plan)),
        style=asset("page.css") + palette(),
        dag=dag_svg(plan, title=f"{name}: the plan as a graph"),
        lanes=lanes_svg(plan, steps=steps, title=f"{name}: the plan in time"),
        slots=slots_svg(plan, title=f"{name}: slots and lifetimes"),
        tables="\n".join(_tables(plan)),
        data=embedded(page_data(plan)),
        script=script,
    )


def _facts(plan: Plan) -> str:
    return (
        f"{per_step(plan)} · {count(len(plan.actors), 'actor')} · "
        f"{count(len(plan.waits), 'wait')} · {count(plan.requirements, 'requirement')}"
    )


# --- the tables -----------------------------------------------------------------------------------


def _tables(plan: Plan) -> Iterator[str]:
    waits = (_wait_cells(plan, index) for index in range(len(plan.waits)))
    yield _table("waits", "Waits", ["", "before", "waits", "across", "protects", "why"], waits)
    requirements = (
        _requirement_cells(index, edge)
        for index, edge in enumerate((*plan.edges, *plan.launch_order))
    )
    heads = ["", "hazard", "value", "before", "after", "step", "met by", "witness"]
    yield _table("requirements", "Requirements", heads, requirements)
    values = (_value_cells(plan, name) for name in plan.graph.values)
    yield _table("values", "Values", ["value", "place", "slots", "written by", "read by"], values)
    ops = (_op_cells(plan, name) for name in plan.graph.vertices)
    yield _table("ops", "Ops", ["op", "actor", "µs", "reads", "writes"], ops)
    if plan.has_classes:
        leases = (_lease_cells(plan, lease) for lease in plan.leases)
        yield _table("keys", "Keys", ["state", "from", "to", "steps", "why"], leases)
    if plan.notes:
        notes = ((escape(note),) for note in plan.notes)
        yield _table("notes", "Notes", ["note"], notes)


def _table(name: str, caption: str, heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Cells are HTML already."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    none = "" if body else '<p class="none">None.</p>'
    return (
        f'<section id="table-{name}" class="table"><h2>{escape(caption)}</h2>'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>{none}</section>"
    )


def _link(kind: str, name: str, text: str | None = None) -> str:
    address = f"#{kind}={quote(name, safe='')}"
    return f'<a href="{escape(address)}">{escape(name if text is None else text)}</a>'


def _lease_cells(plan: Plan, lease: Lease) -> tuple[str, ...]:
    """A lease, and why it is not shorter."""
    why = explain_lease(plan, lease.state, lease.source, lease.target).reason
    names = (lease.state, lease.source, lease.target, str(lease.steps), why)
    return tuple(map(escape, names))


def _wait_cells(plan: Plan, index: int) -> tuple[str, ...]:
    wait = plan.waits[index]
    explained = explain_wait(plan, wait)
    names = dict.fromkeys(reason.title for reason in explained.protects)
    return (
        _link("wait", str(index), f"wait {index + 1}"),
        _link("op", wait.source),
        f"{_link('op', wait.target)} {escape(later(wait.distance))}".strip(),
        escape(across(plan, wait)),
        escape(", ".join(names) or "launch order"),
        "".join(f"<p>{escape(line)}</p>" for line in explained.lines()),
    )


def _requirement_cells(index: int, edge: Edge) -> tuple[str, ...]:
    launch = edge.hazard == "LAUNCH"
    return (
        _link("requirement", str(index), str(index + 1)),
        escape("launch order" if launch else edge.hazard),
        "" if launch else _link("value", edge.value, carried(edge)),
        _link("op", edge.source),
        _link("op", edge.target),
        f"{edge.distance:+d}" if edge.distance else "same",
        escape(f"{edge.by}, event {edge.event}" if edge.event else edge.by),
        escape(" → ".join(op + (f"@{d:+d}" if d else "") for op, d in edge.witness)),
    )


def _value_cells(plan: Plan, name: str) -> tuple[str, ...]:
    value, copies = plan.graph.values[name], plan.slots.get(name)
    slots = "given" if value.external else "fresh" if copies is None else str(copies)
    return (
        _link("value", name),
        escape(value.place),
        slots,
        _accessors(plan, lambda op: [""] if name in plan.graph.vertices[op].op.writes else []),
        _accessors(plan, lambda op: _carries(plan, op, name)),
    )


def _carries(plan: Plan, op: str, name: str) -> list[str]:
    reads = plan.graph.vertices[op].op.reads
    return [f"@-{read.carry}" if read.carry else "" for read in reads if read.name == name]


def _accessors(plan: Plan, suffixes: Callable[[str], list[str]]) -> str:
    found = [
        _link("op", op) + escape(suffix) for op in plan.graph.vertices for suffix in suffixes(op)
    ]
    return ", ".join(found)


def _op_cells(plan: Plan, name: str) -> tuple[str, ...]:
    vertex = plan.graph.vertices[name]
    reads = (_link(_kind(plan, read.name), read.name, str(read)) for read in vertex.op.reads)
    writes = (_link(_kind(plan, value), value) for value in vertex.op.writes)
    cost = plan.costs.get(name)
    return (
        _link("op", name),
        _link("actor", vertex.actor),
        "" if cost is None else f"{cost:,.6g}",
        ", ".join(reads),
        ", ".join(writes),
    )


def _kind(plan: Plan, name: str) -> str:
    return "state" if name in plan.graph.states else "value"
