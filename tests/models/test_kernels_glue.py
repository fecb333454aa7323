"""The kernels between the products of a layer, in Triton's interpreter, against plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stepweave.models.kernels.forms import Angles, Norm
from stepweave.nodes.ops import places
from tests.models.interpreter import Interpreter
from tests.models.layouts import LAYOUTS, Mixed

WRITTEN = ("keys", "values")
EPSILON = 1e-5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- the textbook, and the kernels by the same names; both in the process that they are called in


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def added(x: Tensor, addend: Tensor, weight: Tensor, inner: Tensor, index: Tensor) -> Any:
    live = index >= 0
    total = (x + normed(addend, inner))[index].masked_fill(~live[:, None], 0)
    return total, normed(total, 1 + weight)


def _added(x: Tensor, addend: Tensor, weight: Tensor, inner: Tensor, index: Tensor) -> Any:
    from stepweave.models.kernels.add_norm import add_norm

    norm, within = Norm(weight, EPSILON, offset=True), Norm(inner, EPSILON)
    return add_norm(x, addend, norm, inner=within, index=index, live=index)


def turned(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, index: Tensor) -> Tensor:
    """By rotating halves of what the angles reach."""
    x = x if weight is None else normed(x, weight)
    reach = cos.shape[1]
    left, right = x[..., :reach].chunk(2, dim=-1)
    cos, sin = (each[index.clamp(min=0)][:, None] for each in (cos, sin))
    first = x[..., :reach] * cos + torch.cat([-right, left], dim=-1) * sin
    return torch.cat([first, x[..., reach:]], dim=-1)


def rotated(**given: Tensor) -> Any:
    cos, sin, index, weight = (given[each] for each in ("cos", "sin", "index", "weight"))
    keys, values = given["keys"].clone(), given["values"].clone()
    keys[given["slots"]] = turned(given["k"], cos, sin, 2 * weight, index)
    values[given["slots"]] = given["v"]
    return turned(given["query"], cos, sin, weight, index), keys, values


def _rotated(**given: Tensor) -> Any:
    from stepweave.models.kernels.rotate import rotate

    out = rotate(
        given["query"],
        given["k"],
        given["v"],
        Angles(given["cos"], given["sin"], given["index"]),
        given["keys"],
        given["values"],
        given["slots"],
        norms=(Norm(given["weight"], EPSILON), Norm(2 * given["weight"], EPSILON)),
    )
    return out, given["keys"], given["values"]


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    from stepweave.models.kernels.gate import gated

    return gated(gate, up, "silu")


def spread(logits: Tensor, vocabulary: Tensor) -> Tensor:
    every = torch.full((len(logits), 1200), -torch.inf, dtype=logits.dtype)
    return every.index_copy_(1, vocabulary, logits)


def _spread(logits: Tensor, vocabulary: Tensor) -> Tensor:
    from stepweave.models.kernels.spread import spread

    device = vocabulary.device
    found = torch.full((1200,), -1, device=device)
    found.index_copy_(0, vocabulary.long(), torch.arange(len(vocabulary), device=device))
    return spread(logits, found)


def slots(tables: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    found = [
        [int(tables[row, p // 4]) * 4 + p % 4 if p >= 0 else 0 for p in line]
        for row, line in zip(rows.tolist(), positions.tolist(), strict=True)
    ]
    return torch.tensor(found)


def _slots(tables: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    from stepweave.models.kernels.places import slots_of

    return slots_of(tables, positions, 4, rows)


REACH = 22


def ahead(tables: Tensor, first: Tensor, limits: Tensor) -> Any:
    lines = [
        [(p, p if p < REACH and j < most else -1) for j, p in enumerate(range(start, start + 3))]
        for start, most in zip(first.tolist(), limits.tolist(), strict=True)
    ]
    positions, masked = torch.tensor(lines).unbind(-1)
    every = torch.arange(len(first))
    return positions, masked, slots(tables, every, masked), (positions < REACH).sum(1)


def _ahead(tables: Tensor, first: Tensor, limits: Tensor) -> Any:
    from stepweave.models.kernels.places import ahead

    return ahead(tables, first, 3, 4, REACH, limits)


def _chosen(*given: Any) -> Any:
    return places.ahead(*given)


def arguments(
    width: int, heads: int, head: int, turned: int, hidden: int
) -> dict[str, dict[str, Tensor]]:
    """Of tokens of `width` numbers; of `heads` of so many, of which some are turned; of an MLP."""
    return {
        "added": {
            "x": random(5, width),
            "addend": random(5, width, seed=1),
            "weight": random(width, seed=2),
            "inner": random(width, seed=3),
            "index": torch.tensor([3, -1, 0]),
        },
        "rotated": {
            "query": random(3, heads, head),
            "k": random(3, 2, head, seed=1),
            "v": random(3, 2, head - 2, seed=2),
            "cos": random(7, turned, seed=3),
            "sin": random(7, turned, seed=4),
            "index": torch.tensor([6, -1, 0]),
            "weight": random(head, seed=5),
            "keys": random(8, 2, head, seed=6),
            "values": random(8, 2, head - 2, seed=7),
            "slots": torch.tensor([4, 7, 5]),
        },
        "gated": {"gate": random(2, hidden), "up": random(2, hidden, seed=1)},
        "spread": {"logits": random(2, 5), "vocabulary": torch.tensor([0, 3, 7, 600, 1199])},
        "slots": {
            "tables": torch.arange(2, 26).view(4, 6),
            "rows": torch.tensor([3, 0]),
            "positions": torch.tensor([[5, -1, 0], [23, 4, 1]]),
        },
        "ahead": {
            "tables": torch.arange(2, 32).view(5, 6),
            "first": torch.tensor([2, 5, 20, 21, 6]),
            "limits": torch.tensor([3, 1, 2, 3, 0]),
        },
    }


ARGUMENTS = arguments(48, 9, 12, 8, 1100)
REFUSED = [("keys", "expanded"), ("values", "expanded"), ("slots", "expanded")]
REFUSED += [("vocabulary", "expanded")]


def check(interpreted: Interpreter, name: str, given: dict[str, Tensor]) -> None:
    plain = {each: x.clone(memory_format=torch.contiguous_format) for each, x in given.items()}
    wanted, found = globals()[name](**plain), interpreted(f"{__name__}:_{name}", **given)
    many = isinstance(wanted, tuple)
    for one, other in zip(wanted if many else [wanted], found if many else [found], strict=True):
        torch.testing.assert_close(other, one, rtol=2e-5, atol=2e-5, check_dtype=False)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_they_compute_what_torch_does_however_the_arguments_lie(
    interpreted: Interpreter, name: str
) -> None:
    check(interpreted, name, ARGUMENTS[name])
    for layout in LAYOUTS:
        lie = {
            each: x if (each, layout) in REFUSED else LAYOUTS[layout](x)
            for each, x in ARGUMENTS[name].items()
        }
        check(interpreted, name, lie)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", ARGUMENTS)
def test_layouts_and_integers_may_be_mixed(interpreted: Interpreter, name: str, seed: int) -> None:
    whole = [each for each, x in ARGUMENTS[name].items() if not x.dtype.is_floating_point]
    mixed = Mixed.of(ARGUMENTS[name], seed, [each for each in whole if each != "slots"], REFUSED)
    wanted = globals()[name](**mixed.plain)
    found = interpreted(f"{__name__}:_{name}", **mixed.given)
    many = isinstance(wanted, tuple)
    for one, other in zip(wanted if many else [wanted], found if many else [found], strict=True):
        torch.testing.assert_close(
            other, one, rtol=2e-5, atol=2e-5, check_dtype=False, msg=str(mixed)
        )


def _wide(dtype: torch.dtype, offset: bool, rounds: bool) -> Any:
    from stepweave.models.kernels.add_norm import add_norm

    x, addend, weight = (random(2, 5000, seed=seed).to(dtype) for seed in range(3))
    form = Norm(weight[0], EPSILON, offset, rounds)
    wanted = (x + addend).to(dtype).float()
    scaled = wanted * torch.rsqrt(wanted.pow(2).mean(-1, keepdim=True) + EPSILON)
    scaled = scaled.to(dtype).float() if rounds else scaled
    return (*add_norm(x, addend, form), wanted, scaled * (weight[0].float() + offset))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_of_several_blocks_is_normed_as_one(
    interpreted: Interpreter, dtype: torch.dtype
) -> None:
    for offset, rounds in ((False, True), (True, False)):
        total, found, wanted, scaled = interpreted(f"{__name__}:_wide", dtype, offset, rounds)
        tolerance = 1e-5 if dtype == torch.float32 else 0.02
        torch.testing.assert_close(total.float(), wanted, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(found.float(), scaled, rtol=tolerance, atol=tolerance)


def _halved(activations: tuple[str, ...]) -> Any:
    from stepweave.models.kernels.gate import gated
    from stepweave.models.kernels.rotate import rotate

    query, cos, sin = random(2, 1, 6), random(2, 3), random(2, 3, seed=1)
    store, slots = torch.zeros(4, 1, 6), torch.tensor([9, -1])
    store[0, 0, 0] = torch.nan
    broken = query.clone()
    broken[0, 0, 0] = torch.inf
    out = rotate(query, broken, broken, Angles(cos, sin, halved=True), store, store.clone(), slots)
    whole = torch.tensor([3, 2])
    rotate(query, broken, broken, Angles(cos, sin, halved=True), store, store.clone(), whole)
    gate = random(2, 7)
    return (
        out,
        turned(query, cos.repeat(1, 2), sin.repeat(1, 2), None, torch.arange(2)),
        store,
        [
            gated(gate, gate, each)  # type: ignore[arg-type]
            for each in activations
        ],
    )


def test_forms_of_other_families(interpreted: Interpreter) -> None:
    """Angles of one half; a slot outside the cache; what is not finite; other activations."""
    out, wanted, store, gates = interpreted(f"{__name__}:_halved", ("gelu", "gelu_tanh"))
    torch.testing.assert_close(out, wanted)
    assert store[2:].isfinite().all(), "zero takes the place of infinity"
    assert store[2:].count_nonzero() > 6
    assert bool(store[0, 0, 0].isnan())
    assert store[:2].nan_to_num().count_nonzero() == 0, "a slot outside the cache is not written"
    gate = random(2, 7)
    torch.testing.assert_close(gates[0], F.gelu(gate) * gate)
    torch.testing.assert_close(gates[1], F.gelu(gate, approximate="tanh") * gate)


@pytest.mark.parametrize("reach", [None, REACH])
def test_positions_ahead_are_those_of_the_plain_program(
    interpreted: Interpreter, reach: int | None
) -> None:
    tables = torch.randperm(30, generator=torch.Generator().manual_seed(0)).view(5, 6) + 1
    first = torch.tensor([2, 5, 20, 21, 6]) - (0 if reach else 1)
    given = (tables, first, 3, 4, reach, torch.tensor([3, 1, 2, 3, 0]))
    wanted, found = places.ahead(*given), interpreted(f"{__name__}:_chosen", *given)
    for one, other in zip(wanted, found, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("added", "addend"),
        ("rotated", "cos"),
        ("rotated", "slots"),
        ("gated", "up"),
        ("slots", "rows"),
        ("ahead", "tables"),
        ("ahead", "limits"),
    ],
)
def test_what_does_not_fit_is_refused(interpreted: Interpreter, name: str, argument: str) -> None:
    given = {**ARGUMENTS[name], argument: ARGUMENTS[name][argument][:-1]}
    with pytest.raises(RuntimeError, match=r"ValueError: .* (fit together|is \(\d+.*\), not)"):
        interpreted(f"{__name__}:_{name}", **given)
