"""What a kind of device has to bring so that models, nodes and executors run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .streams import Streams


@runtime_checkable
class Backend(Protocol):
    """All that differs from one kind of device to another.

    A module with a backend does not import torch when it is loaded: commands that need no tensors
    read the five attributes. What a method cannot do is refused by `NoDevice`.
    """

    @property
    def name(self) -> str:
        """The type of its devices in torch: they are called `name`, or `name:1` by their number.

        Where it has streams, it is also the name of the executor that runs plans on them.
        """

    @property
    def on_host(self) -> bool:
        """Whether host code reads its tensors where they lie, and an op is done when it returns."""

    @property
    def has_streams(self) -> bool: ...

    @property
    def captures(self) -> bool:
        """Whether its streams record work that one call does again, as CUDA graphs do."""

    @property
    def compiles_triton(self) -> bool: ...

    def found(self) -> Sequence[str]:
        """What people call its devices on this machine. Imports torch only if there may be one."""

    def device(self, name: str) -> torch.device:
        """The device called `name`; the current one, if the name has no number.

        Raises:
            NoDevice: there is no such device. The message says what to use instead.
        """

    def entered(self, device: torch.device) -> AbstractContextManager[object]:
        """Make `device` the current one of the calling thread."""

    def synchronize(self, device: torch.device | None = None) -> None:
        """Block until all work that `device` was given is done.

        None: the current device. A process that has not used any returns at once.
        """

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, fill: int) -> Tensor:
        """A new host tensor `[*shape]` that its devices copy from and to while the host goes on."""

    def streams(self, device: torch.device, *, ranges: bool = False) -> Streams:
        """Streams of `device`. `ranges`: to profilers, each op is called `node/step`."""

    def forbid_waits(self) -> Callable[[], None] | None:
        """From now on, raise where the host would wait for a device; returns what ends that.

        None where this cannot be had, or nothing in this process has used a device yet.
        """

    def refused(self, error: BaseException) -> bool:
        """Whether it raised `error` because of `forbid_waits`."""

    def free_bytes(self, device: torch.device) -> int | None:
        """Memory of `device` that may still be taken, in bytes; None: it does not say."""

    def processors(self, device: torch.device) -> int:
        """How many programs of a kernel `device` runs at once."""

    def why_no_varlen(self, device: torch.device) -> str | None:
        """Why torch's attention over ragged batches does not run on `device`; None if it does."""
