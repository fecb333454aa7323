"""Whether a body changes what it was given: seen in the operations that it does.

What an op publishes tells whether it had anything to do. An op that only changes a state publishes
nothing: its result is the next version of the state, in the memory where the last one was. Of such
an op it is told by whether some operation of torch changed a tensor.
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..backends.tape.entries import mutates


class Changes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`any`: whether something was changed while it was on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.any = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: as for a recording (`backends/tape/recording.py`)."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.any = self.any or mutates(func)
        return func(*args, **(kwargs or {}))
