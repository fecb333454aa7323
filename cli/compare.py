"""`run --compare`: the pipeline beside the synchronous serial loop, on the same requests.

Machines drift, and a second run finds warm caches, so the two take turns: rounds of one run each,
in alternating order, of which the first warms up. What is said is the spread over the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..configs.prompts import PromptLine
    from ..configs.schema import PipelineConfig
    from ..requests.request import RequestOutput
    from ..serving.llm import LLM

MOST_ROUNDS = 8  # after the one that warms up
ENOUGH_SECONDS = 10.0  # of comparing; a longer job is compared once


@dataclass
class Comparison:
    """Whether all outputs were equal; by round, how many times faster than the synchronous loop."""

    equal: bool
    ratios: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """What the summary says: the median, the quartiles, and of how many rounds."""
        low, middle, high = quartiles(self.ratios)
        return {
            "equal_to_synchronous": self.equal,
            "speed_ratio": round(middle, 3),
            "speed_ratio_quartiles": [round(low, 3), round(high, 3)],
            "rounds": len(self.ratios),
        }


def quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of one number that number."""
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def compared(
    llm: LLM,
    config: PipelineConfig,
    lines: Sequence[PromptLine],
    outputs: Sequence[RequestOutput],
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> Comparison:
    """Compare with `outputs`, which `llm` made in so many seconds."""
    from ..serving.llm import LLM
    from ..serving.pipeline import synchronous

    plain = LLM(pipeline=synchronous(config))

    def timed(which: LLM) -> float:
        began = clock()
        again = which.generate(lines, progress=False)
        found.equal = found.equal and _counted(again) == _counted(outputs)
        return clock() - began

    found = Comparison(equal=True)
    warm = timed(plain) / seconds
    began = clock()
    while len(found.ratios) < MOST_ROUNDS and clock() - began < ENOUGH_SECONDS:
        if not found.ratios and seconds * (1 + warm) > ENOUGH_SECONDS:
            break
        if len(found.ratios) % 2:
            synchronous_s = timed(plain)
            found.ratios.append(synchronous_s / timed(llm))
        else:
            pipelined_s = timed(llm)
            found.ratios.append(timed(plain) / pipelined_s)
    found.ratios = found.ratios or [warm]
    return found


def _counted(outputs: Sequence[RequestOutput]) -> list[tuple[Any, ...]]:
    """What must not depend on how the plan was run."""
    return [(tuple(o.token_ids), o.text, o.finish_reason, o.drafted, o.accepted) for o in outputs]
