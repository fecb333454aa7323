"""What an operation of torch does, read off its schema and tags."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


def address_of(tensor: Tensor) -> int:
    """Where the data of `tensor[...]` begin, for code that does not look there.

    Not `Tensor.data_ptr`, which those who record or check a body watch: what looks there does so
    unseen.
    """
    return int(torch._C.TensorBase.data_ptr(tensor))


_KEYS = torch._C.DispatchKey
_OTHER_BITS: int = (
    torch._C.DispatchKeySet(_KEYS.Negative) | torch._C.DispatchKeySet(_KEYS.Conjugate)
).raw_repr()


def in_other_bits(tensor: Tensor) -> bool:
    """Whether the memory of `tensor[...]` holds something else than its numbers: it is a negated or
    conjugate view.

    Not `Tensor.is_neg`, which gives the GIL away: whoever asks between two launches would wait for
    a thread that is busy.
    """
    return bool(torch._C._dispatch_keys(tensor).raw_repr() & _OTHER_BITS)


def numbers_of(tensor: Tensor) -> Any:
    """The numbers of `tensor[...]`, which nobody ever changes, for code that may be recorded.

    Not `Tensor.tolist`: whoever records a body takes what that gives for numbers of one step.
    """
    return torch._C.TensorBase.tolist(tensor)


@cache
def is_composite(operation: Any) -> bool:
    """It is made of others: in inference mode it arrives whole."""
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(operation.name(), _COMPOSITE))


def composed(operation: Any, args: Any, kwargs: Any) -> Any:
    """What a composite operation gives, by the kernel that a call of it reaches.

    Not `OpOverload.decompose`: that prefers decompositions in Python, whose bits may differ.
    """
    return operation._op_dk(_COMPOSITE, *args, **kwargs)


@cache
def mutates(operation: Any) -> bool:
    """It changes what it is given."""
    return bool(operation._schema.is_mutable)


@cache
def returns_new(operation: Any) -> bool:
    """Something that it returns is no argument of it."""
    return any(returned.alias_info is None for returned in operation._schema.returns)


@cache
def is_view(operation: Any) -> bool:
    """It neither computes nor allocates."""
    schema = operation._schema
    return any(result.alias_info is not None for result in schema.returns) and not schema.is_mutable


def asks(operation: Any, args: Any) -> bool:
    """Its result is a number, or has a shape that only the device knows."""
    always = _asks(operation)
    if always is not None:
        return always
    masks = (torch.bool, torch.uint8)
    return any(t.dtype in masks for t in args[1] if isinstance(t, Tensor))


@cache
def _asks(operation: Any) -> bool | None:
    """Whether it always does; None: its arguments say so."""
    if operation.name().partition(".")[0] in INDEXING:
        return None
    tags = operation.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
