"""What the log says of a request: all that another rank needs to make the same."""

from __future__ import annotations

from typing import Any

from ..requests.plain_params import params_of
from ..requests.request import Request


def spec_of(request: Request) -> dict[str, Any]:
    """A request as plain data. Its settled tokens are part of it: a request may resume."""
    return {
        "uid": request.uid,
        "id": request.id,
        "index": request.index,
        "prompt": request.prompt,
        "prompt_ids": list(request.prompt_ids),
        "params": params_of(request.params),
        "fork_of": request.fork_of,
        "salt": request.cache_salt.hex(),
        "output_ids": list(request.output_ids),
    }
