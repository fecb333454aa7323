"""A rank that follows: it serves what the log of rank 0 says, and tells callers on this rank."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ..distributed.log import digest_of
from ..distributed.membership import Membership
from ..requests.increment import Increment
from ..requests.plain_params import read_params
from ..requests.request import Request
from ..structured.grammar import GrammarSpec
from .everywhere import as_text
from .intake import Intake

if TYPE_CHECKING:
    from .ticket import Ticket


REMEMBERED = 1 << 16
"""Of so many requests that have ended it is known that they began: all n of a prompt are cancelled,
those that have ended too.
"""


class Following:
    """Makes the requests that rank 0 has logged, and matches them with those of callers here.

    A program that runs on every rank hands in the same prompts in the same order, so the same
    numbers mean the same requests. Their outputs are kept until somebody here has asked for them,
    unless nobody will (`alone`).
    """

    def __init__(self, group: Membership, intake: Intake) -> None:
        self._group, self._intake = group, intake
        self._lock = threading.Lock()
        self._alone = False
        self._made: dict[int, tuple[str, list[Increment]]] = {}  # that nobody here has asked for
        self._asked: dict[int, Request] = {}
        self._begun: set[int] = set()  # that have no output yet
        self._over: dict[int, None] = {}  # the last that had one
        self._unbegun: dict[int, str | None] = {}  # that rank 0 ended before they began, and why
        group.replay(self._remade, self._cancelled)
        group.tasks.serve(self._compile)

    def alone(self) -> None:
        """Nobody on this rank hands anything in."""
        with self._lock:
            self._alone = True
            self._made.clear()

    def ask(self, tickets: Sequence[Ticket]) -> None:
        """Tell the callers of these what the requests of their numbers come to.

        Raises `GroupEnded` where rank 0 has others of these numbers.
        """
        for ticket in tickets:
            for request in ticket.requests:
                with self._lock:
                    made = self._made.get(request.uid)
                if made is not None:
                    self._require_same(request, made[0])
                self._catch_up(request)

    def _catch_up(self, request: Request) -> None:
        """Deliver what has come, and have what comes delivered as it does."""
        while True:
            with self._lock:
                # What comes meanwhile waits in `_made` behind what is delivered here.
                _, came = self._made.get(request.uid, ("", []))
                here = came.copy()
                came.clear()
                if not here:
                    self._made.pop(request.uid, None)
                    ended = request.uid in self._unbegun
                    error = self._unbegun.pop(request.uid, None)
                    if not ended:
                        self._asked[request.uid] = request
                    break
            for increment in here:
                _tell(request, increment)
            if here[-1].output is not None:
                with self._lock:
                    del self._made[request.uid]
                return
        if ended:
            _end(request, error)

    def _cancelled(self, uid: int, error: str | None) -> None:
        """Rank 0 has ended a request: one that never began ends here."""
        with self._lock:
            if uid in self._begun or uid in self._over or self._alone:
                return
            asked = self._asked.pop(uid, None)
            if asked is None:
                self._unbegun[uid] = error
        if asked is not None:
            _end(asked, error)

    def _remade(self, spec: dict[str, Any]) -> Request:
        """The request that rank 0 has put into its log. Raises `GroupEnded` for a wrong one."""
        uid = int(spec["uid"])
        params = read_params(spec["params"])
        request = self._intake.remade(spec, params)
        if params.grammar is not None:
            request.grammar = self._intake.grammar(params.grammar, params.reasoning).result()
        request.deliver = partial(self._deliver, uid)
        digest = _digest(request)
        with self._lock:
            self._begun.add(uid)
            asked = self._asked.get(uid)
            if asked is None and not self._alone:
                self._made[uid] = (digest, [])
        if asked is not None:
            self._require_same(asked, digest)
        return request

    def _deliver(self, uid: int, increment: Increment) -> None:
        with self._lock:
            if increment.output is not None:
                self._begun.discard(uid)
                if not self._alone:
                    self._over[uid] = None
                    if len(self._over) > REMEMBERED:
                        del self._over[next(iter(self._over))]
            asked = self._asked.get(uid)
            if asked is None:
                if uid in self._made:
                    self._made[uid][1].append(increment)
                return
            if increment.output is not None:
                del self._asked[uid]
        _tell(asked, increment)

    def _require_same(self, request: Request, digest: str) -> None:
        if _digest(request) != digest:
            raise self._group.group.end(
                f"request {request.uid} ({request.id!r}) of rank {self._group.group.rank} is not "
                "that of rank 0: every rank must hand in the same prompts in the same order"
            )

    # -- grammars --------------------------------------------------------------------------

    def _compile(self, task: Mapping[str, Any]) -> Future[str]:
        """Begin to compile a grammar that rank 0 compiles, too."""
        spec = GrammarSpec(task["kind"], task["source"])
        return as_text(self._intake.grammar(spec, task["reasoning"]))


def _end(request: Request, error: str | None) -> None:
    request.finish_reason, request.error = "error" if error else "cancelled", error
    _tell(request, Increment(request.id, request.index, output=request.output()))


def _tell(request: Request, increment: Increment) -> None:
    assert request.deliver is not None, "whoever handed it in wants to hear of it"
    request.deliver(increment)


def _digest(request: Request) -> str:
    return digest_of((request.prompt_ids, request.params, request.index))
