"""How late the client is, on a clock that stands still but where somebody works."""

from __future__ import annotations

import asyncio

import pytest

from stepweave.loadgen.ask import Ask
from stepweave.loadgen.lateness import EVERY_S, TOLD_FROM_MS, Lateness, lateness_note
from stepweave.loadgen.load import Load, Result
from stepweave.loadgen.reading import Reading
from stepweave.loadgen.runner import Ran
from stepweave.loadgen.session import Session
from stepweave.loadgen.words import WordCost
from stepweave.loadgen.workload import RandomPrompts
from tests.loadgen.virtual import VirtualLoop, clock, virtually

LOAD = Load(RandomPrompts(4, 1), 1)


def ran(work_s: float) -> Ran:
    """A load of one second, in which every chunk takes the loop so long to read."""

    async def source(ask: Ask, reading: Reading) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        while clock() < 1.0:
            await asyncio.sleep(EVERY_S / 4)
            loop.pass_time(work_s)
        reading.tokens(1, clock())
        reading.end("stop", 1, None)

    async def main() -> Ran:
        return await Session(clock=clock).run(source, LOAD, WordCost())

    return virtually(main)


def test_a_client_that_has_nothing_to_do_is_never_late() -> None:
    found = ran(0.0)
    assert found.late_ms == pytest.approx(0.0, abs=1e-6)
    assert Result(LOAD, found, {}).notes == ()


def test_work_of_the_client_makes_it_late_and_it_says_so() -> None:
    found = ran(0.5)
    assert found.late_ms == pytest.approx(500, abs=1e3 * EVERY_S)
    result = Result(LOAD, found, {}, remarks=("first",))
    first, late = result.notes
    assert (first, "late by up to" in late) == ("first", True)
    assert result.to_json(requests=False)["client_lateness_p99_ms"] == found.late_ms


def test_a_load_too_short_to_tell_tells_nothing() -> None:
    assert Lateness().p99_ms == 0.0
    assert lateness_note(TOLD_FROM_MS / 2) is None
