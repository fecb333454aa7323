"""A segment of a step on the host, as calls: a `Recording` whose replay runs no Python of bodies.

While the bodies run, a dispatch mode notes each operation with its very arguments (views come with
the tensors that they made, and are made once). A replay does the operations in the same order, each
in a way that was seen to give the same bits (`calls.py`), on planned memory (`arrange.py`), and
mostly in one call for each part, which leaves the GIL to other threads (`program.py`). Host numbers
and addresses are those of the capture, as in a CUDA graph; so the rules are the same, and
`executors/captured_segment.py` keeps them.

But the work is done while it is noted. So what no recording can hold does not stop a body: it is
written down as the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...graph.errors import shortly
from ..dispatch import Dispatch
from ..operations import asks, composed, in_other_bits, is_composite
from .arrange import Pool, arranged
from .calls import way_of
from .entries import Called, Entry, memory_of
from .program import Call, in_few_calls, leaves

_LIFT = torch.ops.aten.lift_fresh.default
_DETACH = torch.ops.aten.detach_.default  # of what has no gradient


class Tape:
    """`with tape.capture(): body()`, then `tape.replay()` as often as wanted."""

    live = True
    """The work of a capture is done meanwhile, in full."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._calls: list[list[Call]] = []  # of each part
        self.parts = 1
        self.size = 0
        """Operations that a replay does."""
        self.refused: str | None = None
        self._noting: _Noting | None = None  # while a capture is on

    def refuse(self, reason: str) -> None:
        """What is done cannot be recorded; it goes on all the same."""
        if self.refused is None:
            self.refused = reason

    @contextmanager
    def capture(self) -> Iterator[None]:
        noting = self._noting = _Noting(self)
        with noting:
            yield
        self._noting = None
        if self.refused is None:
            with torch.inference_mode():
                steps = arranged(noting.entries, self._pool)
                self.size = len(steps)
                self._calls = [
                    in_few_calls([operation for at, operation in steps if at == part])
                    for part in range(self.parts)
                ]

    def part(self) -> None:
        self.parts += 1

    def between(self, call: Callable[..., None], *tensors: Tensor) -> None:
        """An operation of its own kind, on `tensors[...]`."""
        assert self._noting is not None, "within a capture"
        self._noting.entries.append(Called(call, tensors, self.parts - 1))
        self._noting.paused = True
        try:
            call(*tensors)
        finally:
            self._noting.paused = False

    def moved(self, change: Callable[[Tensor], Tensor]) -> Tape:
        """The same operations on the same memory of the pool; raises what `change` raises."""
        tape = Tape(self._pool)
        tape.parts, tape.size = self.parts, self.size
        tape._calls = [[call.moved(change) for call in part] for part in self._calls]
        return tape

    def replay(self, part: int = 0) -> None:
        with torch._C._InferenceMode(True):  # `torch.inference_mode` is a class around it
            for call in self._calls[part]:
                call()


class _Noting(Dispatch):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self.entries: list[Entry] = []
        self.paused = False
        self._from_host: set[int] = set()  # memory that is no operation's result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused or self._tape.refused is not None or func is _DETACH:
            return func(*args, **kwargs)
        if is_composite(func):
            with self:
                return composed(func, args, kwargs)
        if why := _why_not(func, args):
            self._tape.refuse(why)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            self._note(func, args, kwargs, result)
        except Exception as error:  # the body goes on: nothing is wrong with it
            self._tape.refuse(f"{func.overloadpacket.__name__}: {shortly(error)}")
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        results = tuple(leaves(result if isinstance(result, list | tuple) else (result,)))
        name = func.overloadpacket.__name__
        if any(map(in_other_bits, leaves((*args, *kwargs.values(), *results)))):
            self._tape.refuse(f"{name} works on a conjugate or negated view")
            return
        if func is _LIFT:
            self._from_host.update(map(memory_of, results))
        again = way_of(func, args, kwargs, results)
        entry = Entry(func, args, kwargs, results, again, self._tape.parts - 1)
        if entry.mutates and not self._from_host.isdisjoint(entry.writes):
            # Each step has its own, or it is one and the same: nobody can tell.
            self._tape.refuse(f"{name} changes what came from the host")
        self.entries.append(entry)


def _why_not(func: Any, args: tuple[Any, ...]) -> str | None:
    if asks(func, args):
        what = "gives a number to the host, or has a size that depends on contents"
    elif torch.Tag.inplace_view in func.tags:
        what = "changes the shape of a tensor that others may have"
    elif _draws(func) and _given(func, args, "dropout_p") != 0:
        what = "draws from a generator of torch"
    else:
        return None
    return f"{func.overloadpacket.__name__} {what}"


@cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _given(func: Any, args: tuple[Any, ...], name: str) -> Any:
    """The argument of that name, or its default; None if there is no such argument."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else argument.default_value
    return None
