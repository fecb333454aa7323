"""How an operation is done again, with its result in a given place.

Every way is tried when the operation is noted: its result must have the bits of the operation's
own, or the next way is tried. The last way is the operation itself and a copy.
Libraries choose their kernels by type, shape and layout, never by content, so what was tried holds
for all later contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..operations import address_of, is_view, mutates, returns_new
from .program import Operation, operation

Way = Callable[[tuple[Any, ...], dict[str, Any], Sequence[Tensor]], Sequence[Operation]]

_ALLOCATES = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
    | {"aten::new_empty_strided"}
)


def way_of(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Tensor]
) -> Way | None:
    """The first way that gives `results[...]` again; None where nothing needs to be done.

    Raises `NoWay`, and what the operation raises that is called again.
    """
    if _does_nothing(func):
        return None
    if mutates(func):
        return partial(_and_copy, func) if returns_new(func) else _in_place(func)
    key = (func, _kinds(args), tuple((k, _kinds([v])) for k, v in kwargs.items()))
    known = _known.get(key)
    if known is None:
        known = _known[key] = _tried(func, args, kwargs, results)
        if len(_known) > _REMEMBERED:
            _known.clear()
    return known


class NoWay(Exception):
    """An operation cannot be done again."""


@cache
def _does_nothing(func: Any) -> bool:
    return func.name().partition(".")[0] in _ALLOCATES or is_view(func)


_known: dict[object, Way] = {}
_REMEMBERED = 16384


def _kinds(parts: Any) -> tuple[object, ...]:
    """All that the choice of a kernel can depend on."""
    found: list[object] = []
    for part in parts:
        if isinstance(part, Tensor) and part.is_mkldnn:
            found.append((part.dtype, part.shape, part.layout))
        elif isinstance(part, Tensor):
            at = address_of(part) % 64
            found.append((part.dtype, part.shape, part.stride(), at))
        elif isinstance(part, list | tuple):
            found.append(_kinds(part))
        else:
            found.append((type(part), repr(part)))
    return tuple(found)


def _tried(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Tensor]
) -> Way:
    for way in _ways(func):
        places = [
            torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=r.device)
            for r in results
        ]
        try:
            for step in way(args, kwargs, places):
                step()
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            continue
        same = zip(places, results, strict=True)
        if all(a.stride() == b.stride() and same_bits(a, b) for a, b in same):
            return way
    raise NoWay("called again, it gives something else")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether `a[...]` and `b[...]` have one type, shape and content: nan is nan, -0 is not 0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_bytes_of(a), _bytes_of(b))


def _bytes_of(x: Tensor) -> Tensor:
    """`[n]`: the bytes of `x[...]`. A single element counts as contiguous whatever its stride."""
    return x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def _ways(func: Any) -> Iterator[Way]:
    if (own := _OWN.get(func.name().partition(".")[0])) is not None:
        yield own
    if (overload := _out_overload(func)) is not None:
        yield partial(_with_outs, overload)
    yield partial(_and_copy, func)


def _copied(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Operation]:
    return [_copy(places[0], args[0])]


def _copy(place: Tensor, source: Tensor) -> Operation:
    """`place[...]` gets what `source[...]` has."""
    return operation(torch.ops.aten.copy_.default, (place, source), {})


def _padded(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Operation]:
    """Raises `ValueError` for a pad that cuts off."""
    source, pads, value = args[0], args[1], args[2] if len(args) > 2 else 0
    if min(pads) < 0:
        raise ValueError("cuts off")
    inner = place = places[0]
    for back, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = place.dim() - 1 - back
        inner = inner.narrow(dim, before, place.shape[dim] - before - after)
    copy = _copy(inner, source)
    if inner.numel() == place.numel():
        return [copy]
    return [operation(torch.ops.aten.fill_.Scalar, (place, value or 0), {}), copy]


def _zeroed(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Operation]:
    return [operation(torch.ops.aten.zero_.default, (places[0],), {})]


def _looked_up(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Operation]:
    table, index = args[0], args[1]
    lines = places[0].view(-1, table.shape[1])
    looked_up = torch.ops.aten.index_select.out
    return [operation(looked_up, (table, 0, index.view(-1)), {"out": lines})]


def _chosen(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Operation]:
    source, mask, value = args
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=source.dtype)
    return [operation(torch.ops.aten.where.self_out, (mask, value, source), {"out": places[0]})]


_OWN: Mapping[str, Way] = MappingProxyType(
    {
        "aten::_to_copy": _copied,
        "aten::clone": _copied,
        "aten::constant_pad_nd": _padded,
        "aten::embedding": _looked_up,
        "aten::masked_fill": _chosen,
        "aten::new_zeros": _zeroed,
        "aten::zeros": _zeroed,
        "aten::zeros_like": _zeroed,
    }
)
"""For operations that have no cheap call of their own with a place for the result."""


def _with_outs(
    overload: tuple[Any, tuple[str, ...]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    places: Sequence[Tensor],
) -> list[Operation]:
    func, names = overload
    return [operation(func, args, {**kwargs, **dict(zip(names, places, strict=True))})]


def _and_copy(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Operation]:
    return [operation(func, args, kwargs, places)]


def _in_place(func: Any) -> Way:
    def way(
        args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
    ) -> list[Operation]:
        del places
        return [operation(func, args, kwargs)]

    return way


@cache
def _out_overload(func: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The overload that takes the same arguments and the places of its results."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        outs = [a for a in overload._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
        if outs and rest == wanted and len(outs) == len(func._schema.returns):
            return overload, tuple(a.name for a in outs)
    return None
