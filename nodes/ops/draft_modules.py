"""Several modules that predict further tokens: each drafts one token, the last all beyond.

Module i keeps at position t the key of the token at t + i + 1, which it takes with what module
i − 1 left at t. So the tokens that settle in a step are for it the same, i positions earlier, and
the last i positions of a text wait for tokens that are drafts: their keys are made with these, and
again when tokens have settled there. What a module leaves lies in the cache by position, beside its
keys. It is shared, swapped and forgotten as they are, and a row needs nothing of its own from the
steps before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.attention import AttentionBatch
from ...models.eagle import EagleHead
from ...models.paged_cache import PagedCache
from .grow import Begun, Nodes
from .places import cache_slots_of
from .proposal import FirstPass


class ModulesInTurn:
    """The modules of a head in one step: over tokens that have settled, then over drafts."""

    def __init__(self, head: EagleHead, cache: PagedCache) -> None:
        self._modules, self._left, self._cache = head.modules, head.left_layers, cache
        self._drafts: list[Tensor] = []  # [S] each
        self._newest: Tensor | None = None  # [S, H] of the last draft
        self._passed: Nodes | None = None  # of the tree, as long as modules change
        self._depth = 0  # of the nodes passed over last

    def settle(self, first: FirstPass, hidden: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """All modules over the tokens of `first`: of the first, where drafts begin, logits `[S, V]`
        and hidden states `[S, H]`.

        `hidden[T, H]` is what the first module reads. `blocks[R, B]` as of `FirstPass.batch`.
        Raises nothing of its own.
        """
        batch, row = first.batch(blocks, self._cache), _rows_of(first)
        states = self._pass(0, first.ids, hidden, batch)
        for place in range(1, len(self._modules)):
            # Those before the text have the numbers that lead up to it.
            positions = (first.positions - place).masked_fill(first.positions < 0, -1)
            slots = cache_slots_of(
                blocks.index_select(0, row), positions[:, None], self._cache.block_size
            ).flatten()
            before = self._left_before(place, slots)
            self._pass(place, first.ids, before, batch.then(positions, slots))
        ends = states.index_select(0, first.last)
        return self._modules[0].logits(ends), ends

    def following(self, tokens: Tensor, batch: AttentionBatch) -> Tensor:
        """Logits `[S, V]` of the drafts after `tokens[S]`, the newest.

        `batch` has the position at which a module alone would keep each, −1 where none is meant.
        Raises nothing of its own.
        """
        self._drafts.append(tokens)
        count, last = len(self._drafts), len(self._modules) - 1
        place = min(count, last)
        ids = self._drafts if count <= last else self._drafts[-1:]
        # Module i keeps a draft i positions before, and waited for as many of them.
        ahead = batch.positions[:, None]
        back = torch.arange(1 - len(ids), 1, device=tokens.device) - place
        positions = (ahead + back).clamp(min=-1).masked_fill(ahead < 0, -1)
        slots = cache_slots_of(batch.block_tables, positions, self._cache.block_size).flatten()
        hidden = self._newest if count > last else self._left_before(place, slots)
        assert hidden is not None, "the last module has drafted before"
        own = AttentionBatch(
            (len(ids),) * len(tokens),
            batch.block_tables,
            positions.flatten(),
            slots,
            self._cache,
        )
        states = self._pass(place, torch.stack(ids, dim=1).flatten(), hidden, own)
        self._newest = states.view(*positions.shape, -1)[:, -1]
        return self._modules[place].logits(self._newest)

    def following_nodes(self, begun: Begun, nodes: Nodes) -> tuple[Tensor, Tensor]:
        """Logits `[S, n, V]` and hidden states `[S, n, H]` of `nodes`, one level of a tree.

        A module that has not drafted yet takes in all levels above, as it takes in all drafts of a
        chain: of a node's parent the module before has left what it made. Raises nothing of its
        own.
        """
        self._depth += 1
        last, n = len(self._modules) - 1, nodes.ids.shape[1]
        place, taken = min(self._depth, last), nodes
        if self._depth <= last:
            if self._passed is not None:
                taken = self._passed.and_then(nodes)
            self._passed = taken
        batch = begun.batch(taken, back=place)
        hidden = taken.states.flatten(0, 1)
        if self._depth <= last:
            parents = (begun.positions - (place - 1))[:, None] + taken.parents
            parents = parents.masked_fill((batch.positions < 0).view_as(parents), -1)
            blocks = begun.inputs.blocks_of_samples
            hidden = self._left_before(
                place, cache_slots_of(blocks, parents, self._cache.block_size).flatten()
            )
        states = self._pass(place, taken.ids.flatten(), hidden, batch)
        newest = states.view(*taken.ids.shape, -1)[:, -n:]
        logits = self._modules[place].logits(newest.flatten(0, 1))
        return logits.view(*nodes.ids.shape, -1), newest

    def _pass(self, place: int, ids: Tensor, hidden: Tensor, batch: AttentionBatch) -> Tensor:
        """What a module makes of its input, `[T, H]`; it leaves that for the next."""
        states = self._modules[place].states(ids, hidden, batch)
        if place < len(self._left):
            left = states[:, None]
            self._cache.write(self._left[place], batch.slots, left, left)
        return states

    def _left_before(self, place: int, slots: Tensor) -> Tensor:
        """`[T, H]`: what the module before a place left at `slots[T]`."""
        return self._cache.read(self._left[place - 1], slots)[:, 0]


def _rows_of(first: FirstPass) -> Tensor:
    """`[T]`: the row of each token, made on the device of what the host knows."""
    rows = torch.arange(len(first.query_lens), device=first.ids.device)
    parts = [rows[row : row + 1].expand(count) for row, count in enumerate(first.query_lens)]
    return torch.cat(parts)
