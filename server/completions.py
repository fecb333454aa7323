"""The route /v1/completions."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..serving.prompts import Prompt
from .body import read
from .documents import documented
from .echo import Echo
from .forms import CompletionForm
from .open_engine import OpenEngine
from .protocol.answers import CompletionAnswer
from .protocol.completions import DEFAULT_TOKENS, CompletionRequest


def completions_router(engine: OpenEngine) -> APIRouter:
    """POST /v1/completions."""
    router = APIRouter()

    async def completions(request: Request) -> Response:
        engine.check_open()
        asked = await read(request, CompletionRequest, engine.settings.limits)
        given: dict[str, Any] = {}
        if not asked.says("max_tokens"):
            given["max_tokens"] = DEFAULT_TOKENS
        if asked.only_prompts:
            given |= {"max_tokens": 1, "min_tokens": 0}  # an engine draws at least one
        if asked.echo:
            given["prompt_logprobs"] = asked.logprobs
        params = asked.sampling(engine.settings.sampling, **given)
        if params.logprobs is not None or asked.echo:
            await asyncio.to_thread(lambda: engine.texts.spelled)
        exchange = request.state.exchange
        prompts: list[Prompt] = list(asked.prompt)
        call = await engine.call(
            exchange, "completions", asked, prompts, params, only_prompts=asked.only_prompts
        )
        shape = engine.shape(f"cmpl-{exchange.id}", asked, params.logprobs)
        texts = engine.texts
        echoes = [
            Echo.of(prompt, ids, texts)
            for prompt, ids in zip(asked.prompt, call.prompt_ids, strict=True)
            if asked.echo
        ]
        form = CompletionForm(shape, call.served.choices, call.usage, texts, echoes)
        return engine.answer(asked, call, form, exchange)

    router.add_api_route(
        "/v1/completions",
        completions,
        methods=["POST"],
        summary="Continue a prompt, or several.",
        **documented(CompletionRequest, CompletionAnswer, text="text/event-stream"),
    )
    return router
