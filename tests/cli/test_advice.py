"""What a refusal tells to do works: the command is given again with the words of the message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.testing.models import save_tiny

UNIQUE = {"type": "array", "items": {"type": "integer"}, "maxItems": 2, "uniqueItems": True}
SHORT = ("--max-tokens", "2")
PROMPT = ("--prompt", "Hello", *SHORT)


def stepweave(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unique.json").write_text(json.dumps(UNIQUE))
    structured = {"prompt": "Hello", "max_tokens": 2, "structured_outputs": {"regex": "[ab]"}}
    (tmp_path / "regex.jsonl").write_text(json.dumps(structured))
    structured["structured_outputs"] |= {"reasoning": True}  # type: ignore[operator]
    (tmp_path / "reasoning.jsonl").write_text(json.dumps(structured))


Again = Callable[[Sequence[str]], list[list[str]]]
STRICT = ("run", "quickstart", *PROMPT, "--schema", "unique.json")
TINY = ("run", "async", *PROMPT, "--set", "model.name=tiny")
ADVICE: dict[str, tuple[list[str], str, Again]] = {
    "a graph without code": (
        ["run", "abstract_decode"],
        r"use `(check)` or `(graph show)`",
        lambda found: [[*words.split(), "abstract_decode"] for words in found],
    ),
    "no prompts": (
        ["run", "async", *SHORT],
        r"add (--prompt) TEXT or --prompts FILE",
        lambda found: [["run", "async", *SHORT, found[0], "text"]],
    ),
    "a batch size without costs": (
        ["check", "async", "--rows", "4"],
        r"at which (--costs) is read",
        lambda found: [["check", "async", "--rows", "4", found[0], "llama_8b"]],
    ),
    "a misspelled setting": (
        ["check", "async", "--set", "scheduler.max_row=4"],
        r"did you mean '(\w+)'",
        lambda found: [["check", "async", "--set", f"scheduler.{found[0]}=4"]],
    ),
    "an unknown extension": (
        ["graph", "render", "async", "-o", "plan.svgg"],
        r"did you mean '(\.svg)'",
        lambda found: [["graph", "render", "async", "-o", f"plan{found[0]}"]],
    ),
    "a sweep that is not written": (
        ["graph", "whatif", "async", "-o", "x.svg"],
        r"add (--sweep) KEY=VALUES",
        lambda found: [["graph", "whatif", "async", "-o", "x.svg", found[0], "depth=1,2"]],
    ),
    "arithmetic that changes the order of sums": (
        ["check", "async", "--set", "model.merge=true"],
        r"set (invariant): (false)",
        lambda found: [
            ["check", "async", "--set", "model.merge=true", "--set", f"model.{found[0]}={found[1]}"]
        ],
    ),
    "a GPU that must be the CPU": (
        ["check", "async", "--set", "executor=cuda", "--set", "model.device=cpu"],
        r"use executor (threads)",
        lambda found: [
            ["check", "async", "--set", f"executor={found[0]}", "--set", "model.device=cpu"]
        ],
    ),
    "a keyword that no library enforces": (
        [*STRICT, "--json"],
        r"`(nodes\.bitmask\.strict): (false)`",
        lambda found: [[*STRICT, "--set", f"{found[0]}={found[1]}"]],
    ),
    "a grammar without grammars": (
        ["run", "async", "--prompts", "regex.jsonl", "--json"],
        r"set `(nodes\.bitmask\.after): (forward)`",
        lambda found: [
            ["run", "async", "--prompts", "regex.jsonl", "--set", f"{found[0]}={found[1]}"]
        ],
    ),
    "reasoning without an end": (
        ["run", "quickstart", "--prompts", "reasoning.jsonl", "--json"],
        r"set `(nodes\.bitmask\.reasoning_end)`",
        lambda found: [
            ["run", "quickstart", "--prompts", "reasoning.jsonl", "--set", f"{found[0]}=</think>"]
        ],
    ),
    "a drafter of another model": (
        ["run", "async_speculation", *TINY[2:]],
        r"--set (nodes.draft=null)",
        lambda found: [["run", "async_speculation", *TINY[2:], "--set", found[0]]],
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("which", ADVICE)
def test_what_a_refusal_advises_works(which: str) -> None:
    arguments, pattern, again = ADVICE[which]
    if "model.name=tiny" in arguments:
        save_tiny(Path("tiny"))
    refused = stepweave(*arguments)
    assert refused.exit_code in (1, 2), refused.output
    advice = re.search(pattern, refused.output)
    assert advice is not None, refused.output
    for command in again(advice.groups()):
        done = stepweave(*command)
        assert done.exit_code == 0, done.output
