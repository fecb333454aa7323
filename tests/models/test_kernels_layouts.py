"""The attention kernels take every argument in every layout of memory, or refuse it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.interpreter import Interpreter
from tests.models.layouts import LAYOUTS, Mixed, expanded
from tests.models.paged_oracle import Batch

WRITE = "stepweave.models.kernels.write_cache:write"
ATTEND = "stepweave.models.kernels.operators:attend_now"
WRITTEN = ("keys", "values")


def written() -> dict[str, Tensor]:
    """Arguments of `write`."""
    draw = torch.Generator().manual_seed(0)
    return {
        "keys": torch.randn(12, 3, 8, generator=draw),
        "values": torch.randn(12, 3, 4, generator=draw),
        "slots": torch.tensor([7, 11, 4, 5]),
        "k": torch.randn(4, 3, 8, generator=draw),
        "v": torch.randn(4, 3, 4, generator=draw),
    }


def attended() -> dict[str, Tensor]:
    """Tensors among the arguments of `attend`: windows of two tokens, several blocks each."""
    batch = Batch((9, 14, 5), query_len=2, block_size=4)
    tensors = (tensor.nan_to_num() for tensor in batch.arguments())
    named = dict(
        zip(("query", "keys", "values", "block_tables", "positions"), tensors, strict=True)
    )
    return {**named, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}


def attended_tree() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The same of two draft trees of two tokens, a row of padding, and a cache in 8 bits.

    Beside it what else they are told: scales, which lie side by side, and the width of the trees.
    """
    batch = Batch((9, 14, 0), query_len=2, block_size=4)
    key_scales, value_scales = batch.narrow()
    tensors = (tensor.nan_to_num() for tensor in batch.arguments())
    named = dict(
        zip(("query", "keys", "values", "block_tables", "positions"), tensors, strict=True)
    )
    named["starts"] = torch.tensor([7, 7, 12, 12, 0, 0])
    named["bits"] = torch.tensor([1, 3, 1, 2, 1, 1])
    scales = {"key_scales": key_scales.nan_to_num(1.0), "value_scales": value_scales.nan_to_num(1)}
    return named, {"width": 2, **scales}


def everything(given: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """All arguments in that layout, those that are written to if they can be."""
    return {
        name: tensor if name in WRITTEN and layout == "expanded" else LAYOUTS[layout](tensor)
        for name, tensor in given.items()
    }


def check_write(interpreted: Interpreter, given: dict[str, Tensor]) -> None:
    if given["slots"].stride(0) == 0:  # all write to one slot: then they write the same
        given = {**given, "k": expanded(given["k"]), "v": expanded(given["v"])}
    wanted_keys, wanted_values = given["keys"].clone(), given["values"].clone()
    wanted_keys[given["slots"]], wanted_values[given["slots"]] = given["k"], given["v"]
    _, keys, values, *_ = interpreted(WRITE, *given.values())
    assert torch.equal(keys, wanted_keys)
    assert torch.equal(values, wanted_values)


def check_attention(interpreted: Interpreter, given: dict[str, Tensor], **more: Any) -> None:
    how = {"query_len": 2, "block_size": 4, "scaling": 0.3, **more}
    plain = {
        each: tensor.clone(memory_format=torch.contiguous_format) for each, tensor in given.items()
    }
    assert torch.equal(interpreted(ATTEND, **given, **how), interpreted(ATTEND, **plain, **how))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_keys_reach_their_slots_however_the_arguments_lie(
    interpreted: Interpreter, layout: str
) -> None:
    check_write(interpreted, everything(written(), layout))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_is_the_same_however_the_arguments_lie(
    interpreted: Interpreter, layout: str
) -> None:
    check_attention(interpreted, everything(attended(), layout))
    given, more = attended_tree()
    check_attention(interpreted, everything(given, layout), **more)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_argument_may_lie_in_any_way(interpreted: Interpreter, layout: str) -> None:
    tree, more = attended_tree()
    checks: list[tuple[Callable[[Interpreter, dict[str, Tensor]], None], dict[str, Tensor]]] = [
        (check_write, written()),
        (check_attention, attended()),
        (partial(check_attention, **more), tree),
    ]
    for check, given in checks:
        for name in given:
            if name not in WRITTEN or layout != "expanded":
                check(interpreted, {**given, name: LAYOUTS[layout](given[name])})


def test_layouts_and_types_may_be_mixed(interpreted: Interpreter) -> None:
    mixed_as_plain(interpreted, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(60))
def test_no_mixture_of_layouts_and_types_gives_other_results(
    interpreted: Interpreter, seed: int
) -> None:
    mixed_as_plain(interpreted, 100 + seed)


def mixed_as_plain(interpreted: Interpreter, seed: int) -> None:
    """As the same numbers in the usual types, side by side."""
    refused = [(name, "expanded") for name in (*WRITTEN, "slots")]
    mixed = Mixed.of(written(), seed, ("slots", "k", "v"), refused)
    found, wanted = (interpreted(WRITE, *each.values()) for each in (mixed.given, mixed.plain))
    for one, other in zip(found[1:3], wanted[1:3], strict=True):
        assert torch.equal(one, other), str(mixed)
    typed = ("block_tables", "positions")
    for (given, more), also in (
        ((attended(), {}), ("sinks", "keys", "values")),
        (attended_tree(), ("starts", "bits")),
    ):
        mixed = Mixed.of(given, seed, (*typed, *also))
        how = {"query_len": 2, "block_size": 4, "scaling": 0.3, **more}
        found, wanted = (interpreted(ATTEND, **each, **how) for each in (mixed.given, mixed.plain))
        assert torch.equal(found, wanted), str(mixed)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_cache_with_several_entries_in_one_place_is_refused(
    interpreted: Interpreter, name: str
) -> None:
    given = written()
    with pytest.raises(RuntimeError, match=f"{name} to be written .* in one place"):
        interpreted(WRITE, *{**given, name: expanded(given[name])}.values())


def test_scales_that_lie_apart_are_refused(interpreted: Interpreter) -> None:
    given, more = attended_tree()
    more["value_scales"] = LAYOUTS["column_view"](more["value_scales"])
    with pytest.raises(RuntimeError, match="scales of a cache must lie side by side"):
        check_attention(interpreted, given, **more)


@pytest.mark.parametrize("name", ["slots", "k", "v", "values"])
def test_new_keys_that_do_not_fit_are_refused(interpreted: Interpreter, name: str) -> None:
    given = written()
    given[name] = given[name][:-1]
    with pytest.raises(RuntimeError, match="do not fit together"):
        interpreted(WRITE, *given.values())
