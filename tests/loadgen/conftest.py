"""A server to load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loadgen.stub import Stub, served


@pytest.fixture
def server() -> Iterator[Stub]:
    with served() as stub:
        yield stub
