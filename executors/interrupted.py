"""Steps around a switch in which ops that follow each other otherwise do not."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.switch import Instance


def interrupted(listed: Sequence[Instance], part: int, ops: Sequence[str]) -> set[int]:
    """Of what one thread, or one stream, runs around a switch: the steps of which it runs some of
    these ops of the plan `part`, but not all of them and nothing in between."""
    size = len(ops)
    whole = {
        at.step
        for place, at in enumerate(listed)
        if [*listed[place : place + size]] == [Instance(part, op, at.step) for op in ops]
    }
    return {at.step for at in listed if at.part == part and at.op in ops} - whole
