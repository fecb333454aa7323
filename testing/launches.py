"""How many operations a piece of torch code starts: on a device, each is a launch or a copy.

Counted are the operations below all composite ones, without views, which compute nothing, and the
launches of Triton kernels, compiled or interpreted. So the count of a device is found on any
machine: it is a property of the code and of its shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Self
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..backends.operations import composed, is_composite, is_view

COPIES = ("copy_", "_to_copy", "clone")
NOTHING = ("aten::empty", "aten::new_empty", "aten::_unsafe_view")
"""Operations that only allocate, or whose result is a view though they do not say so."""


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within its `with`, `counts` has the operations started, by name: `index_select`, `cat`.

    Triton kernels have the names of their functions. `copied`: bytes that those operations wrote
    which only copy. Nothing is counted while `paused`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.copied = 0
        self.paused = False
        self._entered = 0
        self._kernels: Any = None

    def __enter__(self) -> Self:
        if self._entered == 0 and find_spec("triton") is not None:
            from triton.runtime.jit import KernelInterface

            self._kernels = patch.object(KernelInterface, "__getitem__", self._counted())
            self._kernels.start()
        self._entered += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        self._entered -= 1
        if self._entered == 0 and self._kernels is not None:
            self._kernels.stop()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _counted(self) -> Callable[..., Any]:
        def launch(kernel: Any, grid: Any) -> Callable[..., None]:
            def run(*args: Any, **kwargs: Any) -> None:
                self.counts[kernel.fn.__name__] += not self.paused
                with _disable_current_modes():  # what interprets it is no launch
                    kernel.run(*args, grid=grid, warmup=False, **kwargs)

            return run

        return launch

    @property
    def total(self) -> int:
        """All of them."""
        return self.counts.total()

    @property
    def copies(self) -> int:
        """Those that only copy."""
        return sum(self.counts[name] for name in COPIES)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return operation(*args, **kwargs)
        if is_composite(operation):  # in inference mode these arrive whole
            with self:
                return composed(operation, args, kwargs)
        result = operation(*args, **kwargs)
        if not is_view(operation) and not operation.name().startswith(NOTHING):
            name = operation.name().removeprefix("aten::").partition(".")[0]
            self.counts[name] += 1
            self.copied += result.nbytes if name in COPIES else 0
        return result
