"""The route /v1/chat/completions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..requests.params import SamplingParams
from .answer_grammar import form_of
from .body import read
from .calls import Call
from .chat_form import ChatForm
from .documents import documented
from .errors import ApiError
from .observers import Endpoint, Exchange
from .open_engine import OpenEngine
from .protocol.answers import ChatAnswer
from .protocol.chat import ChatRequest, NamedTool
from .protocol.sampling import PARAMETERS
from .sections import Content, Reasoning, Section


def chat_router(engine: OpenEngine) -> APIRouter:
    """POST /v1/chat/completions."""
    router = APIRouter()

    async def chat(request: Request) -> Response:
        engine.check_open()
        asked = await read(request, ChatRequest, engine.settings.limits)
        exchange = request.state.exchange
        begun = await begin(engine, exchange, "chat", asked)
        form = ChatForm(
            engine.shape(f"chatcmpl-{exchange.id}", asked, begun.params.logprobs),
            begun.call.served.choices,
            begun.call.usage,
            engine.texts,
            begun.sections,
            reasoning=asked.include_reasoning is not False,
            forced=isinstance(asked.tool_choice, NamedTool),
        )
        return engine.answer(asked, begun.call, form, exchange)

    router.add_api_route(
        "/v1/chat/completions",
        chat,
        methods=["POST"],
        summary="Continue a conversation.",
        **documented(ChatRequest, ChatAnswer, text="text/event-stream"),
    )
    return router


@dataclass(frozen=True)
class Begun:
    """A conversation that the engine continues. `sections`: what takes its outputs apart."""

    call: Call
    params: SamplingParams
    sections: Callable[[], Section] | None


async def begin(
    engine: OpenEngine,
    exchange: Exchange,
    endpoint: Endpoint,
    asked: ChatRequest,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> Begun:
    """Hand a conversation in. Raises `ApiError` for what cannot be served.

    `keys`: what its keys are called in the request that it was made of.
    """
    engine.model_named(asked.model)
    prompt = await engine.conversations.encode(asked.messages, asked.tools or ())
    calls = await engine.conversations.call_format() if _may_call(asked) else None
    defaults = engine.settings.sampling
    room = engine.room(len(prompt.ids))
    most = min(defaults.get("max_tokens", room), room)
    form = form_of(asked, calls, keys)
    own = {**_length(asked, most), **form.params}
    own["logprobs"] = (asked.top_logprobs or 0) if asked.logprobs else None
    try:
        params = asked.sampling(defaults, **own)
    except ApiError as error:
        error.message = _named(error.message, keys)
        raise
    if params.logprobs is not None:
        await asyncio.to_thread(lambda: engine.texts.spelled)
    end = engine.reasoning_end if params.reasoning is not False else None
    try:
        call = await engine.call(
            exchange, endpoint, asked, [prompt], params, reasons=bool(end), refused=form.refused
        )
    except ApiError as error:
        error.param = "messages" if error.param == "prompt" else error.param
        raise
    return Begun(call, params, _sections(end, form.section))


def _may_call(asked: ChatRequest) -> bool:
    return bool(asked.tools) and asked.tool_choice != "none"


def _length(asked: ChatRequest, most: int) -> dict[str, Any]:
    """`max_tokens`: as one of its two names says; not given: `most`."""
    named, older = asked.max_completion_tokens, getattr(asked, "max_tokens", None)
    if named is not None and older is not None and named != older:
        said = f"max_completion_tokens is {named} and max_tokens {older}: give one of them"
        raise ApiError(400, said, param="max_tokens")
    return {"max_tokens": named or older or most}


def _named(message: str, keys: Mapping[str, str]) -> str:
    """The same of parameters by the names that they have in the request."""
    names = {each: keys[each] for each in PARAMETERS if each in keys}
    return re.sub("[a-z_]+", lambda word: names.get(word[0], word[0]), message)


def _sections(
    end: str | None, answer: Callable[[], Section] | None
) -> Callable[[], Section] | None:
    """What takes outputs apart; None: they are one text.

    `end` is that of their reasoning, and `answer` takes apart what follows.
    """
    if end is None:
        return answer

    def begin() -> Section:
        opening = end.replace("</", "<", 1) if end.startswith("</") else None
        return Reasoning(end, Content() if answer is None else answer(), opening)

    return begin
