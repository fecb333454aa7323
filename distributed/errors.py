"""What can go wrong between the ranks of a group.

GroupError          anything below
├── NoRanks         the process was not started as a rank of a group of that size
├── MessageFailed   between the stages of a model, on one rank: the group ends for it
└── GroupEnded      the ranks did not do the same, or one of them is gone
"""

from __future__ import annotations

from ..graph.errors import StepweaveError


class GroupError(StepweaveError):
    """Something is wrong between the ranks of a group."""

    code = "SW-GROUP"


class NoRanks(GroupError):
    """This process is no rank of a group of the size that is asked for."""

    code = "SW-RANKS"


class MessageFailed(GroupError):
    """A message between the stages of a model did not come, or is of another step."""


class GroupEnded(GroupError):
    """The group has ended, and with it what its ranks served: the message says why.

    Every rank raises it for what it serves, whichever of them failed. A new group has to be
    started; requests resume in it from their settled tokens. `gone`: the rank that this one has
    lost, and that can say nothing itself.
    """

    def __init__(self, message: str, *, gone: int | None = None) -> None:
        super().__init__(message)
        self.gone = gone
