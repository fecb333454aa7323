"""Completions of one prompt: who has computed it, and which of its blocks are copied for others.

Full blocks of a prompt are shared, since nobody writes there any more. Its last one is not full,
and each completion writes on in it: so each has its own, with a copy of what the prompt has there.
"""

from __future__ import annotations

from .request import Request


class Forks:
    """Who runs of the completions of each prompt, and the copies of the step that is scheduled.

    `can_copy`: whether a step can; else the tokens of the last block are computed again.
    """

    def __init__(self, *, can_copy: bool) -> None:
        self.can_copy = can_copy
        self._running: dict[int, list[Request]] = {}  # by the first completion's number
        self._copies: dict[int, int] = {}  # of this step: from which block each is copied

    def admitted(self, request: Request) -> None:
        """It runs from now on."""
        if request.fork_of is not None:
            self._running.setdefault(request.fork_of, []).append(request)

    def released(self, request: Request) -> None:
        """It runs no more, and nothing is copied into its blocks."""
        if request.fork_of is None:
            return
        for block in request.blocks:
            self._copies.pop(block, None)
        others = self._running[request.fork_of]
        others.remove(request)
        if not others:
            del self._running[request.fork_of]

    def others(self, request: Request) -> list[Request]:
        """Who runs of the same prompt."""
        return [] if request.fork_of is None else self._running.get(request.fork_of, [])

    def copy(self, source: int, target: int) -> None:
        """Copy a block in this step, before its rows run."""
        self._copies[target] = source

    def take(self) -> tuple[tuple[int, int], ...]:
        """The copies of the step, from and to, once."""
        found = tuple((source, target) for target, source in self._copies.items())
        self._copies.clear()
        return found
