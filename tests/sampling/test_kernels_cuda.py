"""The sampling kernels on a GPU: the bits of the CPU, and a capture that replays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.sampling.cuts import cut
from stepweave.sampling.draw import draw
from stepweave.sampling.noise import gumbel, uniform
from stepweave.sampling.verification import coupled
from stepweave.sampling.windows import Windows
from stepweave.structured.bitmask import apply_bitmask
from tests.sampling import kernel_cases
from tests.sampling.kernel_cases import EXTREMES, logits, masks

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from stepweave.sampling.kernels import choose, mask, scale, verify
from stepweave.sampling.kernels.cut import cut as cut_by_kernel

pytestmark = pytest.mark.gpu

VOCAB = 128256


def on_device(*given: Tensor) -> Any:
    return [x.cuda() for x in given]


def test_they_are_used() -> None:
    from stepweave.backends.kernels import runs_on

    assert runs_on(torch.zeros(1, device="cuda"))


@pytest.mark.parametrize("vocab", [VOCAB, 1001])
def test_noise_has_the_bits_of_the_cpu(vocab: int) -> None:
    seeds, positions = on_device(EXTREMES, EXTREMES.flip(0))
    expected = gumbel(EXTREMES, EXTREMES.flip(0), 0, vocab).view(torch.int32)
    for function in (kernel_cases.noise, gumbel):
        found = function(seeds, positions, 0, vocab).cpu()
        assert torch.equal(found.view(torch.int32), expected)


def test_uniform_numbers_have_the_bits_of_the_cpu() -> None:
    seeds, positions = on_device(EXTREMES, EXTREMES.flip(0))
    found = uniform(seeds, positions, 1)
    assert torch.equal(found.cpu(), uniform(EXTREMES, EXTREMES.flip(0), 1))


@pytest.mark.parametrize("lines", [1, 6, 300])
def test_the_best_token_and_the_mask_are_those_of_the_cpu(lines: int) -> None:
    x, bits = logits(lines, lines, VOCAB), masks(lines, lines, VOCAB)
    masked = apply_bitmask(x, bits)
    assert torch.equal(choose.argmax(*on_device(x, bits)).cpu(), masked.argmax(dim=-1))
    found = mask.apply_bitmask(*on_device(x, bits)).cpu()
    assert torch.equal(found.nan_to_num(nan=1.5), masked.nan_to_num(nan=1.5))
    whose = torch.arange(lines) // 2 - 1
    whose[::2] = -1
    masked = apply_bitmask(x, bits, whose)
    for found in (
        mask.apply_bitmask(*on_device(x, bits, whose)),
        apply_bitmask(*on_device(x, bits, whose)),
    ):
        assert torch.equal(found.cpu().nan_to_num(nan=1.5), masked.nan_to_num(nan=1.5))


def test_draws_are_those_of_the_cpu() -> None:
    x = logits(8, 8, VOCAB)
    greedy = torch.arange(8) % 3 == 0
    on_gpu, seeds, where = on_device(x, EXTREMES, greedy)
    found = choose.draw(on_gpu, seeds, seeds, where, 3)
    assert torch.equal(found.cpu(), draw(x, EXTREMES, EXTREMES, greedy, 3))


def test_scaled_logits_have_the_bits_of_the_cpu() -> None:
    x, temperature = logits(9, 8, VOCAB), torch.linspace(0, 2, 8).double()
    found = scale.scaled(*on_device(x, temperature)).cpu()
    best = x.argmax(dim=-1, keepdim=True)
    expected = (x - x.gather(-1, best)) / temperature[:, None].float()
    expected[0] = torch.full((VOCAB,), -torch.inf).index_fill(0, best[0], 0.0)
    assert torch.equal(found.nan_to_num(nan=1.5), expected.nan_to_num(nan=1.5))


@pytest.mark.parametrize("vocab", [VOCAB, 1001])
def test_top_k_and_top_p_keep_what_the_cpu_keeps(vocab: int) -> None:
    fine = torch.randn(4, vocab, generator=kernel_cases.generator(vocab)) * 3
    x = torch.cat([logits(7, 8, vocab), fine])
    x -= x.gather(1, x.argmax(dim=1, keepdim=True))
    top_k = torch.tensor([1, 50, 0, 0, 7, vocab, 3, 900, 0, 50, 1, 0])
    top_p = torch.linspace(0.01, 1.0, 12).double()
    for k, p in ((top_k, None), (None, top_p), (top_k, top_p)):
        k_there, p_there = (None if each is None else each.cuda() for each in (k, p))
        found = cut_by_kernel(x.cuda(), k_there, p_there, None).cpu()
        assert torch.equal(found.nan_to_num(nan=1.5), cut(x, k, p).nan_to_num(nan=1.5))


@pytest.mark.parametrize("any_random", [True, False])
def test_windows_are_verified_as_on_the_cpu(any_random: bool) -> None:
    for seed in range(20):
        arguments = kernel_cases.verified(seed, any_random=any_random)
        found: Any = coupled(Windows(*on_device(*arguments), any_random=any_random))
        expected: Any = coupled(Windows(*arguments, any_random=any_random))
        assert torch.equal(found.tokens.cpu(), expected.tokens)
        assert torch.equal(found.counts.cpu(), expected.counts)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_capture_replays_with_new_values_and_nothing_waits() -> None:
    given = on_device(
        torch.randn(4, 3, VOCAB),
        masks(1, 12, VOCAB),
        torch.zeros(4, 2, dtype=torch.int64),
        torch.full((4,), 2),
        EXTREMES[:4],
        EXTREMES[4:],
        torch.tensor([0.0, 1.0, 0.7, 1.0]),
    )
    verify.coupled(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.get_sync_debug_mode()
    with torch.cuda.graph(graph):
        tokens, counts = verify.coupled(*given)
    given[0].copy_(torch.randn(4, 3, VOCAB))
    graph.replay()
    try:
        torch.cuda.set_sync_debug_mode("error")
        expected = verify.coupled(*given)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert torch.equal(tokens, expected[0])
    assert torch.equal(counts, expected[1])
