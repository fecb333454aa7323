"""Groups of ranks inside one process: real sockets, a thread of each rank that reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from stepweave.distributed.errors import GroupEnded
from stepweave.distributed.group import Group
from stepweave.distributed.links import Door, knock
from stepweave.distributed.ranks import Ranks

LONG_S = 300.0
"""A time that does not pass in a test."""


@contextmanager
def groups(
    size: int = 2,
    prepare: Callable[[Group], object] = lambda group: None,
    silence_s: float = LONG_S,
) -> Iterator[list[Group]]:
    """The groups of all ranks; `prepare` adds its parts to each before it listens."""
    door = Door("127.0.0.1")
    knocked = {rank: knock("127.0.0.1", door.port, door.secret, rank) for rank in range(1, size)}
    inside = door.accept(size - 1)
    made = [
        Group(
            Ranks(rank, size, rank, size),
            inside if rank == 0 else {0: knocked[rank]},
            silence_s=silence_s,
        )
        for rank in range(size)
    ]
    for each in made:
        prepare(each)
    for each in made:
        each.start()
    try:
        yield made
    finally:
        for each in made:
            each.close()


def ended(group: Group) -> str:
    """Why the group has ended; waits until it has."""
    over = threading.Event()
    group.on_end(lambda failure: over.set())
    assert over.wait(LONG_S)
    assert group.failure is not None
    return group.failure.message


def at_once(jobs: Sequence[Callable[[], object]]) -> list[object]:
    """What each job returns or raises, each on a thread of its own."""
    found: list[object] = [None] * len(jobs)

    def run(index: int) -> None:
        try:
            found[index] = jobs[index]()
        except GroupEnded as failure:
            found[index] = failure.message

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(jobs))]
    for each in threads:
        each.start()
    until = monotonic() + LONG_S
    for each in threads:
        each.join(until - monotonic())
    return found
