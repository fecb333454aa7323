"""Plans for Graphviz."""

from __future__ import annotations

import json

from ..graph import arguments
from ..graph.answers.folding import folded
from ..graph.plan import Plan
from ..graph.planner.events import plan_edges
from .words import carried, ghosts, later, named, protected


def dot(plan: Plan) -> str:
    """The plan for Graphviz: a cluster for each actor, waits bold, met requirements ghosted.

    Actors of a rank are in a cluster of it, and what ranks wait for in meetings is dashed.

    Raises `GraphError` if `plan` is not a plan.
    """
    arguments.a("dot", "plan", plan, Plan, arguments.A_PLAN)
    plan = folded(plan)
    lines = [
        f"digraph {_quoted(plan.graph.name)} {{",
        "  rankdir=LR; compound=true;",
        '  node [shape=box, style=rounded, fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    rank: int | None = None
    for index, (actor, program) in enumerate(plan.actors.items()):
        here = plan.graph.vertices[program[0][0]].node.rank
        if here != rank:
            lines += ["  }"] * (rank is not None)
            lines += [f"  subgraph cluster_rank_{here} {{", f'    label="rank {here}";']
            rank = here
        lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(actor)};"]
        lines += [
            f"    {_quoted(op)} [label={_quoted(named(plan, op, at))}];" for op, at in program
        ]
        lines.append("  }")
    lines += ["  }"] * (rank is not None)
    for u, v, d, kind in plan_edges(plan):
        if kind == "order" and u != v:
            lines.append(_dot_arc(u, v, "color=gray50", later(d)))
        elif kind == "launch":
            lines.append(_dot_arc(u, v, "color=gray50, style=dashed", "launch"))
        elif kind == "comm":
            label = f"meets {later(d)}".strip()
            lines.append(_dot_arc(u, v, "color=darkorange, style=dashed", label))
    for wait in plan.waits:
        label = " ".join(filter(None, [protected(wait), later(wait.distance)]))
        lines.append(_dot_arc(wait.source, wait.target, "color=firebrick, penwidth=2.5", label))
    for (source, target, distance), edges in ghosts(plan).items():
        label = ", ".join(dict.fromkeys(f"{edge.hazard} {carried(edge)}" for edge in edges))
        style = "color=gray80, fontcolor=gray60, style=dotted, constraint=false"
        lines.append(_dot_arc(source, target, style, f"{label} {later(distance)}".strip()))
    return "\n".join([*lines, "}"]) + "\n"


def _dot_arc(source: str, target: str, style: str, label: str) -> str:
    shown = f", label={_quoted(label)}" if label else ""
    return f"  {_quoted(source)} -> {_quoted(target)} [{style}{shown}];"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
