"""GPUs that torch calls `cuda`: NVIDIA's, and AMD's in builds of torch for ROCm.

torch is imported by the methods: what is declared is read without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NoDevice

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..cuda_streams import CudaStreams

_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, of Windows below Linux
_REFUSED = "called a synchronizing CUDA operation"  # what torch says where waiting is forbidden


class NoCuda(NoDevice):
    """There is no CUDA device to run on."""

    code = "SW-NO-CUDA"


class Cuda:
    """CUDA devices, by way of `torch.cuda`."""

    name = "cuda"
    on_host = False
    has_streams = True
    captures = True
    compiles_triton = True

    def found(self) -> Sequence[str]:
        """Importing torch takes seconds, and without a driver it would see nothing."""
        if sys.platform == "linux" and not any(Path(each).exists() for each in _DRIVERS):
            return ()
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [torch.cuda.get_device_name(index) for index in range(count)]

    def device(self, name: str) -> torch.device:
        """The GPU of that name, with its number. Raises `NoCuda` if torch does not see it."""
        import torch

        device = torch.device(name)
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if there == 0:
            raise NoCuda(
                f"device {name!r} is a GPU, and this torch ({torch.__version__}) sees none. With "
                "executor 'threads' and device 'cpu' the same plan runs on a CPU."
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        if not 0 <= index < there:  # torch keeps a byte of it: `cuda:999` is -25
            raise NoCuda(f"there is no GPU {name!r}: this torch sees {there}, from cuda:0 on")
        return torch.device(self.name, index)

    def entered(self, device: torch.device) -> torch.cuda.device:
        import torch

        return torch.cuda.device(device)

    def synchronize(self, device: torch.device | None = None) -> None:
        import torch

        cuda: Any = torch.cuda
        if device is not None or cuda.is_initialized():
            cuda.synchronize(device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, fill: int) -> Tensor:
        """A tensor `[*shape]` in page-locked memory."""
        import torch

        return torch.full(tuple(shape), fill, dtype=dtype, pin_memory=True)

    def streams(self, device: torch.device, *, ranges: bool = False) -> CudaStreams:
        from ..cuda_streams import CudaStreams

        return CudaStreams(device, ranges)

    def forbid_waits(self) -> Callable[[], None] | None:
        """By torch's switch, which is one for the process."""
        import torch

        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return None
        before = cuda.get_sync_debug_mode()
        cuda.set_sync_debug_mode("error")
        return lambda: cuda.set_sync_debug_mode(before)

    def refused(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError) and _REFUSED in str(error)

    def free_bytes(self, device: torch.device) -> int:
        """What the driver has, and what torch holds and does not use."""
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + held)

    def processors(self, device: torch.device) -> int:
        import torch

        count: int = torch.cuda.get_device_properties(device).multi_processor_count
        return count

    def why_no_varlen(self, device: torch.device) -> str | None:
        import torch

        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs a device of compute capability 8.0"
        return None


BACKEND = Cuda()
