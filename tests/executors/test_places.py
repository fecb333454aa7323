"""Static slots: what is settled there is equal, and views of one memory travel together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepweave.executors.places import Places, place
from stepweave.testing.launches import Launches
from tests.interpreter_lock import Neighbour, nobody_is_interrupted, turns_during


@dataclass(frozen=True)
class Parts:
    ids: Tensor
    table: Tensor
    weights: Tensor
    none: Tensor
    flags: Tensor
    apart: Tensor


def parts_of(flat: Tensor) -> Parts:
    """Views of a line of whole numbers `flat[24]`, as a step is uploaded; and a tensor beside."""
    return Parts(
        ids=flat[2:7],
        table=flat[7:15].view(2, 4),
        weights=flat[15:18].view(torch.float64),
        none=flat[18:18],
        flags=flat[20:22].view(torch.bool)[:16],
        apart=flat[:2] + 1,
    )


def same(a: Parts, b: Parts) -> bool:
    return all(
        torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        and (x.shape, x.dtype) == (y.shape, y.dtype)
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def copies(where: Places, slot: int, datum: object) -> tuple[object, int]:
    with Launches() as launched:
        settled = where.settle("value", slot, datum)
    return settled, launched.counts["copy_"]


def test_views_of_one_memory_are_copied_to_their_slot_at_once() -> None:
    where, kept = Places(), []
    for step in range(4):
        flat = torch.randint(0, 2, (24,), generator=torch.Generator().manual_seed(step))
        settled, count = copies(where, step % 2, parts_of(flat))
        assert isinstance(settled, Parts)
        assert same(settled, parts_of(flat))
        assert count == 2, "the line of the views, and the tensor beside"
        kept.append((settled, parts_of(flat)))
    for step in (0, 1):
        now, before = kept[step + 2][0], kept[step][0]
        assert now.table.data_ptr() == before.table.data_ptr(), "a slot stays where it is"
    assert all(same(*pair) for pair in kept[2:]), "slots do not share memory"


def test_views_that_are_few_of_their_memory_or_have_gaps_are_copied_one_by_one() -> None:
    cache = torch.arange(4096)
    for datum in (
        (cache[:2], cache[4000:4002]),
        (cache[0:8:2], cache[8:16]),
        (cache.view(torch.int32)[1:3], cache[2:4]),
        (cache[:8].view(2, 4).t(), cache[8:16]),
    ):
        where = Places()
        settled, count = copies(where, 0, datum)
        assert count == 2
        assert all(map(torch.equal, settled, datum))  # type: ignore[call-overload]
        assert where.nbytes < 1024


def test_a_tensor_that_a_datum_has_twice_has_one_place() -> None:
    flat = torch.arange(8)
    settled, count = copies(Places(), 0, [flat, flat, flat[3:]])
    assert count == 1
    assert isinstance(settled, list)
    assert all(map(torch.equal, settled, (flat, flat, flat[3:])))
    assert settled[2].data_ptr() == settled[0][3:].data_ptr()


def test_views_in_other_bits_lie_in_a_place_of_their_own() -> None:
    numbers = torch.view_as_complex(torch.arange(8.0).view(4, 2))
    assert place(numbers.conj()) != place(numbers)
    assert place(numbers.conj().imag) != place(numbers.imag)
    assert place(numbers.conj().real) == place(numbers.real)


def test_whoever_asks_for_a_place_keeps_the_lock_of_the_interpreter() -> None:
    """Or a stream would wait between two launches for a host thread that is busy."""
    tensor = torch.zeros(4)
    with nobody_is_interrupted(), Neighbour() as neighbour:
        assert not turns_during(neighbour, lambda: [place(tensor) for _ in range(200)])
        assert turns_during(neighbour, lambda: [tensor.is_neg() for _ in range(200)])
