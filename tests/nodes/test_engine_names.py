"""No name of a node, op, state or drafter stands in the engine, in what runs plans, or derives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from stepweave.graph.node import State, Value
from stepweave.nodes.drafter import Drafter
from stepweave.nodes.kind import NodeKind
from stepweave.nodes.registry import known_kinds
from tests.installed import ROOT
from tests.nodes.names import modules, names_of_the_step, said

ENGINE = ("serving/engine.py", "executors", "graph")

WORDS = {"schedule", "forward", "sample", "commit", "draft", "advance", "finish"} | {
    *("requests", "history", "matchers", "batch", "staging", "inputs", "logits", "hidden", "mask"),
    *("sampled", "progress", "drafts", "kept", "settled", "kv", "encode"),
}
"""Names that are words of English too, or of the field: they are looked for in code only."""


def imported_parts(path: str, module: ast.Module) -> Iterator[str]:
    """What a module imports of `nodes` that is a value, a state, a node or a drafter."""
    package = ("stepweave", *path.removesuffix(".py").split("/"))[:-1]
    for node in ast.walk(module):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package[: len(package) - node.level + 1] if node.level else ()
        source = ".".join((*above, *(node.module or "").split("."))).rstrip(".")
        if not source.startswith("stepweave.nodes"):
            continue
        for alias in node.names:
            if source.rpartition(".")[2] in known_kinds(installed=False):
                yield f"{source}.{alias.name}"
            elif alias.name in (*known_kinds(installed=False), "values"):
                yield alias.name
            else:
                found = getattr(import_module(source), alias.name)
                if isinstance(found, Value | State | NodeKind | Drafter):
                    yield alias.name


def words_in(text: str) -> list[str]:
    """Names of parts of the step that are nothing else, wherever they stand; comments too."""
    names = "|".join(sorted(names_of_the_step().keys() - WORDS))
    return re.findall(rf"\b(?:{names})\b", text)


def test_no_string_of_the_engine_names_a_part_of_the_step() -> None:
    found = [each for path, tree in modules(*ENGINE).items() for each in said(path, tree)]
    assert found == []


def test_the_engine_imports_no_value_state_node_or_drafter() -> None:
    found = {path: list(imported_parts(path, tree)) for path, tree in modules(*ENGINE).items()}
    assert {path: parts for path, parts in found.items() if parts} == {}
    # It does import what is fixed for a run, so the search looks at the right lines.
    engine = modules("serving/engine.py")["serving/engine.py"]
    assert any(getattr(node, "module", "") == "nodes.values" for node in ast.walk(engine))


def test_no_text_of_the_engine_mentions_a_part_of_the_step() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in modules(*ENGINE)}
    assert {path: words_in(text) for path, text in texts.items() if words_in(text)} == {}


def test_only_words_that_mean_something_else_too_are_looked_for_in_code_alone() -> None:
    assert names_of_the_step().keys() >= WORDS
    alone = names_of_the_step().keys() - WORDS
    assert {"eagle", "ngram", "bitmask", "draft_kv", "prepare_inputs", "host_sampled"} <= alone


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("from ..nodes.values import KV, LIMITS", ["KV"]),
        ("from ..nodes.values import SAMPLED as S", ["SAMPLED"]),
        ("from ..nodes import values", ["values"]),
        ("from ..nodes import eagle", ["eagle"]),
        ("from ..nodes.eagle import HEAD", ["stepweave.nodes.eagle.HEAD"]),
        ("from ..nodes.values import ACCEPTANCE, BLOCKS, TARGET", []),
    ],
)
def test_an_import_of_a_part_is_found(line: str, parts: list[str]) -> None:
    assert list(imported_parts("serving/engine.py", ast.parse(line))) == parts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# the cache of the eagle head", ["eagle"]),
        ("after bitmask.host, or d2h_copy", ["bitmask", "d2h_copy"]),
        ("requests of a batch", []),
    ],
)
def test_a_mention_is_found_in_comments_too(text: str, found: list[str]) -> None:
    assert words_in(text) == found
