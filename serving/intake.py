"""From a prompt as tokens to requests that the engine can run, each checked on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..configs.prompts import PromptLine
from ..configs.schema import PipelineConfig
from ..graph.errors import did_you_mean
from ..models.adapters import BASE
from ..models.tokenizer import StreamDecoder
from ..nodes.decode_step import request_settings
from ..nodes.request_settings import check_given
from ..requests.limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_STOP_TOKENS
from ..requests.request import Request, RequestError, SamplingParams
from ..requests.stopping import StopChecker
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError, GrammarSpec
from .engine import Engine, EngineError
from .grammars import Grammars
from .images import Encoded, Images
from .prompts import Prompts


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the parameters of a request come to for one engine; fields as in `Request`."""

    stops: frozenset[int]
    bad_words: tuple[tuple[int, ...], ...]
    dry_breakers: tuple[int, ...]
    settings: tuple[tuple[str, float], ...]
    adapter: int


class Intake:
    """Makes requests for one engine.

    Raises `EngineError` if grammars cannot be served at all. Every method raises `RequestError`,
    `GrammarError` or `ConfigError` for what cannot be served, and nothing else.
    """

    def __init__(self, config: PipelineConfig, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        context_length = engine.limits.context_length
        images = Images.of(config, engine.model, context_length)
        self.prompts = Prompts(config, context_length, images)
        self.tokenizer = self.prompts.tokenizer
        self.most_characters = self.prompts.most_characters
        own = self.tokenizer.eos_token_id
        self._eos = engine.model.eos_token_ids | (
            frozenset({own}) if isinstance(own, int) else frozenset()
        )
        self._request_settings = request_settings(config.nodes)
        self._grammars: Grammars | None = None
        if config.grammars is not None and self._eos:
            try:
                self._grammars = Grammars(
                    config.grammars, self.tokenizer, engine.model.vocab_size, self._eos
                )
            except GrammarError as error:
                raise EngineError(f"nodes.bitmask: {error}") from error

    def close(self) -> None:
        """End the compilation of grammars, and the processes that it takes."""
        if self._grammars is not None:
            self._grammars.close()

    @property
    def grammars(self) -> Grammars | None:
        """What compiles grammars, where the pipeline has them."""
        return self._grammars

    def requests(
        self,
        uids: Iterator[int],
        request_id: str,
        text: str,
        prompt: PromptLine | Encoded,
        params: SamplingParams,
        cache_salt: bytes = b"",
    ) -> list[Request]:
        """The n requests of one prompt, with the next of `uids`; their grammar is not there yet."""
        encoded = self.prompts.encode(prompt)
        self._check_tokens("prompt", encoded.ids)
        self._check_tokens("stop_token_ids", params.stop_token_ids)
        self._check_tokens("logit_bias", [token for token, _ in params.biases])
        asked = self._asked(params)
        settled = params.settled_token_ids
        self._check_tokens("settled_token_ids", settled)
        params = replace(
            params,
            settled_token_ids=(),
            logprobs=self._alternatives(params.logprobs),
            prompt_logprobs=self._alternatives(params.prompt_logprobs),
        )
        found = [
            self._request(
                next(uids),
                request_id if params.n == 1 else f"{request_id}/{index}",
                index,
                text,
                encoded,
                replace(params, seed=(params.seed + index) % 2**63),
                asked,
                cache_salt,
            )
            for index in range(params.n)
        ]
        for each in found:
            if params.n > 1:
                each.fork_of = found[0].uid
            if settled:
                with _readable("settled_token_ids"):
                    each.resume(settled)
        return found

    def remade(self, spec: Mapping[str, Any], params: SamplingParams) -> Request:
        """The request that another rank has described, without its grammar."""
        found = self._request(
            int(spec["uid"]),
            str(spec["id"]),
            int(spec["index"]),
            str(spec["prompt"]),
            Encoded(tuple(map(int, spec["prompt_ids"]))),
            params,
            self._asked(params),
            bytes.fromhex(spec["salt"]),
        )
        found.fork_of = spec["fork_of"]
        if settled := tuple(map(int, spec["output_ids"])):
            with _readable("settled_token_ids"):
                found.resume(settled)
        return found

    def _request(
        self,
        uid: int,
        request_id: str,
        index: int,
        text: str,
        prompt: Encoded,
        params: SamplingParams,
        asked: _Asked,
        cache_salt: bytes,
    ) -> Request:
        limits = self._engine.limits
        room = max(min(params.max_tokens, limits.context_length - len(prompt.ids)), 1)
        with _readable("prompt"):
            decoder = StreamDecoder(self.tokenizer, prompt.ids)
        wanted = limits.draft_tokens if params.draft_tokens is None else params.draft_tokens
        return Request(
            uid=uid,
            id=request_id,
            index=index,
            prompt=text,
            prompt_ids=prompt.ids,
            attachments=prompt.attachments,
            axes=prompt.axes,
            params=params,
            max_tokens=room,
            stop_token_ids=asked.stops,
            stopper=StopChecker(
                asked.stops,
                params.stop,
                room,
                min(params.min_tokens, room),
                policy=self._engine.policies.stopping,
            ),
            decoder=decoder,
            window=1 + min(wanted, limits.draft_tokens),
            bad_words=asked.bad_words,
            dry_breakers=asked.dry_breakers,
            settings=asked.settings,
            adapter=asked.adapter,
            cache_salt=cache_salt,
        )

    def _asked(self, params: SamplingParams) -> _Asked:
        """Raises `RequestError`."""
        given = params.given_settings
        try:
            check_given(self._request_settings, given)
        except ValueError as error:
            raise RequestError(f"node_settings: {error}") from None
        return _Asked(
            self._stops(params),
            self._bad_words(params.bad_words),
            self._dry_breakers(params),
            tuple(given.items()),
            self._adapter(params.adapter),
        )

    def _adapter(self, name: str | None) -> int:
        """The number of an adapter; 0 of none. Raises `RequestError` for one that there is not."""
        if name is None:
            return BASE
        known = self._engine.model.adapter_numbers
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "model.adapters names none"
            raise RequestError(f"no adapter {name!r}{did_you_mean(name, known)}: {there}")
        return known[name]

    def _alternatives(self, asked: int | None) -> int | None:
        """How many tokens are told beside each: no more than there are, since a step that looked
        for more would fail with all of its requests.
        """
        return None if asked is None else min(asked, self._engine.model.vocab_size)

    def _stops(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that end a request. Raises `RequestError` for too many."""
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= self._eos
        if len(stops) > MAX_STOP_TOKENS:
            raise RequestError(f"{len(stops)} stop tokens, more than {MAX_STOP_TOKENS}")
        return stops

    def grammar(self, spec: GrammarSpec, reasoning: bool | None) -> Future[CompiledGrammar]:
        """The compiled grammar, now or later. The future may hold a `GrammarError`."""
        if self._config.grammars is None:
            raise RequestError("this pipeline has no grammars: set `nodes.bitmask.after: forward`")
        if self._grammars is None:
            raise RequestError("structured outputs need a model with an end-of-text token")
        return self._grammars.compile(spec, reasoning)

    def _check_tokens(self, what: str, ids: Sequence[int]) -> None:
        vocab = self._engine.model.vocab_size
        if not ids or 0 <= min(ids) <= max(ids) < vocab:  # in no time for a million of them
            return
        token = next(each for each in ids if not 0 <= each < vocab)
        raise RequestError(
            f"{what}: token id {token} is outside the model's vocabulary of {vocab}",
            code="SW-TOKEN",
        )

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is written at the start of a text and after a space; as it is where it
        begins with whitespace itself.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for form in (word, word if word[:1].isspace() else f" {word}"):
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

    def _dry_breakers(self, params: SamplingParams) -> tuple[int, ...]:
        """The token that ends each sequence breaker, as it comes behind other text."""
        if not params.dry:
            return ()
        encoded = (
            self.tokenizer(f"a{each}", add_special_tokens=False)["input_ids"]
            for each in params.dry_sequence_breakers
        )
        return tuple(dict.fromkeys(ids[-1] for ids in encoded if ids))


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raises `RequestError` for tokens of which the tokenizer makes no text in the block."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:  # whatever a tokenizer raises concerns this request alone
        said = f"{error}" or type(error).__name__
        raise RequestError(
            f"{what}: the tokenizer makes no text of these tokens: {said}"
        ) from error
