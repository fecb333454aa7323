"""Plans and declared data flow for Graphviz."""

from __future__ import annotations

import json

from ..graph import arguments
from ..graph.plan import Plan
from ..graph.planner.events import plan_edges
from ..graph.step_graph import StepGraph
from .words import carried, ghosts, later, placed, protected


def dot(plan: Plan) -> str:
    """The plan for Graphviz: a cluster for each actor, waits bold, met requirements ghosted.

    Raises `GraphError` if `plan` is not a plan.
    """
    arguments.a("dot", "plan", plan, Plan, arguments.A_PLAN)
    lines = [
        f"digraph {_quoted(plan.graph.name)} {{",
        "  rankdir=LR; compound=true;",
        '  node [shape=box, style=rounded, fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    for index, (actor, program) in enumerate(plan.actors.items()):
        lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(actor)};"]
        lines += [f"    {_quoted(op)} [label={_quoted(placed(op, at))}];" for op, at in program]
        lines.append("  }")
    for u, v, d, kind in plan_edges(plan):
        if kind == "order" and u != v:
            lines.append(_dot_arc(u, v, "color=gray50", later(d)))
        elif kind == "launch":
            lines.append(_dot_arc(u, v, "color=gray50, style=dashed", "launch"))
    for wait in plan.waits:
        label = " ".join(filter(None, [protected(wait), later(wait.distance)]))
        lines.append(_dot_arc(wait.source, wait.target, "color=firebrick, penwidth=2.5", label))
    for (source, target, distance), edges in ghosts(plan).items():
        label = ", ".join(dict.fromkeys(f"{edge.hazard} {carried(edge)}" for edge in edges))
        style = "color=gray80, fontcolor=gray60, style=dotted, constraint=false"
        lines.append(_dot_arc(source, target, style, f"{label} {later(distance)}".strip()))
    return "\n".join([*lines, "}"]) + "\n"


def dot_graph(graph: StepGraph) -> str:
    """The declared data flow for Graphviz, before anything is ordered: who reads what from whom."""
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    actors: dict[str, list[str]] = {}
    for op in graph.vertices.values():
        actors.setdefault(op.actor, []).append(op.name)
    for index, (actor, ops) in enumerate(actors.items()):
        lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(actor)};"]
        lines += [f"    {_quoted(op)};" for op in ops]
        lines.append("  }")
    for state in graph.states:
        lines.append(f"  {_quoted('state ' + state)} [shape=cylinder, label={_quoted(state)}];")
    writers = {name: op.name for op in graph.vertices.values() for name in op.op.writes}
    for name, value in graph.values.items():
        if value.external:
            lines.append(f"  {_quoted('value ' + name)} [shape=ellipse, label={_quoted(name)}];")
    for op in graph.vertices.values():
        if op.launch is not None:
            lines.append(_dot_arc(op.launch, op.name, "color=gray50, style=dashed", "launch"))
        for read in op.op.reads:
            if read.name in graph.states:
                lines.append(_dot_arc("state " + read.name, op.name, "color=gray50", ""))
                continue
            source = writers.get(read.name, "value " + read.name)
            style = "style=dashed, constraint=false" if read.carry else "color=black"
            lines.append(_dot_arc(source, op.name, style, str(read)))
        for name in op.op.writes:
            if name in graph.states:
                lines.append(_dot_arc(op.name, "state " + name, "color=gray50", ""))
    return "\n".join([*lines, "}"]) + "\n"


def _dot_arc(source: str, target: str, style: str, label: str) -> str:
    shown = f", label={_quoted(label)}" if label else ""
    return f"  {_quoted(source)} -> {_quoted(target)} [{style}{shown}];"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
