"""The API under requests that schemathesis makes from its own OpenAPI document.

Every answer has a status that the document lists for its route, in the form that it says, and none
is 500. What the document cannot say, such as that two keys contradict each other, is refused with
400; so a refusal of what the document allows is no failure here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepweave.server.settings import Settings
from tests.server.in_thread import Running, running
from tests.server.leftovers import nothing_left_in

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
SMALL = {"scheduler.num_blocks": 6, "scheduler.max_rows": 4}
"""What a request may write at most: the default is all that there is room for."""


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed: pip install 'stepweave[test]'")
    with running(Settings(models=("embedded",)), SMALL) as found:
        yield found


def fuzz(service: Running, folder: Path, seed: int, *more: str) -> None:
    # In a folder of its own: our `requests` would be taken for the library of that name.
    command = [sys.executable, "-P", "-m", "schemathesis.cli", "run"]
    done = subprocess.run(
        [
            *command,
            f"{service.url}/openapi.json",
            *("--checks", ",".join(CHECKS)),
            *("--seed", f"{seed}"),
            *("--generation-database", "none"),
            *("--request-timeout", "120"),
            *("--output-truncate", "false", "--no-color", "--continue-on-failure"),
            *more,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Operations:" in done.stdout
    assert service.llm.service.alive
    nothing_left_in(service.llm.service)


def test_requests_made_from_the_document_are_answered_as_it_says(
    service: Running, tmp_path: Path
) -> None:
    before = service.llm.service.totals.requests
    fuzz(service, tmp_path, 1, "--phases", "fuzzing", "--max-examples", "1")
    assert service.llm.service.totals.requests > before, "some of them were served"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_many_requests_made_from_the_document_are_answered_as_it_says(
    service: Running, tmp_path: Path, seed: int
) -> None:
    phases = ("--phases", "coverage,fuzzing") if seed == 0 else ("--phases", "fuzzing")
    fuzz(service, tmp_path, seed, *phases, "--max-examples", "300", "--workers", "4")
