"""Here the package with the emulated device is installed."""

from collections.abc import Iterator

import pytest

from tests.device.emulated import is_installed


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with is_installed():
        yield
