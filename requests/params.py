"""How one request draws its tokens: the parameters, checked when the object is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from pydantic import ValidationError

from ..graph.errors import StepweaveError, did_you_mean
from ..structured.grammar import GrammarError, GrammarSpec
from .complaints import complaint, shown
from .keys import (
    NOT_SUPPORTED,
    AdapterName,
    BadWords,
    Biases,
    DryBreakers,
    Keys,
    NodeSettings,
    StopStrings,
    StopTokens,
    StructuredOutputs,
    TokenIds,
    key,
    with_keys_of,
)
from .limits import LEAST_TEMPERATURE, MAX_LOGPROBS, MAX_MATCH


class RequestError(StepweaveError):
    """A request cannot be served; its neighbours are not affected."""

    code = "SW-REQUEST"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    Logits are changed in this order: bias, repetition, presence and frequency penalty, DRY,
    grammar, bad words, repeated n-grams, min_tokens; then temperature, top-k, top-p, min-p, XTC,
    where a token is drawn. Repetition (Keskar et al. 2019, arXiv:1909.05858), DRY and n-grams count
    prompt and output; presence and frequency count the output alone. Bad words, repeated n-grams
    and min_tokens give way where they and the grammar leave nothing. Log-probabilities are those of
    the model, before any of it.

    `structured_outputs` is a mapping as in a prompts line, such as {"json": schema}. None stands
    for the default. Lists become tuples, and numbers of numpy those of Python.

    Raises `RequestError` that names each argument of a wrong type or out of its range.
    """

    max_tokens: int = key(128, "Tokens generated at most. Not given: 128.", ge=1, le=1 << 20)
    temperature: float = key(
        0.0,
        "Divides the logits before a token is drawn; 0, and what is too small for float32, is "
        "greedy. Not given: 0.",
        ge=0,
        le=100,
    )
    top_k: int = key(
        0,
        "Draw only from this many of the most probable tokens; 0: from all tokens.",
        ge=0,
        le=1 << 24,
    )
    top_p: float = key(
        1.0,
        "Draw only from the smallest set of most probable tokens whose probabilities sum to at "
        "least this; 1: off.",
        gt=0,
        le=1,
    )
    min_p: float = key(
        0.0,
        "Draw only tokens with at least this share of the most probable token's probability; "
        "0: off.",
        ge=0,
        lt=1,
    )
    seed: int = key(
        0,
        "Seed of the random draws; completion number i uses seed + i. Not given: 0.",
        ge=0,
        lt=1 << 63,
    )
    stop: str | Sequence[str] = key(
        (),
        "Texts that end the output, up to 16 of up to 256 characters. The output does not include "
        "them.",
        StopStrings,
    )
    stop_token_ids: Sequence[int] = key((), "Ids of tokens that end the output.", StopTokens)
    ignore_eos: bool = key(
        False,
        "Do not stop at the end-of-sequence token: generate until max_tokens or a stop string.",
    )
    min_tokens: int = key(
        0, "The output cannot end before it has this many tokens.", ge=0, le=1 << 20
    )
    presence_penalty: float = key(
        0.0,
        "Subtracted from the logit of each token that is already in the output; 0: off.",
        ge=-2,
        le=2,
    )
    frequency_penalty: float = key(
        0.0,
        "Subtracted from a token's logit once for each time it is in the output; 0: off.",
        ge=-2,
        le=2,
    )
    repetition_penalty: float = key(
        1.0,
        "Makes tokens that are in the prompt or the output less probable (above 1) or more "
        "(below 1); 1: off.",
        ge=0.01,
        le=100,
    )
    xtc_probability: float = key(
        0.0,
        "With this probability, at each position, leave out all tokens of at least "
        "`xtc_threshold` but the least probable of them; 0: off.",
        ge=0,
        le=1,
    )
    xtc_threshold: float = key(
        0.1,
        "The probability from which on XTC leaves tokens out. Above 0.5 there never are two.",
        gt=0,
        le=1,
    )
    dry_multiplier: float = key(
        0.0,
        "DRY: taken off the logit of a token that would go on with a repetition of "
        "`dry_allowed_length` tokens; 0: off.",
        ge=0,
        le=100,
    )
    dry_base: float = key(
        1.75, "DRY: each further token of the repetition multiplies what is taken off.", ge=1, le=5
    )
    dry_allowed_length: int = key(
        2, "DRY: repetitions of fewer tokens are left alone.", ge=1, le=MAX_MATCH
    )
    dry_penalty_last_n: int = key(
        -1,
        "DRY: only so many tokens at the end of the text are compared; -1: all, 0: none.",
        ge=-1,
        le=1 << 31,
    )
    dry_sequence_breakers: Sequence[str] = key(
        ("\n", ":", '"', "*"),
        "DRY: repetitions are not followed over the tokens that end these texts.",
        DryBreakers,
    )
    no_repeat_ngram_size: int = key(
        0,
        "No sequence of so many tokens comes twice in prompt and output; 0: off.",
        ge=0,
        le=MAX_MATCH,
    )
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = key(
        (), "By token id: a number from -100 to 100 that is added to the token's logit.", Biases
    )
    bad_words: Sequence[str] = key(
        (),
        "Texts whose tokens must not follow each other in the output: as given, and after a space.",
        BadWords,
    )
    node_settings: Mapping[str, float] | Sequence[tuple[str, float]] = key(
        (),
        "By name: a number for nodes of the pipeline that take it from requests.",
        NodeSettings,
    )
    adapter: str | None = key(
        None,
        "The name of one of the pipeline's `model.adapters`, which the model is adapted by. Not "
        "given: the model itself.",
        AdapterName,
    )
    n: int = key(1, "Number of completions of the prompt.", ge=1, le=128)
    logprobs: int | None = key(
        None,
        "Return the log-probability of each output token, and of this many of the most probable "
        "tokens at its place.",
        ge=0,
        le=MAX_LOGPROBS,
    )
    prompt_logprobs: int | None = key(
        None, "The same as `logprobs`, for the tokens of the prompt.", ge=0, le=MAX_LOGPROBS
    )
    draft_tokens: int | None = key(
        None, "Drafts per step, at most; 0: no speculation for this request.", ge=0, le=16
    )
    priority: int = key(0, "Requests with a lower number run first.", ge=-(1 << 31), le=1 << 31)
    settled_token_ids: Sequence[int] = key(
        (),
        "Ids of tokens that the output begins with, where another engine has generated them: the "
        "output goes on after them, with the tokens that it would have had there if the acceptance "
        "rule is exact. `max_tokens` and `min_tokens` count them too. Only with n 1.",
        TokenIds,
    )
    structured_outputs: GrammarSpec | Mapping[str, Any] | None = key(  # noqa: RUF009 - a field
        None, "The grammar that the output must follow.", StructuredOutputs
    )
    reasoning: bool | None = None  # a section before the structured part; None: as configured

    def __post_init__(self) -> None:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, value in _checked(given).items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens, {self.max_tokens}, not {self.min_tokens}"
            )
        if self.settled_token_ids and self.n != 1:
            raise RequestError(
                f"settled_token_ids begin one output, but n is {self.n}: hand in each of the n as "
                "a request of its own, with n 1 and its seed"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SamplingParams:
        """From a mapping with the same names. Raises `RequestError`, for an unknown one too."""
        known = {each.name for each in fields(cls)}
        for name in given:
            if reason := NOT_SUPPORTED.get(name):
                raise RequestError(f"{name} is not supported: {reason}")
            if name not in known:
                raise RequestError(f"unknown parameter {name!r}{did_you_mean(str(name), known)}")
        return cls(**given)

    @property
    def grammar(self) -> GrammarSpec | None:
        """What `structured_outputs` asks for."""
        return cast(GrammarSpec | None, self.structured_outputs)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs of a token id and what is added to its logit."""
        return cast(tuple[tuple[int, float], ...], self.logit_bias)

    @property
    def given_settings(self) -> dict[str, float]:
        """`node_settings` as a mapping."""
        return dict(cast(tuple[tuple[str, float], ...], self.node_settings))

    @property
    def penalized(self) -> bool:
        """Whether the output so far changes the scores of the next tokens."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    @property
    def dry(self) -> bool:
        """Whether DRY may change the scores."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def longest_match(self) -> int:
        """Tokens that the end of the text is compared with what stands earlier, at most."""
        of_ngrams = max(1, self.no_repeat_ngram_size - 1) if self.no_repeat_ngram_size else 0
        return MAX_MATCH if self.dry else of_ngrams

    @property
    def xtc(self) -> bool:
        """Whether XTC may leave tokens out."""
        return self.temperature > 0 and self.xtc_probability > 0


@with_keys_of(SamplingParams)
class SamplingKeys(Keys):
    """How to draw tokens; what is not given, or None, is as `SamplingParams` has it."""

    NOT_SUPPORTED = NOT_SUPPORTED


_MAPPINGS = ("logit_bias", "node_settings")
"""Kept as pairs, since a mapping can be changed."""
_DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(SamplingParams)}


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values that an object keeps, by name. Raises `RequestError`."""
    data = {name: _plain(value) for name, value in given.items() if value is not None}
    reasoning = data.pop("reasoning", None)
    if reasoning is not None and not isinstance(reasoning, bool):
        raise RequestError(f"reasoning must be true or false, not {shown(reasoning)}")
    spec = data.get("structured_outputs")
    if isinstance(spec, GrammarSpec):
        del data["structured_outputs"]
    for name in _MAPPINGS:
        data[name] = _pairs(data.get(name, ()))
    try:
        keys = SamplingKeys.model_validate(data, strict=True)
    except ValidationError as error:
        said: dict[object, str] = {}  # the first complaint of each argument
        for each in error.errors(include_url=False):
            said.setdefault(each["loc"][0], complaint(SamplingKeys, dict(each)))
        raise RequestError("; ".join(said.values())) from None
    kept = {name: getattr(keys, name) for name in data}
    for name in _MAPPINGS:
        kept[name] = tuple(kept[name].items())
    if (asked := kept.get("structured_outputs")) is not None:
        spec, own = _grammar(asked), asked.reasoning
        reasoning = own if reasoning is None else reasoning
    if kept.get("temperature", 0.0) < LEAST_TEMPERATURE:
        kept["temperature"] = 0.0
    return {**_DEFAULTS, **kept, "structured_outputs": spec, "reasoning": reasoning}


def _grammar(asked: StructuredOutputs) -> GrammarSpec:
    try:
        return GrammarSpec.from_request(asked.request())
    except GrammarError as error:
        raise RequestError(f"structured_outputs: {error}") from None


def _plain(value: Any, depth: int = 0) -> Any:
    """Scalars and arrays of numpy and torch as Python has them; no other object has a `tolist`.

    In lists of pairs as well; no argument is nested deeper.
    """
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value] if depth < 2 else value
    if isinstance(value, Mapping):
        return {_number(key): each for key, each in value.items()}
    return _number(value)


def _number(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _pairs(given: Any) -> Any:
    """Pairs as a mapping; anything else as it is, for the rules to refuse."""
    if isinstance(given, list | tuple) and all(
        isinstance(each, list | tuple) and len(each) == 2 for each in given
    ):
        try:
            return dict(given)
        except TypeError:  # what cannot be a key
            return given
    return given
