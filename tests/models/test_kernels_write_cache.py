"""The kernel that stores keys and values, in Triton's interpreter, against an index assignment."""

from __future__ import annotations

import pytest
import torch

from stepweave.models.paged_cache import write
from tests.models.interpreter import Interpreter

KERNEL = "stepweave.models.kernels.write_cache:write"
WITHIN = "tests.models.paged_oracle:write_within"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_stores_each_token_at_its_slot_and_nothing_else(
    interpreted: Interpreter, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(12, 3, 24, generator=generator).to(dtype)
    values = torch.randn(12, 3, 16, generator=generator).to(dtype)
    k = torch.randn(1, 3, 4, 24, generator=generator)[0].transpose(0, 1)
    v = torch.randn(1, 3, 4, 16, generator=generator)[0].transpose(0, 1)
    k, v = k.to(dtype).float(), v.to(dtype).float()  # the interpreter does not round to nearest
    slots = torch.tensor([7, 11, 4, 5])
    wanted_keys, wanted_values = keys.clone(), values.clone()
    wanted_keys[slots], wanted_values[slots] = k.to(dtype), v.to(dtype)
    _, keys, values, *_ = interpreted(KERNEL, keys, values, slots, k, v)
    assert torch.equal(keys, wanted_keys)
    assert torch.equal(values, wanted_values)


def test_what_is_not_finite_becomes_zero(interpreted: Interpreter) -> None:
    store = torch.ones(4, 1, 4, dtype=torch.float16)
    new = torch.tensor([torch.nan, torch.inf, -torch.inf, 2.0]).view(1, 1, 4)
    _, keys, values, *_ = interpreted(
        KERNEL, store, store.clone(), torch.tensor([2]), new, 1e9 * new
    )
    assert keys[2].flatten().tolist() == [0.0, 0.0, 0.0, 2.0]
    assert values[2].flatten().tolist() == [0.0] * 4  # 2e9 is no float16
    assert torch.equal(keys[[0, 1, 3]], store[[0, 1, 3]])


def test_a_slot_outside_the_cache_is_not_written(interpreted: Interpreter) -> None:
    store, new = torch.zeros(4, 1, 4), torch.ones(3, 1, 4)
    _, keys, *_ = interpreted(KERNEL, store, store.clone(), torch.tensor([-1, 4, 3]), new, new)
    assert keys.sum(dim=(1, 2)).tolist() == [0.0, 0.0, 0.0, 4.0]


def test_in_8_bits_it_stores_the_bits_that_torch_does(interpreted: Interpreter) -> None:
    generator = torch.Generator().manual_seed(0)
    k = torch.randn(5, 3, 24, generator=generator) * torch.logspace(-40, 30, 5)[:, None, None]
    v = torch.randn(5, 3, 16, generator=generator)
    k[1, 2, 3], v[2, 1, 0], v[3, 0] = torch.nan, torch.inf, 0.0
    slots = torch.tensor([7, 11, 4, 5, 0])

    def stores() -> list[torch.Tensor]:
        lines = [torch.ones(12, 3, dim, dtype=torch.int8) for dim in (24, 16)]
        return [*lines, *(torch.ones(12, 3) for _ in lines)]

    keys, values, *scales = stores()
    write(keys, values, slots, k, v, (scales[0], scales[1]))
    mine_k, mine_v, *mine = stores()
    answer = interpreted(KERNEL, mine_k, mine_v, slots, k, v, tuple(mine))
    for wanted, found in zip((keys, values, *scales), (*answer[1:3], *answer[6]), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("kept", [torch.int8, torch.float32])
def test_values_that_are_part_of_their_keys_are_stored_with_them(
    interpreted: Interpreter, kept: torch.dtype
) -> None:
    k = torch.randn(3, 1, 24, generator=torch.Generator().manual_seed(0))
    k[..., 20] = 9.0  # the scale is of the whole key, which is larger than its value
    slots = torch.tensor([7, 2, 4])
    keys, scales = torch.ones(12, 1, 24).to(kept), torch.ones(12, 1)
    given = scales if kept == torch.int8 else None
    answer = interpreted(WITHIN, keys.clone(), 16, slots, k, given)
    write(keys, keys[..., :16], slots, k, k[..., :16], (given, given))
    assert torch.equal(answer[1], keys)
    assert kept == torch.float32 or torch.equal(answer[5], scales)


def test_scales_that_do_not_fit_are_refused(interpreted: Interpreter) -> None:
    store, new = torch.zeros(4, 2, 4, dtype=torch.int8), torch.ones(1, 2, 4)
    at = torch.tensor([1])
    for scales, said in (
        ((torch.zeros(4, 2), None), "or neither has"),
        ((torch.zeros(4, 1), torch.zeros(4, 2)), r"key_scales is \(4, 1\)"),
        ((torch.zeros(2, 4).T, torch.zeros(4, 2)), "side by side"),
    ):
        with pytest.raises(RuntimeError, match=said):
            interpreted(KERNEL, store, store.clone(), at, new, new, scales)
