"""What an abstract graph of several ranks says beyond one of a single rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ..graph.arguments import MAX_DISTANCE
from ..graph.node import Comm
from ..graph.ranks import MAX_RANKS
from ..nodes.node_config import Name
from .part import Part

Rank = Annotated[int, Field(ge=0, lt=MAX_RANKS)]
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Members = Annotated[tuple[Rank, ...], Field(min_length=1, max_length=MAX_RANKS)]
Offset = Annotated[int, Field(ge=-MAX_DISTANCE, le=MAX_DISTANCE)]
Across = Annotated[
    Literal["same", "own"] | None,
    Field(
        description="own: may differ between ranks, whoever writes it. same: must be equal on all "
        "ranks, which is proved. null: it follows from what its writer reads.",
    ),
]
Agrees = Annotated[
    bool,
    Field(
        description="true: what it writes is equal on all ranks, since they agree on it.",
    ),
]
Decides = Annotated[
    Annotated[str, Field(min_length=1, max_length=256)] | None,
    Field(
        description="What of the course of a step it decides, in words: it may read only what is "
        "the same on all ranks.",
    ),
]


def _rank(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and int(text[:9]) < MAX_RANKS):
        raise ValueError(f"{text!r} is not a rank: write a whole number from 0 on")
    return text


RankText = Annotated[str, AfterValidator(_rank)]
Offsets = dict[RankText, Offset]
Listing = dict[RankText, Annotated[tuple[Name, ...], Field(max_length=256)]]


class AbstractComm(Part):
    """What collectives and messages have in common."""

    communicator: Name | None = Field(
        default=None,
        description="Calls on one communicator are made in one order on all ranks. null: `world` "
        "of a collective, one for each sender and receiver of messages.",
    )
    concurrent: bool = Field(
        default=False,
        description="true: a device may run it at the same time as other comm nodes. No library "
        "promises that two of them make progress at once.",
    )
    bytes: int = Field(
        default=0, ge=0, le=1 << 60, description="That each member contributes in a step."
    )


class AbstractCollective(AbstractComm):
    """A meeting that no member leaves before all have entered it."""

    members: Members | None = Field(default=None, description="The ranks that meet. null: all.")

    def comm(self, name: str, ranks: int) -> Comm:
        members = tuple(range(ranks)) if self.members is None else self.members
        on = self.communicator or "world"
        return Comm(name, "collective", members, on, 0, self.concurrent, self.bytes)


class AbstractMessage(AbstractComm):
    """From one rank to another: the sender reads what the node reads, the receiver writes."""

    sender: Rank = Field(alias="from", description="The rank that sends.")
    receiver: Rank = Field(alias="to", description="The rank that receives.")
    capacity: Annotated[int, Field(ge=0, le=MAX_DISTANCE)] | Literal["derived"] = Field(
        default=0,
        description="By how many messages the sender may be ahead of the receiver. 0: they wait "
        "for each other. derived: the least that costs no time.",
    )

    def comm(self, name: str) -> Comm:
        capacity = None if self.capacity == "derived" else self.capacity
        ends = (self.sender, self.receiver)
        on = self.communicator or f"from_{self.sender}_to_{self.receiver}"
        return Comm(name, "message", ends, on, capacity, self.concurrent, self.bytes)


def by_rank(offset: int | Mapping[str, int]) -> tuple[int, dict[int, int]]:
    """The offset on all ranks, and by rank where it is another."""
    if isinstance(offset, int):
        return offset, {}
    return 0, {int(rank): steps for rank, steps in offset.items()}
