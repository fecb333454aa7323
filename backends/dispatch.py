"""What hears of each operation of torch that its thread does."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode, which says in `__torch_dispatch__` what it does then."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper for torch.compile around each call: it would cost more than all the rest."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
