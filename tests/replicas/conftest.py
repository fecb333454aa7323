"""What the tests of replicas share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """An event loop for all tests of a file: an engine is served by the one it began on."""
    with asyncio.Runner() as made:
        yield made
