"""Run on each of two ranks, which are stages: one thing is wrong on one; what the group says."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

import torch

from stepweave import LLM
from stepweave.distributed.errors import GroupEnded
from stepweave.distributed.stage_links import StageLinks
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.models.stage_lm import StageLM
from stepweave.serving import loading
from tests.distributed.launched import write
from tests.distributed.mutants import AT, FOLLOWS, PARAMS, PROMPTS

broken: Any = loading  # whose functions are replaced


def at_start_another_plan() -> None:
    """Rank 1 runs the plan of its stage alone, which is sound by itself."""
    made = broken.compiled

    def alone(*given: Any) -> Plan:
        plan: Plan = made(*given)
        return compile_plan(plan.graph, costs=plan.costs)

    if FOLLOWS:
        broken.compiled = alone


def counted(of: type, name: str, change: Callable[..., Any]) -> None:
    """From its call number `AT` on, the method does what `change` makes of it."""
    method, calls = getattr(of, name), 0

    def counting(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == AT + 1:
            return change(method, self, *given, **named)
        return method(self, *given, **named)

    setattr(of, name, counting)


def skips_a_message() -> None:
    """Rank 1 goes on in one step without what rank 0 hands on."""

    def skipping(
        method: Any, self: Any, step: int, shape: tuple[int, int], dtype: Any, device: Any
    ) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    if FOLLOWS:
        counted(StageLinks, "receive", skipping)


def another_size() -> None:
    """In one step the model's part on rank 0 loses a token."""

    def shorter(method: Any, self: Any, *given: Any, **named: Any) -> Any:
        departing, hidden = method(self, *given, **named)
        return departing[:-1], hidden

    if not FOLLOWS:
        counted(StageLM, "forward", shorter)


def first_killed() -> None:
    ending(0, "send", signal.SIGKILL)


def last_killed() -> None:
    ending(1, "tell", signal.SIGKILL)


def first_stopped() -> None:
    ending(0, "send", signal.SIGSTOP)


def last_stopped() -> None:
    ending(1, "tell", signal.SIGSTOP)


def ending(rank: int, name: str, number: int) -> None:
    # The launcher ends the other rank as soon as one is gone: it is to say first what it has seen.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if bool(rank) == FOLLOWS:
        counted(StageLinks, name, lambda *given: os.kill(os.getpid(), number))


MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        at_start_another_plan,
        skips_a_message,
        another_size,
        first_killed,
        last_killed,
        first_stopped,
        last_stopped,
    )
}
SILENCE_S = 3


def served(mutant: str) -> dict[str, Any]:
    """How the group ends, and how long after the other rank is silent."""
    more = {"model.dtype": "float64", "model.parallel.silence_s": SILENCE_S}
    began = monotonic()
    try:
        if mutant.startswith("at_start"):
            MUTANTS[mutant]()
            LLM(pipeline="async", pp=2, overrides=more)
            return {"failure": None}
        llm = LLM(pipeline="async", pp=2, overrides=more)
        MUTANTS[mutant]()
        began = monotonic()
        llm.generate(PROMPTS, PARAMS)
    except GroupEnded as failure:
        return {"failure": failure.message, "seconds": monotonic() - began}
    return {"failure": None}


if __name__ == "__main__":
    out, mutant = sys.argv[1:]
    found = served(mutant)
    write(out, found)
    sys.exit(found["failure"] is not None)
