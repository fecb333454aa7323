"""Clients that are programs of their own: of JavaScript, LangChain's and litellm's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from benchmarks.third_party import PROGRAMS
from tests.clients.conftest import KEY, Service
from tests.clients.logged import logged

HERE = Path(__file__).parent
JAVASCRIPT = HERE / "js"
PYTHON = HERE / "python"
INSTALLED = HERE.parents[1] / "build" / "clients"
MAX = {"name": "Max Tanaka", "age": 61, "job": "lawyer", "city": "Warsaw"}


def required(program: Path | None, *needed: Path) -> str:
    """The program, if all is installed; skip without it, or fail where clients are required."""
    if program is not None and all(each.exists() for each in (program, *needed)):
        return str(program)
    reason = f"{program or 'node'} or its packages are not installed; run tests/clients/install"
    if os.environ.get("STEPWEAVE_REQUIRE_CLIENTS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


# Wider than the service, so that without a client none is started.
@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    return required(Path(found) if found else None, INSTALLED / "js" / "node_modules" / "openai")


@pytest.fixture(scope="session")
def python() -> str:
    return required(INSTALLED / "python" / "bin" / "python")


def ran(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=HERE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def told(command: list[str]) -> dict[str, Any]:
    """The JSON that a script prints last. It asks no network for what it could ask for."""
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    found: dict[str, Any] = json.loads(ran(command, **local).splitlines()[-1])
    return found


def test_the_client_for_javascript(
    node: str, service: Service, client: openai.OpenAI, base_url: str
) -> None:
    """Each test of openai.test.js passes, and what it leaves is cancelled."""
    beside_packages = shutil.copy(JAVASCRIPT / "openai.test.js", INSTALLED / "js")
    output = ran(
        [node, "--test", "--test-reporter=tap", str(beside_packages)],
        BASE_URL=base_url,
        API_KEY=KEY,
    )
    counts = dict(line[2:].split(" ", 1) for line in output.splitlines() if line[:2] == "# ")
    assert int(counts["pass"]) == int(counts["tests"]) >= 13, output
    line = logged(service, client, "js-aborted")
    assert line["status"] == 499
    assert line["completion_tokens"] < 900


def test_langchain(python: str, base_url: str) -> None:
    found = told([python, str(PYTHON / "langchain_chat.py"), base_url, KEY])
    assert len(found["whole"]) > 16
    assert "".join(found["pieces"]) == found["whole"]
    assert len([each for each in found["pieces"] if each]) > 1
    assert found["whole_tokens"] == found["streamed_tokens"] == 16
    assert found["by_schema"] == found["by_call"] == MAX
    assert found["calls"] == [["Person", MAX]]


def test_litellm(python: str, base_url: str) -> None:
    found = told([python, str(PYTHON / "litellm_chat.py"), base_url, KEY])
    assert len(found["whole"]) > 16
    assert "".join(found["pieces"]) == found["whole"]
    assert len([each for each in found["pieces"] if each]) > 1
    assert found["whole_tokens"] == found["streamed_tokens"] == 16
    assert "n must be at most 128" in found["wrong"]


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = (HERE.parents[1] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    pinned = (PYTHON / "requirements.txt").read_text().split()
    versions = dict(each.split("==") for each in pinned)
    versions["openai"] = json.loads((JAVASCRIPT / "package.json").read_text())["dependencies"][
        "openai"
    ]
    versions |= {each.name: each.version for each in PROGRAMS}
    for name, version in versions.items():
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        assert any(f"| {version} |" in row for row in rows), f"{name} {version}"
