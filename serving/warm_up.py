"""Capturing what steady decoding needs before anybody waits for it.

A step is replayed from its third time on: the first warms kernels up, the second is captured. So
requests that nobody asked for are decoded by every plan, at every size to which steps are rounded
up, the largest first, since graphs work in memory that the largest of them makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..configs.schema import PipelineConfig
from ..graph.plan import Plan
from ..requests.buckets import few_of
from ..requests.limits import Limits
from ..requests.request import SamplingParams
from ..structured.grammar import GrammarSpec
from .call import Call, Listeners
from .plans import stay

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .llm import LLM

PROMPT = [0, 0]  # any token does: what comes out is thrown away


@dataclass(frozen=True)
class Kind:
    """Requests whose steps differ in what the device is asked to do, whatever their number.

    `beside`: what all but one of them ask for; None: the same. `few`: it is of steps so large that
    one row of them is few, see `few_of`.
    """

    name: str
    params: SamplingParams
    beside: SamplingParams | None = None
    few: bool = False


def warm_up(
    llm: LLM | AsyncLLM, on_progress: Callable[[int, int, str], None] | None = None
) -> None:
    """Decode every kind of request at every size, by every plan. Totals are as before.

    `on_progress(done, of, what)` is called before each and at the end.
    """
    engine = llm.engine
    sizes = sorted(engine.buckets, reverse=True)
    todo = [
        (size, kind, name)
        for name, plan in engine.plans.items()
        for kind in _kinds(plan, llm.config.form(name), engine.limits)
        for size in sizes
        if few_of(size) or not kind.few
    ]
    totals, steer, at = engine.totals.copy(), engine.steer, engine.at
    engine.steer = stay
    try:
        for done, (size, kind, name) in enumerate(todo):
            if on_progress is not None:
                by = f", plan {name}" if len(engine.plans) > 1 else ""
                on_progress(done, len(todo), f"{kind.name}, {size} rows{by}")
            engine.begin_with(name)
            asked = [kind.params, *[kind.beside or kind.params] * (size - 1)]
            Call(llm.service, [PROMPT] * size, asked).outputs(Listeners())
    finally:
        engine.begin_with(at)
        engine.steer = steer
        engine.totals.restore(totals)
    if on_progress is not None:
        on_progress(len(todo), len(todo), "")


def _kinds(plan: Plan, config: PipelineConfig, limits: Limits) -> Iterator[Kind]:
    phases = math.lcm(*(slots for slots in plan.slots.values() if slots))
    # Two turns through the slots, after the steps in which the requests come in.
    steps = 2 * phases + config.depth + 2
    most = limits.context_length - len(PROMPT) - 1
    greedy = SamplingParams(max_tokens=min(steps * limits.window, most), ignore_eos=True)
    yield Kind("greedy", greedy)
    yield Kind("sampled", replace(greedy, temperature=1.0, seed=0))
    if config.grammars is not None:
        grammar = GrammarSpec.from_request({"regex": "[a-z ]*"})
        structured = replace(greedy, structured_outputs=grammar)
        yield Kind("grammar", structured)
        yield Kind("one grammar", structured, beside=greedy, few=True)
