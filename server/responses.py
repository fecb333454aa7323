"""The route /v1/responses: chats in other words, of which the service keeps nothing."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..requests.params import SamplingParams
from .body import read
from .chat import begin
from .documents import documented
from .errors import ApiError
from .open_engine import OpenEngine
from .protocol.response_answers import ResponseAnswer
from .protocol.responses import ResponsesRequest
from .response_form import ResponseForm
from .response_input import PARAMS, as_chat


def responses_router(engine: OpenEngine) -> APIRouter:
    """POST /v1/responses."""
    router = APIRouter()

    async def respond(request: Request) -> Response:
        engine.check_open()
        asked = await read(request, ResponsesRequest, engine.settings.limits)
        exchange = request.state.exchange
        try:
            if asked.logprobs_of is not None and engine.reasoning_end is not None:
                said = "log-probabilities beside a section of reasoning are not told here"
                raise ApiError(400, said, param="include", code="unsupported_parameter")
            begun = await begin(engine, exchange, "responses", as_chat(asked), PARAMS)
        except ApiError as error:
            error.param = PARAMS.get(error.param or "", error.param)
            raise
        about = _about(asked, begun.params) | {
            "id": f"resp_{exchange.id}",
            "model": engine.model_named(asked.model),
        }
        sections, logprobs = begun.sections, begun.params.logprobs
        form = ResponseForm(about, begun.call.usage, engine.texts, sections, logprobs)
        return engine.answer(asked, begun.call, form, exchange)

    router.add_api_route(
        "/v1/responses",
        respond,
        methods=["POST"],
        summary="Continue a conversation of items.",
        **documented(ResponsesRequest, ResponseAnswer, text="text/event-stream"),
    )
    return router


def _about(asked: ResponsesRequest, params: SamplingParams) -> dict[str, Any]:
    """What a response says of its request."""
    text = asked.text.model_dump(by_alias=True, exclude_none=True) if asked.text else {}
    choice = asked.tool_choice or "auto"
    return {
        "object": "response",
        "created_at": int(time.time()),
        "background": False,
        "instructions": asked.instructions,
        "max_output_tokens": params.max_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [each.model_dump() for each in asked.tools or ()],
        "top_logprobs": params.logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": asked.user,
    }
