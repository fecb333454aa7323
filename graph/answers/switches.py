"""A switch from one plan to another, as plain data: what waits once and why, and what it costs."""

from __future__ import annotations

from typing import Any

from ..switch import Crossing, Instance, Switch


def switch_json(switch: Switch) -> dict[str, Any]:
    """What `graph diff --switch --json` says of it. Raises nothing."""
    return {
        "delay": switch.delay,
        "lead": switch.lead,
        "over": switch.over,
        "requirements": len(switch.crossings),
        "waits": [
            {
                "from": _said(wait.source),
                "to": _said(wait.target),
                "protects": [str(each) for each in wait.protects],
            }
            for wait in switch.waits
        ],
        "actors": {actor: [_said(at) for at in ops] for actor, ops in switch.programs.items()},
        "leases": [
            {"state": each.state, "from": each.source, "to": each.target, "steps": each.steps}
            for each in switch.leases
        ],
        "late_us": switch.costs_us,
        "drained_late_us": switch.drained_us,
    }


def needed_for(protects: tuple[Crossing, ...]) -> str:
    """The requirements behind a wait in a few words: `RAW batch, WAR token`."""
    return ", ".join(dict.fromkeys(f"{each.hazard} {each.value}".strip() for each in protects))


def _said(at: Instance) -> list[Any]:
    return [("before", "after")[at.part], at.op, at.step]
