"""The body of a request: read up to a limit, then checked against its model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from ..requests.complaints import complaint, cut, without_tags
from .errors import ApiError, param_of
from .protocol.base import Body
from .settings import Limits

M = TypeVar("M", bound=Body)

BESIDE_THE_LOOP = 64 << 10
"""Bytes from which on a body is parsed in another thread, so that no stream waits for it."""

MAX_COMPLAINTS = 5  # told of at once; a body that is wrong throughout is wrong in one way


async def read(request: Request, model: type[M], limits: Limits) -> M:
    """The body as a `model`. Raises `ApiError`: 400, 408, 413 or 415."""
    _check_type(request.headers)
    body = await _whole(request, limits)
    if len(body) < BESIDE_THE_LOOP:
        return parsed(body, model)
    return await asyncio.to_thread(parsed, body, model)


def parsed(body: bytes, model: type[M]) -> M:
    """JSON text as a `model`. Raises `ApiError` that names what is wrong.

    The parser refuses what nests deeper than some 200 levels, and halves of surrogate pairs.
    """
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise _refusal(body, model, error) from error


def _check_type(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, f"the content type must be application/json, not {kind[:80] or 'left out'}"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "the body must not be compressed")


async def _whole(request: Request, limits: Limits) -> bytes:
    most = limits.body_bytes
    said = request.headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 18 or int(said) > most):
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body has not come within {limits.body_s:g} s",
            headers={"connection": "close"},
        ) from None
    return bytes(body)


def _too_large(most: int) -> ApiError:
    # What is still to come is not read: the connection ends with the answer.
    return ApiError(
        413,
        f"the body has more than {most} bytes",
        code="body_too_large",
        headers={"connection": "close"},
    )


def _refusal(body: bytes, model: type[Body], error: ValidationError) -> ApiError:
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return ApiError(400, f"the body {complaint(model, dict(details[0]))}", code="invalid_json")
    data = from_json(body)
    said: list[str] = []
    params: list[str | None] = []
    for detail in details:
        if detail["type"] == "too_short" and len(details) > 1:
            continue  # entries that are wrong were not counted; they are told of themselves
        location = without_tags(detail["loc"], detail["type"], data)
        told = complaint(model, {**detail, "loc": location}, whole="the body").strip()
        if told not in said:
            param = cut(str(location[0])) if location else param_of(told, model.model_fields)
            # What contradicts something is told of the whole, and begins with the key that does.
            whole = param is None and told[0].islower()
            said.append(f"the body {told}" if whole else told)
            params.append(param)
        if len(said) == MAX_COMPLAINTS:
            break
    return ApiError(
        400,
        "; ".join(said),
        param=params[0],
        code="unknown_parameter" if details[0]["type"] == "extra_forbidden" else None,
    )
