"""One process of the service for all clients, as everybody starts it, with room for few."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.in_process import Process, serving

KEY = "a-key"


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("service")
    few = ("scheduler.max_rows=4", "scheduler.max_queue=8")
    settings = [word for each in few for word in ("--set", each)]
    with serving(folder, "quickstart", *settings, STEPWEAVE_API_KEY=KEY) as found:
        yield found


@pytest.fixture(scope="session")
def base_url(service: Process) -> str:
    return f"{service.url}/v1"


@pytest.fixture(scope="session")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as found:
        yield found
