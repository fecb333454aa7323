"""Keys and values of all requests, in blocks that the scheduler hands out.

A *slot* is the place of one token: slot = block · block_size + offset. Block 0 is the *scratch
block*: tokens that are masked (a draft past the end, padding) are written there, so that no
kernel needs a branch, and unused entries of a block table point there. Nothing ever attends
to it unmasked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from ..backends import backend_of
from ..backends.operations import address_of
from .cache_dtype import CacheDType
from .cache_format import SCALE, finite, has_scales, narrowed, stored_as
from .memory import room_for

SCRATCH_BLOCK = 0
SCRATCH_SLOT = 0
"""A slot of that block."""


@dataclass(frozen=True)
class LayerShape:
    """What one layer stores per token. Keys and values differ in width in some models.

    Where they are `within` keys, values are the first `value_dim` numbers of them.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    within: bool = False

    @property
    def elements(self) -> int:
        """Numbers stored per token."""
        return self.kv_heads * (self.key_dim + (0 if self.within else self.value_dim))

    @property
    def scales(self) -> int:
        """Scales stored per token, in 8 bits."""
        return self.kv_heads * (1 if self.within else 2)


NO_KEYS = LayerShape(0, 0, 0)
"""Of a layer that does not call attention."""


def bytes_per_block(
    layers: Sequence[LayerShape],
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: CacheDType = "auto",
) -> int:
    """Memory of one block over all layers, in bytes: what to divide a memory budget by."""
    stored = stored_as(cache_dtype, dtype)
    numbers = sum(layer.elements for layer in layers) * stored.itemsize
    scales = sum(layer.scales for layer in layers) * SCALE.itemsize
    return block_size * (numbers + (scales if has_scales(stored) else 0))


class PagedCache:
    """Per layer, keys `[slots, kv_heads, key_dim]` and values `[slots, kv_heads, value_dim]`.

    Values `within` keys are views of them, and have their scales.

    Where `cache_dtype` is one of 8 bits, they have scales `[slots, kv_heads]` beside them
    (`cache_format.py`), and are read as numbers of `dtype`.

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
        cache_dtype: CacheDType = "auto",
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
        self.dtype, self.cache_dtype = dtype, cache_dtype
        stored = stored_as(cache_dtype, dtype)
        slots = num_blocks * block_size

        def zeros(*shape: int, dtype: torch.dtype = stored) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=device)

        def values(layer: LayerShape, keys: Tensor) -> Tensor:
            shape = layer.kv_heads, layer.value_dim
            return keys[..., : layer.value_dim] if layer.within else zeros(*shape)

        def scales(layer: LayerShape) -> tuple[Tensor | None, Tensor | None]:
            if not has_scales(stored):
                return None, None
            of_keys = zeros(layer.kv_heads, dtype=SCALE)
            return of_keys, of_keys if layer.within else zeros(layer.kv_heads, dtype=SCALE)

        per_block = self.bytes_per_block
        what = f"a KV cache of {num_blocks} blocks of {block_size} tokens, {per_block} bytes each,"
        advice = "lower scheduler.num_blocks"
        with room_for(what, num_blocks * per_block, torch.device(device), advice):
            self.keys = [zeros(layer.kv_heads, layer.key_dim) for layer in self.layers]
            self.values = [*map(values, self.layers, self.keys)]
            self.scales = [*map(scales, self.layers)]
        # The same memory with one line for each (slot, head).
        self._key_lines = [store.flatten(0, 1) for store in self.keys]
        self._value_lines = [store.flatten(0, 1) for store in self.values]
        self._workspaces = (_Workspace(dtype), _Workspace(dtype))

    @property
    def bytes_per_block(self) -> int:
        """Memory of one block over all layers, in bytes."""
        return bytes_per_block(self.layers, self.block_size, self.dtype, self.cache_dtype)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it keeps, `[...]`, with a line for each slot."""
        apart = [not layer.within for layer in self.layers]
        of_keys, of_values = zip(*self.scales, strict=True) if self.scales else ((), ())
        scales = (*of_keys, *compress(of_values, apart))
        stored = (*self.keys, *compress(self.values, apart), *scales)
        return tuple(each for each in stored if each is not None)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store `k[T, kv_heads, key_dim]`, `v[T, kv_heads, value_dim]` at `slots[T]`.

        Several tokens may name one scratch slot; which of them stays there is of no account.
        """
        write(self.keys[layer], self.values[layer], slots, k, v, self.scales[layer])

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """Keys `[T, kv_heads, key_dim]` at `slots[T]`, copied."""
        lines, (scales, _) = self.keys[layer].index_select(0, slots), self.scales[layer]
        if scales is None:
            return lines
        return lines.to(self.dtype) * scales.index_select(0, slots)[..., None].to(self.dtype)

    @torch.inference_mode()
    def copy_block(self, source: int, target: int) -> None:
        """Give one block the contents of another."""
        for each in self.tensors:
            blocks = each.view(self.num_blocks, self.block_size, *each.shape[1:])
            blocks[target].copy_(blocks[source])

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy the keys and values of tokens at slots `source[M]` to slots `to[M]`, in all layers.

        All are read before any is written. Several may name one scratch slot.
        """
        for each in map(_as_bytes, self.tensors):
            each.index_copy_(0, to, each.index_select(0, source))

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
            self._gathered(store, scales, flat, space.lines(flat.shape[0], store))
            for store, scales, space in zip(
                stores, self.scales[layer], self._workspaces, strict=True
            )
        )
        return k.view(*rows.shape, -1), v.view(*rows.shape, -1)

    def _gathered(
        self, lines: Tensor, scales: Tensor | None, which: Tensor, room: Tensor | None
    ) -> Tensor:
        """Some of the `lines`, as numbers of `dtype`, in `room` if there is some."""
        if scales is None:
            return torch.index_select(lines, 0, which, out=room)
        narrow, scale = lines.index_select(0, which), scales.view(-1).index_select(0, which)
        wide = narrow.to(self.dtype) if room is None else room.copy_(narrow)
        return wide.mul_(scale[:, None])


class _Workspace:
    """Memory for what a gather on the CPU returns, kept from call to call."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
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
                    self._memory = torch.empty(needed, dtype=self._dtype)
                    self._views.clear()
                self._views[shape] = self._memory[:needed].view(shape)
        return self._views[shape]


def write(
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> None:
    """At `slots[T]` store `k[T, h, D]` in `keys[N, h, D]`, `v[T, h, D']` in `values[N, h, D']`.

    In 8 bits if there are `scales[N, h]` of keys and of values.
    """
    stores = [(keys, scales[0], k), (values, scales[1], v)]
    for store, scale, new in stores[:1] if within(keys, values) else stores:
        if scale is None:
            store.index_copy_(0, slots, finite(new.to(store.dtype)))
        else:
            narrow, found = narrowed(new, store.dtype)
            _as_bytes(store).index_copy_(0, slots, _as_bytes(narrow))
            scale.index_copy_(0, slots, found)


def within(keys: Tensor, values: Tensor) -> bool:
    """Whether `values[N, h, D']` are the first numbers of `keys[N, h, D]`, and stored with them.

    Tensors that only stand for others have no address: of these nothing is known to be.
    """
    address = address_of(values)
    return address != 0 and address == address_of(keys)


def _as_bytes(x: Tensor) -> Tensor:
    """`x[...]`, as whole numbers if it has 8 bits: not every operation knows all types of these."""
    return x.view(torch.int8) if x.itemsize == 1 else x
