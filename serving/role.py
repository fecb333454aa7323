"""What a service does for the ranks that run with it: it is alone, it leads them, or it follows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ..graph.errors import shortly
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarSpec
from .everywhere import compiled_everywhere

if TYPE_CHECKING:
    from ..distributed.errors import GroupEnded
    from ..distributed.membership import Membership
    from ..requests.table import RequestTable
    from .following import Following
    from .intake import Intake
    from .ticket import Ticket

LOOKING_S = 0.05
"""How often whoever waits for the run of a group looks whether the group has ended."""


class Role(Protocol):
    """The part of a service that depends on whether there are other ranks."""

    @property
    def leads(self) -> bool:
        """Whether requests are taken in here."""
        ...

    @property
    def stays(self) -> bool:
        """Whether the run goes on for as long as the service does, idle or not."""
        ...

    @property
    def following(self) -> Following | None:
        """What makes the requests of rank 0, on any other rank."""
        ...

    @property
    def ended(self) -> GroupEnded | None:
        """What has ended the group, if anything did: known before anybody is told of it."""
        ...

    def on_end(self, tell: Callable[[GroupEnded], None]) -> None:
        """Have `tell` called when the group ends; at once where it has."""
        ...

    def grammar(
        self, spec: GrammarSpec, reasoning: bool | None, own: Future[CompiledGrammar]
    ) -> Future[CompiledGrammar] | None:
        """The grammar of a request when it may begin; None: another rank says when it does.

        `own`: as it is compiled here.
        """
        ...

    def begun(self, tickets: Sequence[Ticket]) -> None:
        """Somebody here has handed these in."""
        ...

    def ended_unbegun(self, table: RequestTable, uid: int, error: str | None) -> None:
        """A request has ended that is in no table."""
        ...

    def broken(self, error: BaseException) -> bool:
        """A run has failed as a whole: whether nothing can be served any more for that reason."""
        ...

    def drives(self, thread: threading.Thread) -> None:
        """This thread will run the engine."""
        ...

    def join(self, thread: threading.Thread, seconds: float | None) -> None:
        """Wait for the thread that runs, unless the group ends before."""
        ...

    def leave(self) -> None:
        """The service is closed."""
        ...


class Alone:
    """One process: nobody has to be told anything."""

    leads, stays, following, ended = True, False, None, None

    def on_end(self, tell: Callable[[GroupEnded], None]) -> None:
        pass

    def grammar(
        self, spec: GrammarSpec, reasoning: bool | None, own: Future[CompiledGrammar]
    ) -> Future[CompiledGrammar] | None:
        return own

    def begun(self, tickets: Sequence[Ticket]) -> None:
        pass

    def ended_unbegun(self, table: RequestTable, uid: int, error: str | None) -> None:
        pass

    def broken(self, error: BaseException) -> bool:
        return False

    def drives(self, thread: threading.Thread) -> None:
        pass

    def join(self, thread: threading.Thread, seconds: float | None) -> None:
        thread.join(seconds)

    def leave(self) -> None:
        pass


class InGroup:
    """A rank of several: rank 0, or one that follows it."""

    stays = True

    def __init__(self, group: Membership, following: Following | None) -> None:
        self._group, self.following = group, following

    @property
    def leads(self) -> bool:
        return self.following is None

    @property
    def ended(self) -> GroupEnded | None:
        return self._group.group.failure

    def on_end(self, tell: Callable[[GroupEnded], None]) -> None:
        self._group.group.on_end(tell)

    def grammar(
        self, spec: GrammarSpec, reasoning: bool | None, own: Future[CompiledGrammar]
    ) -> Future[CompiledGrammar] | None:
        if self.following is not None:
            return None
        return compiled_everywhere(self._group.tasks, spec, reasoning, own)

    def begun(self, tickets: Sequence[Ticket]) -> None:
        if self.following is not None:
            self.following.ask(tickets)

    def ended_unbegun(self, table: RequestTable, uid: int, error: str | None) -> None:
        if self.leads:
            table.cancel(uid, error)  # by the log the other ranks hear of it

    def broken(self, error: BaseException) -> bool:
        """On one rank it has failed for all."""
        self._group.group.end(f"rank {self._group.group.rank}: {shortly(error)}")
        return True

    def drives(self, thread: threading.Thread) -> None:
        self._group.group.outlast(thread)

    def join(self, thread: threading.Thread, seconds: float | None) -> None:
        """A thread that waits for a rank which is gone may wait for good."""
        until = None if seconds is None else monotonic() + seconds
        while thread.is_alive() and self.ended is None:
            if until is not None and monotonic() >= until:
                return
            thread.join(LOOKING_S)

    def leave(self) -> None:
        self._group.close()


def role_of(group: Membership | None, intake: Intake) -> Alone | InGroup:
    """That of a process in `group`; None: it is alone."""
    if group is None:
        return Alone()
    from .following import Following

    return InGroup(group, None if group.group.leads else Following(group, intake))
