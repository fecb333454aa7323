"""Ops in pieces: what an op has recorded of its work, in steps that are not replayed as a whole.

A graph repeats one step: its addresses, its shapes, its numbers. Steps with prompts hardly ever
come again, but most of what a model does depends on the number of tokens alone, which can be
rounded up. Only some calls in the middle of it depend on more: attention, on whose tokens these are
and how many keys each of them sees. So the op says what can be repeated at a rounded size, and
which calls between are made anew each time; who runs it records the pieces in between
(`executors/pieces.py`). Compilers that divide a model at such calls have piecewise graphs: vLLM's
docs, "CUDA graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

Between = Callable[..., None]
"""`between(call, *tensors)` calls `call(now, *tensors)`: at once, and again in each replay, with
the `now` of that. The call writes what it finds to some of these tensors."""


class Pieces(Protocol):
    """Records the work of one op in pieces."""

    def size(self, count: int) -> int | None:
        """The size to which so many tokens are rounded up; None: so many are not recorded."""

    def run(
        self,
        key: Hashable,
        given: Sequence[tuple[Any, int]],
        now: object,
        work: Callable[[Sequence[Any], Between], R],
        *,
        otherwise: bool = False,
    ) -> R | None:
        """What `work(tensors, between)` returns, replayed where that is recorded; else None.

        `given` are tensors `[n, ...]`, each with the size that it is rounded up to: `work` gets as
        many that lie where they lay, the rest of each being of an earlier step, or zero. `key` is
        all else that `work` depends on. What it returns is overwritten by the next `run`. Recording
        does the work twice, so it must come to the same again.

        None says that nothing was done: the op does it as usual, or asks for `otherwise` pieces of
        the same work.
        """
