"""What `graph diff --switch` prints: how a running engine goes from the one plan to the other."""

from __future__ import annotations

from ..graph.answers.switches import needed_for
from ..graph.switch import Switch
from ..graph.verifier.words import counted
from ..timelines.switched import switch_timeline
from ..views.timeline_lanes import timeline_lanes
from .wrapping import paragraph

STEPS = 2
"""So many steps before a switch, and after it, are drawn; step 0 is the first of the plan after."""


def switch_lines(switch: Switch, width: int) -> list[str]:
    """Which requirements are between the two, what waits once, and what the switch costs."""
    once = counted(len(switch.waits), "wait") if switch.waits else "no wait"
    text = (
        f"{counted(len(switch.crossings), 'requirement')} between the two plans, met by their own "
        f"orders and waits, and by {once} that takes place once"
    )
    lines = paragraph(text, width, 2, "switch     ")
    for wait in switch.waits:
        text = f"{wait.target} waits for {wait.source} ({needed_for(wait.protects)})"
        lines += paragraph(text, width, 2, "+ ")
    late, drained = switch.costs_us, switch.drained_us
    text = f"steps are {late:,.6g} µs late once, {drained:,.6g} µs if the run were drained"
    lines += paragraph(text, width, 2, "late       ")
    text = (
        f"{counted(switch.lead, 'step')} after it is asked for; over "
        f"{counted(switch.over, 'step')} later"
    )
    lines += paragraph(text, width, 2, "begins     ")
    for lease in switch.leases:
        text = (
            f"a key of {lease.state!r} passes from {lease.source!r} before to {lease.target!r} "
            f"after in {counted(lease.steps, 'step')}"
        )
        lines += paragraph(text, width, 2, "keys       ")
    timeline = switch_timeline(switch, STEPS)
    return [*lines, "", *timeline_lanes(timeline, range(-STEPS, STEPS), width=width).splitlines()]
