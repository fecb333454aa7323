"""Steps in modes on the virtual clock: a word of modes, repeated."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.modes import mode_costs
from ..graph.plan import Plan
from .simulated import Turn, simulate
from .timeline import Timeline


def simulate_word(plan: Plan, word: Sequence[str], *, steps: int) -> Timeline:
    """Simulate `steps` steps whose modes are those of `word`, over and over.

    Raises `GraphError` if `plan` is not a plan, or `steps` no number of steps.
    """
    costs = mode_costs(plan.graph, plan.costs)

    def takes(turn: Turn) -> float:
        return costs[word[turn.step % len(word)]][turn.op]

    return simulate(plan, steps=steps, takes=takes)
