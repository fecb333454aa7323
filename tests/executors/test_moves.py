"""Recordings on other data: which data lie alike, and what is between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from stepweave.executors.counts import Counts
from stepweave.executors.moves import CannotMove, Moves, alike
from stepweave.executors.places import Places
from stepweave.executors.serial_recorded import OnOneThread
from stepweave.executors.threads import OnThreads
from tests.executors.test_capture import STEPS, outs, pipeline


@dataclass
class Pair:
    one: Tensor
    two: Tensor
    number: float = 2


@dataclass
class Buffer:
    fixed: ClassVar[bool] = True
    numbers: Tensor
    held: Any = None


def pair(**fields: Any) -> Pair:
    return Pair(**{"one": torch.ones(4), "two": torch.ones(2, 3), **fields})


def test_data_that_differ_in_addresses_and_contents_only_are_alike() -> None:
    assert alike([pair(), 3]) == alike([pair(one=torch.zeros(4)), 3])


@pytest.mark.parametrize(
    "other",
    [
        pair(number=2.0),
        pair(number=3),
        pair(one=torch.ones(4, dtype=torch.float64)),
        pair(one=torch.ones(5)),
        pair(one=torch.ones(8)[::2]),
        pair(one=torch.ones(5)[1:]),
        pair(one=torch.ones(6).view(2, 3).t()[0:1].view(2)),
        pair(two=torch.ones(3, 2).t()),
    ],
    ids=["type", "number", "dtype", "size", "stride", "offset", "shape", "order"],
)
def test_what_a_body_can_see_tells_data_apart(other: Pair) -> None:
    assert alike([pair()]) != alike([other])


def test_data_that_lie_together_are_not_like_data_that_do_not() -> None:
    memory = torch.ones(4)
    together = [memory, memory.view(4)]
    assert alike(together) == alike([again := torch.ones(4), again.view(4)])
    assert alike(together) != alike([torch.ones(4), torch.ones(4)])


def test_where_in_a_line_data_begin_tells_them_apart() -> None:
    bytes_ = torch.zeros(256, dtype=torch.uint8)
    start = -bytes_.data_ptr() % 64

    def at(offset: int) -> Tensor:
        memory = bytes_.numpy()[start + offset : start + offset + 16]
        return torch.from_numpy(memory)

    assert alike([at(0)]) == alike([at(64)]) != alike([at(16)])
    moves = Moves()
    moves.add(at(0), at(64))
    with pytest.raises(CannotMove):
        moves.add(at(0), at(16))


def test_a_buffer_is_taken_for_its_contents_if_they_can_be_compared() -> None:
    assert alike([Buffer(torch.ones(2))]) == alike([Buffer(torch.ones(2))])
    assert alike([Buffer(torch.ones(2), 1)]) != alike([Buffer(torch.ones(2), 2)])
    opaque = Buffer(torch.ones(2), {1, 2})
    assert alike([opaque]) == alike([opaque]) != alike([Buffer(torch.ones(2), {1, 2})])


def test_views_lie_as_they_did() -> None:
    before, now = torch.arange(12.0), torch.arange(12.0) * 10
    moves = Moves()
    moves.add(before[:1], now[:1])
    column = before.view(3, 4)[:, 1]
    assert moves(column).tolist() == [10, 50, 90]
    assert moves(column) is moves(column), "the same tensor is the same"
    other = torch.ones(3)
    assert moves(other) is other


def test_memory_can_change_places() -> None:
    """A step hands over in two slots: what one writes, the next reads."""
    one, two = torch.ones(2), torch.full((2,), 2.0)
    moves = Moves()
    moves.add_all((one, two), (two, one))
    assert (moves(one).tolist(), moves(two).tolist()) == ([2, 2], [1, 1])


@pytest.mark.parametrize("kind", ["two places for one", "one place for two", "offset", "stays"])
def test_what_contradicts_itself_is_not_moved(kind: str) -> None:
    one, two, three = (torch.ones(4) for _ in range(3))
    before, now = {
        "two places for one": (one, three),
        "one place for two": (three, two),
        "offset": (three[:2], torch.ones(4)[1:3]),
        "stays": (two, two),
    }[kind]
    moves = Moves()
    moves.add(one, two)
    with pytest.raises(CannotMove):
        moves.add(before, now)


def test_what_has_no_room_is_not_moved() -> None:
    before, now = torch.ones(8), torch.ones(4)
    moves = Moves()
    moves.add(before[:4], now)
    assert moves(before[2:4]).tolist() == [1, 1]
    with pytest.raises(CannotMove):
        moves(before)


def test_a_settled_datum_has_its_place_in_every_slot() -> None:
    places, datum = Places(), pair()
    settled = places.settle("name", 0, datum)
    pairs = places.beside("name", 1, settled)
    assert [len(before) for before, _ in pairs] == [4, 2]
    moves = Moves()
    for before, now in pairs:
        moves.add(before, now)
    there = places.settle("name", 1, datum)
    assert moves(settled.one).data_ptr() == there.one.data_ptr() != settled.one.data_ptr()
    assert moves(settled.two).data_ptr() == there.two.data_ptr()


def counts(executor: OnThreads | OnOneThread) -> Counts:
    assert executor.captures is not None
    [found] = executor.captures.counts.values()
    return found


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_shape_is_recorded_once_whatever_its_slots(slots: int) -> None:
    plan, executor = pipeline(slots=slots), OnOneThread()
    expected = outs(plan)
    assert outs(plan, executor) == expected
    assert counts(executor).captured == 1
    assert counts(executor).moved >= slots - 1
    assert counts(executor).replayed == STEPS - 1 - sum(counts(executor).eager.values())


def test_slots_that_hold_other_numbers_of_the_host_are_recorded_apart() -> None:
    plan, executor = pipeline(factor=lambda step: step % 2), OnOneThread()
    assert outs(plan, executor) == outs(plan)
    assert (counts(executor).captured, counts(executor).moved) == (2, 0)
