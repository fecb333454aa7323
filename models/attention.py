"""Attention of a ragged batch over the paged cache, as a Hugging Face attention function.

The model calls `paged_attention` once per layer; what it needs to know of the batch arrives as
the keyword argument `paged`. Only host integers (`query_lens`, the width of the block tables)
shape the work. Where each token stands is on the device, because it depends on how many drafts
the device accepted a moment ago; so nothing here may ask the device a question, and masks are
all that positions decide.

On a CUDA device and under a compiler the work is done by the operators of `kernels/`; on the CPU
here, where layers share the index and the mask of a pass.

Shapes: R rows (requests), T tokens, B blocks, H query heads, h key/value heads, g = H / h,
q query tokens of a row, C = keys of a row (padded), D head width.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import groupby
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from ..backends import backend_of
from ..backends.kernels import asked_for
from ..graph.pieces import Between
from . import fixed_order
from .attention_tiles import blocks_per_unit, multiple
from .kernels import operators, packed
from .kernels.forms import Angles, Norm
from .kernels.reference import How, attend_gathered, bias_of, pack, packed_mask, unpack
from .latent import latent_of
from .paged_cache import SCRATCH_BLOCK, LayerShape, PagedCache
from .tree_rows import TreeRows, along_paths

_T = TypeVar("_T")

NAME = "stepweave_paged"


@dataclass(frozen=True)
class AttentionBatch:
    """What attention must know of one forward pass. Tensors are int64, on the model's device.

    Tokens of a row are consecutive, rows in order. A token attends to the keys of its row at
    positions up to its own. A token at a negative position is *masked*: it computes something
    finite that nobody reads, and its `slots` entry must lie in the scratch block. Raises
    `ValueError` for other shapes or types than `query_lens` asks for, and a row without tokens.
    """

    query_lens: tuple[int, ...]  # query tokens per row; sums to T
    block_tables: Tensor  # [R, B]; block of positions b·block_size …; unused entries 0
    positions: Tensor  # [T]; absolute
    slots: Tensor  # [T]; where each token's key and value are written
    cache: PagedCache
    long: Tensor | None = None  # [T]; tokens of rows longer than `CausalLM.rope_switch`; None: none
    masked: bool = True  # whether the host cannot rule out that some token is masked
    tree: TreeRows | None = None  # rows whose tokens do not see all that lies before them
    between: Between | None = None  # the pass is recorded, and for more tokens than its own
    blocks: tuple[int, ...] | None = None  # [R] most blocks of each row; None: any may have B
    calls: list[int] = field(default_factory=list, init=False, compare=False)  # layers so far
    _shared: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    _of_rows: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        rows, tokens = len(self.query_lens), sum(self.query_lens)
        if min(self.query_lens, default=1) < 1:
            raise ValueError(f"query_lens {self.query_lens}: a row without tokens is not a row")
        for name, wanted in (
            ("block_tables", (rows, self.block_tables.shape[-1])),
            ("positions", (tokens,)),
            ("slots", (tokens,)),
            *((("starts", (tokens,)), ("bits", (tokens,))) if self.tree else ()),
        ):
            tensor: Tensor = getattr(self.tree if name in ("starts", "bits") else self, name)
            if tuple(tensor.shape) != wanted or tensor.dtype != torch.int64:
                raise ValueError(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}; query_lens "
                    f"{self.query_lens} ask for torch.int64 {wanted}"
                )

    def begin(self) -> None:
        """Forget the last pass: call this before each, since tensors may be reused in place."""
        self.calls.clear()
        self._shared.clear()

    def then(self, positions: Tensor, slots: Tensor) -> "AttentionBatch":
        """The next pass over the same rows, as many tokens of each, in the same blocks.

        `positions[T]` and `slots[T]` are as in the batch. What was computed from lengths and blocks
        alone is handed on.
        """
        batch = AttentionBatch(
            self.query_lens,
            self.block_tables,
            positions,
            slots,
            self.cache,
            self.long,
            self.masked,
            blocks=self.blocks,
        )
        batch._of_rows.update(
            (key, value)
            for key, value in {**self._of_rows, **self._shared}.items()
            if isinstance(key, tuple) and key[0] in ("groups", "rows")
        )
        return batch

    def once(self, key: object, compute: Callable[[], _T]) -> _T:
        """`compute()`, done by the first layer that asks and kept for the others."""
        if key in self._of_rows:
            kept: _T = self._of_rows[key]
            return kept
        if key not in self._shared:
            self._shared[key] = compute()
        value: _T = self._shared[key]
        return value


@dataclass
class LayerProbe:
    """Takes the place of a batch to learn, from one token, how a model calls its attention."""

    layers: dict[int, LayerShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)
    softcaps: dict[int, float | None] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: How, *, within: bool
    ) -> Tensor:
        """Zeros `[T, H, D']`; of `query[1, H, T, D]`, `key[1, h, T, D]` and `value[1, h, T, D']`
        the shapes are noted. `within`: values are the first numbers of keys.
        """
        self.calls.append(layer)
        self.layers[layer] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1], within)
        self.windows[layer], self.softcaps[layer] = how.window, how.softcap
        return query.new_zeros(query.shape[2], query.shape[1], value.shape[-1])


class InGraph(Protocol):
    """Takes the place of a batch while a layer is compiled: no graph may depend on a batch."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        """`[T, H, D']` of `query[1, H, T, D]`, `key[1, h, T, D]`, `value[1, h, T, D']`."""
        ...


@dataclass(frozen=True)
class Turn:
    """What is done to queries and keys on their way, where one kernel does it as it stores them."""

    angles: Angles
    norms: tuple[Norm, Norm] | None  # of each query and each key, before


@dataclass(frozen=True)
class _Group:
    """Rows that are attended together, of equally many query tokens unless they are prompts that
    one call takes; each piece is a run of neighbours."""

    query_lens: tuple[int, ...]
    rows: tuple[slice, ...]
    tokens: tuple[slice, ...]
    tree: bool = False  # its rows are draft trees

    @property
    def query_len(self) -> int:
        """The most query tokens of a row."""
        return max(self.query_lens)

    def of_rows(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Those of its rows, among those of all."""
        return sum((numbers[run] for run in self.rows), ())

    def take(self, x: Tensor, where: tuple[slice, ...]) -> Tensor:
        """Slices only: an index tensor would have to travel to the device first."""
        return x[where[0]] if len(where) == 1 else torch.cat([x[piece] for piece in where])


class Unsaid(Enum):
    """What an argument is that was not given: None says something."""

    UNSAID = auto()


UNSAID = Unsaid.UNSAID


def register() -> None:
    """Make `paged_attention` known to transformers. Doing it again changes nothing."""
    AttentionInterface.register(NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    paged: AttentionBatch | LayerProbe | InGraph,
    paged_invariant: bool | None = None,
    sliding_window: int | Unsaid | None = UNSAID,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store this pass's keys and values, then attend. Returns `[1, T, H, D']`.

    `query[1, H, T, D]`, `key[1, h, T, D]`, `value[1, h, T, D']`; `attention_mask[...]` is not
    used, since positions say what a token sees. `paged_invariant` chooses the arithmetic in which
    a token's bits do not depend on the batch; None means on CPU, in float32 and float64.
    `sliding_window` counts the token itself, and is the module's own where nothing is said of it;
    `softcap` bounds the scores (Gemma 2); `s_aux[H]` are attention sinks (gpt-oss). Of a module
    that keeps latents (`latent.py`), key and value are made of these, and the result is expanded.
    Raises `TypeError` for a module without `layer_idx`.
    """
    if isinstance(sliding_window, Unsaid):
        sliding_window = getattr(module, "sliding_window", None)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    how = How(scaling, sliding_window, softcap, s_aux)
    if paged_invariant is None:
        exact = query.dtype in (torch.float32, torch.float64)
        paged_invariant = exact and backend_of(query.device).on_host
    if (latent := latent_of(module)) is not None:
        query = latent.absorbed(query, exactly=paged_invariant)
    if not isinstance(paged, AttentionBatch | LayerProbe):
        mixed = paged.attend(query, key, value, how)
    else:
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise TypeError(f"{type(module).__name__} has no layer_idx, so no place in the cache")
        if isinstance(paged, LayerProbe):
            mixed = paged.attend(layer, query, key, value, how, within=latent is not None)
        else:
            mixed = attend_layer(paged, layer, query, key, value, how, invariant=paged_invariant)
    if latent is not None:
        return latent.expanded(mixed[None], exactly=paged_invariant), None
    return mixed[None], None


def attend_layer(
    paged: AttentionBatch,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    how: How,
    *,
    invariant: bool,
    turn: Turn | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """What `paged_attention` does once it knows which layer asks. Returns `[T, H, D']`.

    `query[1, H, T, D]`, `key[1, h, T, D]`, `value[1, h, T, D']`. Tokens after those of the batch
    are padding: they have no keys, and get zeros. With `turn`, which needs kernels and no padding,
    queries and keys have no positions yet. The result lies in `into[T', H, D']`, if given.
    """
    paged.calls.append(layer)
    if paged.between is not None:
        out = query.new_zeros(query.shape[2], query.shape[1], value.shape[3])
        angles = () if turn is None else (turn.angles.cos, turn.angles.sin)
        again = partial(_attend_again, layer, how, turn, invariant)
        paged.between(again, out, query, key, value, *angles)
        return out
    layer -= paged.cache.first_layer
    by_operators = not invariant and (torch.compiler.is_compiling() or _by_operators(query.device))
    cache = paged.cache
    tokens = len(paged.slots)  # what follows is padding, which has no keys and no result
    by_token, k_new, v_new = (each[0].transpose(0, 1) for each in (query, key, value))
    if key.shape[2] > tokens:
        k_new, v_new = k_new[:tokens], v_new[:tokens]
    scales = cache.scales[layer]
    if turn is not None and scales[0] is None:
        places = (cache.keys[layer], cache.values[layer], paged.slots)
        by_token = operators.rotate_now(by_token, k_new, v_new, turn.angles, *places, turn.norms)
    elif by_operators:
        if turn is not None:  # a scale is that of a turned key, so it is turned before
            by_token, k_new, v_new = operators.turned_now(
                by_token, k_new, v_new, turn.angles, turn.norms
            )
        write = operators.write_cache if torch.compiler.is_compiling() else operators.write_now
        write(cache.keys[layer], cache.values[layer], paged.slots, k_new, v_new, *scales)
    else:
        cache.write(layer, paged.slots, k_new, v_new)

    shape = cache.layers[layer]
    heads, padded = query.shape[1], query.shape[2]
    together = by_operators and _prompts_together(paged, by_token, cache.values[layer], how)
    trees = 0 if paged.tree is None else paged.tree.rows
    groups = paged.once(("groups", together), partial(_groups, paged.query_lens, together, trees))
    results: list[Tensor] = []
    for group in groups:
        q = group.take(by_token, group.tokens)
        if by_operators:
            results.append(_attend_by_operators(paged, layer, group, q, how, together))
            continue
        length, shared = group.query_len, heads // shape.kv_heads
        if by_path := invariant and group.tree:
            length = 1  # each token is a row of its own
        columns = _columns(paged, layer, group, q.dtype, how, invariant)
        k, v = cache.gather_heads(layer, _rows(paged, layer, group, columns, by_path))
        packed_query = pack(q, length, shape.kv_heads)
        numbers = fixed_order.exact(q.dtype) if invariant else q.dtype
        bias = partial(_bias, paged, group, columns, how.window, shared, by_path, numbers)
        if invariant:
            result = fixed_order.attend(packed_query, k, v, bias, how)
        else:
            result = attend_gathered(packed_query, k, v, bias(packed_query.shape[2]), how)
        results.append(unpack(result, length))
    if into is None and len(groups) == 1 and padded == tokens:
        return results[0].contiguous()  # the one group is the whole batch
    out = query.new_zeros(padded, heads, shape.value_dim) if into is None else into
    for group, result in zip(groups, results, strict=True):
        start = 0
        for piece in group.tokens:
            count = piece.stop - piece.start
            out[piece] = result[start : start + count]
            start += count
    return out


def _attend_again(
    layer: int,
    how: How,
    turn: Turn | None,
    invariant: bool,
    paged: AttentionBatch,
    out: Tensor,
    *given: Tensor,
) -> None:
    """Attention of the batch at hand, in a pass that was recorded with another: `out[T', H, D']`.

    `given`: query, key and value, each `[1, heads, T', D]`, and the angles `[T', ...]` of `turn`.
    """
    tokens = len(paged.slots)
    query, key, value = (each[:, :, :tokens] for each in given[:3])
    if turn is not None:
        cos, sin = (each[:tokens] for each in given[3:])
        turn = replace(turn, angles=replace(turn.angles, cos=cos, sin=sin))
    attend_layer(
        paged, layer, query, key, value, how, invariant=invariant, turn=turn, into=out[:tokens]
    )


def _by_operators(device: torch.device) -> bool:
    """Whether one of the operators' kernels may run there; in plain torch they gain nothing."""
    return backend_of(device).compiles_triton or asked_for() == "triton"


def _prompts_together(paged: AttentionBatch, query: Tensor, values: Tensor, how: How) -> bool:
    """Whether one call attends to all prompts, of `query[T, H, D]` over `values[N, h, D']`."""
    longest = max((1, *paged.query_lens))
    return longest > operators.LONG and packed.fits(query, values, how)


def _attend_by_operators(
    paged: AttentionBatch, layer: int, group: "_Group", query: Tensor, how: How, together: bool
) -> Tensor:
    cache, length = paged.cache, group.query_len
    keys, values = cache.keys[layer], cache.values[layer]
    tables = group.take(paged.block_tables, group.rows)
    positions = group.take(paged.positions, group.tokens)
    if together and length > operators.LONG and not group.tree:
        rows = paged.once(
            "sequences",
            partial(
                packed.sequences,
                tables,
                positions,
                query_lens=group.query_lens,
                block_size=cache.block_size,
                blocks=None if paged.blocks is None else group.of_rows(paged.blocks),
            ),
        )
        return packed.attend(query, keys, values, rows, how, scales=cache.scales[layer])
    attend = operators.attend_paged if torch.compiler.is_compiling() else operators.attend_now
    out: Tensor = attend(
        query,
        keys,
        values,
        tables,
        positions,
        length,
        cache.block_size,
        how.scaling,
        how.window,
        how.softcap,
        how.sinks,
        *_of_tree(paged, group),
        *cache.scales[layer],
    )
    return out


def _of_tree(paged: AttentionBatch, group: "_Group") -> tuple[Tensor | None, Tensor | None, int]:
    """Starts, bits and width of a group's trees."""
    if paged.tree is None or not group.tree:
        return None, None, 0
    take, tree = partial(group.take, where=group.tokens), paged.tree
    return take(tree.starts), take(tree.bits), tree.width


# --- the batch, from host integers only


def _groups(query_lens: tuple[int, ...], together: bool, trees: int) -> list[_Group]:
    """Rows by their number of query tokens; with `together` all prompts are one group.

    The first `trees` rows are draft trees, and none of them is a prompt.
    """
    runs: dict[int, tuple[list[slice], list[slice]]] = {}
    row = token = 0
    most = operators.LONG + 1 if together else max((0, *query_lens))
    # A number, of trees a negative one: compilers know no other kinds.
    kinds = (-length if row < trees else min(length, most) for row, length in enumerate(query_lens))
    for kind, run in groupby(kinds):
        end = row + len(list(run))
        rows, tokens = runs.setdefault(kind, ([], []))
        rows.append(slice(row, end))
        tokens.append(slice(token, token + sum(query_lens[row:end])))
        token, row = tokens[-1].stop, end
    return [
        _Group(sum((query_lens[run] for run in rows), ()), tuple(rows), tuple(tokens), kind < 0)
        for kind, (rows, tokens) in runs.items()
    ]


def _columns(
    paged: AttentionBatch,
    layer: int,
    group: _Group,
    dtype: torch.dtype,
    how: How,
    invariant: bool,
) -> int:
    """Of the block tables, those over which the group attends: at least those with its keys."""
    shape, size = paged.cache.layers[layer], paged.cache.block_size
    least = paged.block_tables.shape[1]
    if paged.blocks is not None:
        least = max(group.of_rows(paged.blocks))
    unit = blocks_per_unit(size)
    if not invariant:
        return multiple(least, unit)
    dims, device = (shape.key_dim, shape.value_dim), paged.block_tables.device
    return fixed_order.keys_for(least * size, unit * size, dims, dtype, device, how) // size


def _rows(paged: AttentionBatch, layer: int, group: _Group, columns: int, by_path: bool) -> Tensor:
    """Index `[R', h, C]` of the group's keys, which so many columns of the block tables hold.

    `by_path`: of the keys of each token of its trees.
    """

    def compute() -> Tensor:
        tables = group.take(paged.block_tables, group.rows)[:, :columns]
        if more := columns - tables.shape[1]:
            tables = F.pad(tables, (0, more), value=SCRATCH_BLOCK)
        return paged.cache.head_rows(layer, tables)

    heads, length = paged.cache.layers[layer].kv_heads, group.query_len
    rows = paged.once(("rows", length, group.tree, heads, columns), compute)
    if not by_path:
        return rows
    starts, bits, width = _of_tree(paged, group)
    assert starts is not None, "the group is of trees"
    assert bits is not None, "the group is of trees"

    def of_tokens() -> Tensor:
        return along_paths(rows.repeat_interleave(length, dim=0), starts, bits, width)

    return paged.once(("paths", length, heads, columns), of_tokens)


def _bias(
    paged: AttentionBatch,
    group: _Group,
    columns: int,
    window: int | None,
    shared: int,
    by_path: bool,
    dtype: torch.dtype,
    count: int,
) -> Tensor:
    """`[R', 1, count, C]`: what is added to the scores of each packed query row, for keys in so
    many columns of the block tables. What brings the rows to `count` sees all. `by_path`: see
    `_rows`.
    """

    def compute() -> Tensor:
        tree = (None, None, 0) if by_path else _of_tree(paged, group)
        allowed = packed_mask(
            group.take(paged.positions, group.tokens),
            columns * paged.cache.block_size,
            query_len=1 if by_path else group.query_len,
            shared=shared,
            window=window,
            starts=tree[0],
            bits=tree[1],
            width=tree[2],
        )
        bias = bias_of(allowed, dtype)
        more = count - bias.shape[2]
        return F.pad(bias, (0, 0, 0, more)) if more else bias

    key = ("bias", group.query_len, group.tree, columns, window, shared, by_path, dtype, count)
    return paged.once(key, compute)
