"""Whether a run still moves; and what each actor is at, where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter

from .context import Context
from .errors import StuckWait, waits_for
from .instructions import ActorStatus


def watch(
    statuses: Mapping[str, ActorStatus],
    contexts: Collection[Context],
    hosts: Iterable[str],
    ended: SimpleQueue[str],
    given_up: Callable[[], bool],
    watchdog_s: float | None,
) -> None:
    """Return when all hosts have ended; each puts its name into `ended` then.

    `given_up`: whether something has failed, so that an op may never return.
    Raises `StuckWait` if nothing moves for `watchdog_s` seconds while an actor waits.
    """
    patience = math.inf if watchdog_s is None else watchdog_s
    seen, since = _positions(statuses, contexts), perf_counter()
    while not all(statuses[actor].ended for actor in hosts):
        with suppress(Empty):
            ended.get(timeout=min(1.0, patience / 4))
        now = _positions(statuses, contexts)
        if now != seen:
            seen, since = now, perf_counter()
        elif perf_counter() - since >= patience:
            if given_up():
                return
            _raise_if_stuck(statuses, patience)


def _positions(statuses: Mapping[str, ActorStatus], contexts: Iterable[Context]) -> list[object]:
    """Equal while nothing moves. No context is kept: what a run has left behind may go."""
    at = [(id(status.at), status.wait, status.ended) for status in statuses.values()]
    return [at, [context.step for context in contexts]]


def _raise_if_stuck(statuses: Mapping[str, ActorStatus], seconds: float) -> None:
    for status in statuses.values():
        at, wait = status.at, status.wait
        if at is not None and wait is not None:
            doing = {actor: _doing(each) for actor, each in statuses.items()}
            awaited = (wait.source, at.step - wait.distance)
            raise StuckWait((at.vertex.name, at.step), awaited, seconds, doing)


def _doing(status: ActorStatus) -> str:
    at, wait = status.at, status.wait
    if status.ended:
        return "has ended"
    if at is None:
        return "has nothing to run yet"
    if wait is None:
        return f"runs {at.vertex.name!r} of step {at.step}"
    return waits_for((at.vertex.name, at.step), (wait.source, at.step - wait.distance))
