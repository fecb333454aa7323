"""The routes /tokenize and /detokenize."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..models.tokenizer import too_long
from .body import read
from .documents import documented
from .errors import ApiError
from .open_engine import OpenEngine
from .protocol.answers import DetokenizeAnswer, TokenizeAnswer
from .protocol.tokens import DetokenizeRequest, TokenizeRequest


def tokens_router(engine: OpenEngine) -> APIRouter:
    """POST /tokenize and POST /detokenize."""
    router = APIRouter()
    tokenizer = engine.front.tokenizer

    async def tokenize(request: Request) -> Response:
        asked = await read(request, TokenizeRequest, engine.settings.limits)
        engine.model_named(asked.model)
        if asked.messages is not None:
            prompt = await engine.conversations.encode(asked.messages, asked.tools or ())
            ids = list(prompt.ids)
        else:
            if (length := len(asked.prompt or "")) > engine.most_characters:
                why = too_long("the prompt", length, engine.most_characters)
                raise ApiError(400, why, param="prompt", code="context_length_exceeded")
            special = asked.add_special_tokens is not False
            found = await asyncio.to_thread(
                tokenizer, asked.prompt or "", add_special_tokens=special
            )
            ids = list(found["input_ids"])
        said = {"count": len(ids), "max_model_len": engine.context_length, "tokens": ids}
        if asked.return_token_strs:
            spelled = await asyncio.to_thread(lambda: engine.texts.spelled)
            said["token_strs"] = [engine.texts.name(each) for each in ids] if spelled else []
        return JSONResponse(said)

    async def detokenize(request: Request) -> Response:
        asked = await read(request, DetokenizeRequest, engine.settings.limits)
        engine.model_named(asked.model)
        known = len(await asyncio.to_thread(lambda: engine.texts.spelled))
        for index, token in enumerate(asked.tokens):
            if token >= known:
                said = f"tokens[{index}] is {token}, but the vocabulary has {known} tokens"
                raise ApiError(400, said, param="tokens")
        text = await asyncio.to_thread(
            tokenizer.decode, list(asked.tokens), clean_up_tokenization_spaces=False
        )
        return JSONResponse({"prompt": text})

    for path, route, model, answer, summary in (
        ("/tokenize", tokenize, TokenizeRequest, TokenizeAnswer, "Text to tokens."),
        ("/detokenize", detokenize, DetokenizeRequest, DetokenizeAnswer, "Tokens to text."),
    ):
        router.add_api_route(
            path, route, methods=["POST"], summary=summary, **documented(model, answer)
        )
    return router
