"""When each request came, was first scheduled, got its first token and ended: for traced runs.

The table tells a log, where it has one, what happens to a request at the moment it happens; an
untraced run has none, and asks once per scheduled row whether it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter

from .request import FinishReason, Request
from .step_counts import StepCounts


@dataclass(frozen=True)
class RequestSpan:
    """The life of one request; times in seconds of `time.perf_counter`.

    asked … submitted: its grammar is compiled. … scheduled: it waits for a row. … first token:
    its prompt is computed, and a first token settled. … ended: it decodes. What it never came to
    is None. `steps`: those of the run in which it had a row.
    """

    id: str
    asked_s: float
    submitted_s: float | None
    scheduled_s: float | None
    first_token_s: float | None
    ended_s: float | None
    prompt_tokens: int
    tokens: int
    finish_reason: FinishReason | None
    preemptions: int = 0
    steps: tuple[int, ...] = ()


@dataclass
class _Noted:
    request: Request
    asked_s: float
    submitted_s: float | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    steps: list[int] = field(default_factory=list)


class RequestLog:
    """What a table notes of its requests while it has this for its `log`."""

    def __init__(self) -> None:
        self.steps = StepCounts()
        self._noted: dict[int, _Noted] = {}

    def asked(self, requests: Iterable[Request]) -> None:
        """They exist, though they may still wait for a grammar (any thread)."""
        now = perf_counter()
        for request in requests:
            self._noted.setdefault(request.uid, _Noted(request, now))

    def submitted(self, requests: Iterable[Request]) -> None:
        """They are about to be queued (any thread)."""
        now = perf_counter()
        for request in requests:
            self._noted.setdefault(request.uid, _Noted(request, now)).submitted_s = now

    def scheduled(self, request: Request, step: int) -> None:
        if (noted := self._noted.get(request.uid)) is not None:
            if noted.scheduled_s is None:
                noted.scheduled_s = perf_counter()
            noted.steps.append(step)

    def prefilled(self, request: Request) -> None:
        """Its first token is being settled."""
        noted = self._noted.get(request.uid)
        if noted is not None and noted.first_token_s is None and noted.ended_s is None:
            noted.first_token_s = perf_counter()

    def ended(self, request: Request) -> None:
        if (noted := self._noted.get(request.uid)) is not None:
            noted.ended_s = perf_counter()

    def spans(self) -> tuple[RequestSpan, ...]:
        """In order of arrival."""
        return tuple(
            RequestSpan(
                id=noted.request.id,
                asked_s=noted.asked_s,
                submitted_s=noted.submitted_s,
                scheduled_s=noted.scheduled_s,
                first_token_s=noted.first_token_s,
                ended_s=noted.ended_s,
                prompt_tokens=len(noted.request.prompt_ids),
                tokens=len(noted.request.output_ids),
                finish_reason=noted.request.finish_reason,
                preemptions=noted.request.preemptions,
                steps=tuple(noted.steps),
            )
            for _, noted in sorted(self._noted.items())
        )
