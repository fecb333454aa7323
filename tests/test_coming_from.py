"""The page for users of other engines names only what exists here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import typer

from stepweave import LLM, SamplingParams
from stepweave.cli.main import app
from stepweave.configs.keys import keys

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text(encoding="utf-8")
FIELDS = {field.name for field in dataclasses.fields(SamplingParams)}


def ours(section: str) -> list[str]:
    """The last cell of every row of a section's table."""
    body = re.split(r"(?m)^## ", PAGE.partition(f"## {section}\n")[2])[0]
    rows = [line for line in body.splitlines() if line.startswith("|")][2:]
    assert rows, section
    return [row.strip("|").rsplit("|", 1)[-1].strip() for row in rows]


@pytest.mark.parametrize("cell", [cell for cell in ours("The engine") if cell.startswith("key ")])
def test_every_key_that_the_page_names_is_one_of_the_config(cell: str) -> None:
    name = cell.removeprefix("key ").strip("`")
    assert name in {key.name for key in keys()}


def test_every_method_that_the_page_names_is_one_of_the_engine() -> None:
    names = [name for cell in ours("The engine") for name in re.findall(r"`LLM\.(\w+)\(", cell)]
    assert {"generate", "chat", "get_tokenizer"} <= set(names)
    assert [name for name in names if not hasattr(LLM, name)] == []


def test_every_parameter_of_a_request_is_on_the_page_and_no_other() -> None:
    named = {re.findall(r"`(\w+)`", cell)[0] for cell in ours("A request")}
    assert named <= FIELDS
    own = {"reasoning", "settled_token_ids"}  # a part of structured outputs; what others settled
    assert FIELDS - named == own


def test_every_option_of_a_benchmark_that_the_page_names_is_one_of_ours() -> None:
    serve = typer.main.get_command(app).commands["bench"].commands["serve"]  # type: ignore[attr-defined]
    known = {option for each in serve.params for option in each.opts}
    named = {option for cell in ours("Benchmarks") for option in re.findall(r"`(--[\w-]+)", cell)}
    assert len(named) > 15
    assert named - known == set()


def test_the_defaults_that_the_page_states_are_those_of_a_request() -> None:
    params = SamplingParams()
    assert (params.temperature, params.seed, params.top_k) == (0, 0, 0)
