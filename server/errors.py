"""What a client is told when a request cannot be served: one form for every status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping

from starlette.responses import Response

INVALID = "invalid_request_error"
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
"""The type of an error by its status; `INVALID` for any other."""


class ApiError(Exception):
    """Ends a call with this status and a body of {"error": {message, type, param, code}}.

    `param`: the key of the request that is to blame, where one is.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        return TYPES.get(self.status, INVALID)

    def body(self) -> bytes:
        """The JSON object, as a body or as the data of an event."""
        said = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": said}).encode()

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, "application/json")


def invalid_grammar(message: str, key: str = "structured_outputs") -> ApiError:
    """The grammar that a request asks for, by that key, cannot be followed."""
    return ApiError(400, message, code="invalid_grammar", param=key)


Refused = Callable[[str], ApiError]
"""What is told of a grammar that cannot be followed, for this reason."""


def param_of(message: str, keys: Collection[str]) -> str | None:
    """The key that a message is about, as ours begin with it: `stop has more than 16 entries`."""
    found = re.match(r"[a-z_]+", message)
    return found[0] if found is not None and found[0] in keys else None
