"""What the OpenAPI document says of a route that reads its body itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .errors import ApiError
from .protocol.answers import ANSWERS, ErrorAnswer
from .protocol.chat import ChatRequest
from .protocol.completions import CompletionRequest
from .protocol.response_answers import ResponseAnswer
from .protocol.responses import ResponsesRequest
from .protocol.tokens import DetokenizeRequest, TokenizeRequest

BODIES: tuple[type[BaseModel], ...] = (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
)

ANSWERED: tuple[type[BaseModel], ...] = (*ANSWERS, ResponseAnswer)

_JSON = "application/json"
SAID = {
    400: "The request is wrong.",
    401: "The API key is wrong, or there is none.",
    404: "There is no such model.",
    408: "The body has not come in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The request is for a host of another name, and the service has no keys.",
    429: "The queue is full; `Retry-After` says when to come again.",
    431: "The headers are too large.",
    500: "The service has failed.",
    503: "The service takes no requests now.",
}


def type_of(status: int) -> str:
    """The `type` of an error with this status."""
    return ApiError(status, "").type


def documented(
    body: type[BaseModel] | None = None,
    answer: type[BaseModel] | None = None,
    *,
    text: str | None = None,
    statuses: tuple[int, ...] = tuple(SAID),
    or_503: bool = False,
) -> dict[str, Any]:
    """Arguments of `add_api_route`: the model of its body, of its answer, and its errors.

    `text`: the media type of an answer that is of no model. `or_503`: the same answer comes with
    that status too.
    """
    responses: dict[int | str, Any] = {
        status: {"description": SAID[status], "content": {_JSON: {"schema": _ref(ErrorAnswer)}}}
        for status in statuses
    }
    content: dict[str, Any] = {} if answer is None else {_JSON: {"schema": _ref(answer)}}
    if text is not None:
        content[text] = {}
    responses[200] = {"description": "The answer.", **({"content": content} if content else {})}
    if or_503:
        responses[503] = {"description": "It is not so.", "content": content}
    extra: dict[str, Any] = {"responses": {str(each): what for each, what in responses.items()}}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {_JSON: {"schema": _ref(body)}}}
    return {"openapi_extra": extra, "response_model": None}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def document(app: FastAPI) -> None:
    """Add the models that routes refer to to the document."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            _, definitions = models_json_schema(
                [(model, "validation") for model in (*BODIES, *ANSWERED)],
                ref_template="#/components/schemas/{model}",
            )
            schema.setdefault("components", {})["schemas"] = definitions["$defs"]
            for routes in schema["paths"].values():
                for route in routes.values():
                    route["responses"].pop("422", None)  # the framework's; here it is 400
        assert app.openapi_schema is not None, "the framework keeps what it made"
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
