"""What needs a GPU: `pytest -m gpu tests/gpu`. Without one it is skipped, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason=f"torch {torch.__version__} sees no GPU")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("ignore:Synchronization debug mode"))
            item.add_marker(pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"))
            if not torch.cuda.is_available():
                item.add_marker(missing)


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
