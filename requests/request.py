"""One request: what was asked, what is settled, and what is in flight for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..graph.errors import StepweaveError
from ..policies.counts import InFlight, Optimistic, Settled
from ..policies.stopping import StopChecker
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarSpec

FinishReason = Literal["stop", "length", "error", "cancelled"]
Phase = Literal["waiting", "running", "preempted", "done"]


class RequestError(StepweaveError):
    """A request cannot be served; its neighbours are not affected."""

    code = "SW-REQUEST"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. Temperature 0 is greedy; top_k 0 and top_p 1 are off.

    Raises `RequestError` where a number is out of its range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    structured_outputs: GrammarSpec | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(f"temperature must be a number ≥ 0, not {self.temperature}")
        if self.top_k < 0:
            raise RequestError(f"top_k must be ≥ 0 (0 is off), not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be in (0, 1], not {self.top_p}")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed must be in [0, 2^63), not {self.seed}")
        if any(not s for s in self.stop):
            raise RequestError("a stop string must not be empty")


class TextStream(Protocol):
    """Settled token ids in, pieces of text out; a character split over tokens is held back."""

    def push(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


@dataclass(slots=True, eq=False)
class Request:
    """The host's record of one request. Owned by the ops that declare the `requests` state."""

    uid: int  # arrival order, never reused
    id: str
    prompt: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int  # of output, within the context
    stop_token_ids: frozenset[int]  # end of sequence included, unless it is ignored
    stopper: StopChecker
    decoder: TextStream
    grammar: CompiledGrammar | None = None
    on_text: Callable[[str], None] | None = None
    on_settled: Callable[[Request, int], None] | None = None  # (itself, tokens it just got)

    phase: Phase = "waiting"
    output_ids: list[int] = field(default_factory=list)  # settled
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0

    row: int = -1
    generation: int = -1
    blocks: list[int] = field(default_factory=list)
    prefilled: int = 0  # tokens whose chunk has been scheduled since the last admission
    prefill_target: int = 0  # tokens to compute before the row can decode
    in_flight: InFlight = field(default_factory=InFlight)
    last_step: int = -1
    turn: int = 0  # its place in the round of decode rows

    @property
    def settled(self) -> Settled:
        """Tokens of prompt and output that the host has seen."""
        return Settled(len(self.prompt_ids) + len(self.output_ids))

    def most(self, window: int) -> Optimistic:
        """Tokens there will be if every draft in flight is accepted."""
        return self.in_flight.most(self.settled, window)

    def certain_to_end(self, context_length: int) -> bool:
        """Whether the steps in flight alone reach the end, even with no draft accepted."""
        least = self.in_flight.least(self.settled)
        return least >= min(len(self.prompt_ids) + self.max_tokens, context_length)

    @property
    def resumes(self) -> bool:
        """Preempted after its first token: recompute all but the last, then draft anew."""
        return bool(self.output_ids)

    def output(self) -> RequestOutput:
        """What it has come to; a request that has not ended counts as cancelled."""
        return RequestOutput(
            id=self.id,
            prompt=self.prompt,
            text=self.text,
            token_ids=tuple(self.output_ids),
            finish_reason=self.finish_reason or "cancelled",
            drafted=self.drafted,
            accepted=self.accepted,
            error=self.error,
        )

    def begin_prefill(self) -> None:
        """Set out what must be computed before this row decodes.

        A resumed row computes every settled token but the last and samples nothing, so that
        its next draft window begins exactly where it would have begun without the preemption.
        """
        self.prefilled = 0
        self.prefill_target = self.settled - 1 if self.resumes else self.settled

    def token(self, position: int) -> int:
        """The settled token at an absolute position."""
        prompt = len(self.prompt_ids)
        return (
            self.prompt_ids[position] if position < prompt else self.output_ids[position - prompt]
        )


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request came to. `error` says why, where `finish_reason` is "error"."""

    id: str
    prompt: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    drafted: int = 0
    accepted: int = 0
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "id": self.id,
            "prompt": self.prompt,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "drafted": self.drafted,
            "accepted": self.accepted,
        }
        if self.error is not None:
            out["error"] = self.error
        return out
