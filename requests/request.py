"""One request: what was asked, what is settled, and what is in flight for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from ..graph.errors import StepweaveError
from ..policies.counts import InFlight, Optimistic, Settled
from ..policies.stopping import StopChecker
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarSpec
from .limits import MAX_BIASES, MAX_LOGPROBS, MAX_STOP_TOKENS
from .moments import Moments, RequestTimings

FinishReason = Literal["stop", "length", "error", "cancelled"]
Phase = Literal["waiting", "running", "preempted", "done"]


class RequestError(StepweaveError):
    """A request cannot be served; its neighbours are not affected."""

    code = "SW-REQUEST"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    Logits are changed in this order: bias, repetition, presence and frequency penalty, bad words,
    min_tokens, grammar; then temperature, top-k, top-p, min-p. Repetition counts prompt and output
    (Keskar et al. 2019, arXiv:1909.05858); presence and frequency count the output alone. Bad
    words and min_tokens give way where the grammar leaves nothing else. Log-probabilities are
    those of the model, before any of it.

    Raises `RequestError` where a number is out of its range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # nothing but max_tokens ends the output before
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    bad_words: tuple[str, ...] = ()
    n: int = 1  # completions; each draws with a seed of its own
    logprobs: int | None = None  # alternatives beside each output token; 0: the token's own
    prompt_logprobs: int | None = None
    draft_tokens: int | None = None  # at most so many per step; 0: no speculation; None: all
    priority: int = 0  # lower runs first, and is preempted last
    structured_outputs: GrammarSpec | None = None
    reasoning: bool | None = None  # a section before the structured part; None: as configured

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                f"min_tokens must be in [0, max_tokens = {self.max_tokens}], not {self.min_tokens}"
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(f"temperature must be a number ≥ 0, not {self.temperature}")
        if self.top_k < 0:
            raise RequestError(f"top_k must be ≥ 0 (0 is off), not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be in (0, 1], not {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise RequestError(f"min_p must be in [0, 1), not {self.min_p}")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed must be in [0, 2^63), not {self.seed}")
        if any(not s for s in self.stop):
            raise RequestError("a stop string must not be empty")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS // 2:
            raise RequestError(
                f"{len(self.stop_token_ids)} stop_token_ids, more than {MAX_STOP_TOKENS // 2}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -2 <= value <= 2:
                raise RequestError(f"{name} must be in [-2, 2], not {value}")
        if not 0 < self.repetition_penalty <= 100:
            raise RequestError(
                f"repetition_penalty must be in (0, 100], not {self.repetition_penalty}"
            )
        if len(self.logit_bias) > MAX_BIASES:
            raise RequestError(f"logit_bias names {len(self.logit_bias)} tokens, over {MAX_BIASES}")
        if any(not -100 <= bias <= 100 for _, bias in self.logit_bias):
            raise RequestError("a logit_bias must be in [-100, 100]")
        if any(not word for word in self.bad_words):
            raise RequestError("a bad word must not be empty")
        if not 1 <= self.n <= 128:
            raise RequestError(f"n must be in [1, 128], not {self.n}")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise RequestError(f"{name} must be in [0, {MAX_LOGPROBS}], not {count}")
        if self.draft_tokens is not None and self.draft_tokens < 0:
            raise RequestError(f"draft_tokens must be ≥ 0 (0 is off), not {self.draft_tokens}")

    @property
    def penalized(self) -> bool:
        """Whether what was written so far changes what may come."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The model's own log-probability of one token, before any processing; `rank` 1 is the best.

    `top`: the most probable tokens with theirs, best first, as many as were asked for.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


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
    window: int = 1  # query tokens of a decode step: its last token and its share of drafts
    bad_words: tuple[tuple[int, ...], ...] = ()  # forbidden sequences, as token ids
    on_text: Callable[[str], None] | None = None
    on_settled: Callable[[Request, int], None] | None = None  # (itself, tokens it just got)
    on_ended: Callable[[Request], None] | None = None  # (itself), once; must not raise
    moments: Moments = field(default_factory=Moments)

    phase: Phase = "waiting"
    output_ids: list[int] = field(default_factory=list)  # settled
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache at the first admission
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # from the second token on

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

    @property
    def speculates(self) -> bool:
        return self.window > 1

    def most(self) -> Optimistic:
        """Tokens there will be if every draft in flight is accepted."""
        return self.in_flight.most(self.settled, self.window)

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
            cached_tokens=self.cached_tokens,
            error=self.error,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            prompt_logprobs=(
                tuple(self.prompt_logprobs) if self.params.prompt_logprobs is not None else None
            ),
            warnings=self.grammar.warnings if self.grammar is not None else (),
            notes=self.grammar.notes if self.grammar is not None else (),
            timings=self.moments.durations(len(self.output_ids)),
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
    """What a request came to. `error` says why, where `finish_reason` is "error".

    `logprobs` has one entry per output token, `prompt_logprobs` one per prompt token from the
    second on; None where they were not asked for. `warnings`: what of its grammar is not enforced;
    `notes`: which library serves it, and why not another.
    `choices`: for n > 1, all n completions in order; the other fields are then the first one's.
    `timings` has no part in comparing outputs.
    """

    id: str
    prompt: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    choices: tuple[RequestOutput, ...] = ()
    timings: RequestTimings | None = field(default=None, compare=False)

    @property
    def failed(self) -> bool:
        """Whether it, or any of its choices, ended with an error."""
        return self.error is not None or any(choice.failed for choice in self.choices)

    def to_json(self) -> dict[str, Any]:
        """As a line of `run --json`; what was not asked for has no key."""
        out: dict[str, Any] = {
            "id": self.id,
            "prompt": self.prompt,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "drafted": self.drafted,
            "accepted": self.accepted,
        }
        if self.cached_tokens:
            out["cached_tokens"] = self.cached_tokens
        if self.error is not None:
            out["error"] = self.error
        for name in ("logprobs", "prompt_logprobs"):
            if (found := getattr(self, name)) is not None:
                out[name] = [asdict(each) for each in found]
        if self.warnings:
            out["warnings"] = list(self.warnings)
        if self.notes:
            out["notes"] = list(self.notes)
        if self.timings is not None:
            out["timings"] = self.timings.to_json()
        if self.choices:
            out["choices"] = [choice.to_json() for choice in self.choices]
        return out
