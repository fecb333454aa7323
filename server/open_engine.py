"""What the routes share: the engine's front door, its names, and whether it takes requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..serving.engine import EngineError
from .answers import StreamedAnswer, WholeAnswer
from .calls import Call, submitted, unavailable
from .conversations import Conversations
from .errors import ApiError, Refused, invalid_grammar
from .forms import Form, Shape
from .observers import Exchange, Observer, Served
from .prompt_only import PromptOnly
from .settings import Settings
from .token_texts import TokenTexts
from .usage import ReasoningTokens, Usage

if TYPE_CHECKING:
    from ..requests.params import SamplingParams
    from ..serving.prompts import Prompt
    from .front import Front, Stream
    from .observers import Endpoint
    from .protocol.sampling import Drawn, Generating


@dataclass(eq=False)
class OpenEngine:
    """What generates behind the API. `draining`: it finishes what runs, and takes nothing in.

    Raises `EngineError` for a marker of reasoning that no text has.
    """

    front: Front
    settings: Settings
    observers: Sequence[Observer]
    texts: TokenTexts = field(init=False)
    conversations: Conversations = field(init=False)
    started: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False

    def __post_init__(self) -> None:
        self.texts = TokenTexts(self.front.tokenizer)
        self.conversations = Conversations(
            self.front.tokenizer, self.most_characters, self.front.images
        )
        if any(map(self.texts.hides, self._marker)):
            raise EngineError(
                f"nodes.bitmask: reasoning_end: {self.reasoning_end!r} has a special token, which "
                "no text has: an answer cannot be taken apart there; give another text, or none"
            )

    @property
    def fingerprint(self) -> str:
        """Names the plan in answers: with the same seed it gives the same tokens."""
        return f"sw-{self.front.digest[:12]}"

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its output, at most."""
        return self.front.limits.context_length

    @property
    def most_characters(self) -> int:
        """Characters of a text, beyond which it cannot fit into the context."""
        return self.front.most_characters

    @property
    def adapters(self) -> Mapping[str, str]:
        """The folders of the model's adapters, by the name of each, which is that of a model."""
        return self.front.config.model.adapters

    @property
    def names(self) -> tuple[str, ...]:
        """By which requests may call a model: those of the model itself, then of its adapters."""
        return (*self.settings.models, *self.adapters)

    @property
    def reasoning_end(self) -> str | None:
        """The text that ends a section of reasoning, where the pipeline has one."""
        grammars = self.front.config.grammars
        return None if grammars is None else grammars.reasoning_end

    @cached_property
    def _marker(self) -> list[int]:
        marker = self.reasoning_end or ""
        return list(self.front.tokenizer(marker, add_special_tokens=False)["input_ids"])

    def room(self, prompt_tokens: int) -> int:
        """Tokens that an output may have after a prompt: in the context, and in all KV blocks."""
        limits = self.front.limits
        blocks = limits.num_blocks * limits.block_size - 2 * limits.draft_tokens
        return max(min(limits.context_length, blocks) - prompt_tokens, 1)

    def check_open(self) -> None:
        """Raises `ApiError` 503 where nothing is taken in any more."""
        if self.draining:
            raise unavailable("the service is shutting down: it finishes what runs")

    def model_named(self, name: str | None) -> str:
        """The name by which an answer calls the model. Raises `ApiError` 404 for another model."""
        names = self.names
        if name is None:
            return names[0]
        if name not in names:
            said = f"the model {name!r} does not exist; served here: {', '.join(names)}"
            raise ApiError(404, said, param="model", code="model_not_found")
        return name

    async def call(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        asked: Drawn,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        reasons: bool = False,
        only_prompts: bool = False,
        refused: Refused = invalid_grammar,
    ) -> Call:
        """Hand the prompts in. Raises `ApiError` where one of them cannot be served.

        `reasons`: an output begins with a section of reasoning. `only_prompts`: nothing is told of
        what is drawn after them. `refused`: what is told of a grammar that cannot be followed.
        """
        self.check_open()
        model = self.model_named(asked.model)
        if model in self.adapters:
            params = replace(params, adapter=model)
        streams: list[Stream] = await submitted(
            self.front, prompts, params, exchange, self.settings.limits, refused
        )
        if only_prompts:
            streams = [PromptOnly(each) for each in streams]
        tokens = sum(len(each.prompt_ids) for each in streams)
        served = Served(
            id=exchange.id,
            endpoint=endpoint,
            model=model,
            streams=bool(asked.stream),
            choices=len(streams) * params.n,
            prompt_tokens=tokens,
            max_tokens=params.max_tokens,
            began_s=exchange.began_s,
        )
        exchange.notes |= {"model": model, "stream": served.streams, "user": asked.user}
        reasoning = None
        if reasons and self.reasoning_end is not None:
            reasoning = ReasoningTokens(self._marker, served.choices)
        return Call(streams, served, Usage(tokens), self.observers, reasoning, refused)

    def answer(
        self, asked: Drawn, call: Call, form: Form, exchange: Exchange
    ) -> StreamedAnswer | WholeAnswer:
        """The answer to a call in this form, in pieces if the request asks for them."""
        if asked.stream:
            return StreamedAnswer(call, form, exchange, self.settings.keep_alive_s)
        return WholeAnswer(call, form, exchange)

    def shape(self, id: str, asked: Generating, logprobs: int | None) -> Shape:
        """What the answer has, as the request asks for it."""
        return Shape(
            id=id,
            created=int(time.time()),
            model=self.model_named(asked.model),
            fingerprint=self.fingerprint,
            logprobs=logprobs,
            token_ids=bool(asked.return_token_ids),
            include_usage=asked.streams.include_usage,
            continuous_usage=asked.streams.continuous_usage_stats,
        )
