"""Whether a body changes what it was given: seen in the operations that it does.

What an op publishes tells whether it had anything to do. An op that only changes a state publishes
nothing: its result is the next version of the state, in the memory where the last one was. Of such
an op it is told by whether some operation of torch changed a tensor.
"""

from __future__ import annotations

from typing import Any

from ..backends.dispatch import Dispatch
from ..backends.operations import mutates


class Changes(Dispatch):
    """`any`: whether something was changed while it was on."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.any = self.any or mutates(func)
        return func(*args, **(kwargs or {}))
