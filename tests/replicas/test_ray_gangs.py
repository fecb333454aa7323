"""Replicas of several ranks on Ray: the ranks of one end as one, and come back as one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.replicas.clients import (
    equal,
    figure,
    followers,
    lives,
    replicas,
    replicated,
    session_of,
    together,
    whole_without,
)
from tests.server.in_process import Process

pytestmark = pytest.mark.nightly

# In float64, so that the text does not depend on which requests are computed together.
TWO_RANKS = ("--tp", "2", "--set", "model.dtype=float64")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("gangs")
    with replicated(folder, "quickstart", *TWO_RANKS, "--replicas", "2") as found:
        yield found


@pytest.mark.parametrize(
    ("number", "of_leader"),
    [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGSTOP, False)],
    ids=["leader_killed", "follower_killed", "follower_stopped"],
)
def test_a_rank_is_lost_and_its_gang_ends_and_comes_back_as_one(
    service: Process, number: signal.Signals, of_leader: bool
) -> None:
    async def check() -> None:
        async with session_of(service) as session:
            expected = await together(session, 80)
            moved = await figure(session, "stepweave:moved_requests_total")
            before = replicas(service)
            assert len(before) == 2
            leader = min(before)
            [follower] = followers(leader)
            hit = leader if of_leader else follower
            found = await together(session, 80, lambda: os.kill(hit, number))
            assert await figure(session, "stepweave:moved_requests_total") > moved
            equal(found, expected)
            await whole_without(leader, service, session)
            assert not lives(follower)
            assert [len(followers(each)) for each in replicas(service)] == [1, 1]
            equal(await together(session, 80), expected)

    asyncio.run(check())
