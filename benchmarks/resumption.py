"""What the policy `resumption: cheaper` compares: a copy of a KV block, and a token computed again.

Copies of 1 and of many blocks between the cache of a pipeline's model and host memory, and prompts
of two lengths, each alone in its step, are timed in turn; the difference is the cost of what one
has more than the other. It prints the line for the pipeline's file.

    python -m benchmarks.resumption [PIPELINE] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from stepweave import LLM, SamplingParams
from stepweave.nodes.ops.swapping import HostBlocks
from stepweave.requests.swap import Swaps

from .paired import Spread, at_least_one, rounds, save

BLOCKS = 32
TOKENS = 96, 16  # of the longer prompt, of the shorter


def more(count: int, few: Callable[[], float], many: Callable[[], float], by: int) -> Spread:
    """What one more of something takes in µs: `many` has `by` more of it than `few`."""
    pairs = zip(*rounds(count, many, few), strict=True)
    return Spread.of([max(0.0, (longer - shorter) / by * 1e6) for longer, shorter in pairs])


def copies(llm: LLM) -> tuple[Callable[[], float], Callable[[], float]]:
    """Seconds that one way takes for 1 block, and for `BLOCKS`."""
    model = llm.engine.model
    cache = model.new_cache(1 + BLOCKS, llm.engine.limits.block_size)
    host = HostBlocks(BLOCKS, model.device)

    def copied(blocks: int) -> float:
        pairs = tuple((1 + block, block) for block in range(blocks))
        began = perf_counter()
        host.swap((cache,), Swaps(out=pairs))
        if model.device.type != "cpu":
            cache.keys[0][0].cpu()  # waits for all that is enqueued before
        return perf_counter() - began

    return partial(copied, 1), partial(copied, BLOCKS)


def prompts(llm: LLM) -> tuple[Callable[[], float], Callable[[], float]]:
    """Seconds that a prompt takes until its first token, of either length."""

    def answered(tokens: int) -> float:
        ids = [3 + place % 50 for place in range(tokens)]
        began = perf_counter()
        llm.generate([ids], SamplingParams(max_tokens=1), progress=False)
        return perf_counter() - began

    longer, shorter = TOKENS
    return partial(answered, shorter), partial(answered, longer)


def measured(pipeline: str, count: int) -> dict[str, Any]:
    """Both costs, in µs."""
    with LLM(pipeline=pipeline, overrides={"scheduler.prefix_cache": "false"}) as llm:
        one, many = copies(llm)
        block = more(count, one, many, BLOCKS - 1)
        short, long = prompts(llm)
        token = more(count, short, long, TOKENS[0] - TOKENS[1])
    return {"pipeline": pipeline, "block_us": vars(block), "token_us": vars(token)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", nargs="?", default="async_swap")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measured(given.pipeline, given.rounds)
    block, token = (found[key]["median"] for key in ("block_us", "token_us"))
    print("policies:")
    print(f"  resumption: {{kind: cheaper, block_us: {block:.1f}, token_us: {token:.1f}}}")
    if given.json is not None:
        save("resumption", found, given.json)


if __name__ == "__main__":
    main()
