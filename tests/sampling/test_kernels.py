"""The sampling kernels in Triton's interpreter, bit for bit against the torch functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends.kernels import KernelsUnavailable
from stepweave.sampling.cuts import cut
from stepweave.sampling.draw import draw, filtered_log_probs
from stepweave.sampling.noise import _gumbel_from_words, gumbel, uniform
from stepweave.sampling.stand_ins import StandIns, widened
from stepweave.sampling.verification import coupled
from stepweave.sampling.windows import Windows
from stepweave.structured.bitmask import apply_bitmask
from tests.models.interpreter import Interpreter
from tests.sampling import kernel_cases
from tests.sampling.kernel_cases import EXTREMES, generator, logits, masks
from tests.shares import one_in

KERNELS = "stepweave.sampling.kernels"
SHAPES = [(1, 7), (6, 1000), (5, 1024), (6, 2500)]
INF = float("inf")


def same(one: Tensor, other: Tensor) -> bool:
    """Equal bits; a NaN is a NaN."""
    return torch.equal(one.nan_to_num(nan=1234.5), other.nan_to_num(nan=1234.5))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("lines", "vocab"), SHAPES)
def test_the_best_token_is_that_of_argmax(
    interpreted: Interpreter, lines: int, vocab: int, dtype: torch.dtype
) -> None:
    x, bits = logits(lines, lines, vocab, dtype), masks(lines, lines, vocab)
    argmax = f"{KERNELS}.choose:argmax"
    assert torch.equal(interpreted(argmax, x), x.argmax(dim=-1))
    assert torch.equal(interpreted(argmax, x, bits), apply_bitmask(x, bits).argmax(dim=-1))


def test_of_equal_tokens_the_first_wins_in_every_tile(interpreted: Interpreter) -> None:
    x = torch.full((16, 3000), -1.0)  # so many lines that one program looks at all of a line
    x[1, [1500, 2524]] = x[2, [476, 1500, 2999]] = 1.0
    assert interpreted(f"{KERNELS}.choose:argmax", x).tolist() == [0, 1500, 476, *[0] * 13]


def test_lines_may_lie_apart(interpreted: Interpreter) -> None:
    x = logits(3, 6, 150)[:, :100]
    assert torch.equal(interpreted(f"{KERNELS}.choose:argmax", x), x.argmax(dim=-1))
    columns = logits(3, 100, 6).T
    assert torch.equal(interpreted(f"{KERNELS}.choose:argmax", columns), columns.argmax(dim=-1))


@pytest.mark.parametrize("only", [0, 31, 32, 1023, 1024, 1499])
def test_the_only_allowed_token_is_the_best(interpreted: Interpreter, only: int) -> None:
    x = torch.linspace(5, -5, 1500)[None]
    x[0, only] = -30.0
    bits = torch.zeros(1, 47, dtype=torch.int32)
    bits[0, only // 32] = torch.tensor(1 << (only % 32)).to(torch.int32)
    assert interpreted(f"{KERNELS}.choose:argmax", x, bits).tolist() == [only]


@pytest.mark.parametrize("what", ["shape", "dtype"])
def test_a_mask_that_does_not_fit_is_refused(interpreted: Interpreter, what: str) -> None:
    bits = torch.full((2, 3 - (what == "shape")), -1, dtype=torch.int32)
    bits = bits.long() if what == "dtype" else bits
    for function in ("choose:argmax", "mask:apply_bitmask"):
        with pytest.raises(RuntimeError, match="a mask of logits"):
            interpreted(f"{KERNELS}.{function}", torch.zeros(2, 70), bits)
        with pytest.raises(RuntimeError, match="a mask of logits"):
            interpreted(f"{KERNELS}.{function}", torch.zeros(2, 70), bits, torch.tensor([1, 0]))


@pytest.mark.parametrize(("width", "dtype"), one_in(2, [1, 3], [torch.float32, torch.bfloat16]))
def test_each_line_looks_its_mask_up_and_lines_without_one_are_open(
    interpreted: Interpreter, width: int, dtype: torch.dtype
) -> None:
    """In every kernel that reads masks, and in torch; one mask is nobody's."""
    rows, vocab = 4, 1100
    lines = rows * width
    x, bits = logits(2, lines, vocab, dtype), masks(5, 2 * width + 1, vocab)
    whose = torch.full((rows, width), -1)
    whose[2], whose[0] = torch.arange(width), torch.arange(width) + width
    whose = whose.flatten()
    full = torch.where((whose < 0)[:, None], -1, bits[whose])
    wanted = apply_bitmask(x, full)
    assert not same(wanted, x)
    assert same(apply_bitmask(x, bits, whose), wanted)
    for in_place in (False, True):
        name = f"{KERNELS}.mask:apply_bitmask"
        assert same(interpreted(name, x.clone(), bits, whose, in_place=in_place), wanted)
    best = interpreted(f"{KERNELS}.choose:argmax", x, bits, whose)
    assert torch.equal(best, wanted.argmax(dim=-1))
    temperature = torch.linspace(0, 2, lines).double()
    scaled = f"{KERNELS}.scale:scaled"
    found = interpreted(scaled, x, temperature, bits, whose)
    assert same(found, interpreted(scaled, wanted, temperature))
    key = torch.arange(lines)
    drawn = f"{KERNELS}.choose:sample"
    found = interpreted(drawn, x, temperature, None, key, key, 0, bits, whose)
    assert torch.equal(found, interpreted(drawn, wanted, temperature, None, key, key, 0))
    drafts, valid = torch.full((rows, width - 1), 3), torch.full((rows,), width - 1)
    of_rows = (drafts, valid, key[:rows], key[:rows], torch.linspace(0, 1, rows).double())
    coupled_windows = f"{KERNELS}.verify:coupled"
    shape = (rows, width, vocab)
    found = interpreted(
        coupled_windows, x.view(shape), bits, *of_rows, lines=whose.view(rows, width)
    )
    wanted_windows = interpreted(coupled_windows, wanted.view(shape), None, *of_rows)
    for one, other in zip(found, wanted_windows, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("masked", "width", "dtype"), one_in(3, [False, True], [1, 3], [torch.float32, torch.bfloat16])
)
def test_each_line_looks_up_what_stands_in_for_it(
    interpreted: Interpreter, masked: bool, width: int, dtype: torch.dtype
) -> None:
    """In every kernel that does, as if the logits had been edited; a broken line shows."""
    rows, vocab = 4, 1100
    lines = rows * width
    x, edits = logits(6, lines, vocab, dtype), logits(7, 6, vocab)[: 2 * width] + 0.3
    bits = masks(5, lines, vocab) if masked else None
    which = torch.full((rows, width), -1)
    which[2], which[0] = torch.arange(width), torch.arange(width) + width
    stand_ins = StandIns(edits.view(2, width, vocab), torch.tensor([2, 0]), which)
    wanted = widened(x, stand_ins)
    assert not same(wanted, x.float())
    assert same(wanted[:width], edits[width : 2 * width])
    assert same(wanted[width : 2 * width], x[width : 2 * width].float())
    temperature = torch.linspace(0, 2, lines).double()
    scaled = f"{KERNELS}.scale:scaled"
    found = interpreted(scaled, x, temperature, bits, stand_ins=stand_ins)
    assert same(found, interpreted(scaled, wanted, temperature, bits))
    key = torch.arange(rows)
    drafts, valid = torch.full((rows, width - 1), 3), torch.full((rows,), width - 1)
    of_rows = (drafts, valid, key, key, torch.linspace(0, 1, rows).double())
    for any_random in (False, True):
        found, expected = (
            interpreted(
                f"{KERNELS}.verify:coupled",
                scores.view(rows, width, vocab),
                bits,
                *of_rows,
                stand_ins=instead,
                any_random=any_random,
            )
            for scores, instead in ((x, stand_ins), (wanted, None))
        )
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_mask_closes_what_it_should(
    interpreted: Interpreter, dtype: torch.dtype, in_place: bool
) -> None:
    x, bits = logits(1, 6, 1100, dtype), masks(1, 6, 1100)
    found = interpreted(f"{KERNELS}.mask:apply_bitmask", x, bits, in_place=in_place)
    assert found.dtype == dtype
    assert same(found, apply_bitmask(x, bits))


def test_a_mask_closes_what_the_kernel_of_xgrammar_closes(interpreted: Interpreter) -> None:
    """But where a model is broken: there theirs writes over a NaN, which ours lets show."""
    x, bits = logits(1, 6, 1100), masks(1, 6, 1100)
    theirs = interpreted("tests.sampling.kernel_cases:masked_by_xgrammar", x, bits)
    ours = interpreted(f"{KERNELS}.mask:apply_bitmask", x, bits)
    broken = x.isnan()
    assert torch.equal(ours.masked_fill(broken, 0.0), theirs.masked_fill(broken, 0.0))
    assert int(ours.isnan().sum()) > int(theirs.isnan().sum()) > 0


@pytest.mark.parametrize("purpose", [0, 2, 5])
def test_noise_has_the_bits_of_the_reference(interpreted: Interpreter, purpose: int) -> None:
    positions = torch.tensor([0, 1, -1, 2**32 - 1, 2**32 + 5, 2**40, 12345, -(2**31)])
    found = interpreted(
        "tests.sampling.kernel_cases:noise", EXTREMES, positions, purpose, vocab := 143
    )
    expected = gumbel(EXTREMES, positions, purpose, vocab)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("count", [0, 1, 8, 300])
def test_uniform_numbers_have_the_bits_of_the_reference(
    interpreted: Interpreter, count: int
) -> None:
    seeds, positions = (EXTREMES.repeat(40)[:count] for _ in range(2))
    positions = positions.flip(0)
    for purpose in (1, torch.arange(count) % 4):
        found = interpreted("stepweave.sampling.noise:uniform", seeds, positions, purpose)
        assert torch.equal(found, uniform(seeds, positions, purpose))


def test_noise_of_the_words_at_the_ends_is_exact_and_within_its_bounds(
    interpreted: Interpreter,
) -> None:
    ends = torch.tensor([0, 1, 2, 127, 128, 2**24 + 1, 2**31 - 1, 2**31])
    words = torch.cat([ends, 2**32 - 1 - ends])
    found = interpreted("tests.sampling.noise_tiles:of_words", words)
    expected = _gumbel_from_words(words.to(torch.float32))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    # The bounds that decide which tiles need no noise.
    assert -2.82 < float(found.min()) < -2.80
    assert 22.86 < float(found.max()) < 22.88


@pytest.mark.parametrize(("lines", "vocab"), SHAPES)
def test_a_draw_is_that_of_the_reference(interpreted: Interpreter, lines: int, vocab: int) -> None:
    log_probs = logits(lines, lines, vocab).log_softmax(dim=-1)
    log_probs[-1] = -7.0  # only the noise decides
    seeds, positions = EXTREMES[:lines], EXTREMES.flip(0)[:lines]
    greedy = torch.arange(lines) % 3 == 2
    for purpose in (1, torch.arange(lines) % 4):
        found = interpreted(f"{KERNELS}.choose:draw", log_probs, seeds, positions, greedy, purpose)
        assert torch.equal(found, draw(log_probs, seeds, positions, greedy, purpose))


def test_a_closed_line_is_drawn_like_the_reference(interpreted: Interpreter) -> None:
    closed = torch.full((2, 1030), -INF)
    closed[1, 1029] = -80.0
    some = EXTREMES[:2]
    greedy = torch.zeros(2, dtype=torch.bool)
    found = interpreted(f"{KERNELS}.choose:draw", closed, some, some, greedy, 0)
    assert found.tolist() == [0, 1029] == draw(closed, some, some, greedy, 0).tolist()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(6))
def test_a_draw_straight_from_logits_is_that_of_filtered_ones(
    interpreted: Interpreter, case: int
) -> None:
    rows, width, vocab = 4, 2, (1100, 33)[case % 2]
    x = torch.randn(rows * width, vocab, generator=generator(case)) * (1, 4, 0.01)[case % 3]
    x[0, 4] = 9.0  # the others are far below, yet win now and then
    bits = masks(case, rows * width, vocab) if case > 2 else None
    temperature = torch.tensor([1.5, 0.0, 1e-45, 0.9], dtype=torch.float64)
    min_p = torch.tensor([0.0, 0.5, 0.0, 0.2], dtype=torch.float64) if case % 2 else None
    seeds = EXTREMES[:rows] + case
    positions = EXTREMES.flip(0)[:rows]
    found, counts = interpreted(
        f"{KERNELS}.verify:coupled",
        x.view(rows, width, vocab),
        bits,
        torch.full((rows, width - 1), vocab),
        torch.full((rows,), width),
        seeds,
        positions,
        temperature,
        min_p=min_p,
    )
    assert counts.tolist() == [1] * rows

    def each(setting: Tensor) -> Tensor:
        return setting.repeat_interleave(width)

    masked = x if bits is None else apply_bitmask(x, bits)
    scores = filtered_log_probs(
        masked,
        each(temperature),
        each(0 * seeds),
        torch.ones(rows * width),
        min_p=None if min_p is None else each(min_p),
        any_top_k=False,
        any_top_p=False,
        normalized=False,
    )
    first = slice(None, None, width)
    expected = draw(scores[first], seeds, positions, temperature == 0, 0)
    assert torch.equal(found[:, 0], expected)


def test_improbable_tokens_win_as_often_as_in_the_reference(interpreted: Interpreter) -> None:
    lines, vocab = 12, 2100
    x = torch.zeros(lines, vocab)
    x[:, 5] = 7.5
    seeds, positions = torch.arange(lines), torch.arange(lines)
    temperature = torch.ones(lines)
    tokens = interpreted(
        f"{KERNELS}.choose:sample", x, temperature, None, seeds, positions, purpose := 4
    )
    expected = draw(x - 7.5, seeds, positions, temperature == 0, purpose)
    assert torch.equal(tokens, expected)
    assert 0 < int((expected == 5).sum()) < lines


def test_min_p_cuts_what_is_below_it_and_not_what_is_at_it(interpreted: Interpreter) -> None:
    lines = 24
    x = torch.full((lines, 50), -0.7)
    x[:, 3] = 0.0
    x[:, 7] = torch.tensor(0.5).log()
    half, key = torch.full((lines,), 0.5), torch.arange(lines)
    found = interpreted(f"{KERNELS}.choose:sample", x, 2 * half, half, key, key, 0)
    assert set(found.tolist()) == {3, 7}
    allowed = x.masked_fill(x < x[:, 7:8], -INF)
    assert torch.equal(found, draw(allowed, key, key, half < 0, 0))


@pytest.mark.parametrize("masked", [False, True])
def test_scaled_logits_are_those_of_the_reference(interpreted: Interpreter, masked: bool) -> None:
    lines, vocab = 6, 1100
    x = logits(4, lines, vocab)
    bits = masks(4, lines, vocab) if masked else None
    temperature = torch.tensor([1.0, 0.0, 0.3, 0.0, 1e-45, 2.7], dtype=torch.float64)
    found = interpreted(f"{KERNELS}.scale:scaled", x, temperature, bits)
    expected = filtered_log_probs(
        x if bits is None else apply_bitmask(x, bits),
        temperature,
        torch.zeros(lines, dtype=torch.int64),
        torch.ones(lines),
        any_top_k=False,
        any_top_p=False,
        normalized=False,
    )
    assert same(found, expected)


@pytest.mark.parametrize(("seed", "any_random"), one_in(2, range(3), [True, False]))
def test_windows_are_verified_as_the_reference_does(
    interpreted: Interpreter, seed: int, any_random: bool
) -> None:
    arguments = kernel_cases.verified(seed, any_random=any_random)
    tokens, counts = interpreted(
        f"{KERNELS}.verify:coupled_scores", *arguments, any_random=any_random
    )
    expected = coupled(Windows(*arguments, any_random=any_random))
    assert torch.equal(tokens, expected.tokens)
    assert torch.equal(counts, expected.counts)
    assert len(set(counts.tolist())) > 1  # some drafts are kept, some are not


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rule", "greedy", "masked", "edit"),
    [
        ("coupled", True, True, "none"),
        ("coupled", True, True, "bans"),
        ("coupled", True, False, "biases"),
        ("coupled", False, True, "none"),
        ("coupled", False, True, "biases"),
        ("coupled", False, False, "none"),
        ("rejection", False, True, "none"),
        ("rejection", True, True, "none"),
        ("synthetic", False, True, "bans"),
        ("coupled", True, True, "some biases"),
        ("coupled", False, True, "some penalties and bans"),
        ("rejection", False, True, "some penalties and bans"),
        ("rejection", True, False, "some biases"),
    ],
)
def test_a_step_samples_the_same_with_and_without_kernels(
    interpreted: Interpreter, rule: str, greedy: bool, masked: bool, edit: str
) -> None:
    assert interpreted("tests.sampling.kernel_cases:used")
    assert not kernel_cases.used()
    seeds = (0, 1) if masked else (1,)
    for seed in seeds:
        how = {"greedy": greedy, "masked": masked, "edit": edit}
        found = interpreted("tests.sampling.kernel_cases:sampled", seed, rule, **how)
        expected = kernel_cases.sampled(seed, rule, **how)  # type: ignore[arg-type]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_logits_in_half_precision_are_read_as_they_are(interpreted: Interpreter) -> None:
    """Torch makes nothing of their size, but where all requests edit them."""
    made_in = "tests.sampling.kernel_cases:made_in_a_step"
    for edit in ("none", "some biases", "some penalties and bans"):
        tokens, made = interpreted(made_in, torch.bfloat16, edit)
        assert made == []
        assert torch.equal(tokens, kernel_cases.made_in_a_step(torch.bfloat16, edit)[0])
    tokens, made = interpreted(made_in, torch.bfloat16, "biases")
    assert any(name.startswith(("aten.to.", "aten._to_copy")) for name in made)
    assert torch.equal(tokens, kernel_cases.made_in_a_step(torch.bfloat16, "biases")[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("edit", ["none", "bans"])
def test_a_row_is_sampled_the_same_beside_rows_with_top_k(
    interpreted: Interpreter, rule: str, edit: str
) -> None:
    how: dict[str, Any] = {"greedy": False, "masked": True, "edit": edit, "ranks": False}
    found = [
        sampled(0, rule, **how, ranked=ranked)
        for ranked in (True, False)
        for sampled in (
            kernel_cases.sampled,
            partial(interpreted, "tests.sampling.kernel_cases:sampled"),
        )
    ]
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize(("which", "vocab"), one_in(3, ["top-k", "top-p", "both"], [7, 1100, 5000]))
def test_top_k_and_top_p_keep_what_the_reference_keeps(
    interpreted: Interpreter, which: str, vocab: int
) -> None:
    """Settings of all kinds together, ties within a tile and over several, and broken lines."""
    x = logits(vocab, 6, vocab)
    fine = torch.randn(1, vocab, generator=generator(vocab)) * 4
    x = torch.cat([x, fine, torch.zeros(1, vocab)])
    x -= x.gather(1, x.argmax(dim=1, keepdim=True))
    k = torch.tensor([1, 2, 0, 40, vocab, 3, 50, 0]) if which != "top-p" else None
    p = torch.tensor([0.5, 0.0, 0.3, 1.0, 0.99, 0.2, 0.4, 0.97]) if which != "top-k" else None
    p = None if p is None else p.double()
    found = interpreted(f"{KERNELS}.cut:cut", x, k, p, None)
    assert same(found, cut(x, k, p))
    assert 0 < int(found[6].isinf().sum()) < vocab or which == "top-k"


def test_min_p_is_cut_in_the_same_launch(interpreted: Interpreter) -> None:
    x = torch.tensor([[0.0, -0.5, -0.5, -1.5], [-2.0, 0.0, -1.0, -0.5]])
    least = torch.tensor([-0.5, -INF])
    found = interpreted(f"{KERNELS}.cut:cut", x, None, None, least)
    assert found.tolist() == [[0.0, -0.5, -0.5, -INF], [-2.0, 0.0, -1.0, -0.5]]
    found = interpreted(f"{KERNELS}.cut:cut", x, torch.tensor([2, 3]), None, least)
    assert found.tolist() == [[0.0, -0.5, -0.5, -INF], [-INF, 0.0, -1.0, -0.5]]


def test_drafting_and_filtering_use_them_too(interpreted: Interpreter) -> None:
    x = logits(5, 6, 300)[3:]
    options = [torch.tensor(column) for column in ([0.0, 0.5, 1.0], [0, 9, 0], [0.9, 1.0, 0.9])]
    found = interpreted("stepweave.sampling.draw:filtered_log_probs", x, *options)
    assert same(found, filtered_log_probs(x, *options))


def test_the_kernels_take_what_they_can(
    interpreted: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not interpreted("tests.sampling.kernel_cases:used", torch.float64)
    none = torch.empty(0, 5)
    empty = torch.empty(0, dtype=torch.int64)
    found = interpreted("stepweave.sampling.draw:draw", none, empty, empty, empty.bool(), 0)
    assert found.shape == (0,)
    monkeypatch.setenv("STEPWEAVE_KERNELS", "reference")
    assert not kernel_cases.used()
    monkeypatch.setenv("STEPWEAVE_KERNELS", "auto")
    assert not kernel_cases.used()  # on a CPU
    monkeypatch.setenv("STEPWEAVE_KERNELS", "trition")
    with pytest.raises(KernelsUnavailable, match="did you mean 'triton'"):
        kernel_cases.used()
    monkeypatch.setenv("STEPWEAVE_KERNELS", "triton")
    monkeypatch.setattr("stepweave.backends.kernels._installed", lambda: None)
    with pytest.raises(KernelsUnavailable, match="pip install triton"):
        kernel_cases.used()
