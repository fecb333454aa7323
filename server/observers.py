"""Who looks on while requests are served: metrics, pages, spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from ..requests.increment import Increment
from .logs import SERVER, fields

Endpoint = Literal["chat", "completions", "responses"]


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its answer, from the first header to the last byte.

    Times are seconds of `time.perf_counter`. `notes` has what its line in the log says beside.
    `key`: the digest of the API key that came with it, if one is needed; nobody is told of it.
    """

    id: str
    method: str
    path: str
    began_s: float = field(default_factory=perf_counter)
    status: int = 0
    key: bytes = field(default=b"", repr=False)
    notes: dict[str, object] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)  # W3C Trace Context, as the client sent


@dataclass(slots=True, eq=False)
class Served:
    """A call for completions that the engine has taken in: `choices` outputs will come.

    Increments that an observer gets belong to one of its choices; the last of each choice has an
    `output`, with its finish reason, counts and timings. `settled_s`: when tokens of each choice
    were last settled, before the increment that observers are told of.
    """

    id: str
    endpoint: Endpoint
    model: str
    streams: bool
    choices: int
    prompt_tokens: int
    max_tokens: int
    began_s: float
    settled_s: list[float | None] = field(init=False)

    def __post_init__(self) -> None:
        self.settled_s = [None] * self.choices


class Observer:
    """Base of those who look on. Its methods are called on the event loop: they must not wait.

    What one of them raises is logged, and changes nothing for the client.
    """

    def begun(self, served: Served) -> None:
        """The engine has taken the call in."""

    def settled(self, served: Served, choice: int, increment: Increment, at_s: float) -> None:
        """Something has come of a choice, or its end: `increment.output`."""

    def answered(self, exchange: Exchange) -> None:
        """Any HTTP request has been answered, or its client has left: `exchange.status` is 499."""


def tell(observers: Sequence[Observer], what: str, *about: object) -> None:
    """Tell each of them; what one raises is logged, and the request goes on."""
    for observer in observers:
        try:
            getattr(observer, what)(*about)
        except Exception:
            SERVER.exception(
                "an observer has failed", extra=fields(observer=type(observer).__name__)
            )
