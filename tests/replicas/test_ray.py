"""`stepweave serve --replicas` as its users start it, on a cluster of Ray that it starts itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.replicas.clients import (
    equal,
    figure,
    replicas,
    replicated,
    session_of,
    together,
    whole_without,
)
from tests.server.in_process import Process

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with replicated(tmp_path_factory.mktemp("ray"), "quickstart", "--replicas", "2") as found:
        yield found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_replica_is_lost_under_load_and_no_stream_can_tell(
    service: Process, number: signal.Signals
) -> None:
    async def check() -> None:
        async with session_of(service) as session:
            expected = await together(session, 150)
            moved = await figure(session, "stepweave:moved_requests_total")
            before = replicas(service)
            assert len(before) == 2
            lost = min(before)
            found = await together(session, 150, lambda: os.kill(lost, number))
            assert await figure(session, "stepweave:moved_requests_total") > moved
            equal(found, expected)
            await whole_without(lost, service, session)
            equal(await together(session, 150), expected)

    asyncio.run(check())


def test_replicas_are_replaced_one_by_one_and_no_request_fails(service: Process) -> None:
    async def check() -> None:
        async with session_of(service) as session:
            expected = await together(session, 60)
            before = replicas(service)
            service.signal(signal.SIGHUP)
            while before & replicas(service) or len(replicas(service)) != 2:
                equal(await together(session, 60), expected)
            equal(await together(session, 60), expected)

    asyncio.run(check())
