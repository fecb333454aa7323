"""The random numbers: right by the reference's own vectors, and the same wherever drawn."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import Tensor

from stepweave.sampling.noise import Purpose, gumbel, philox, random_words, uniform

ALL_ONES = 2**32 - 1


def words(*values: int) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.int64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (ALL_ONES,) * 4,
            (ALL_ONES,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    drawn = philox(words(*counter), words(*key))  # type: ignore[arg-type]
    assert tuple(int(word) for word in drawn) == expected


def test_words_follow_a_plain_philox_in_python_integers() -> None:
    def reference(counter: list[int], key: list[int]) -> list[int]:
        c, k = list(counter), list(key)
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [
                (p1 >> 32) ^ c[1] ^ k[0],
                p1 & ALL_ONES,
                (p0 >> 32) ^ c[3] ^ k[1],
                p0 & ALL_ONES,
            ]
            k = [(k[0] + 0x9E3779B9) & ALL_ONES, (k[1] + 0xBB67AE85) & ALL_ONES]
        return c

    for seed, position, purpose in [(0, 0, 0), (-1, 3, 2), (2**63 - 1, 10**6, 4), (-(2**63), 1, 1)]:
        drawn = random_words(torch.tensor([seed]), torch.tensor([position]), purpose, 10)[0]
        key = [seed & ALL_ONES, seed >> 32 & ALL_ONES]
        expected = [w for i in range(3) for w in reference([i, position, purpose, 0], key)]
        assert drawn.tolist() == expected[:10]


@pytest.mark.parametrize("vocab", [1, 5, 300, 50_001])
def test_a_draw_is_the_same_in_any_batch_order_and_width(vocab: int) -> None:
    seeds = torch.tensor([7, -3, 2**62 + 1, 0, 7])
    positions = torch.tensor([0, 5, 1000, 2, 1])
    whole = gumbel(seeds, positions, Purpose.TARGET, vocab)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(gumbel(seeds[order], positions[order], Purpose.TARGET, vocab), whole[order])
    for row in range(5):
        one = slice(row, row + 1)
        assert torch.equal(gumbel(seeds[one], positions[one], 0, vocab), whole[one])
    many = seeds.repeat(40), positions.repeat(40)
    if vocab < 1000:
        assert torch.equal(gumbel(*many, 0, vocab), whole.repeat(40, 1))
    wider = gumbel(seeds, positions, Purpose.TARGET, vocab + 3)
    assert torch.equal(wider[:, :vocab], whole)
    per_row = torch.full((5,), int(Purpose.TARGET))
    assert torch.equal(gumbel(seeds, positions, per_row, vocab), whole)


def test_threads_do_not_change_a_bit() -> None:
    seeds, positions = torch.arange(3), torch.arange(3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = gumbel(seeds, positions, 0, 70_000)
        torch.set_num_threads(2)
        assert torch.equal(gumbel(seeds, positions, 0, 70_000), one)
    finally:
        torch.set_num_threads(before)


def test_every_part_of_the_key_matters() -> None:
    base = (torch.tensor([11]), torch.tensor([4]), 0)
    reference = gumbel(*base, 1000)
    for seeds, positions, purpose in [
        (torch.tensor([12]), base[1], 0),
        (torch.tensor([11 + 2**32]), base[1], 0),
        (base[0], torch.tensor([5]), 0),
        (base[0], base[1], 1),
    ]:
        other = gumbel(seeds, positions, purpose, 1000)
        assert (other == reference).float().mean() < 0.01


def test_gumbel_is_minus_log_minus_log_to_float32_where_it_decides() -> None:
    seeds, positions = torch.tensor([5]), torch.tensor([9])
    drawn = random_words(seeds, positions, 0, 400_000)[0].double()
    exact = -torch.log(-torch.log1p(-(drawn + 0.5) * 2.0**-32))
    noise = gumbel(seeds, positions, 0, 400_000)[0].double()
    error = (noise - exact).abs() / exact.abs().clamp(min=1.0)
    # Below -2 (probability 6e-4) u is near 0 and has float32's absolute precision only.
    assert error[exact > -2].max() < 3e-6
    assert error.max() < 0.05


def test_gumbel_is_finite_at_both_ends_of_the_words() -> None:
    from stepweave.sampling.noise import _gumbel_from_words

    ends = torch.tensor([0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1]).float()
    noise = _gumbel_from_words(ends)
    assert noise.isfinite().all()
    assert (noise.diff() <= 0).all(), "larger words are smaller noise"
    assert noise[0] > 22, "the upper end uses all 32 bits"
    assert noise[-1] > -3.2, "the lower end is cut where 33 bits would be, not at infinity"


def test_uniform_and_gumbel_have_their_distributions() -> None:
    n = 50_000
    seeds = torch.arange(n) * 7919 - 10**6
    u = uniform(seeds, torch.zeros(n, dtype=torch.int64), Purpose.ACCEPT).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert kolmogorov(u) < 1.95  # exceeded with probability 0.001
    # Along each part of the key: seeds, positions, indices.
    positions = torch.arange(n)
    one = torch.zeros(n, dtype=torch.int64) + 3
    assert kolmogorov(uniform(one, positions, Purpose.ACCEPT).double()) < 1.95
    noise = gumbel(torch.tensor([3]), torch.tensor([3]), 0, n)[0].double()
    assert kolmogorov(torch.exp(-torch.exp(-noise))) < 1.95


def test_neighbouring_draws_are_not_correlated() -> None:
    n = 40_000
    at = torch.arange(n)
    a = uniform(at, at * 0, Purpose.ACCEPT)
    for b in (
        uniform(at + 1, at * 0, Purpose.ACCEPT),
        uniform(at, at * 0 + 1, Purpose.ACCEPT),
        uniform(at, at * 0, Purpose.BONUS),
    ):
        correlation = torch.corrcoef(torch.stack([a, b]))[0, 1]
        assert abs(float(correlation)) < 4 / n**0.5


def kolmogorov(sample: Tensor) -> float:
    """The Kolmogorov-Smirnov statistic against the uniform distribution, times sqrt(n)."""
    ordered = sample.sort().values
    n = len(ordered)
    grid = torch.arange(n + 1, dtype=torch.float64) / n
    distance = torch.maximum((grid[1:] - ordered).max(), (ordered - grid[:-1]).max())
    return float(distance) * sqrt(n)


def test_empty_batches_are_fine() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert gumbel(none, none, 0, 10).shape == (0, 10)
    assert uniform(none, none, 0).shape == (0,)
