"""What the service's log says of one request."""

from __future__ import annotations

import json
from typing import Any

import openai

from tests.clients.conftest import Service


def logged(service: Service, client: openai.OpenAI, request_id: str) -> dict[str, Any]:
    """The line of this request, once it is there; each turn of the loop is a request itself."""
    while True:
        for line in service.log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line).get("request_id") == request_id:
                found: dict[str, Any] = json.loads(line)
                return found
        client.models.list()
