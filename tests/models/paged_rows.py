"""Models driven by hand: rows on a paged cache without an engine, and a model's own greedy text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.recurrent import StatePass

_SLOTS = 8  # requests of a model whose layers keep states


class PagedRows:
    """Feeds chunks of several requests through a model, allocating blocks in random order.

    The least that can drive a `CausalLM`: no schedule, no sampling. Each request's tokens are
    at `self.tokens[name]`, as far as they were fed.
    """

    def __init__(
        self, model: CausalLM, *, num_blocks: int = 64, block_size: int = 4, seed: int = 0
    ) -> None:
        self.model = model
        self.cache = model.new_cache(num_blocks, block_size)
        self.states = model.new_states(_SLOTS, 1)
        self.free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self.free)
        self.blocks: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}

    def feed(
        self, *chunks: tuple[str, Sequence[int]], masked: int = 0, spare_blocks: int = 0
    ) -> list[torch.Tensor]:
        """One forward pass; logits `[tokens, vocabulary]` of each chunk (name, next tokens).

        Each row gets `masked` masked tokens at its end, and the block tables get `spare_blocks`
        unused columns: neither may change anything.
        """
        size = self.cache.block_size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for name, new in chunks:
            known = self.tokens.setdefault(name, [])
            blocks = self.blocks.setdefault(name, [])
            for token in new:
                if len(known) == len(blocks) * size:
                    blocks.append(self.free.pop())
                ids.append(token)
                positions.append(len(known))
                slots.append(blocks[len(known) // size] * size + len(known) % size)
                known.append(token)
            ids += [-1] * masked
            positions += [-1] * masked
            slots += [0] * masked
        width = max(len(self.blocks[name]) for name, _ in chunks) + spare_blocks
        tables = [self.blocks[name] for name, _ in chunks]
        device = self.model.device
        batch = AttentionBatch(
            query_lens=tuple(len(new) + masked for _, new in chunks),
            block_tables=torch.tensor(
                [blocks + [0] * (width - len(blocks)) for blocks in tables], device=device
            ),
            positions=torch.tensor(positions, device=device),
            slots=torch.tensor(slots, device=device),
            cache=self.cache,
        )
        states = None
        if self.states is not None:
            assert not masked, "a state takes in every token"
            names = list(self.tokens)
            slots_of = torch.tensor([names.index(name) for name, _ in chunks], device=device)
            states = StatePass(self.states, slots_of, batch.query_lens, decodes=0)
        logits, _ = self.model.forward(torch.tensor(ids, device=device), batch, states=states)
        parts = torch.split(logits, [len(new) + masked for _, new in chunks])
        return [part[: len(new)] for part, (_, new) in zip(parts, chunks, strict=True)]

    def rewind(self, name: str, count: int) -> None:
        """Forget the last `count` tokens of a request, as if they were rejected drafts."""
        del self.tokens[name][len(self.tokens[name]) - count :]


def own_greedy(model: PreTrainedModel, prompt: Sequence[int], count: int, **how: Any) -> list[int]:
    """The next `count` greedy tokens by the model's own `generate`, called so, and attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        generate: Any = model.generate
        ids = torch.tensor([list(prompt)])
        out = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
            **how,
        )
    finally:
        model.set_attn_implementation(before)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
