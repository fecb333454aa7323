"""How many operations a piece of torch code starts: on a device, each is a launch or a copy.

Counted are the operations below all composite ones, without views, which compute nothing. So the
count of a device is found on any machine: it is a property of the code and of its shapes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..backends.operations import is_composite, is_view

COPIES = ("copy_", "_to_copy", "clone")
NOTHING = ("aten::empty", "aten::new_empty", "aten::_unsafe_view")
"""Operations that only allocate, or whose result is a view though they do not say so."""


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within its `with`, `counts` has the operations started, by name: `index_select`, `cat`.

    `copied`: bytes that those of them wrote which only copy. Triton kernels are no operations of
    torch: whoever counts those adds them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.copied = 0

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
        if is_composite(operation):  # in inference mode these arrive whole
            with self:
                return operation.decompose(*args, **kwargs)
        result = operation(*args, **kwargs)
        if not is_view(operation) and not operation.name().startswith(NOTHING):
            name = operation.name().removeprefix("aten::").partition(".")[0]
            self.counts[name] += 1
            self.copied += result.nbytes if name in COPIES else 0
        return result
