"""What is timed to resume a request: the copies that the engine makes."""

from collections.abc import Sequence
from typing import Any

import pytest

from stepweave import LLM
from stepweave.models.paged_cache import PagedCache
from stepweave.nodes.ops.swapping import HostBlocks
from stepweave.requests.swap import Swaps
from stepweave.serving.resumption_costs import resumption_costs

TIGHT: dict[str, Any] = {
    "scheduler.num_blocks": 10,
    "scheduler.max_rows": 3,
    "scheduler.prefix_cache": False,
    "policies.resumption": "kept",
    "nodes.swap.blocks": 40,
}


@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
def test_copies_are_timed_of_blocks_like_those_that_the_engine_swaps(
    cache_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[list[tuple[int, int]]] = []
    copy = HostBlocks.swap

    def noted(self: HostBlocks, caches: Sequence[PagedCache], swaps: Swaps) -> None:
        copied.append([(each.bytes_per_block, len(each.layers)) for each in caches])
        copy(self, caches, swaps)

    monkeypatch.setattr(HostBlocks, "swap", noted)
    asked = [
        {"prompt": f"Tell {count} stories.", "max_tokens": 48 + 8 * count, "ignore_eos": True}
        for count in range(3)
    ]
    keys = {**TIGHT, "model.kv_cache_dtype": cache_dtype, "graphs": False}
    with LLM(pipeline="async_swap", overrides=keys) as it:
        it.generate(asked, progress=False)
        by_engine, copied[:] = copied[0], []
        assert resumption_costs(it, 1) is not None
    assert len(by_engine) == 2, "the target's cache and the drafter's"
    assert copied == [by_engine] * 4
