"""The backend of GPUs keeps the contract of backends on a GPU, not only in what it declares."""

from __future__ import annotations

import torch

from stepweave.backends.registry import backend_named
from stepweave.testing import backend_faults


def test_what_it_declares_is_what_the_gpu_does(gpu: torch.device) -> None:
    backend = backend_named(gpu.type)
    assert backend.found()
    assert backend_faults(backend) == []
    assert torch.cuda.get_sync_debug_mode() == 0
