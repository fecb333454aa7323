"""Capturing what steady decoding needs before anybody waits for it.

A step is replayed from its third time on: the first warms kernels up, the second is captured. So
requests that nobody asked for are decoded at every size to which steps are rounded up, the largest
first, since graphs work in memory that the largest of them makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..requests.request import SamplingParams
from ..structured.grammar import GrammarSpec
from .call import Call, Listeners

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .llm import LLM

PROMPT = [0, 0]  # any token does: what comes out is thrown away


@dataclass(frozen=True)
class Kind:
    """Requests whose steps differ in what the device is asked to do, whatever their number."""

    name: str
    params: SamplingParams


def warm_up(
    llm: LLM | AsyncLLM, on_progress: Callable[[int, int, str], None] | None = None
) -> None:
    """Decode every kind of request at every size. Totals are as before.

    `on_progress(done, of, what)` is called before each and at the end.
    """
    engine = llm.engine
    sizes = sorted(engine.buckets, reverse=True)
    todo = [(size, kind) for kind in _kinds(llm) for size in sizes]
    totals = engine.totals.copy()
    for done, (size, kind) in enumerate(todo):
        if on_progress is not None:
            on_progress(done, len(todo), f"{kind.name}, {size} rows")
        Call(llm.service, [PROMPT] * size, [kind.params] * size).outputs(Listeners())
    if on_progress is not None:
        on_progress(len(todo), len(todo), "")
    engine.totals.restore(totals)


def _kinds(llm: LLM | AsyncLLM) -> Iterator[Kind]:
    plan, limits = llm.plan, llm.engine.limits
    phases = math.lcm(*(slots for slots in plan.slots.values() if slots))
    # Two turns through the slots, after the steps in which the requests come in.
    steps = 2 * phases + llm.config.depth + 2
    most = limits.context_length - len(PROMPT) - 1
    greedy = SamplingParams(max_tokens=min(steps * limits.window, most), ignore_eos=True)
    yield Kind("greedy", greedy)
    yield Kind("sampled", replace(greedy, temperature=1.0, seed=0))
    if llm.config.grammars is not None:
        grammar = GrammarSpec.from_request({"regex": "[a-z ]*"})
        yield Kind("grammar", replace(greedy, structured_outputs=grammar))
