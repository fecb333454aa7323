"""What the code of one op does with tensors, seen while it does it.

A dispatch mode of torch, of one thread and pushed for one op, sees every operation with its schema
and so tells reads from writes. What leaves torch without an operation is told by `exits.py`. Both
only look: what was called then runs as it would have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from ...backends.dispatch import Dispatch
from ...backends.registry import loaded_backends
from ...executors.exits import FACTORIES, telling
from ...executors.source_line import frames


class Use(IntEnum):
    """What an operation does with the memory of an argument."""

    LOOK = 0  # makes a view of it, or leaves torch with its address
    READ = 1
    WRITE = 2


class Observer(Protocol):
    """Whoever wants to know. Both may raise, which ends the op."""

    def uses(self, address: int, use: Use) -> None:
        """The storage at `address` (0: of no memory) is used."""

    def meets(self, tensor: Tensor, address: int) -> None:
        """An operation is about to write to `tensor[...]`, whose storage is at `address`."""

    def allocates(self, address: int) -> None:
        """An operation has returned a new storage (0: without memory)."""

    def asks_the_host(self, what: str) -> None:
        """`what` would make the host wait for the device."""


ASKING: frozenset[str] = frozenset(
    "aten::" + name
    for name in (
        "_local_scalar_dense",
        "item",
        "is_nonzero",
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "where",  # with one argument: nonzero by another name
        "masked_select",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "_unique",
        "_unique2",
        "bincount",
        "equal",
        "allclose",
    )
)
"""Operations that need a value on the host to go on, or to know their result's shape."""

_REPEATS = ("aten::repeat_interleave.self_Tensor", "aten::repeat_interleave.Tensor")

MAY_ASK: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("stepweave.models.invariant", "proven_tiles"): (
            "tries, once for each shape, which tiles give equal bits, and keeps the answer"
        ),
        ("transformers.models.", "Experts.forward"): (
            "asks which experts were hit, to multiply by one after another: off the CPU, where "
            "that is a wait, models are not set to do so unless invariance is asked for"
        ),
    }
)
"""Code that may ask the host, as (start of its module, end of its qualified name), and why."""


_WRITE = Use.WRITE
_LISTS = (list, tuple)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the schema of an operation says."""

    name: str
    use: Use  # of arguments that it does not write
    writes: frozenset[int | str]  # arguments, by place and by name
    allocates: bool  # no result is an argument or a view of one
    call: Callable[..., Any]
    may_ask: bool  # the host, by its name; some ask with certain arguments only


_known: dict[int, _Facts] = {}  # by the operation's id, as they live for ever and hash slowly


def _learn(operation: Any) -> _Facts:
    schema, name = operation._schema, operation.name()
    writes: set[int | str] = set()
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes |= {place, argument.name}
    views = any(result.alias_info is not None for result in schema.returns)
    facts = _known[id(operation)] = _Facts(
        name=name,
        use=Use.LOOK if views and not writes else Use.READ,
        writes=frozenset(writes),
        allocates=not views,
        call=operation._op,
        may_ask=name in ASKING or name in _REPEATS or name.startswith("aten::index"),
    )
    return facts


class _Observed(Dispatch):
    def __init__(self, observer: Observer, *, may_ask: bool) -> None:
        super().__init__()
        self._observer = observer
        self._uses, self._allocates = observer.uses, observer.allocates
        self._may_ask = may_ask

    def __torch_dispatch__(
        self, operation: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        facts = _known.get(id(operation)) or _learn(operation)
        asked = self._asked(facts, args, kwargs) if facts.may_ask else None
        if asked is not None and not self._may_ask:
            self._observer.asks_the_host(asked)
        writes, use, uses = facts.writes, facts.use, self._uses
        for place, argument in enumerate(args):
            if isinstance(argument, Tensor):
                if place in writes:
                    self._writes(argument)
                else:
                    uses(_address(argument), use)
            elif isinstance(argument, _LISTS):
                for each in argument:
                    if isinstance(each, Tensor):
                        if place in writes:
                            self._writes(each)
                        else:
                            uses(_address(each), use)
        if kwargs:
            for name, argument in kwargs.items():
                if isinstance(argument, Tensor):
                    if name in writes:
                        self._writes(argument)
                    else:
                        uses(_address(argument), use)
        if asked is not None:
            with NO_WAITS.waiting():
                result = facts.call(*args, **(kwargs or {}))
        elif kwargs:
            result = facts.call(*args, **kwargs)
        else:
            result = facts.call(*args)
        if facts.allocates:
            if isinstance(result, Tensor):
                self._allocates(_address(result))
            elif isinstance(result, _LISTS):
                for each in result:
                    if isinstance(each, Tensor):
                        self._allocates(_address(each))
        return result

    def _writes(self, tensor: Tensor) -> None:
        address = _address(tensor)
        self._observer.meets(tensor, address)
        self._uses(address, _WRITE)

    @staticmethod
    def _asked(facts: _Facts, args: Any, kwargs: Any) -> str | None:
        """By what this call makes the host wait; None if it does not."""
        name = facts.name
        if name in ASKING:
            return name
        if name in _REPEATS:
            sized = (kwargs or {}).get("output_size") is not None
            return None if sized else f"{name} without output_size"
        if any(isinstance(each, _LISTS) and any(map(_is_mask, each)) for each in args):
            return f"{name} with a boolean mask"
        return None


_MEANT = {
    "to": 'Tensor.to("cpu")',
    "tensor": "torch.tensor(…), a copy from pageable memory,",
    "as_tensor": "torch.as_tensor(…), a copy from pageable memory,",
}


class TorchRefuses:
    """The backends' own refusal to wait for a device, while device ops are under way.

    torch has one switch for the process, not one for the thread that turns it: so it is counted who
    wants it on, and who is waiting meanwhile as he may.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = self._waiting = 0
        self._undo: dict[str, Callable[[], None]] = {}  # of the backends where it is on

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For a call that waits, by code that may."""
        self.count(waiting=1)
        try:
            yield
        finally:
            self.count(waiting=-1)

    def count(self, *, wanted: int = 0, waiting: int = 0) -> None:
        """So many more, or fewer, want it on; are waiting."""
        with self._lock:
            self._wanted += wanted
            self._waiting += waiting
            if self._wanted and not self._waiting:
                for backend in loaded_backends():
                    if backend.name not in self._undo and (undo := backend.forbid_waits()):
                        self._undo[backend.name] = undo
            else:
                for undo in self._undo.values():
                    undo()
                self._undo.clear()


def refused(error: BaseException) -> bool:
    """Whether a backend raised `error` because the host would have waited."""
    return any(backend.refused(error) for backend in loaded_backends())


NO_WAITS = TorchRefuses()


class Monitor:
    """Tells `observer` of every use of a storage by this thread, within a `with` block.

    A backend may also refuse to wait, as that of CUDA does: that finds what no operation shows.
    """

    def __init__(self, observer: Observer, *, may_ask: bool) -> None:
        self._observer = observer
        self._mode: Any = _Observed(observer, may_ask=may_ask)
        self._may_ask = may_ask
        self._told = telling(self.leaves)

    def __enter__(self) -> None:
        self._told.__enter__()
        self._mode.__enter__()
        if not self._may_ask:
            NO_WAITS.count(wanted=1)

    def __exit__(self, *raised: Any) -> None:
        if not self._may_ask:
            NO_WAITS.count(wanted=-1)
        self._mode.__exit__(*raised)
        self._told.__exit__(*raised)

    def leaves(self, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The op calls one of the functions that leave torch."""
        if not self._may_ask:
            target = args[1] if len(args) > 1 else kwargs.get("device")
            if (
                what in ("numpy", "tolist", "__array__", "cpu")
                or (what == "to" and isinstance(target, str) and target == "cpu")
                or (what in FACTORIES and not (args and isinstance(args[0], Tensor)))
            ):
                self._observer.asks_the_host(_MEANT.get(what, f"Tensor.{what}()"))
        if args and isinstance(args[0], Tensor):
            self._observer.uses(_address(args[0]), Use.LOOK)


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse, or of a subclass without storage
        return 0


def may_ask() -> bool:
    """Whether code of `MAY_ASK` is what asks."""
    return any(
        str(frame.f_globals.get("__name__")).startswith(module)
        and frame.f_code.co_qualname.endswith(name)
        for frame in frames()
        for module, name in MAY_ASK
    )
