"""One service for the clients of a file, with room for few.

It is in this process, where it starts ten times as fast: how everybody starts it is in
tests/server/test_clients.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from stepweave.server.logs import ACCESS, JsonFormatter
from stepweave.server.settings import Settings
from tests.server.in_thread import running

KEY = "a-key"
FEW = {
    "scheduler.max_rows": 4,
    "scheduler.max_queue": 8,
    "nodes.bitmask.compile_limit_s": None,  # no process that tries them: it takes seconds
}


@dataclass(frozen=True)
class Service:
    """A service that answers at `url`, and the file that has a line for each answer."""

    url: str
    log: Path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    log = tmp_path_factory.mktemp("service") / "log.jsonl"
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(JsonFormatter())
    level = ACCESS.level
    ACCESS.addHandler(handler)
    ACCESS.setLevel(logging.INFO)
    try:
        with running(Settings(models=("embedded",), api_keys=(KEY,)), FEW) as found:
            yield Service(found.url, log)
    finally:
        ACCESS.setLevel(level)
        ACCESS.removeHandler(handler)
        handler.close()


@pytest.fixture(scope="module")
def base_url(service: Service) -> str:
    return f"{service.url}/v1"


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as found:
        yield found
