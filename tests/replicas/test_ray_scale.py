"""As many replicas on Ray as the load needs; one that ends finishes what it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.replicas.clients import (
    Answer,
    asked,
    equal,
    figure,
    replicated,
    session_of,
    stream,
    together,
)
from tests.server.in_process import Process

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("scale")
    few = ("--set", "scheduler.max_rows=4", "--idle-s", "5", "--drain-s", "300")
    with replicated(folder, "quickstart", "--replicas", "1-2", *few) as found:
        yield found


async def two(session: aiohttp.ClientSession) -> list[Answer]:
    """Two streams beside each other: one on each of two replicas."""
    return await asyncio.gather(*(stream(session, asked(index, 100)) for index in (0, 1)))


def test_replicas_come_with_the_load_and_go_without_a_request_that_fails(
    service: Process,
) -> None:
    async def check() -> None:
        async with session_of(service) as session:
            assert await figure(session, "stepweave:replicas") == 1
            expected, pair = await together(session, 100), await two(session)
            while await figure(session, "stepweave:replicas") < 2:
                equal(await together(session, 100), expected)
            while await figure(session, "stepweave:replicas") > 1:
                equal(await two(session), pair)
            equal(await two(session), pair)

    asyncio.run(check())
