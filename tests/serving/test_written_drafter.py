"""The drafter of the how-to, with a KV cache of its own and public imports only, is exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepweave import LLM
from tests.installed import ROOT, installed
from tests.test_docs import blocks

PAGE = ROOT / "docs" / "how-to" / "write-a-drafter.md"
PROMPTS: list[str | dict[str, Any]] = [
    "Write a short story about a fox.",
    {"prompt": "Once upon a time", "max_tokens": 5},
    {"prompt": "The rain in the old city", "temperature": 0.9, "seed": 3},
    {"prompt": "A", "draft_tokens": 1},
]
PIPELINE = """\
version: 2
extends: base
depth: {depth}
executor: {executor}
check: {check}
policies:
  acceptance: {rule}
scheduler: {{token_budget: 24}}
nodes:
  {counts}
  draft: {{kind: {kind}, after: {after}, model: embedded-draft, tokens: 3}}
"""
Said = list[tuple[tuple[int, ...], int, int]]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    project = tmp_path_factory.mktemp("project")
    for block in blocks(PAGE):
        if block.name.endswith((".py", ".toml")):
            (project / block.name).write_text(block.text, encoding="utf-8")
    with installed(project, tmp_path_factory.mktemp("site")):
        yield


def said(pipeline: str | Path, **overrides: str) -> Said:
    with LLM(pipeline=pipeline, overrides=overrides) as llm:
        outputs = llm.generate(PROMPTS, {"max_tokens": 12})
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    return [(output.token_ids, output.drafted, output.accepted) for output in outputs]


@pytest.fixture(scope="module")
def serial_loop() -> Said:
    """What the plain serial loop says, without drafts."""
    return said("synchronous")


def drafting(
    folder: Path,
    depth: int,
    kind: str = "small",
    *,
    padded: bool = True,
    rule: str = "coupled",
    check: str = "off",
) -> Said:
    path = folder / f"{kind}{depth}.yaml"
    text = PIPELINE.format(
        kind=kind,
        depth=depth,
        executor="serial" if depth == 1 else "threads",
        check=check,
        rule=rule,
        counts="" if padded else "d2h_counts: {after: sample}",
        after="sample" if padded else "d2h_counts",
    )
    path.write_text(text, encoding="utf-8")
    return said(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_its_tokens_are_those_of_the_serial_loop(
    depth: int, serial_loop: Said, tmp_path: Path
) -> None:
    found = drafting(tmp_path, depth, check="strict" if depth == 2 else "off")
    assert [tokens for tokens, _, _ in found] == [tokens for tokens, _, _ in serial_loop]
    assert all(accepted > 0 for _, _, accepted in found[:1] + found[2:3])


def test_its_drafts_are_those_of_the_shipped_drafter_with_the_same_model(tmp_path: Path) -> None:
    found = drafting(tmp_path, 1)
    assert found == drafting(tmp_path, 1, "draft_model")
    assert found == drafting(tmp_path, 2, padded=False), "refused drafts are left out of the pass"


def test_its_drafts_are_drawn_where_the_rule_compares_distributions(tmp_path: Path) -> None:
    found = drafting(tmp_path, 1, rule="rejection")
    assert found == drafting(tmp_path, 1, "draft_model", rule="rejection")
    assert found == drafting(tmp_path, 3, rule="rejection")
