"""Attention in which every sum has one order: equal bits for few queries and many."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends.tape.arrange import Pool
from stepweave.backends.tape.recording import Tape
from stepweave.models import fixed_order
from stepweave.models.fixed_order import Sums, attend
from stepweave.models.kernels.reference import How
from stepweave.testing.launches import Launches

SEEN = 150  # keys
LIKE: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
HOW = {
    "plain": How(0.3, None, None, None),
    "softcap": How(0.3, None, 1.5, None),
    "sinks": How(0.3, None, None, torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


def hidden(keys: int, rows: int = 2) -> Callable[[int], Tensor]:
    return lambda queries: (torch.arange(keys) >= SEEN).expand(rows, 1, queries, keys)


@pytest.mark.parametrize("dims", [(32, 32), (8, 6)], ids=["32", "8 and 6"])
@pytest.mark.parametrize("how", HOW)
def test_bits_depend_on_no_number_of_queries_rows_or_keys(how: str, dims: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 2, 12, dims[0], generator=generator)
    k, v = (torch.randn(2, 2, 1024, dim, generator=generator) for dim in dims)
    wanted = attend(query, k[:, :, :192], v[:, :, :192], hidden(192), HOW[how])
    for keys in (256, 320, 384, 640, 1024):
        some, mixed = k[:, :, :keys], v[:, :, :keys]
        for queries in (slice(0, 12), slice(2, 4), slice(0, 8)):
            found = attend(query[:, :, queries], some, mixed, hidden(keys), HOW[how])
            assert torch.equal(found, wanted[:, :, queries])
        alone = attend(query[:1], some[:1], mixed[:1], hidden(keys, rows=1), HOW[how])
        assert torch.equal(alone, wanted[:1])


def test_a_product_that_adds_in_another_order_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a library that cuts more than 100 keys into halves, and more than 300 into thirds."""

    def bmm(weights: Tensor, v: Tensor) -> Tensor:
        made.append(v.shape[1])
        parts = 1 + (v.shape[1] > 100) + (v.shape[1] > 300)
        cut = zip(weights.tensor_split(parts, 2), v.tensor_split(parts, 1), strict=True)
        return sum(map(own, *zip(*cut, strict=True)), torch.zeros(()))

    own, made = torch.bmm, list[int]()
    monkeypatch.setattr(torch, "bmm", bmm)
    tile = fixed_order._key_tile(4, 32, LIKE)
    sums = Sums((4, 8), tile, (32, 32), LIKE)
    assert tile == 128, "of 192 keys the halves are no multiples of what fewer are"
    assert [sums.at_once("mixtures", 8, keys) for keys in (64, 128, 192, 320)] == [
        True, True, False, False,
    ]  # fmt: skip
    weights, v = torch.rand(2, 8, 320), torch.randn(2, 320, 32)
    short = torch.cat([weights[..., :70], torch.zeros(2, 8, 250)], -1)
    assert torch.equal(sums.mixtures(short, v), sums.mixtures(short[..., :128], v[:, :128]))
    assert torch.equal(sums.mixtures(weights, v), sums._mixtures_in_order(weights, v))
    made.clear()
    sums.mixtures(weights, v)
    assert made == [128, 128, 64], "each tile of keys for all queries at once"


def test_trials_are_no_part_of_what_is_recorded_and_a_step_takes_four_operations() -> None:
    fixed_order._sums.cache_clear()
    query, k, v = torch.randn(2, 2, 4, 32), torch.randn(2, 2, 192, 32), torch.randn(2, 2, 192, 32)
    mask, out, tape = hidden(192)(4).clone(), torch.empty(2, 2, 4, 32), Tape(Pool())

    def work() -> None:
        out.copy_(attend(query, k, v, lambda _: mask, HOW["plain"]))

    with torch.inference_mode(), tape.capture():
        work()
    assert tape.refused is None
    assert tape.size == 4, "product, mask, softmax, product"
    wanted = out.clone()
    tape.replay()
    assert torch.equal(out, wanted)
    with Launches() as counted:
        work()
    assert counted.total == 5, "and a copy"
