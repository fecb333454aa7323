"""A long time under faults: nothing unanswered, nobody else's tokens changed, nothing grows."""

from __future__ import annotations

import pytest

from stepweave.server.settings import Settings
from tests.server.in_thread import running
from tests.server.soak import Chance, Soak

ROUNDS = 4
ROUNDS_OF_A_NIGHT = 2000  # some 30 minutes, on two cores
GROWTH_MB = 20.0
"""Resident memory is not flat to the page: allocators keep some."""


def soak(rounds: int, seed: int) -> Soak:
    chance = Chance()
    with running(
        Settings(models=("embedded",)),
        {"scheduler.max_rows": 3, "graphs": False},
        prepare=chance.prepare,
    ) as service:
        found = Soak(service, chance, seed)
        found.run(rounds)
    assert found.rounds == rounds
    assert chance.hits >= rounds // 5, "faults happened"
    assert found.ended["500"] > 0, "and somebody was told"
    assert found.ended["200"] > found.ended["500"], "and most were served"
    return found


def test_faults_in_every_round_leave_nothing_behind() -> None:
    assert len(soak(ROUNDS, 1).megabytes) == ROUNDS


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
def test_half_an_hour_of_faults_takes_no_memory() -> None:
    assert soak(ROUNDS_OF_A_NIGHT, 2).growth_mb() < GROWTH_MB
