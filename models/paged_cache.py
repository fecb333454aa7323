"""Keys and values of all requests, in blocks that the scheduler hands out.

A *slot* is the place of one token: slot = block · block_size + offset. Block 0 is the *scratch
block*: tokens that are masked (a draft past the end, padding) are written there, so that no
kernel needs a branch, and unused entries of a block table point there. Nothing ever attends
to it unmasked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..backends import backend_of
from .memory import room_for

SCRATCH_BLOCK = 0
SCRATCH_SLOT = 0
"""A slot of that block."""


@dataclass(frozen=True)
class LayerShape:
    """What one layer stores per token. Keys and values differ in width in some models."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Numbers stored per token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


NO_KEYS = LayerShape(0, 0, 0)
"""Of a layer that does not call attention."""


def bytes_per_block(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers, in bytes: what to divide a memory budget by."""
    return sum(layer.elements for layer in layers) * block_size * dtype.itemsize


class PagedCache:
    """Per layer, keys `[slots, kv_heads, key_dim]` and values `[slots, kv_heads, value_dim]`.

    `num_blocks` counts the scratch block, so `num_blocks - 1` are for requests. Raises `ValueError`
    if that leaves none, or a block would hold no token.

    The cache holds finite numbers only: a masked key has weight zero, and zero times NaN is NaN,
    so one bad value left in a released block would reach the block's next owner. `write`
    stores zero in place of NaN and infinities; the request that made them still sees them in
    its own hidden states.
    """

    fixed = True
    """Its tensors never move and its numbers never change: captured graphs know it by identity."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        lookback: int | None = None,
        tail: int = 0,
        first_layer: int = 0,
    ) -> None:
        """`lookback`: how many tokens back any layer attends; None: to the start. `tail`: how many
        tokens after a block its contents depend on. `first_layer`: which of its model's layers is
        the first of `layers`.
        """
        self.lookback, self.tail, self.first_layer = lookback, tail, first_layer
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}: need scratch block 0 and one more")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}: a block holds at least one token")
        self.layers = tuple(layers)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        slots = num_blocks * block_size

        def zeros(heads: int, dim: int) -> Tensor:
            return torch.zeros(slots, heads, dim, dtype=dtype, device=device)

        per_block = self.bytes_per_block
        what = f"a KV cache of {num_blocks} blocks of {block_size} tokens, {per_block} bytes each,"
        advice = "lower scheduler.num_blocks"
        with room_for(what, num_blocks * per_block, torch.device(device), advice):
            self.keys = [zeros(layer.kv_heads, layer.key_dim) for layer in self.layers]
            self.values = [zeros(layer.kv_heads, layer.value_dim) for layer in self.layers]
        # The same memory with one line for each (slot, head).
        self._key_lines = [store.flatten(0, 1) for store in self.keys]
        self._value_lines = [store.flatten(0, 1) for store in self.values]
        self._workspaces = (_Workspace(dtype), _Workspace(dtype))

    @property
    def bytes_per_block(self) -> int:
        """Memory of one block over all layers, in bytes."""
        return bytes_per_block(self.layers, self.block_size, self.dtype)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store `k[T, kv_heads, key_dim]`, `v[T, kv_heads, value_dim]` at `slots[T]`.

        Several tokens may name one scratch slot; which of them stays there is of no account.
        """
        self.keys[layer].index_copy_(0, slots, _finite(k.to(self.dtype)))
        self.values[layer].index_copy_(0, slots, _finite(v.to(self.dtype)))

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy the keys and values of tokens at slots `source[M]` to slots `to[M]`, in all layers.

        All are read before any is written. Several may name one scratch slot.
        """
        for stores in (self.keys, self.values):
            for store in stores:
                store.index_copy_(0, to, store.index_select(0, source))

    def gather(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `block_tables[R, B]`, as `[R, B · block_size, kv_heads, dim]`."""
        rows = self.head_rows(layer, block_tables)
        k, v = self.gather_heads(layer, rows)
        return k.transpose(1, 2).clone(), v.transpose(1, 2).clone()

    def head_rows(self, layer: int, block_tables: Tensor) -> Tensor:
        """Index `[R, kv_heads, B · block_size]` of (slot, head) pairs of `block_tables[R, B]`.

        It is what `gather_heads` takes. Layers with the same number of heads share it, so a forward
        pass computes it once.
        """
        heads = self.layers[layer].kv_heads
        device = block_tables.device
        offsets = torch.arange(self.block_size, device=device)
        slots = (block_tables[:, :, None] * self.block_size + offsets).flatten(1)
        return slots[:, None, :] * heads + torch.arange(heads, device=device)[:, None]

    def gather_heads(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, kv_heads, B · block_size, dim]` in one copy, heads outermost.

        `rows[R, kv_heads, B · block_size]` is what `head_rows` gives. Head-major is what the matrix
        products want; gathering slots and then transposing would copy everything twice. On the CPU
        the result is valid until the next call: megabytes of fresh memory in each layer would cost
        more in page faults than the copy itself.
        """
        flat = rows.flatten()
        stores = (self._key_lines[layer], self._value_lines[layer])
        k, v = (
            torch.index_select(store, 0, flat, out=space.lines(flat.shape[0], store))
            for store, space in zip(stores, self._workspaces, strict=True)
        )
        return k.view(*rows.shape, -1), v.view(*rows.shape, -1)


class _Workspace:
    """Memory for what a gather on the CPU returns, kept from call to call."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(0, dtype=dtype)
        self._views: dict[tuple[int, int], Tensor] = {}

    def lines(self, count: int, store: Tensor) -> Tensor | None:
        """Room for `count` lines of `store`; None on a device, whose allocator keeps memory."""
        if not backend_of(store.device).on_host:
            return None
        shape = (count, store.shape[1])
        if shape not in self._views:
            needed = count * shape[1]
            with torch.inference_mode(False):  # so that it may be reused outside of it too
                if self._memory.numel() < needed:
                    self._memory = torch.empty(needed, dtype=store.dtype)
                    self._views.clear()
                self._views[shape] = self._memory[:needed].view(shape)
        return self._views[shape]


def _finite(x: Tensor) -> Tensor:
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
