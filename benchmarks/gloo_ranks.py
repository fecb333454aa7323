"""The two processes of `gloo_links`: nothing of ours is imported, so that a rank starts soon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

SIZES = (64, 4096, 65536, 1 << 20)
GROUPS = (1, 2, 3)
TOKENS = 8  # rows of a step


@dataclass(frozen=True)
class Shape:
    """How large the steps are, and how long a rank waits in place of computing."""

    layers: int = 4
    hidden: int = 4096
    steps: int = 12  # of a pipeline in one window
    product_us: float = 2000.0  # of half a layer
    stage_us: float = 10000.0

    @property
    def message(self) -> int:
        """Bytes of the hidden states of a step."""
        return TOKENS * self.hidden * 2


def rank_main(rank: int, store: str, shape: Shape, rounds: int, answer: Any) -> None:
    """One of the two processes; rank 0 puts its figures, in µs, into the queue `answer`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), rank=rank, world_size=2)
    try:
        each = _Rank(rank, shape)
        found = [each.round() for _ in range(rounds + 1)][1:]
        if rank == 0:
            answer.put(found)
    finally:
        dist.destroy_process_group()


class _Rank:
    """What a rank does in each round."""

    def __init__(self, rank: int, shape: Shape) -> None:
        import torch

        self.rank, self.other, self.shape = rank, 1 - rank, shape
        self.hidden = torch.zeros(shape.message // 4)
        self.data = {size: torch.zeros(size // 4) for size in SIZES}

    def round(self) -> dict[str, float]:
        """Each figure once, in µs, one after another."""
        found = {"product": self._timed(self._product, 4), "stage": self._timed(self._stage, 2)}
        for size in SIZES:
            found[f"all_reduce {size}"] = self._all_reduce(size)
            found[f"message {size}"] = self._message(size)
        found["pair"] = self._timed(self._pair, 1)
        for groups in GROUPS:
            found[f"pipeline {groups}"] = self._pipeline(groups)
        return found

    def _timed(self, work: Callable[[], object], times: int) -> float:
        """µs of one call, of some in a row, both ranks beginning together."""
        import torch.distributed as dist

        dist.barrier()
        began = perf_counter()
        for _ in range(times):
            work()
        return (perf_counter() - began) / times * 1e6

    def _product(self) -> None:
        sleep(self.shape.product_us / 1e6)

    def _stage(self) -> None:
        sleep(self.shape.stage_us / 1e6)

    def _all_reduce(self, size: int) -> float:
        """With the wait before it, as in a layer."""
        import torch.distributed as dist

        def one() -> None:
            self._product()
            dist.all_reduce(self.data[size])

        return self._timed(one, 4)

    def _message(self, size: int) -> float:
        """Half of a message there and one back."""
        import torch.distributed as dist

        def back_and_forth() -> None:
            for sender in (0, 1):
                if sender == self.rank:
                    dist.send(self.data[size], self.other)
                else:
                    dist.recv(self.data[size], self.other)

        return self._timed(back_and_forth, 2) / 2

    def _pair(self) -> None:
        """A step of a tensor pair: a half of each product, and its sum over both ranks."""
        import torch.distributed as dist

        for _ in range(2 * self.shape.layers):
            self._product()
            dist.all_reduce(self.hidden)

    def _pipeline(self, groups: int) -> float:
        """µs a step of two stages with so many groups of rows in flight."""
        import torch.distributed as dist

        steps = self.shape.steps
        dist.barrier()
        began = perf_counter()
        (self._first if self.rank == 0 else self._second)(steps, groups)
        # The last step leaves the pipeline: its second stage is not beside a first one.
        leaving_us = self.shape.stage_us if groups > 1 else 0.0
        return ((perf_counter() - began) * 1e6 - leaving_us) / steps

    def _first(self, steps: int, groups: int) -> None:
        """Stage 0: receives the tokens of K steps before, computes, sends hidden states."""
        import torch
        import torch.distributed as dist

        tokens = [torch.zeros(TOKENS) for _ in range(steps)]
        coming = [dist.irecv(each, 1) for each in tokens]
        sent = []
        for step in range(steps):
            if step >= groups:
                _done(coming[step - groups])
            self._stage()
            sent.append(dist.isend(self.hidden, 1))
        for work in (*sent, *coming[max(0, steps - groups) :]):
            _done(work)

    def _second(self, steps: int, groups: int) -> None:
        """Stage 1: receives hidden states, computes, sends tokens."""
        import torch
        import torch.distributed as dist

        hidden = [torch.zeros_like(self.hidden) for _ in range(steps)]
        coming = [dist.irecv(each, 0) for each in hidden]
        sent = []
        for step in range(steps):
            _done(coming[step])
            self._stage()
            sent.append(dist.isend(torch.zeros(TOKENS), 0))
        for work in sent:
            _done(work)


def _done(work: Any) -> None:
    assert work is not None, "the group has both ranks"
    work.wait()
