"""The page of pipelines has all of them, and what bounds each; the host bounds those that say why.

That the page and its pictures are those of the plans is a matter of the tests of the reference.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reference" / "pipelines.md").read_text(encoding="utf-8")
SECTIONS = {
    name: text
    for name, text in re.findall(r"(?ms)^### (\S+)\n(.*?)(?=^##|\Z)", PAGE)  # each to the next
}
BOUND_BY_THE_HOST = {
    *("synchronous", "async_allowed_drafts"),
    *("grammar_in_turns", "prefill_decode", "seldom_statistics"),
}


def test_every_pipeline_is_there() -> None:
    assert sorted(SECTIONS) == sorted(shipped())


@pytest.mark.parametrize("name", shipped())
def test_it_is_drawn_and_says_what_bounds_it(name: str) -> None:
    text = SECTIONS[name]
    (picture,) = re.findall(r"\(\.\./(images/pipelines/\S+\.svg)\)", text)
    assert (DOCS / picture).is_file()
    cycles = [
        line.split("|")[3] for line in text.splitlines() if " → " in line or ".device` +" in line
    ]
    assert len(cycles) == (2 if isinstance(load_config(name), PipelineConfig) else 1)
    on_the_host = any(".host" in cycle for cycle in cycles)
    assert on_the_host == (name in BOUND_BY_THE_HOST)
    said = (
        "only ops of a device would be on it" if on_the_host else "Only ops of a device are on it"
    )
    assert said in text


def test_every_picture_is_of_a_pipeline() -> None:
    drawn = {path.stem for path in (DOCS / "images" / "pipelines").iterdir()}
    assert drawn == set(shipped())
