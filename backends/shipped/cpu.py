"""The CPU: an operation is done when its call returns, and nothing is copied anywhere.

It has no streams of its own. Under the executor `threads`, worker threads stand for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..container import memory_left
from ..errors import NoDevice
from ..registry import HOST

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Cpu:
    """The host, as a device."""

    name = HOST
    on_host = True
    has_streams = False
    captures = False
    compiles_triton = False  # only interpreted, where the environment asks for it

    def found(self) -> Sequence[str]:
        return (self.name,)

    def device(self, name: str) -> torch.device:
        import torch

        return torch.device(name)

    def entered(self, device: torch.device) -> nullcontext[None]:
        """Threads of a CPU have no current device."""
        return nullcontext()

    def synchronize(self, device: torch.device | None = None) -> None:
        """Everything is done already."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, fill: int) -> Tensor:
        """A tensor `[*shape]` in ordinary memory: there is nobody to copy it."""
        import torch

        return torch.full(tuple(shape), fill, dtype=dtype)

    def streams(self, device: torch.device, *, ranges: bool = False) -> NoReturn:
        """Raises `NoDevice`: a CPU has none."""
        raise NoDevice("a CPU has no streams; executor 'threads' has worker threads in their place")

    def forbid_waits(self) -> None:
        """There is nothing to wait for."""

    def refused(self, error: BaseException) -> bool:
        return False

    def free_bytes(self, device: torch.device) -> int | None:
        """What the kernel says is available, with what it keeps of files; in a container with a
        limit no more than is left of that.
        """
        try:
            said = Path("/proc/meminfo").read_text().splitlines()
        except OSError:
            return None
        found = (line.split()[1] for line in said if line.startswith("MemAvailable:"))
        free = next((int(kib) * 1024 for kib in found), None)
        left = memory_left()
        return free if left is None or free is None else min(free, left)

    def processors(self, device: torch.device) -> int:
        """Few, for Triton's interpreter: more programs would only take longer."""
        return 4

    def why_no_varlen(self, device: torch.device) -> str:
        return "torch has none for a CPU"


BACKEND = Cpu()
