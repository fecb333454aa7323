"""The stages of a model as engines on threads of one process, with queues between them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepweave.models.stage import Stage
from stepweave.policies.chosen import Policies
from stepweave.policies.scheduling import Groups
from stepweave.serving.engine import Engine

WAIT_S = 120.0


@dataclass
class Wires:
    """What lies between the stages of one model: a queue for each direction of each pair."""

    count: int
    handed: list[queue.SimpleQueue[tuple[int, Tensor]]] = field(init=False)
    told: list[queue.SimpleQueue[tuple[int, tuple[Tensor, ...]]]] = field(init=False)

    def __post_init__(self) -> None:
        self.handed = [queue.SimpleQueue() for _ in range(self.count)]
        self.told = [queue.SimpleQueue() for _ in range(self.count)]


@dataclass(frozen=True)
class Wired:
    """`Links` of one stage over queues."""

    stage: Stage
    wires: Wires

    def send(self, step: int, departing: Tensor) -> None:
        self.wires.handed[self.stage.index].put((step, departing.clone()))

    def receive(
        self, step: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        at, found = self.wires.handed[self.stage.index - 1].get(timeout=WAIT_S)
        assert at == step
        assert (tuple(found.shape), found.dtype, found.device) == (shape, dtype, device)
        return found

    def tell(self, step: int, *said: Tensor) -> None:
        assert self.stage.last
        assert all(each.dtype == torch.int64 for each in said)
        for other in range(self.stage.count - 1):
            self.wires.told[other].put((step, tuple(each.clone() for each in said)))

    def hear(self, step: int, shapes: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, ...]:
        at, found = self.wires.told[self.stage.index].get(timeout=WAIT_S)
        assert at == step
        assert [tuple(each.shape) for each in found] == [tuple(shape) for shape in shapes]
        return found


def staged_engines(build: Callable[[Wired], Engine], count: int) -> list[Engine]:
    """An engine for each stage, the last made first: it says what the others keep."""
    wires = Wires(count)
    made = [build(Wired(Stage(index, count), wires)) for index in reversed(range(count))]
    # Ranks of a group tell each other what their caches depend on; there is no group here.
    tail = max(each._tail for each in made)
    for each in made:
        each._tail = tail
    return made[::-1]


def run_together(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each on a thread of its own; the results. Raises what the first of them raises."""
    results: list[Any] = [None] * len(works)
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = works[index]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[index]) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def in_groups(groups: int) -> Mapping[str, Any]:
    return {"policies": Policies(scheduling=Groups(groups=groups)), "depth": groups}
