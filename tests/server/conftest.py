"""What the tests of the service share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.in_thread import Running, running


@pytest.fixture(scope="session")
def service() -> Iterator[Running]:
    """A service with the settings of everybody, for files that leave it as it is.

    One for all of them in a process: starting an engine takes longer than most tests, and starting
    the processes that try grammars as long again; without a limit there are none.
    """
    with running(overrides={"nodes.bitmask.compile_limit_s": None}) as found:
        yield found
