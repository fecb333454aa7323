"""Arithmetic in which a token's result does not depend on its neighbours, bit for bit.

A matrix product of 5 rows and one of 64 rows may use different kernels and add in different
orders, so that the last bits of a row change with the batch. Chunked prefill, preemption and
draft windows all change the batch; exact token equality needs the bits not to change.

*Matrix products* run in tiles of a few fixed row counts. A tile size is used only if a
trial on this machine, with this matrix and this number of threads, gave every row the bits
that the smallest tile gives it, wherever in the tile the row stands: libraries choose their
kernels by shape, never by content, so rows made for it tell (`cancelling.py`). If not even the
smallest tile passes, rows are multiplied one at a time, which is slow and always right.

*Elementwise functions* use a vector kernel for most elements and a scalar one for what is left
over at the end of the tensor and of each thread's share; `silu`, `gelu` and `sigmoid` differ
between the two. Padding to a whole number of vectors per thread leaves nothing over.

`make_invariant` installs both in a model. `nn.Linear` and activation modules are replaced one
by one. Blocks that multiply by parameters of their own (mixture-of-experts weights are single
three-dimensional parameters, routers and GPT-2's `Conv1D` call functions) run under a mode that
redirects the functions they call. A product in other code, or of another kind (grouped
products, convolutions), is not covered; `CausalLM` tries the finished model and refuses it then.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ..backends import backend_of
from ..backends.operations import address_of
from .cancelling import LINE, cancelling
from .products import product

TILES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Rows per tile that are tried. Steps of at most 1.5, from 8 on, keep the padding below a third."""

LARGE = 1 << 25
"""Elements of a matrix above which only tiles up to 64 rows are tried, to load quickly."""

_ENOUGH = 1 << 14  # numbers that a trial compares: a few can be equal by chance
_ENOUGH_ROUNDED = 1 << 18  # the same of sums that do not cancel and are rounded to half precision
_USUAL = 4  # rows, from which on most code treats all alike
_SMALLEST = 8  # rows, from which on libraries multiply in one way
_VECTOR = 64  # elements; at least what any CPU kernel handles in one unrolled vector step
_GRAIN = 32768  # elements; torch gives a further thread work only beyond this many
_ALONE = 16384  # elements; of more than this many `gelu` gives each thread a share, however small

_LARGE_TILE = 64
"""Rows per tile: where none so large is proven, products are of a kind that goes one by one."""

TOGETHER = (4, 2)
"""Whole tiles that are tried as one product, from the most on, when a pass has so many."""

_SHOWN = 0.25  # of a product's results: what random weights show of another order is 0.45 and more

_tiles: dict[tuple[object, ...], tuple[int, ...]] = {}
_together: dict[tuple[object, ...], bool] = {}


@dataclass(frozen=True)
class _Form:
    """A way to multiply: `[R, ...]` of `rows[R, ...]`, `weight[...]` and `bias`, row by row."""

    name: str
    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    summed: int
    """The dimension of the weight over which products add."""

    def rows(self, columns: Tensor, weight: Tensor) -> Tensor:
        """Rows `[R, ...]` of `columns[R, K]`, one for each column of `weight[...]`."""
        return columns if weight.dim() == 2 else columns.repeat(1, len(weight))


def _matmul(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(rows, weight)


def _by_head(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    heads, columns, _ = weight.shape
    of_heads = rows.view(-1, heads, columns).transpose(0, 1).contiguous()
    return torch.bmm(of_heads, weight).transpose(0, 1).flatten(1)


_LINEAR = _Form("linear", product, 1)
_MATMUL = _Form("matmul", _matmul, 0)
_BY_HEAD = _Form("by head", _by_head, 1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product` in proven row tiles: `[..., N]` of `x[..., K]`, `weight[N, K]`, `bias[N]`."""
    if gap := _gap(x, weight):
        x, weight = F.pad(x, (0, gap)), F.pad(weight, (0, gap))
    return _in_tiles(_LINEAR, x, weight, bias)


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """`[..., N]`: the product of `x[..., K]` and `weight[K, N]`, in proven row tiles."""
    if gap := _gap(x, weight):
        x, weight = F.pad(x, (0, gap)), F.pad(weight, (0, 0, 0, gap))
    return _in_tiles(_MATMUL, x, weight)


def by_head(x: Tensor, weight: Tensor) -> Tensor:
    """`[T, H, N]`: products of `x[T, H, K]` and `weight[H, K, N]` of each head, in proven tiles."""
    heads, _, width = weight.shape
    return _in_tiles(_BY_HEAD, x.flatten(1), weight).view(-1, heads, width)


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of `x[...]`, as `[...]`: an element's result does not depend on its place."""
    size = x.numel()
    if size == 0 or not backend_of(x.device).on_host:
        return function(x)
    padded = _aligned_size(size, torch.get_num_threads())
    if padded == size and x.is_contiguous():
        return function(x)
    flat = F.pad(x.reshape(-1), (0, padded - size))
    return function(flat)[:size].view(x.shape)


def proven_tiles(
    multiply: Callable[[Tensor], Tensor],
    rows: Tensor,
    sizes: Iterable[int],
    enough: int = _ENOUGH,
) -> tuple[int, ...]:
    """The tile sizes of `sizes` (ascending) that give each of `rows[R, ...]` the same bits.

    `multiply` maps `[n, ...]` to `[n, ...]` row by row. R is at least the largest size. Of each
    size at least `enough` numbers are compared, as far as R goes. The answer is `(1,)` if a row's
    bits depend on its place even in the smallest tile.
    """
    smallest, *larger = sizes
    proven = [smallest]
    first = multiply(rows[:smallest])
    least = enough // max(first[0].numel(), 1)

    def in_tiles(count: int, size: int) -> Tensor:
        starts = range(0, count - size + 1, size)
        return torch.cat([multiply(rows[start : start + size]) for start in starts])

    def moved(size: int, shift: int) -> Tensor:
        return multiply(rows[:size].roll(shift, 0)).roll(-shift, 0)

    def agrees(size: int) -> bool:
        count = min(max(least, size), len(rows)) // size * size
        upto, step = max((-(-count // step) * step <= len(rows), step) for step in proven)
        known = in_tiles(-(-count // step) * step, step)[:count]
        if not upto or not torch.equal(in_tiles(count, size), known):
            return False
        return torch.equal(moved(size, size // 2 + 1), known[:size])

    if not all(torch.equal(moved(smallest, shift), first) for shift in range(1, smallest)):
        return (1,)
    for size in larger:
        if size <= len(rows) and agrees(size):
            proven.append(size)
    return tuple(proven)


@cache
def tile_plan(rows: int, tiles: tuple[int, ...]) -> tuple[int, ...]:
    """Tile sizes (of ascending `tiles`) that cover `rows`, with padding in the last one only.

    The smallest that holds what is left, unless it is one of more than 128 rows of which over a
    third would be padding; else the largest that is filled.
    """
    plan = []
    while rows > 0:
        holds = (tile for tile in tiles if rows <= tile <= max(TILES[-1], rows * 3 // 2))
        filled = (tile for tile in reversed(tiles) if tile <= rows)
        size = next(chain(holds, filled), tiles[0])
        plan.append(size)
        rows -= size
    return tuple(plan)


def whole_tiles(rows: int, least: int = 1) -> int:
    """`rows` with the padding that makes every product of a pass come out even.

    Padding the tokens once, where they enter the model, is cheaper than padding and cutting the
    input of each of its products. `least` is the model's `least_tile`.
    """
    return sum(tile_plan(rows, TILES[TILES.index(least) :]))


def least_tiles(*parts: nn.Module) -> tuple[int, ...]:
    """Ascending: the tiles to try as the smallest of a pass through `parts`, made invariant.

    The first is the smallest in which linear layers with most of the weights multiply, and the
    second that of all of them: until then the others pad what they are given. The rest of a model's
    code may treat fewer rows than the last in ways of its own.
    """
    weights = Counter[int]()
    for part in parts:
        for module in part.modules():
            if not isinstance(module, nn.Linear) or _ORIGINAL not in module.__dict__:
                continue
            weight = module.weight
            if _gap(weight, weight):
                return (_USUAL,)
            tiles = _proven(_LINEAR, weight, module.bias)
            if len(tiles) > 1:
                weights[tiles[0]] += weight.numel()
    every = max(weights, default=TILES[0])
    most = (tile for tile in sorted(weights) if 2 * _up_to(weights, tile) >= weights.total())
    return tuple(sorted({next(most, every), every, max(every, _USUAL)}))


def _up_to(weights: Mapping[int, int], tile: int) -> int:
    """How many weights multiply in tiles of so many rows, or fewer."""
    return sum(count for smallest, count in weights.items() if smallest <= tile)


def _in_tiles(form: _Form, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = math.prod(x.shape[:-1])
    flat = x.reshape(rows, x.shape[-1])
    if rows == 0:
        return x.new_empty(*x.shape[:-1], form.multiply(flat, weight, bias).shape[-1])
    plan = _plan(form, weight, bias, rows)
    padding = sum(plan) - rows
    if padding:
        flat = F.pad(flat, (0, 0, 0, padding))
    parts = [flat] if len(plan) == 1 else torch.split(flat, list(plan))
    made = [form.multiply(part, weight, bias) for part in parts]
    out = made[0] if len(made) == 1 else torch.cat(made)
    return out[:rows].view(*x.shape[:-1], out.shape[-1])


def _plan(form: _Form, weight: Tensor, bias: Tensor | None, rows: int) -> tuple[int, ...]:
    """By how many rows to multiply: a `tile_plan`, of which whole tiles may be taken together."""
    tiles = _proven(form, weight, bias)
    plan = tile_plan(rows, tiles)
    whole = plan.count(tiles[-1])
    if whole < TOGETHER[-1] or tiles[-1] < _LARGE_TILE or not backend_of(weight.device).on_host:
        return plan
    parts: list[int] = []
    for many in TOGETHER:
        size = many * tiles[-1]
        if whole >= many and _as_in_tiles(form, weight, bias, size, tiles[-1]):
            parts += [size] * (whole // many)
            whole %= many
    return (*parts, *plan[sum(parts) // tiles[-1] :])


def _as_in_tiles(form: _Form, weight: Tensor, bias: Tensor | None, size: int, tile: int) -> bool:
    """Whether `size` rows at once have the bits of tiles; tried when there are so many.

    By the weights themselves, since that is no time to make others: so in single precision, in
    which nearly all sums show their order. Other weights that lie alike are not tried again, so it
    counts only with weights that do show it.
    """
    key = (*_key(form, weight, bias), size)
    known = _together.get(key)
    if known is None:
        with _disable_current_modes():  # what is tried is no part of what they watch or record
            known = _together[key] = weight.dtype == torch.float32 and _tried_together(
                form, weight, bias, size, tile
            )
    return known


def _tried_together(form: _Form, weight: Tensor, bias: Tensor | None, size: int, tile: int) -> bool:
    draw = torch.Generator().manual_seed(0)
    columns = torch.randn(size, weight.shape[form.summed], generator=draw)
    nothing = None if bias is None else torch.zeros_like(bias)  # a large one would hide last bits

    def multiply(some: Tensor) -> Tensor:
        return form.multiply(form.rows(some, weight), weight, nothing)

    parts = [multiply(part) for part in torch.split(columns, tile)]
    if not torch.equal(multiply(columns), torch.cat(parts)):
        return False
    # Of zeros, or of one number for each sum, any order has the same bits. So does this one?
    even = columns[:tile].clone()
    even[:, 1::2] = 0
    others = multiply(even) + multiply(columns[:tile] - even) != parts[0]
    return bool(others.sum() >= _SHOWN * others.numel())


def _proven(form: _Form, weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    key = _key(form, weight, bias)
    tiles = _tiles.get(key)
    if tiles is None:
        tiles = _tiles[key] = _try_tiles(form, weight, bias)
    return tiles


def _key(form: _Form, weight: Tensor, bias: Tensor | None) -> tuple[object, ...]:
    """What the choice of a kernel may depend on."""
    lies = "laid out" if weight.is_mkldnn else (weight.stride(), address_of(weight) % LINE)
    threads = torch.get_num_threads()
    return (form.name, bias is None, weight.shape, lies, weight.dtype, weight.device, threads)


def _gap(x: Tensor, weight: Tensor) -> int:
    """How many columns bring each row of `x` to the start of a cache line.

    Kernels may treat the numbers before the first aligned one apart, so that a row's bits depend
    on its address. Real models have aligned widths; for odd ones the weight is copied each time.
    Those for weights that are laid out do not.
    """
    if weight.is_mkldnn or not backend_of(x.device).on_host:
        return 0
    return -x.shape[-1] % (LINE // x.element_size())


def _try_tiles(form: _Form, weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    sizes = (
        TILES if weight.numel() < LARGE else tuple(tile for tile in TILES if tile <= _LARGE_TILE)
    )
    other, columns = cancelling(weight, form.summed, sizes[-1])
    rows, nothing = form.rows(columns, weight), None if bias is None else torch.zeros_like(bias)
    rounded = other is weight and weight.element_size() < 4
    enough = _ENOUGH_ROUNDED if rounded else _ENOUGH

    def multiply(some: Tensor) -> Tensor:
        return form.multiply(some, other, nothing)

    best: tuple[int, ...] = ()
    for start, smallest in enumerate(sizes):  # libraries may treat small products in other ways
        tiles = proven_tiles(multiply, rows, sizes[start:], enough)
        best = max(best, tiles, key=lambda each: each[-1:])
        if best[-1] == sizes[-1] or smallest >= _SMALLEST:
            break
    return best


def _aligned_size(size: int, threads: int) -> int:
    """The least padded size of which each thread's share is a whole number of vectors."""
    while True:
        shares = min(threads, -(-size // _GRAIN))
        unit = _VECTOR * (shares if size <= _ALONE else math.lcm(shares, threads))
        if size % unit == 0:
            return size
        size += -size % unit


# --- installing it in a model


def make_invariant(model: nn.Module) -> None:
    """Replace, in place, what depends on the number of rows. Doing it twice changes nothing."""
    for module in model.modules():
        if _ORIGINAL in module.__dict__:
            continue
        if type(module).forward is nn.Linear.forward:
            assert isinstance(module, nn.Linear)
            _replace(module, partial(_linear_forward, module))
        elif _is_activation(module):
            _replace(module, partial(elementwise, module.forward))
        elif _multiplies_by_itself(module) or any(map(_multiplies_by_itself, module.children())):
            _replace(module, _under_mode(module.forward))


def undo_invariant(model: nn.Module) -> None:
    """Give every module its own arithmetic back."""
    for module in model.modules():
        if module.__dict__.pop(_ORIGINAL, False):
            del module.forward


_ORIGINAL = "_stepweave_replaced"
_SINGLE = "_stepweave_single_tiles"


def _replace(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.__dict__[_ORIGINAL] = True
    module.__dict__["forward"] = forward


def _linear_forward(module: nn.Linear, x: Tensor) -> Tensor:
    """`linear`, which for a row count that is one proven tile is the plain product.

    Passes are padded to such counts, so that is nearly always; remembering it saves the layer
    half of its time in a small model.
    """
    weight, rows = module.weight, x.shape[:-1].numel()
    at = 0 if weight.is_mkldnn else address_of(weight)
    what = (rows, at, torch.get_num_threads())
    single: dict[object, bool] = module.__dict__.setdefault(_SINGLE, {})
    if single.get(what):
        out = product(x.reshape(rows, x.shape[-1]), weight, module.bias)
        return out.view(*x.shape[:-1], out.shape[-1])
    result = linear(x, weight, module.bias)
    tiles = _tiles.get(_key(_LINEAR, weight, module.bias))
    single[what] = (
        tiles is not None
        and _gap(x, weight) == 0
        and _plan(_LINEAR, weight, module.bias, rows) == (rows,)
    )
    return result


def _is_activation(module: nn.Module) -> bool:
    """A module without parameters or children, from a library's file of activations."""
    home = type(module).__module__
    known = home in ("torch.nn.modules.activation", "transformers.activations")
    leaf = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
    return known and leaf and not isinstance(module, nn.Softmax | nn.LogSoftmax)


def _multiplies_by_itself(module: nn.Module) -> bool:
    """Whether the module owns a matrix and is not one of the kinds known to be safe."""
    if isinstance(module, nn.Linear | nn.Embedding):
        return False
    return any(p.dim() >= 2 for p in module.parameters(recurse=False))


def _under_mode(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        with _Redirect():
            return forward(*args, **kwargs)

    return redirected


class _Redirect(TorchFunctionMode):
    """Sends products and activation functions to their invariant forms, within a block."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunction():  # blocks within blocks: redirecting once is enough
            return _redirected(func, args, kwargs or {})


def _redirected(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if func in _PRODUCTS and not kwargs:
        return _product(*args)
    if func is F.linear:
        return linear(*args, **kwargs)
    if func is torch.addmm and not kwargs:
        bias, x, weight = args
        return matmul(x, weight) + bias
    if func in _ELEMENTWISE and isinstance(args[0], Tensor):
        rest = args[1:]
        return elementwise(lambda x: func(x, *rest, **kwargs), args[0])
    return func(*args, **kwargs)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() == 2 and x.dim() >= 1:
        return matmul(x, weight)
    if weight.dim() == 3 and x.dim() == 3 and len(x) == len(weight):
        return torch.stack([matmul(a, b) for a, b in zip(x, weight, strict=True)])
    return torch.matmul(x, weight)


_PRODUCTS = frozenset({torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.__matmul__})
_ELEMENTWISE = frozenset(
    {
        F.silu,
        F.gelu,
        F.softplus,
        F.sigmoid,
        F.tanh,
        torch.sigmoid,
        torch.tanh,
        torch.exp,
        torch.cos,
        torch.sin,
        torch.erf,
        Tensor.sigmoid,
        Tensor.tanh,
        Tensor.exp,
    }
)
