"""Whole decode pipelines for two processes: in one kernels run, in the other none does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepweave.models.paged_cache import PagedCache
from stepweave.nodes.values import TOKENIZER
from stepweave.requests.request import Request, SamplingParams
from stepweave.testing.engines import VOCAB, TinyConfig, tiny_request
from stepweave.testing.models import tiny_tokenizer
from tests.device.pipelines import DRAFTERS, REGEX, Told, served, tiny_on
from tests.serving.matrix import SCHEMA

OTHERS: Mapping[str, TinyConfig] = {
    "mtp": TinyConfig(draft_tokens=2, method="mtp"),
    "medusa": TinyConfig(draft_tokens=2, method="medusa"),
    "suffix": TinyConfig(draft_tokens=2, method="suffix"),
    "8 bits": TinyConfig(draft_tokens=2, method="eagle3", cache_dtype="int8"),
}
"""What `DRAFTERS` has only as a tree, or not at all."""


@dataclass(frozen=True)
class Case:
    """A pipeline and what it is asked. `drafter`: a name of `DRAFTERS`, or of `OTHERS`."""

    drafter: str
    structured: bool
    depth: int = 1
    most: int = 7  # tokens of a request
    rows: int = 4
    forced: bool = False  # the grammar leaves one way on in many places
    jumps: bool = False  # what it forces is drafted

    def __str__(self) -> str:
        return f"{self.drafter}-{'grammar' if self.structured else 'free'}-{self.depth}"

    def settings(self) -> dict[str, Any]:
        """What `tiny_engine` is told besides its configuration."""
        if not self.jumps:
            return {}
        jump = {"nodes.jump_forward.after": "bitmask"}
        return {"settings": jump, "resources": {TOKENIZER: tiny_tokenizer(VOCAB)}}


def asked(case: Case) -> list[Request]:
    """Greedy, constrained and drawn rows beside each other, of prompts of several blocks.

    The first may hardly say anything but what its prompt repeats, so looking text up finds some.
    """
    plain = SamplingParams(max_tokens=case.most)
    grammar = (SCHEMA if case.forced else REGEX) if case.structured else None
    params = [
        replace(plain, logit_bias=tuple((token, 9.0) for token in (11, 22, 33)), ignore_eos=True),
        replace(plain, structured_outputs=grammar, ignore_eos=True),
        replace(plain, temperature=0.9, seed=3, min_p=0.02),
        replace(plain, temperature=0.8, seed=4, top_k=40, structured_outputs=grammar),
    ]
    prompts = [[(7 * uid + 11 * (at % 4)) % VOCAB for at in range(4 + 3 * uid)] for uid in range(4)]
    return [tiny_request(uid, prompts[uid], params[uid]) for uid in range(case.rows)]


@dataclass(frozen=True)
class Found:
    """What a pipeline came to."""

    told: Told  # tokens, drafted and accepted counts and error of each request
    caches: list[Tensor]  # keys and values of target and drafter, but for the scratch block

    @staticmethod
    def of(case: Case) -> Found:
        config = replace(
            {**DRAFTERS, **OTHERS}[case.drafter],
            depth=case.depth,
            structured=case.structured,
            dtype=torch.float32,
        )
        engine = tiny_on(torch.device("cpu"), config, "serial", **case.settings())
        told = [each[:4] for each in served(engine, asked(case))]
        caches = [engine._states[name] for name in ("kv", "draft_kv") if name in engine._states]
        stores = [
            store[cache.block_size :]
            for cache in caches
            if isinstance(cache, PagedCache)
            for store in (*cache.keys, *cache.values)
        ]
        return Found(told, stores)


def found(case: Case) -> Found:
    """For the other process, which is asked for functions."""
    return Found.of(case)
