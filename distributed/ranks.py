"""Which rank of how many this process is, as its launcher says in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import NoRanks


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank of `size`; `local` of them on its machine, on which it is number `local_rank`."""

    rank: int
    size: int
    local_rank: int = 0
    local: int = 1

    @property
    def leads(self) -> bool:
        """Whether it is rank 0, which takes requests in."""
        return self.rank == 0

    @property
    def on_one_machine(self) -> bool:
        return self.local == self.size


def started_as_rank(environment: Mapping[str, str] | None = None) -> bool:
    """Whether torchrun, or another launcher, has started this process as a rank."""
    found = os.environ if environment is None else environment
    return "RANK" in found and "WORLD_SIZE" in found


def variables_of(rank: int, size: int) -> dict[str, str]:
    """By which a process on a machine that has all `size` ranks knows its place, as of torchrun."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {name: f"{number}" for name, number in place.items()}


def ranks_of(size: int, environment: Mapping[str, str] | None = None) -> Ranks:
    """This process among `size` ranks.

    Raises `NoRanks` where it was not started as one of them.
    """
    found = os.environ if environment is None else environment
    how = f"start the program as `torchrun --nproc-per-node {size} PROGRAM`"
    if not started_as_rank(found):
        raise NoRanks(
            f"{size} ranks are asked for, but this process is no rank of a group: {how}, or use "
            f"`stepweave run --tp {size}`, which starts the ranks itself"
        )
    try:
        rank, world = int(found["RANK"]), int(found["WORLD_SIZE"])
        local_rank = int(found.get("LOCAL_RANK", rank))
        local = int(found.get("LOCAL_WORLD_SIZE", world))
    except ValueError as error:
        raise NoRanks(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers: {error}") from error
    if world != size:
        raise NoRanks(f"{size} ranks are asked for, but the launcher has started {world}: {how}")
    if not 0 <= rank < world:
        raise NoRanks(f"RANK is {rank}, but there are ranks 0 to {world - 1}: {how}")
    return Ranks(rank, world, local_rank, local)
