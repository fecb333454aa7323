"""All that an engine on a group of ranks needs: the log, the verdicts, the agreements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..requests.inbox import Inbox
from .communicators import Communicators, destroy_released
from .group import Group
from .inbox import LoggedInbox, ReplayedInbox
from .log import Log
from .tasks import Tasks
from .verdicts import Verdicts

if TYPE_CHECKING:
    import torch

    from ..requests.request import Request
    from .agreement import Agreement

Remake = Callable[[dict[str, Any]], "Request"]
Ended = Callable[[int, str | None], None]


class Membership:
    """What a rank's engine has of its group: it is the witness of its request table."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.device = group, device
        self.verdicts = Verdicts(group)
        self.tasks = Tasks(group)
        self.log = Log(group)
        self._replay: tuple[Remake, Ended] | None = None  # on other ranks than 0
        self.communicators = Communicators()
        self._agreements: list[Agreement] = []

    # -- for the request table -------------------------------------------------------------

    def inbox(self, max_queue: int) -> Inbox:
        """The inbox of a new request table."""
        if self.group.leads:
            return LoggedInbox(max_queue, self.log, self.verdicts)
        return ReplayedInbox(max_queue, self.log, self.verdicts, self._remade, self._ended)

    def replay(self, remake: Remake, ended: Ended) -> None:
        """On other ranks than 0: how requests are made of what the log says of them, and who hears
        of those that rank 0 ends.
        """
        self._replay = (remake, ended)

    def _remade(self, spec: dict[str, Any]) -> Request:
        assert self._replay is not None, "somebody serves on this rank"
        return self._replay[0](spec)

    def _ended(self, uid: int, error: str | None) -> None:
        assert self._replay is not None, "somebody serves on this rank"
        self._replay[1](uid, error)

    def decided(self, step: int, op: str, said: object) -> None:
        """See `Witness`. Raises `GroupEnded` where rank 0 has decided something else."""
        self.log.decided(step, op, said)

    def noted(self, step: int, op: str, said: object) -> None:
        """See `Witness`. Raises `GroupEnded` where that is known to differ."""
        self.log.noted(step, op, said)

    def failing(self, step: int, error: str) -> None:
        """See `Witness`. It ends the group where other ops of this rank wait for ranks in vain."""
        self.verdicts.failing(f"step {step}", error)

    def failed(self, step: int | None, error: str) -> None:
        """See `Witness`. Raises `GroupEnded` unless every rank has failed alike.

        Ranks of which one has gone through more agreements than another are not alike: what it
        waits for next would be something else.
        """
        made = sum(each.made for each in self._agreements)
        self.verdicts.settle(f"step {step}, after {made} agreements", error)

    # -- for nodes -------------------------------------------------------------------------

    def agreement(self) -> Agreement:
        """A place at which ranks agree, with a communicator of its own.

        Every rank has to ask for them in the same order.
        """
        from .agreement import Agreement

        made = Agreement(self.group, self.communicators.new())
        self._agreements.append(made)
        return made

    def gathered(self, number: int) -> list[int]:
        """This number of each rank, by rank. Raises `GroupEnded`.

        Every rank has to call it, in the same order as others of this kind. Gathered, since a
        minimum of integers is computed as a sum by some backends.
        """
        from .start import gathered

        self.group.check()
        try:
            return gathered(number, self.device)
        except RuntimeError as error:
            raise self.group.end(f"rank {self.group.rank}: {error}") from error

    def require_same(self, what: str, digest: str) -> None:
        """Raises `GroupEnded` naming the first rank whose `what` has another digest."""
        every = self.gathered(_number(digest))
        for rank, found in enumerate(every):
            if found != every[0]:
                raise self.group.end(f"rank {rank} has another {what} than rank 0")

    def require_proved(self, own: str, proved: Sequence[str]) -> None:
        """Raises `GroupEnded` naming the first rank that does not run what is proved of it.

        `own` is the digest of the plan that this rank runs, `proved` those of all ranks' parts of
        the plan whose proof this rank has.
        """
        for rank, (found, part) in enumerate(zip(self.gathered(_number(own)), proved, strict=True)):
            if found != _number(part):
                raise self.group.end(
                    f"the plan of rank {rank} is not the part of it in the plan that is proved for "
                    f"all ranks, which has the digest {part[:15]}; it runs one of {found:015x}"
                )

    # -- for the engine's life -------------------------------------------------------------

    def all_have_met(self) -> None:
        """Every rank is known to make this engine, so all have closed those that they had before:
        what these left behind is closed.
        """
        destroy_released()

    def close(self) -> None:
        """Leave the group in order."""
        if self.group.failure is None:  # or somebody may still wait inside a collective
            self.communicators.release()
        self.group.close()


def _number(digest: str) -> int:
    """What is compared of a digest: 60 bits, which fit into an integer of a collective."""
    return int(digest[:15], 16)
