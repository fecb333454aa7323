"""Verbs that need no tensors do not import the libraries that have them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "xgrammar", "llguidance", "safetensors", "tokenizers")
WITHOUT_TENSORS = [
    ["check", "quickstart", "async_eagle3_grammar", "drafter_stream"],
    ["check", "async_ngram", "--json", "--costs", "llama_8b", "--rows", "4"],
    ["graph", "show", "grammar_worker"],
    ["graph", "render", "async_grammar", "-o", "plan.svg"],
    ["graph", "render", "quickstart", "-o", "plan.html"],
    ["graph", "render", "quickstart", "-o", "plan.json"],
    ["graph", "why", "quickstart", "draft", "d2h_copy"],
    ["graph", "why-not", "quickstart", "forward", "commit"],
    ["graph", "diff", "quickstart", "async"],
    ["graph", "whatif", "quickstart", "--set", "depth=3"],
    ["simulate", "async_eagle", "-o", "timeline.html"],
    ["simulate", "async_speculation", "--costs", "all"],
    ["simulate", "--cluster", "llama_8b_h100", "--set", "load.requests=2", "-o", "layouts.svg"],
    ["trace", "abstract_decode", "-o", "trace.json"],
    ["schema"],
    ["list"],
    ["doctor"],
]
REFUSED = [
    ["run", "nowhere"],
    ["run", "quickstart", "--set", "model.nmae=x"],
    ["run", "async"],
    ["profile", "quickstart", "--rows", "0"],
    ["bench", "serve", "--base-url", "nowhere"],
    ["run", "quickstart", "--set", "slots.nothing=2"],
]
WRONG = [
    ["run", "quickstart", "--prompts", "broken.jsonl"],
    ["run", "quickstart", "--prompt", "x", "--schema", "broken.jsonl"],
    ["run", "broken.jsonl", "--prompt", "x"],
    ["trace", "quickstart", "--prompts", "broken.jsonl"],
    ["profile", "quickstart", "--prompts", "broken.jsonl"],
]
RUN_EACH = """
import contextlib, io, json, sys
from stepweave.cli.main import app
for arguments in json.loads(sys.argv[1]):
    code, said = 0, io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            app(arguments)
    except SystemExit as end:
        code = end.code
    print(json.dumps([code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


def imported(verbs: list[list[str]], folder: Path) -> list[tuple[int, list[str]]]:
    """The exit code of each verb, and the heavy libraries that the process has loaded by then."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, json.dumps(verbs), json.dumps(HEAVY)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [(code, names) for code, names in map(json.loads, done.stdout.splitlines())]


@pytest.mark.parametrize(("verbs", "code"), [(WITHOUT_TENSORS, 0), (WRONG, 1), (REFUSED, 2)])
def test_what_needs_no_tensors_imports_none(
    verbs: list[list[str]], code: int, tmp_path: Path
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"prompt": "x"}\n{"promt": "y"}\n')
    found = imported(verbs, tmp_path)
    assert dict(zip(map(" ".join, verbs), found, strict=True)) == {
        " ".join(verb): (code, []) for verb in verbs
    }


def test_the_measure_sees_a_library_that_is_imported(tmp_path: Path) -> None:
    assert imported([["check", "two_batches", "--mutate"]], tmp_path) == [(0, ["torch"])]


def test_an_abstract_graph_is_checked_without_what_a_pipeline_needs() -> None:
    """A third of the time of the command would go into the form of pipelines and all node kinds."""
    said = (
        "import sys; from stepweave.cli.main import app\n"
        "try: app(['check', 'two_batches'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = 'stepweave.configs.schema', 'stepweave.nodes.sample'\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
