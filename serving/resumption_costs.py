"""What the policy `resumption: cheaper` compares: a copy of a KV block, and a token computed again.

Copies of one block and of many between caches like those of the engine, the drafter's too, and host
memory, and prompts of two lengths, each alone in its step, are timed in turn. The difference is
what one more of them takes; what the first of many copies takes beyond that is the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from ..backends import backend_of
from ..models.paged_cache import PagedCache
from ..nodes.ops.swapping import HostBlocks
from ..nodes.values import HOST_BLOCKS
from ..requests.request import SamplingParams
from ..requests.swap import Swaps
from ..timelines.profile import Spread
from .llm import LLM
from .profile_error import ProfileError

BLOCKS = 32
TOKENS = 96, 16  # of the longer prompt, of the shorter


@dataclass(frozen=True)
class ResumptionCosts:
    """In µs: what the copies of a request take before the first, one block, one more token."""

    start: Spread
    block: Spread
    token: Spread

    def __str__(self) -> str:
        """The policy, as a pipeline file has it."""
        return (
            f"{{kind: cheaper, block_us: {self.block.p50:.1f}, start_us: {self.start.p50:.1f}, "
            f"token_us: {self.token.p50:.1f}}}"
        )


def resumption_costs(llm: LLM, rounds: int) -> ResumptionCosts | None:
    """Time both ways in turn, after a round that warms up; None where no blocks are swapped."""
    if all(state.keys != HOST_BLOCKS for state in llm.plan.graph.states.values()):
        return None
    copied = _copies(llm)
    most = min(llm.engine.limits.token_budget, llm.engine.limits.context_length - 2, TOKENS[0])
    least = min(TOKENS[1], most - 1)
    starts, blocks, tokens = [], [], []
    for turn in range(rounds + 1):
        one, many = copied(1), copied(BLOCKS)
        longer, shorter = _answered(llm, most), _answered(llm, least)
        if turn:
            block = max(0.0, (many - one) / (BLOCKS - 1))
            starts.append(max(0.0, one - block) * 1e6)
            blocks.append(block * 1e6)
            tokens.append(max(0.0, (longer - shorter) / (most - least)) * 1e6)
    return ResumptionCosts(Spread.of(starts), Spread.of(blocks), Spread.of(tokens))


def _copies(llm: LLM) -> Callable[[int], float]:
    """Seconds that so many blocks take one way."""
    device = llm.engine.model.device
    caches = [_like(each, device) for each in llm.engine.caches if isinstance(each, PagedCache)]
    host = HostBlocks(BLOCKS, device)

    def copied(blocks: int) -> float:
        pairs = tuple((1 + block, block) for block in range(blocks))
        began = perf_counter()
        host.swap(caches, Swaps(out=pairs))
        backend_of(device).synchronize(device)
        return perf_counter() - began

    return copied


def _like(cache: PagedCache, device: torch.device) -> PagedCache:
    """One whose blocks are as large, with as many as are copied."""
    blocks, dtype = 1 + BLOCKS, cache.cache_dtype
    return PagedCache(
        cache.layers, blocks, cache.block_size, cache.dtype, device, cache_dtype=dtype
    )


def _answered(llm: LLM, tokens: int) -> float:
    """Seconds that a prompt of so many tokens takes until its first token, nothing being cached."""
    llm.service.renew()
    prompt = [3 + place % 50 for place in range(tokens)]
    began = perf_counter()
    [output] = llm.generate([prompt], SamplingParams(max_tokens=1), progress=False)
    took = perf_counter() - began
    if output.failed:
        raise ProfileError(f"a prompt of {tokens} tokens could not be timed: {output.error}")
    return took
