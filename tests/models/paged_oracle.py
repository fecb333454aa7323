"""Random paged batches, and their attention by the textbook in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepweave.models.cache_format import narrowed, widened

if TYPE_CHECKING:
    from stepweave.nodes.tree import Tree


@dataclass
class Batch:
    """Rows with some keys each, whose last `query_len` tokens ask; everything else is NaN.

    `lengths[r]` counts the keys of row r, its last tokens included; of these tokens `masked[r]` are
    masked. A length of 0 is a row of padding.
    """

    lengths: tuple[int, ...]
    query_len: int = 1
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    value_dim: int = 16
    block_size: int = 4
    columns: int | None = None
    dtype: torch.dtype = torch.float32
    masked: dict[int, int] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(self.dtype)

        need = [-(-n // self.block_size) for n in self.lengths]
        slots = (sum(need) + 2) * self.block_size
        order: list[int] = torch.randperm(sum(need), generator=generator).add(1).tolist()
        self.query = random(len(self.lengths) * self.query_len, self.heads, self.dim) * 2
        self.keys = torch.full((slots, self.kv_heads, self.dim), math.nan, dtype=self.dtype)
        self.values = torch.full((slots, self.kv_heads, self.value_dim), math.nan, dtype=self.dtype)
        self.tables = torch.full((len(need), self.columns or max(1, *need)), -1)
        self.positions = torch.full((len(need), self.query_len), -1)
        self.rows: list[tuple[Tensor, Tensor]] = []
        for r, (n, blocks) in enumerate(zip(self.lengths, need, strict=True)):
            mine, order = order[:blocks], order[blocks:]
            self.tables[r, :blocks] = torch.tensor(mine, dtype=torch.int64)
            places = torch.tensor(
                [
                    mine[p // self.block_size] * self.block_size + p % self.block_size
                    for p in range(n)
                ],
                dtype=torch.int64,
            )
            k, v = random(n, self.kv_heads, self.dim), random(n, self.kv_heads, self.value_dim)
            self.keys[places], self.values[places] = k, v
            self.rows.append((k, v))
            real = min(self.query_len - self.masked.get(r, 0), n)
            self.positions[r, :real] = torch.arange(n - real, n)
        self.positions = self.positions.flatten()
        self.query[self.positions < 0] = math.nan
        self.trees: dict[str, Any] = {}

    def plant(self, tree: Tree) -> None:
        """Makes the last tokens of each row the places of `tree`, which has `query_len` of them.

        Where there are fewer, or some are masked, these are its first places.
        """
        _, depths, bits = tree.branches()
        positions = self.positions.view(-1, self.query_len)
        starts = positions[:, :1].clamp(min=0).expand_as(positions)
        self.positions = (starts + depths).masked_fill(positions < 0, -1).flatten()
        bits = bits.repeat(len(positions))
        self.trees = {"starts": starts.flatten(), "bits": bits, "width": self.query_len}

    def narrow(self) -> tuple[Tensor, Tensor]:
        """Keeps keys and values in int8, and the rows as they are then; the scales of both."""
        scales = tuple(torch.full(store.shape[:2], math.nan) for store in (self.keys, self.values))
        kept = tuple(
            torch.zeros_like(store, dtype=torch.int8) for store in (self.keys, self.values)
        )
        offsets = torch.arange(self.block_size)
        for r, (k, v) in enumerate(self.rows):
            blocks = self.tables[r][self.tables[r] >= 0]
            places = (blocks[:, None] * self.block_size + offsets).flatten()[: len(k)]
            row = []
            for store, scale, new in zip(kept, scales, (k, v), strict=True):
                store[places], scale[places] = narrowed(new, torch.int8)
                row.append(widened(store[places], scale[places], torch.float32))
            self.rows[r] = (row[0], row[1])
        self.keys, self.values = kept
        return scales[0], scales[1]

    def arguments(self) -> tuple[Tensor, ...]:
        """Query, keys, values, block tables and positions, as the kernels take them."""
        return self.query, self.keys, self.values, self.tables, self.positions

    def sizes(self) -> dict[str, Any]:
        return {"query_len": self.query_len, "block_size": self.block_size}

    def seen(self, token: int, window: int | None) -> list[int]:
        """Which keys of its row a token sees that is not masked: the last `window` up to its own.

        Of a tree these are the keys before it, and those of the token's path.
        """
        path = list(range(int(self.positions[token]) + 1))
        if self.trees:
            start, bits = int(self.trees["starts"][token]), int(self.trees["bits"][token])
            places = (place for place in range(self.query_len) if bits >> place & 1)
            path = [*range(start), *(start + place for place in places)]
        return path if window is None else path[-window:]

    def expected(
        self,
        scaling: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """`[tokens, heads, value_dim]` float64, one token and head at a time; masked tokens 0."""
        out = torch.zeros(len(self.query), self.heads, self.value_dim, dtype=torch.float64)
        for t, position in enumerate(self.positions.tolist()):
            if position < 0:
                continue
            k, v = self.rows[t // self.query_len]
            seen = self.seen(t, window)
            for head in range(self.heads):
                kv_head = head // (self.heads // self.kv_heads)
                scores = k[seen, kv_head].double() @ self.query[t, head].double() * scaling
                if softcap is not None:
                    scores = (scores / softcap).tanh() * softcap
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1].double()])
                weights = scores.softmax(0)[: len(seen)]
                out[t, head] = weights @ v[seen, kv_head].double()
        return out


def randomized(seed: int) -> tuple[Batch, dict[str, Any], dict[str, int]]:
    """A batch, what is asked of attention, and a launch, all drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*among: Any) -> Any:
        return among[int(torch.randint(len(among), (), generator=generator))]

    kv_heads, group = pick(1, 2), pick(*range(1, 9))
    block, query_len = pick(1, 3, 4, 16), pick(1, 2, 3, 4, 5)
    lengths = tuple(
        pick(0, 1, block, block + 1, 2 * block - 1, 17, 33, 48) for _ in range(pick(1, 2, 3))
    )
    heads = kv_heads * group
    sinks = torch.randn(heads, generator=generator)
    batch = Batch(
        lengths,
        query_len,
        heads,
        kv_heads,
        pick(16, 24, 64),
        pick(16, 40),
        block,
        columns=max(1, -(-max(lengths) // block)) + pick(0, 2),
        masked={0: pick(0, 1)},
        seed=seed,
    )
    how = {
        "scaling": pick(0.1, 0.4),
        "window": pick(None, None, 1, 5, 20),
        "softcap": pick(None, None, 2.0),
        "sinks": pick(None, None, sinks),
    }
    return batch, how, {"splits": pick(1, 2, 3, 4), "tile": pick(16, 32)}


def attend_within(query: Tensor, keys: Tensor, value_dim: int, *rest: Tensor, **how: Any) -> Tensor:
    """The kernel's answer `[tokens, heads, value_dim]` where values are part of `keys[...]`."""
    from stepweave.models.kernels.split_kv import Launch, attend

    launch = Launch(how.pop("splits"), tile=16)
    return attend(query, keys, keys[..., :value_dim], *rest, **how, launch=launch)


def write_within(
    keys: Tensor, value_dim: int, slots: Tensor, k: Tensor, scales: Tensor | None
) -> None:
    """The kernel stores `k[tokens, heads, dim]`, whose values are part of `keys[...]`."""
    from stepweave.models.kernels.write_cache import write

    values, v = keys[..., :value_dim], k[..., :value_dim]
    write(keys, values, slots, k, v, (scales, scales))
