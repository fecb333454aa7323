"""Attention over draft trees: each token sees its own path, in every form there is."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.models.attention import AttentionBatch, paged_attention
from stepweave.models.kernels import reference
from stepweave.models.paged_cache import LayerShape, PagedCache
from stepweave.models.tree_rows import TreeRows
from stepweave.nodes.tree import Tree
from tests.models.interpreter import Interpreter
from tests.shares import one_in

TREE = Tree.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0), (2, 0)])
W = len(TREE.parents) + 1
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 16, 4
MODULE: Any = SimpleNamespace(layer_idx=0)
KERNEL = "stepweave.models.kernels.split_kv:attend"


class Row:
    """One request: keys of a text, and of the places of its tree behind it; queries of these."""

    def __init__(self, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.length = length  # tokens before the root
        self.q = random(W, HEADS, DIM) * 2
        self.k, self.v = random(length + W, KV_HEADS, DIM), random(length + W, KV_HEADS, DIM)

    def path(self, place: int) -> list[int]:
        """Which keys a place sees, by their place in the cache."""
        found: list[int] = []
        while place:
            found.insert(0, self.length + place)
            place = TREE.parents[place - 1]
        return [*range(self.length + 1), *found]

    def expected(self, place: int, scaling: float, window: int | None = None) -> Tensor:
        """`[H, D]` float64."""
        seen = self.path(place)[-window:] if window else self.path(place)
        out = torch.zeros(HEADS, DIM, dtype=torch.float64)
        for head in range(HEADS):
            k, v = (each[seen, head // 2].double() for each in (self.k, self.v))
            weights = (k @ self.q[place, head].double() * scaling).softmax(0)
            out[head] = weights @ v
        return out


class Batch:
    """Rows with a tree each, in one cache whose other slots hold `rest`."""

    def __init__(self, *lengths: int, rest: float = 0.0, masked: tuple[int, ...] = ()) -> None:
        self.rows = [Row(length, seed) for seed, length in enumerate(lengths)]
        need = [-(-(length + W) // BLOCK) for length in lengths]
        self.cache = PagedCache(
            [LayerShape(KV_HEADS, DIM, DIM)], sum(need) + 1, BLOCK, torch.float32, "cpu"
        )
        for store in (*self.cache.keys, *self.cache.values):
            store.fill_(rest)
        self.tables = torch.zeros(len(need), max(need) + 1, dtype=torch.int64)
        slots, at = [], 1
        for index, (row, blocks) in enumerate(zip(self.rows, need, strict=True)):
            mine = torch.arange(at, at + blocks).flip(0)
            self.tables[index, :blocks], at = mine, at + blocks
            places = torch.arange(row.length + W)
            where = mine[places // BLOCK] * BLOCK + places % BLOCK
            self.cache.keys[0][where[: row.length]] = row.k[: row.length]
            self.cache.values[0][where[: row.length]] = row.v[: row.length]
            slots.append(where[row.length :])
        self.slots = torch.stack(slots)
        depths, bits = TREE.branches()[1:]
        starts = torch.tensor([[row.length] for row in self.rows])
        self.positions = (starts + depths).clone()
        for place in masked:
            self.positions[:, place], self.slots[:, place] = -1, 0
        self.starts, self.bits = starts.expand(-1, W).flatten(), bits.repeat(len(self.rows))

    def tree(self) -> TreeRows:
        return TreeRows(len(self.rows), self.starts, self.bits, W)

    def query(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all tokens, as a model hands them on."""
        q = torch.cat([row.q for row in self.rows])
        k, v = (
            torch.cat([each[row.length :] for row, each in rows])
            for rows in zip(*(((row, row.k), (row, row.v)) for row in self.rows), strict=True)
        )
        return tuple(each.transpose(0, 1)[None] for each in (q, k, v))  # type: ignore[return-value]

    def attend(self, **how: Any) -> Tensor:
        """`[R, W, H, D]`."""
        batch = AttentionBatch(
            (W,) * len(self.rows),
            self.tables,
            self.positions.flatten(),
            self.slots.flatten(),
            self.cache,
            tree=self.tree(),
        )
        out, _ = paged_attention(MODULE, *self.query(), None, paged=batch, scaling=0.3, **how)
        return out[0].view(len(self.rows), W, HEADS, DIM)


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("window", [None, 5])
def test_each_token_sees_its_own_path(invariant: bool, window: int | None) -> None:
    batch = Batch(0, 3, 70)
    out = batch.attend(paged_invariant=invariant, sliding_window=window)
    for row, found in zip(batch.rows, out, strict=True):
        for place in range(W):
            wanted = row.expected(place, 0.3, window)
            torch.testing.assert_close(found[place].double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [2, 61])
def test_its_bits_are_those_of_its_path_alone(length: int) -> None:
    """With invariant arithmetic, whatever lies between the keys of a path."""
    batch = Batch(length)
    out, row = batch.attend(paged_invariant=True)[0], batch.rows[0]
    for place in (3, 5, 7, W - 1):
        path = row.path(place)
        cache = PagedCache(batch.cache.layers, 40, BLOCK, torch.float32, "cpu")
        cache.keys[0][BLOCK : BLOCK + length] = row.k[:length]
        cache.values[0][BLOCK : BLOCK + length] = row.v[:length]
        tokens = torch.tensor(path[length:])
        positions = torch.arange(length, len(path))
        chain = AttentionBatch(
            (len(tokens),), torch.arange(1, 30)[None], positions, positions + BLOCK, cache
        )
        q = row.q[tokens - length].transpose(0, 1)[None]
        k, v = (each[tokens].transpose(0, 1)[None] for each in (row.k, row.v))
        alone, _ = paged_attention(
            MODULE, q, k, v, None, paged=chain, scaling=0.3, paged_invariant=True
        )
        assert torch.equal(out[place], alone[0, -1])


def test_prompts_beside_trees_are_attended_to_as_ever() -> None:
    trees, prompt = Batch(6), Batch(0)
    row = prompt.rows[0]
    both = PagedCache(trees.cache.layers, 30, BLOCK, torch.float32, "cpu")
    for mine, theirs in zip(
        (*both.keys, *both.values), (*trees.cache.keys, *trees.cache.values), strict=True
    ):
        mine[: len(theirs)] = theirs
    at = torch.arange(W)
    batch = AttentionBatch(
        (W, W),
        torch.cat([trees.tables[:, :5], torch.arange(20, 25)[None]]),
        torch.cat([trees.positions.flatten(), at]),
        torch.cat([trees.slots.flatten(), at + 20 * BLOCK]),
        both,
        tree=TreeRows(
            1, torch.cat([trees.starts, at]), torch.cat([trees.bits, torch.ones_like(at)]), W
        ),
    )
    parts = zip(trees.query(), prompt.query(), strict=True)
    q, k, v = (torch.cat(each, dim=2) for each in parts)
    for invariant in (True, False):
        out, _ = paged_attention(
            MODULE, q, k, v, None, paged=batch, scaling=0.3, paged_invariant=invariant
        )
        batch.begin()
        for place in range(W):
            wanted = trees.rows[0].expected(place, 0.3)
            torch.testing.assert_close(out[0, place].double(), wanted, rtol=1e-5, atol=1e-5)
        keys, values = row.k[: place + 1, 0].double(), row.v[: place + 1, 0].double()
        last = (keys @ row.q[place, 0].double() * 0.3).softmax(0) @ values
        torch.testing.assert_close(out[0, -1, 0].double(), last, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("splits", "window"), one_in(2, [1, 3], [None, 5]))
def test_the_kernel_sees_what_each_path_sees(
    interpreted: Interpreter, splits: int, window: int | None
) -> None:
    from stepweave.models.kernels.split_kv import Launch

    # What no token sees is not a number; so are the keys of a masked place, which stay unwritten.
    batch = Batch(0, 3, 37, rest=math.nan, masked=(2, 3))
    q, k, v = (each[0].transpose(0, 1) for each in batch.query())
    slots = batch.slots.flatten()
    real = slots > 0
    batch.cache.keys[0][slots[real]], batch.cache.values[0][slots[real]] = k[real], v[real]
    q = q.masked_fill((batch.positions.flatten() < 0)[:, None, None], math.nan)
    given = (q, batch.cache.keys[0], batch.cache.values[0], batch.tables)
    how: dict[str, Any] = {"query_len": W, "block_size": BLOCK, "scaling": 0.3, "window": window}
    trees = {"starts": batch.starts, "bits": batch.bits, "width": W}
    out = interpreted(
        KERNEL, *given, batch.positions.flatten(), **how, **trees, launch=Launch(splits, 16)
    ).view(len(batch.rows), W, HEADS, DIM)
    for row, found in zip(batch.rows, out, strict=True):
        for place in range(W):
            if 2 in (path := [each - row.length for each in row.path(place)]) or 3 in path:
                continue  # it comes after a masked one, and nobody reads it
            wanted = row.expected(place, 0.3, window)
            torch.testing.assert_close(found[place].double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[:, 2:4], torch.zeros_like(out[:, 2:4]))


def test_the_plain_form_of_the_kernel_gives_the_same() -> None:
    batch = Batch(0, 3, 37)
    batch.attend(paged_invariant=False)  # stores the keys
    q = batch.query()[0][0].transpose(0, 1)
    out = reference.attend(
        q,
        batch.cache.keys[0],
        batch.cache.values[0],
        batch.tables,
        batch.positions.flatten(),
        query_len=W,
        block_size=BLOCK,
        how=reference.How(0.3, None, None, None),
        starts=batch.starts,
        bits=batch.bits,
        width=W,
    ).view(len(batch.rows), W, HEADS, DIM)
    for row, found in zip(batch.rows, out, strict=True):
        for place in range(W):
            wanted = row.expected(place, 0.3)
            torch.testing.assert_close(found[place].double(), wanted, rtol=1e-5, atol=1e-5)
