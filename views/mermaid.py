"""The plan as a Mermaid flowchart."""

from __future__ import annotations

from ..graph.answers.folding import folded
from ..graph.plan import Plan
from ..graph.planner.events import plan_edges
from .words import later, named, protected


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: waits thick, launches dashed, carries labelled."""
    plan = folded(plan)
    ids = {op: f"op{index}" for index, op in enumerate(plan.graph.vertices)}
    lines = ["flowchart LR"]
    for index, (actor, program) in enumerate(plan.actors.items()):
        lines.append(f'  subgraph actor{index}["{_mermaid(actor)}"]')
        lines += [f'    {ids[op]}["{_mermaid(named(plan, op, at))}"]' for op, at in program]
        lines.append("  end")
    for u, v, d, kind in plan_edges(plan):
        if kind == "order" and u != v:
            lines.append(_mermaid_arc(ids[u], "-->", ids[v], later(d)))
        elif kind == "launch":
            lines.append(_mermaid_arc(ids[u], "-.->", ids[v], "launch"))
        elif kind == "comm":
            lines.append(_mermaid_arc(ids[u], "-.->", ids[v], f"meets {later(d)}".strip()))
    for wait in plan.waits:
        label = " ".join(filter(None, [protected(wait), later(wait.distance)]))
        lines.append(_mermaid_arc(ids[wait.source], "==>", ids[wait.target], label))
    return "\n".join(lines) + "\n"


def _mermaid_arc(source: str, arrow: str, target: str, label: str) -> str:
    shown = f'|"{_mermaid(label)}"|' if label else ""
    return f"  {source} {arrow}{shown} {target}"


def _mermaid(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
