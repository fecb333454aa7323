"""The lives of the requests of a traced run, and the steps that each was in.

The table tells a log, where it has one, in which steps a request has a row; an untraced run has
none, and asks once per scheduled row whether it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .moments import Moments
from .request import FinishReason, Request


@dataclass(frozen=True)
class RequestSpan:
    """The life of one request; times as in `Moments`. `steps`: those in which it had a row."""

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
    steps: list[int] = field(default_factory=list)


class RequestLog:
    """What a table notes of its requests while it has this for its `log`."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._noted = {request.uid: _Noted(request) for request in requests}

    def scheduled(self, request: Request, step: int) -> None:
        if (noted := self._noted.get(request.uid)) is not None:
            noted.steps.append(step)

    def spans(self) -> tuple[RequestSpan, ...]:
        """In order of arrival."""
        found = [noted for _, noted in sorted(self._noted.items())]
        return tuple(span_of(each.request, tuple(each.steps)) for each in found)


def span_of(request: Request, steps: tuple[int, ...] = ()) -> RequestSpan:
    """What is known of its life by now."""
    moments: Moments = request.moments
    return RequestSpan(
        id=request.id,
        asked_s=moments.asked_s,
        submitted_s=moments.submitted_s,
        scheduled_s=moments.scheduled_s,
        first_token_s=moments.first_token_s,
        ended_s=moments.ended_s,
        prompt_tokens=len(request.prompt_ids),
        tokens=len(request.output_ids),
        finish_reason=request.finish_reason,
        preemptions=request.preemptions,
        steps=steps,
    )
