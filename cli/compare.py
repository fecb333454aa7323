"""`run --compare`: the pipeline beside the synchronous serial loop, on the same requests.

Machines drift, and a second run finds warm caches, so the two take turns: rounds of one run each,
in alternating order, of which the first warms up. What is said is the spread over the others.

Both have the same nodes. So where tokens must not depend on drafts, the loop also runs without any:
a node or drafter that changes tokens shows there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
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
    """Where outputs first differed, if they did; by round, how many times faster than the
    synchronous loop.
    """

    difference: str | None = None
    ratios: list[float] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether all outputs were equal."""
        return self.difference is None

    def to_json(self) -> dict[str, Any]:
        """What the summary says: the median, the quartiles, and of how many rounds."""
        low, middle, high = quartiles(self.ratios)
        return {
            "equal_to_synchronous": self.equal,
            "first_difference": self.difference,
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
        found.difference = found.difference or first_difference(outputs, again)
        return clock() - began

    found = Comparison()
    warm = timed(plain) / seconds
    if any(output.drafted for output in outputs) and _drafts_change_nothing(config):
        bare = [line.model_copy(update={"draft_tokens": 0}) for line in lines]
        again = plain.generate(bare, progress=False)
        found.difference = found.difference or first_difference(outputs, again, drafts=False)
    began = clock()
    some = any(output.token_ids for output in outputs)
    while some and len(found.ratios) < MOST_ROUNDS and clock() - began < ENOUGH_SECONDS:
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


def _drafts_change_nothing(config: PipelineConfig) -> bool:
    """Whether tokens are those of decoding without drafts, to the last bit of what decides them."""
    from ..serving.pipeline import policies_of

    return config.model.invariant and policies_of(config).acceptance.exact


def first_difference(
    outputs: Sequence[RequestOutput], others: Sequence[RequestOutput], *, drafts: bool = True
) -> str | None:
    """Where outputs differ from those of the synchronous loop, in what no run of a plan may change.

    `drafts`: whether that had drafts too, as many. None: nowhere.
    """
    loop = "there" if drafts else "there without drafts"
    for ours, theirs in zip(_completions(outputs), _completions(others), strict=True):
        tokens = enumerate(zip_longest(ours.token_ids, theirs.token_ids, fillvalue="none"))
        for at, (one, other) in tokens:
            if one != other:
                return f"token_ids[{at}] of request {ours.id!r} is {one}, {loop} {other}"
        counts = ("drafted", "accepted") if drafts else ()
        for name in ("text", "finish_reason", *counts):
            one, other = getattr(ours, name), getattr(theirs, name)
            if one != other:
                return f"{name} of request {ours.id!r} is {one!r:.60}, {loop} {other!r:.60}"
    return None


def _completions(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    return [each for output in outputs for each in output.choices or (output,)]
