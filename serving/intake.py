"""From what a user hands in to requests that the engine can run, each checked on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ..configs.prompts import PromptLine, prompt_of
from ..configs.schema import PipelineConfig
from ..models.tokenizer import StreamDecoder, load_tokenizer
from ..policies.stopping import StopChecker
from ..requests.limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_STOP_TOKENS
from ..requests.request import Request, RequestError, SamplingParams
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError, GrammarSpec
from .engine import Engine, EngineError
from .grammars import Grammars

Prompt = str | Mapping[str, Any] | PromptLine | Sequence[int]


class Intake:
    """Makes requests for one engine. Every method raises `RequestError`, `GrammarError` or
    `ConfigError` for what cannot be served, and nothing else.
    """

    def __init__(self, config: PipelineConfig, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self.tokenizer = load_tokenizer(config.model.name)
        own = self.tokenizer.eos_token_id
        self._eos = engine.model.eos_token_ids | (
            frozenset({own}) if isinstance(own, int) else frozenset()
        )
        self._grammars: Grammars | None = None
        if config.structured is not None and self._eos:
            try:
                self._grammars = Grammars(
                    config.structured, self.tokenizer, engine.model.vocab_size, self._eos
                )
            except GrammarError as error:
                raise EngineError(f"structured: {error}") from error

    def close(self) -> None:
        """End the compilation of grammars, and the processes that it takes."""
        if self._grammars is not None:
            self._grammars.close()

    def params(self, prompt: Prompt, given: SamplingParams | None) -> SamplingParams:
        """The parameters of a prompt: a line's own, else those given, else greedy decoding."""
        if isinstance(prompt, Mapping):
            prompt = prompt_of(prompt)
        return _params(prompt) if isinstance(prompt, PromptLine) else given or SamplingParams()

    def requests(
        self,
        uids: Iterator[int],
        request_id: str,
        text: str,
        prompt: Prompt,
        params: SamplingParams,
    ) -> list[Request]:
        """The n requests of one prompt, with the next of `uids`; their grammar is not there yet."""
        if isinstance(prompt, Mapping):
            prompt = prompt_of(prompt, request_id)
        prompt_ids = self._encode(prompt, text)
        self._check_tokens("prompt", prompt_ids)
        self._check_tokens("stop_token_ids", params.stop_token_ids)
        self._check_tokens("logit_bias", [token for token, _ in params.logit_bias])
        bad_words = self._bad_words(params.bad_words)
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= self._eos
        if len(stops) > MAX_STOP_TOKENS:
            raise RequestError(f"{len(stops)} stop tokens, more than {MAX_STOP_TOKENS}")
        limits = self._engine.limits
        room = max(min(params.max_tokens, limits.context_length - len(prompt_ids)), 1)
        wanted = limits.draft_tokens if params.draft_tokens is None else params.draft_tokens
        return [
            Request(
                uid=next(uids),
                id=request_id if params.n == 1 else f"{request_id}/{index}",
                prompt=text,
                prompt_ids=prompt_ids,
                params=replace(params, seed=(params.seed + index) % 2**63),
                max_tokens=room,
                stop_token_ids=stops,
                stopper=StopChecker(stops, params.stop, room, min(params.min_tokens, room)),
                decoder=StreamDecoder(self.tokenizer, prompt_ids),
                window=1 + min(wanted, limits.draft_tokens),
                bad_words=bad_words,
            )
            for index in range(params.n)
        ]

    def grammar(self, spec: GrammarSpec, reasoning: bool | None) -> Future[CompiledGrammar]:
        """The compiled grammar, now or later. The future may hold a `GrammarError`."""
        if self._config.structured is None:
            raise RequestError("this pipeline has no grammars: set `structured.backend`")
        if self._grammars is None:
            raise RequestError("structured outputs need a model with an end-of-text token")
        return self._grammars.compile(spec, reasoning)

    def _check_tokens(self, what: str, ids: Sequence[int]) -> None:
        vocab = self._engine.model.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"{what}: token id {token} is outside the model's vocabulary of {vocab}",
                    code="SW-TOKEN",
                )

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is written at the start of a text and after a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for form in (word, f" {word.lstrip()}"):
                ids = tuple(self.tokenizer(form, add_special_tokens=False)["input_ids"])
                if len(ids) > MAX_BAD_WORD_TOKENS:
                    raise RequestError(
                        f"bad_words: {word!r} is {len(ids)} tokens long, more than "
                        f"{MAX_BAD_WORD_TOKENS}"
                    )
                if ids:
                    found[ids] = None
        if len(found) > MAX_BAD_WORDS:
            raise RequestError(f"bad_words: {len(found)} sequences, more than {MAX_BAD_WORDS}")
        return tuple(found)

    def _encode(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        if isinstance(prompt, PromptLine) and prompt.messages is not None:
            return self._chat([message.model_dump() for message in prompt.messages])
        if not isinstance(prompt, str | PromptLine):
            return tuple(int(token) for token in prompt)
        wanted = self._config.model.prompt_format
        if wanted == "chat" or (wanted == "auto" and self._config.model.name == "embedded"):
            return self._chat([{"role": "user", "content": text}])
        return tuple(self.tokenizer(text)["input_ids"])

    def _chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        if not self.tokenizer.chat_template:
            raise RequestError("this model's tokenizer has no chat template: give a `prompt`")
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is the model's program; it may raise anything
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def named(prompt: Prompt, uid: int) -> tuple[str, str]:
    """The id and the text of a prompt, before anything of it is checked."""
    if isinstance(prompt, str):
        return str(uid), prompt
    if isinstance(prompt, Mapping):
        found, messages = prompt.get("prompt"), prompt.get("messages")
        given = prompt.get("id")
    elif isinstance(prompt, PromptLine):
        found, given = prompt.prompt, prompt.id
        messages = prompt.messages and [message.model_dump() for message in prompt.messages]
    else:
        return str(uid), ""
    if not isinstance(found, str):
        last = messages[-1] if isinstance(messages, Sequence) and messages else {}
        found = last.get("content", "") if isinstance(last, Mapping) else ""
    return str(uid if given is None else given), str(found)


_SAME_NAME = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
    "logprobs",
    "prompt_logprobs",
    "draft_tokens",
    "priority",
)


def _params(line: PromptLine) -> SamplingParams:
    """Sampling parameters of a prompts line. Raises `RequestError` or `GrammarError`."""
    given = {key: value for key in _SAME_NAME if (value := getattr(line, key)) is not None}
    asked = line.structured_outputs
    return SamplingParams(
        **given,
        stop=line.stop,
        stop_token_ids=line.stop_token_ids,
        ignore_eos=line.ignore_eos,
        bad_words=line.bad_words,
        logit_bias=tuple((line.logit_bias or {}).items()),
        structured_outputs=None if asked is None else GrammarSpec.from_request(asked.request()),
        reasoning=None if asked is None else asked.reasoning,
    )
