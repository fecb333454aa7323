"""Ranks run the parts of one proved plan: who runs anything else is named before the first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.stages import for_stages
from stepweave.distributed.errors import GroupEnded
from stepweave.distributed.group import Group
from stepweave.distributed.membership import Membership
from stepweave.graph.plan import Plan
from stepweave.graph.planner.projection import project
from stepweave.serving.pipeline import compiled, proved_digests
from tests.distributed.pairs import ended, groups

STAGES = 3


class Told(Membership):
    """A membership whose ranks have gathered these digests, without a library that gathers."""

    def __init__(self, group: Group, running: Sequence[str]) -> None:
        super().__init__(group, torch.device("cpu"))
        self._running = running

    def gathered(self, number: int) -> list[int]:
        assert number == int(self._running[self.group.rank][:15], 16)
        return [int(digest[:15], 16) for digest in self._running]


@cache
def pipeline() -> PipelineConfig:
    found = load_config("async_eagle", for_stages(STAGES, {}))
    assert isinstance(found, PipelineConfig)
    return found


@cache
def parts() -> tuple[Plan, ...]:
    whole = compiled(pipeline())
    return tuple(project(whole, rank) for rank in range(STAGES))


def swapped(plan: Plan) -> Plan:
    """Two messages the other way round: what was sampled is heard before anything is handed on."""
    order = list(plan.actors["driver"])
    at = [place for place, (op, _) in enumerate(order) if op in ("send1.host", "tell.host")]
    first, then = at
    order[first], order[then] = order[then], order[first]
    return replace(plan, actors={**plan.actors, "driver": tuple(order)})


def without_a_wait(plan: Plan) -> Plan:
    return replace(plan, waits=plan.waits[1:])


def with_fewer_slots(plan: Plan) -> Plan:
    name = max(plan.slots, key=lambda each: plan.slots[each] or 0)
    return replace(plan, slots={**plan.slots, name: 1})


def started(running: Sequence[Plan]) -> list[str]:
    """What each rank says at the start, where these plans run; empty where all are right."""
    digests = [plan.digest for plan in running]
    proved = proved_digests(pipeline())
    made: list[Told] = []
    with groups(STAGES, lambda group: made.append(Told(group, digests))) as connected:
        said = []
        for member in made:
            try:
                member.require_proved(digests[member.group.rank], proved)
            except GroupEnded:
                said.append(ended(member.group))
        assert not said or [ended(each) for each in connected] == said
        return said


def test_the_parts_of_the_proved_plan_run() -> None:
    assert started(parts()) == []


@pytest.mark.parametrize("doctor", [swapped, without_a_wait, with_fewer_slots])
def test_a_rank_with_another_plan_is_named_by_all_at_the_start(
    doctor: Callable[[Plan], Plan],
) -> None:
    running = list(parts())
    running[1] = doctor(running[1])
    said = started(running)
    assert len(said) == STAGES
    for each in said:
        assert "the plan of rank 1 is not the part of it in the plan that is proved" in each
        assert parts()[1].digest[:15] in each
        assert running[1].digest[:15] in each
