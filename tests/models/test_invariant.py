"""A token's bits do not depend on its neighbours: product by product, and for whole models."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepweave.backends.tape.arrange import Pool
from stepweave.backends.tape.recording import Tape
from stepweave.models import invariant
from stepweave.models.cancelling import cancelling
from stepweave.models.causal_lm import CausalLM
from stepweave.models.invariant import (
    elementwise,
    linear,
    make_invariant,
    matmul,
    proven_tiles,
    tile_plan,
    undo_invariant,
)
from stepweave.models.products import product
from stepweave.testing.models import FAMILIES, tiny_model
from tests.models.paged_rows import PagedRows

EXACT = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", [*EXACT, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_of_a_product_has_the_same_bits_among_any_others(
    dtype: torch.dtype, threads: int
) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(3)
    for k, n in [(64, 96), (37, 50), (256, 63), (8, 8)] if threads == 1 else [(37, 50)]:
        weight = torch.randn(n, k, generator=generator).to(dtype)
        bias = torch.randn(n, generator=generator).to(dtype)
        x = torch.randn(200, k, generator=generator).to(dtype)
        by_linear, by_matmul = linear(x, weight, bias), matmul(x, weight.T)
        torch.testing.assert_close(by_linear, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
        for count in (1, 2, 3, 7, 8, 9, 31, 33, 130):
            start = count % 11
            part = x[start : start + count]
            assert torch.equal(linear(part, weight, bias), by_linear[start : start + count])
            assert torch.equal(matmul(part, weight.T), by_matmul[start : start + count])
        assert linear(x[:0], weight).shape == (0, n)
        assert linear(x.view(2, 4, 25, k), weight, bias).shape == (2, 4, 25, n)


def test_plain_products_are_not_invariant_here_or_the_tests_prove_nothing() -> None:
    weight, x = torch.randn(64, 64), torch.randn(64, 64)
    whole = F.linear(x, weight)
    assert any(not torch.equal(F.linear(x[:n], weight), whole[:n]) for n in range(1, 64))


def test_tiles_that_give_other_bits_are_not_used() -> None:
    rows = torch.randn(128, 4)

    def by_size(x: Tensor) -> Tensor:
        return x * (1.0 if len(x) in (8, 16, 48) else 1.0 + 1e-6)

    def by_place(x: Tensor) -> Tensor:
        return x + torch.arange(len(x))[:, None]

    def only_if_shifted(x: Tensor) -> Tensor:
        return x if len(x) < 64 else by_place(x) - torch.arange(len(x))[:, None] % 2

    assert proven_tiles(by_size, rows, invariant.TILES[3:]) == (8, 16, 48)
    assert proven_tiles(by_place, rows, invariant.TILES) == (1,)
    assert max(proven_tiles(only_if_shifted, rows, invariant.TILES)) == 48


def tried(multiply: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> tuple[int, ...]:
    form = invariant._Form("of a test", lambda rows, weight, bias: multiply(rows, weight), 1)
    return invariant._try_tiles(form, weight, None)


def test_the_smallest_tiles_are_left_out_where_no_larger_one_agrees_with_them() -> None:
    def small_in_another_way(x: Tensor, weight: Tensor) -> Tensor:
        return x * (1.0 if len(x) > 4 else 1.0 + 1e-6)

    weight = torch.randn(4, 4)
    assert tried(small_in_another_way, weight) == invariant.TILES[3:]
    assert tried(lambda x, weight: x, weight) == invariant.TILES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_another_order_of_sums_is_seen_through_rounded_results(dtype: torch.dtype) -> None:
    def in_two_orders(x: Tensor, weight: Tensor) -> Tensor:
        terms = x.float()[:, None] * weight.float()
        cut = 300 if len(x) < 24 else 299
        return (terms[..., :cut].sum(-1) + terms[..., cut:].sum(-1)).to(x.dtype)

    weight = torch.randn(9, 600).to(dtype)
    assert max(tried(in_two_orders, weight)) == 16


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(70, 37),
        torch.randn(37, 70).T,
        torch.randn(70 * 37 + 3)[3:].view(70, 37),
        torch.randn(5, 70, 37).to(torch.bfloat16)[1:, ::2],
    ],
    ids=["plain", "transposed", "elsewhere in a line", "every second line"],
)
def test_what_a_trial_multiplies_lies_as_the_matrix_and_cancels(weight: Tensor) -> None:
    last = weight.dim() - 1
    other, rows = cancelling(weight, last, 6)
    assert (other.shape, other.stride()) == (weight.shape, weight.stride())
    assert other.data_ptr() % 64 == weight.data_ptr() % 64
    assert other.data_ptr() != weight.data_ptr()
    products = rows.double() @ other.double().flatten(0, -2).T
    assert torch.all(products[1::2].abs() < 1e-12)
    assert torch.all(products[::2].abs().amax(-1) > 1)
    assert rows[1::2].abs().amax() > 1


def test_a_matrix_that_cannot_be_copied_in_its_form_is_tried_itself() -> None:
    weight = torch.randn(1, 8).expand(4, 8)
    other, rows = cancelling(weight, 1, 6)
    assert other is weight
    assert rows.abs().amin() > 0, "plain random numbers"


def products_of(monkeypatch: pytest.MonkeyPatch, wrong_from: int) -> list[int]:
    """How many rows are multiplied at a time from now on; so many and more in another order."""
    made: list[int] = []
    own = invariant._LINEAR.multiply

    def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made.append(len(rows))
        out = own(rows, weight, bias)
        return out if len(rows) < wrong_from else out.nextafter(out + 1)

    monkeypatch.setattr(invariant, "_LINEAR", replace(invariant._LINEAR, multiply=multiply))
    monkeypatch.setattr(invariant, "_together", {})
    return made


@pytest.mark.parametrize(
    ("wrong_from", "expected"),
    [(9999, [512, 256, 128, 48]), (400, [256, 256, 256, 128, 48]), (200, [128] * 7 + [48])],
)
def test_whole_tiles_are_one_product_where_it_has_their_bits(
    monkeypatch: pytest.MonkeyPatch, wrong_from: int, expected: list[int]
) -> None:
    weight, x = torch.randn(512, 256), torch.randn(7 * 128 + 40, 256)
    if invariant._proven(invariant._LINEAR, weight, None)[-1] != 128:
        pytest.skip("no products of 128 rows have the bits of fewer here")
    wanted = torch.cat([linear(part, weight) for part in torch.split(x, 128)])
    for many in (256, 512):
        if not torch.equal(product(x[:many], weight), wanted[:many]):
            pytest.skip(f"products of {many} rows do not have the bits of fewer here")
    made = products_of(monkeypatch, wrong_from)
    linear(x, weight)  # tries
    made.clear()
    assert torch.equal(linear(x, weight), wanted)
    assert made == expected


@pytest.mark.parametrize("bias", [None, torch.full((512,), 1e9)], ids=["no bias", "large bias"])
@pytest.mark.parametrize("first", ["zeros", "one number in each sum", "as they are"])
def test_weights_that_show_no_order_do_not_decide_for_others(
    monkeypatch: pytest.MonkeyPatch, first: str, bias: Tensor | None
) -> None:
    """As of a library that, with many rows, adds every second product first."""

    def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if len(rows) < 200:
            return own(rows, weight, bias)
        even = rows.clone()
        even[:, 1::2] = 0
        made = own(even, weight, None) + own(rows - even, weight, None)
        return made if bias is None else made + bias

    weight, x = torch.randn(512, 256), torch.randn(256, 256)
    if invariant._proven(invariant._LINEAR, weight, bias)[-1] != 128:
        pytest.skip("no products of 128 rows have the bits of fewer here")
    own = invariant._LINEAR.multiply
    monkeypatch.setattr(invariant, "_LINEAR", replace(invariant._LINEAR, multiply=multiply))
    monkeypatch.setattr(invariant, "_together", {})
    other = {
        "zeros": torch.zeros(512, 256),
        "one number in each sum": torch.eye(512, 256),
        "as they are": torch.randn(512, 256),
    }[first]
    linear(x, other, bias)
    assert [*invariant._together.values()] == [False]
    small = None if bias is None else torch.randn(512)
    assert torch.equal(linear(x, weight, small)[:128], linear(x[:128], weight, small))


def test_what_tries_whole_tiles_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x, out = torch.randn(512, 256), torch.randn(256, 256), torch.empty(256, 512)
    monkeypatch.setattr(invariant, "_together", {})
    linear(x[:128], weight)
    tape = Tape(Pool())
    with torch.inference_mode(), tape.capture():
        out.copy_(linear(x, weight))
    assert tape.refused is None
    assert tape.size <= 4, "a product and a copy, or two products that are joined"
    assert invariant._together


@pytest.mark.parametrize("rows", range(1, 1100, 13))
def test_tiles_cover_the_rows_with_little_padding(rows: int) -> None:
    larger = (*invariant.TILES, 256, 512)
    for tiles in (invariant.TILES, larger):
        plan = tile_plan(rows, tiles)
        assert set(plan) <= set(tiles)
        assert rows <= sum(plan) <= max(rows * 1.5, rows + 7)
    assert len(tile_plan(rows, larger)) <= rows // 512 + 3
    assert len(tile_plan(rows, (1,))) == rows


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("function", [F.silu, F.gelu, torch.sigmoid, F.softplus, torch.tanh])
def test_an_element_has_the_same_bits_in_any_place(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = torch.randn(1000, dtype=dtype) * 3
    whole = elementwise(function, x)
    torch.testing.assert_close(whole, function(x))
    for start, stop in [(0, 1), (3, 10), (100, 163), (5, 1000), (999, 1000)]:
        assert torch.equal(elementwise(function, x[start:stop]), whole[start:stop])
    assert torch.equal(elementwise(function, x.view(10, 100).T), whole.view(10, 100).T)
    assert elementwise(function, x[:0]).shape == (0,)


def test_each_thread_gets_whole_vectors() -> None:
    for threads in (1, 2, 3, 5, 12, 64):
        for size in (1, 64, 16384, 16385, 32768, 32769, 100_000, 1_000_003):
            padded = invariant._aligned_size(size, threads)
            shares = min(threads, -(-padded // 32768))
            assert padded >= size
            assert padded % (64 * shares) == 0
            assert padded <= 16384 or padded % (64 * threads) == 0, "gelu gives all threads a share"


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_gives_an_element_the_same_bits_in_each_threads_share(
    approximate: str, threads: int
) -> None:
    function = partial(F.gelu, approximate=approximate)
    some = torch.randn(4096, dtype=torch.float64) * 3
    left_over = torch.cat([function(each) for each in torch.split(some, 1)])
    differ = (left_over != function(some)).nonzero()
    if not len(differ):
        pytest.skip("elements that are left over have the bits of the others here")
    value, wanted = some[differ[0]], function(some)[differ[0]]
    torch.set_num_threads(threads)
    for size in (16_000, 20_000, 40_000, 65_536, 200_000):
        assert torch.equal(elementwise(function, value.repeat(size)), wanted.repeat(size))


class Experts(nn.Module):
    """Products and activations called as functions, on parameters of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 16, 24))
        self.down = nn.Parameter(torch.randn(24, 16))
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.bmm(x.expand(3, -1, -1), self.up).sum(0)
        wide = F.silu(wide) * wide.sigmoid() + torch.exp(-wide.abs())
        out = torch.addmm(self.bias, wide, self.down)
        return out + wide @ self.down + F.linear(wide, self.down.T)


def test_blocks_that_multiply_by_their_own_parameters_are_covered() -> None:
    torch.manual_seed(0)
    experts = Experts()
    x = torch.randn(50, 16)
    plain = experts(x)
    make_invariant(experts)
    make_invariant(experts)
    whole = experts(x)
    torch.testing.assert_close(whole, plain, rtol=1e-4, atol=1e-4)
    for start, stop in [(0, 1), (4, 6), (9, 50), (49, 50)]:
        assert torch.equal(experts(x[start:stop]), whole[start:stop])
    undo_invariant(experts)
    assert torch.equal(experts(x), plain)
    assert "forward" not in experts.__dict__


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("dtype", EXACT, ids=["float32", "float64"])
def test_logits_have_the_same_bits_in_every_schedule(family: str, dtype: torch.dtype) -> None:
    lm = CausalLM.wrap(tiny_model(family, 2, dtype))
    draw = random.Random(7)
    texts = {name: [draw.randrange(96) for _ in range(40)] for name in "abcd"}
    alone = {name: PagedRows(lm).feed((name, text))[0] for name, text in texts.items()}
    for seed in range(3):
        rows = PagedRows(lm, block_size=draw.choice([3, 4, 16]), seed=seed)
        while pending := [n for n in texts if len(rows.tokens.get(n, [])) < len(texts[n])]:
            chunks: list[tuple[str, list[int]]] = []
            for name in draw.sample(pending, draw.randint(1, len(pending))):
                done = len(rows.tokens.get(name, []))
                chunks.append((name, texts[name][done : done + draw.choice([1, 2, 4, 4, 19])]))
            begun = {name: len(rows.tokens.get(name, [])) for name, _ in chunks}
            got = rows.feed(*chunks, masked=draw.choice([0, 3]), spare_blocks=draw.choice([0, 30]))
            for (name, new), logits in zip(chunks, got, strict=True):
                start = begun[name]
                assert torch.equal(logits, alone[name][start : start + len(new)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "config", [{}, {"hidden_size": 52, "intermediate_size": 77, "vocab_size": 97, "head_dim": 6}]
)
def test_bits_hold_for_odd_widths_and_two_threads(config: dict[str, Any]) -> None:
    torch.set_num_threads(2)
    lm = CausalLM.wrap(tiny_model("llama", 5, **config))
    text = [t % 96 for t in range(3, 90, 5)]
    alone = PagedRows(lm).feed(("a", text))[0]
    rows = PagedRows(lm)
    first = rows.feed(("b", text[:9]), ("a", text[:7]))[1]
    rest = rows.feed(("a", text[7:]), ("b", text[9:10]))[0]
    assert torch.equal(torch.cat([first, rest]), alone)


@pytest.mark.parametrize(
    ("narrow", "wide", "tried"),
    [
        (2, 1, (1, 2, 4)),  # the narrow ones pad a row for themselves
        (4, 1, (1, 4)),
        (1, 2, (2, 4)),
        (1, 1, (1, 4)),
        (8, 8, (8,)),
    ],
)
def test_a_pass_is_as_small_as_most_of_the_weights_allow(
    narrow: int, wide: int, tried: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 256))
    make_invariant(model)

    def proven(form: object, weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
        smallest = narrow if len(weight) == 64 else wide
        return tuple(tile for tile in invariant.TILES if tile >= smallest)

    monkeypatch.setattr(invariant, "_proven", proven)
    assert invariant.least_tiles(model) == tried
