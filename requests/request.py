"""One request: what was asked, what is settled, and what is in flight for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from ..policies.windows import Window
from ..structured.backend import CompiledGrammar
from .attachments import Attachment, Axes
from .batch import RequestSpec
from .counts import InFlight, OptimisticCount, SettledCount
from .increment import Deliver, Increment
from .moments import Moments, RequestTimings
from .params import RequestError as RequestError
from .params import SamplingParams as SamplingParams
from .stopping import StopChecker

FinishReason = Literal["stop", "length", "error", "cancelled"]
Phase = Literal["waiting", "running", "preempted", "done"]

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero in JSON, which has no infinity."""


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
    """SettledCount token ids in, pieces of text out; a character split over tokens is held back."""

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
    window: int = 1  # query tokens of a decode step, at most: its last token and its drafts
    bad_words: tuple[tuple[int, ...], ...] = ()  # forbidden sequences, as token ids
    dry_breakers: tuple[int, ...] = ()  # tokens at which DRY breaks sequences
    settings: tuple[tuple[str, float], ...] = ()  # what it says to nodes, by name
    adapter: int = 0  # the number of its adapter; 0: none
    attachments: tuple[Attachment, ...] = ()  # in the order of the prompt
    axes: Axes | None = None  # None: a token stands at its place in the text
    index: int = 0  # which of the n completions of its prompt this is
    fork_of: int | None = None  # the first of these n, by its uid; None: it is alone
    cache_salt: bytes = b""  # it shares cached prefixes with requests of the same salt only
    deliver: Deliver | None = None
    streams: bool = True  # deliver what each step settled; else the output alone
    moments: Moments = field(default_factory=Moments)

    phase: Phase = "waiting"
    output_ids: list[int] = field(default_factory=list)  # settled
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    cached_tokens: int = 0  # of the prompt, found computed at the first admission
    brought: int = 0  # output tokens that it came with, settled by another engine
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of output tokens after those
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # from the second token on

    request_slot: int = -1
    generation: int = -1
    blocks: list[int] = field(default_factory=list)
    prefilled: int = 0  # tokens whose chunk has been scheduled since the last admission
    prefill_target: int = 0  # tokens to compute before the row can decode
    in_flight: InFlight = field(default_factory=InFlight)
    last_step: int = -1
    long: bool = False  # since its admission it is beyond its model's original context
    turn: int = 0  # its place in the round of decode rows
    withheld: int = 0  # so many drafts fewer than the most it was offered for its next window
    windows: list[Window] = field(default_factory=list)  # those settled, where a policy looks back
    spec: RequestSpec = field(init=False)  # what batches say of it; from `arrive` on
    earlier_output: tuple[int, ...] = ()  # settled when this run of the engine began

    def arrive(self) -> None:
        """Fix what it asks for: nothing of that changes from now on."""
        self.spec = RequestSpec(
            uid=self.uid,
            id=self.id,
            params=self.params,
            prompt_tokens=len(self.prompt_ids),
            window=self.window,
            stop_tokens=tuple(sorted(self.stop_token_ids)),
            bad_words=self.bad_words,
            dry_breakers=self.dry_breakers,
            settings=self.settings,
            adapter=self.adapter,
            axes=self.axes,
            structured=self.grammar is not None,
        )
        self.begin_run()

    def begin_run(self) -> None:
        """Nothing of it is in flight; what it has come to is what this run goes on from."""
        self.in_flight = InFlight()
        self.earlier_output = tuple(self.output_ids)

    @property
    def settled(self) -> SettledCount:
        """Tokens of prompt and output that the host has seen."""
        return SettledCount(len(self.prompt_ids) + len(self.output_ids))

    @property
    def next_window(self) -> int:
        """Query tokens of its next decode step."""
        return self.window - self.withheld

    @property
    def is_fork(self) -> bool:
        """Whether another of the n completions of its prompt comes before it."""
        return self.fork_of is not None and self.fork_of != self.uid

    @property
    def speculates(self) -> bool:
        return self.window > 1

    def upper_bound(self) -> OptimisticCount:
        """Tokens there will be if every draft in flight is accepted."""
        return self.in_flight.upper_bound(self.settled)

    @property
    def too_short(self) -> bool:
        """Whether its next token may be one that comes before `min_tokens` others."""
        least = self.params.min_tokens
        return least > 0 and self.in_flight.lower_bound(self.settled) - len(self.prompt_ids) < least

    def prompt_targets(self, start: int, count: int) -> tuple[int, ...]:
        """The prompt tokens that its `count` tokens from `start` on predict, if it asks for their
        log-probabilities.
        """
        if self.params.prompt_logprobs is None:
            return ()
        return self.prompt_ids[start + 1 : start + count + 1]

    def certain_to_end(self, context_length: int) -> bool:
        """Whether the steps in flight alone reach the end, even with no draft accepted."""
        least = self.in_flight.lower_bound(self.settled)
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
            timings=self.moments.durations(len(self.output_ids) - self.brought),
        )

    def resume(self, tokens: Sequence[int]) -> None:
        """Go on after these tokens of its output. It has a `finish_reason` if they end it.

        Raises `RequestError` for tokens behind that end.
        """
        _, kept, self.finish_reason = self.take_text(tokens)
        if kept < len(tokens):
            raise RequestError(
                f"settled_token_ids: the output ends with the first {kept} of {len(tokens)} tokens;"
                " leave out those behind"
            )
        self.output_ids.extend(tokens)
        self.brought = kept

    def take_text(self, tokens: Sequence[int]) -> tuple[str, int, FinishReason | None]:
        """Take the text of the tokens that were settled next: the text that may be shown now, how
        many tokens belong to the request, and why the last of these ends it, if it does.
        """
        decision = self.stopper.push(tokens, self.decoder.push, self.decoder.finish)
        self.text += decision.text
        return decision.text, decision.kept, decision.finish_reason

    def forget_after(self, tokens: int) -> None:
        """Drop all but the first so many output tokens."""
        del self.output_ids[tokens:]
        del self.logprobs[max(tokens - self.brought, 0) :]

    def tell(self, text: str, tokens: int) -> None:
        """Deliver what the latest step settled: this text, and the last so many tokens."""
        if self.deliver is not None and self.streams and (text or tokens):
            start = len(self.output_ids) - tokens
            told = self.logprobs[start - self.brought :]
            asked = self.params.logprobs is not None
            self.deliver(
                Increment(
                    self.id,
                    self.index,
                    text,
                    tuple(self.output_ids[start:]),
                    tuple(told) if asked else None,
                )
            )

    def tell_end(self) -> None:
        """Deliver the output; text that was held back is part of it, where others ended it."""
        if self.finish_reason in ("cancelled", "error"):
            rest = ""
            with suppress(Exception):  # it may be the decoder that failed: the output comes anyway
                rest = self.decoder.finish()
            held = self.stopper.release(rest)
            self.text += held
            self.tell(held, 0)
        if self.deliver is not None:
            self.deliver(Increment(self.id, self.index, output=self.output()))

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
    """The result of a request. `error` says why, if `finish_reason` is "error".

    `logprobs` has one entry per output token after `settled_token_ids`, `prompt_logprobs` one per
    prompt token from the second on; None where they were not asked for. `warnings`: what of its
    grammar is not enforced; `notes`: which library serves it, and why not another.
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
