"""Top-k and top-p by a search for the threshold, against a sort of the vocabulary.

On the CPU: processor time of both in alternating rounds, on logits of the spread of a language
model's, with the share of rows of which both keep the same tokens. Few scores are sorted by both.
The old sort summed probabilities in float32, so with it a token whose sum is a rounding away from p
went either way; beside it stands the share of rows alike if the sort computes in float64.

For a GPU, a count: how often the kernel reads a line until both thresholds are found, and so how
many bytes it moves for a token. A radix sort of float32 keys with int64 indices takes four passes,
each of which reads and writes both, after a pass that only counts.

    python -m benchmarks.cuts [--rounds 15] [--vocab 1024 32000 128256] [--rows 1 16]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

from stepweave.sampling.cuts import UNIT_BITS, cut, mass

from .paired import Spread, at_least_one, rounds, save

TOP_K, TOP_P = 50, 0.9
SCORES = 1 << 17  # in a round
SORT_BYTES = 4 * (2 * (4 + 8)) + 4


def by_sort(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """What was done before: tokens ranked, and cut where they stand in that order."""
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        worst = ranked.gather(-1, top_k[:, None] - 1)
        scaled = scaled.masked_fill(scaled < worst, -torch.inf)
        ranked = ranked.masked_fill(ranked < worst, -torch.inf)
    if top_p is not None:
        probabilities = ranked.softmax(dim=-1)
        better = probabilities.cumsum(dim=-1) - probabilities
        cuts = better >= top_p.to(scaled.dtype)[:, None]
        cuts[:, 0] = False
        scaled = scaled.masked_fill(torch.zeros_like(cuts).scatter_(-1, order, cuts), -torch.inf)
    return scaled


def passes(scores: Tensor, weights: Tensor, target: int) -> int:
    """How often the kernel reads `scores[V]`, best first, until `weights[V]` reach the target."""
    keys = scores.abs().view(torch.int32)
    sums, count, low, high = weights.cumsum(0), 0, 0, int(keys[-1])
    while low < high:
        count += 1
        ends = torch.tensor([low + (high - low) * part // 4 for part in (1, 2, 3, 4)])
        last = torch.searchsorted(keys, ends.to(torch.int32), right=True) - 1
        for each in last.tolist():
            if int(sums[each]) >= target:
                high = int(keys[each])
                break
            low = int(keys[min(each + 1, len(keys) - 1)])
    return count


def reads(scaled: Tensor) -> float:
    """Reads of a line by the kernel, for top-k and then top-p, on average over `scaled[L, V]`."""
    total = 0
    for line in scaled.sort(dim=-1, descending=True).values:
        kept = line[line >= line[TOP_K - 1]]
        masses = mass(kept[None])[0]
        wanted = int(int(masses.sum()) * TOP_P)
        total += passes(line, torch.ones_like(line, dtype=torch.int64), TOP_K) + 1
        total += passes(kept, masses, wanted) + 1
    return total / len(scaled)


def logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    """Relative to the best token; a few stand out, as in a text."""
    generator = torch.Generator().manual_seed(vocab + rows + 1_000_003 * seed)
    x = torch.randn(rows, vocab, generator=generator) * 2
    some = torch.randint(0, vocab, (rows, 8), generator=generator)
    x.scatter_add_(1, some, torch.rand(rows, 8, generator=generator) * 10)
    return x - x.amax(dim=-1, keepdim=True)


def measured(count: int, rows: int, vocab: int, which: str) -> dict[str, Any]:
    """Sort over search, and what both keep.

    Of few scores each round takes many inputs: a sort of the same few again is faster than of new
    ones, since a processor learns how its comparisons come out.
    """
    each_round = max(1, min(100, SCORES // (rows * vocab)))
    every = [logits(rows, vocab, seed) for seed in range(each_round)]
    x = every[0]
    k = torch.full((rows,), TOP_K) if "k" in which else None
    p = torch.full((rows,), TOP_P, dtype=torch.float64) if "p" in which else None

    def timed(way: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]) -> float:
        began = process_time()
        for each in every:
            way(each, k, p)
        return (process_time() - began) / len(every)

    sort_s, search_s = rounds(count, lambda: timed(by_sort), lambda: timed(cut))
    kept = cut(x, k, p) > -torch.inf

    def alike(ranked: Tensor) -> float:
        return float((ranked > -torch.inf).eq(kept).all(dim=1).double().mean())

    return {
        "rows": rows,
        "vocab": vocab,
        "which": f"top-{which}" if len(which) == 1 else "both",
        "sort_ms": Spread.of([1000 * each for each in sort_s]),
        "search_ms": Spread.of([1000 * each for each in search_s]),
        "ratio": Spread.of([one / other for one, other in zip(sort_s, search_s, strict=True)]),
        "same_as_sort": alike(by_sort(x, k, p)),
        "same_as_float64": alike(by_sort(x.double(), k, p)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=15)
    parser.add_argument("--vocab", type=at_least_one, nargs="+", default=[1024, 32000, 128256])
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[1, 16])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("rows   vocab         sort, ms  search, ms  sort / search; rows alike: float32, float64")
    table, counted = [], []
    for vocab in given.vocab:
        for rows in given.rows:
            for which in ("k", "p", "kp"):
                row = measured(given.rounds, rows, vocab, which)
                table.append(
                    {key: asdict(f) if isinstance(f, Spread) else f for key, f in row.items()}
                )
                print(
                    f"{rows:5} {vocab:7}  {row['which']:5} {row['sort_ms'].median:9.2f} "
                    f"{row['search_ms'].median:11.2f}  {row['ratio']}; "
                    f"{row['same_as_sort']:.2f}, {row['same_as_float64']:.2f}"
                )
        read = reads(logits(16, vocab))
        counted.append({"vocab": vocab, "reads": read, "bytes": 4 * read + 4})
        print(
            f"kernel, vocab {vocab}: {read:.1f} reads of a line, {4 * read + 4:.0f} bytes a token; "
            f"a sort {SORT_BYTES} and three passes more"
        )
    about = {"unit_bits": UNIT_BITS, "top_k": TOP_K, "top_p": TOP_P, "cpu": table, "gpu": counted}
    save("cuts", about, given.json)


if __name__ == "__main__":
    main()
