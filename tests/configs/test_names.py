"""Nodes of pipelines and of abstract graphs are named by one rule, which is told in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load, load_config

FILES = {
    "pipeline": ("extends: async\nnodes:\n  {name}: {{kind: bitmask, after: forward}}\n", 3),
    "graph": ("extends: abstract_decode\nnodes:\n  - {{name: {name}, host: {{}}}}\n", 12),
}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my node", '"my node" is not a name: leave out blanks, or write `_`'),
        ("x@1", '"x@1" is not a name: `@` stands before a step or a rank'),
        ("x#1", '"x#1" is not a name: `#` stands before a firing'),
        ("a.b", '"a.b" is not a name: a dot stands between a node and its op or value'),
        ("a\\u0007", "is not a name: it has a control character"),
        ("", "must not be empty"),
        ("x" * 129, "128 characters"),
    ],
)
def test_a_node_whose_name_says_more_is_refused_at_its_line(
    name: str, said: str, form: str, tmp_path: Path
) -> None:
    text, column = FILES[form]
    (tmp_path / "mine.yaml").write_text(text.format(name=f'"{name}"'))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "mine.yaml")
    [problem] = caught.value.problems
    assert said in problem.message
    assert (problem.mark.line, problem.mark.column) == (3, column)


@pytest.mark.parametrize("form", FILES)
def test_letters_of_every_script_make_names(form: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(FILES[form][0].format(name="маска-2_b"))
    load_config(tmp_path / "mine.yaml")


def test_other_names_are_refused_in_words_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'streams\[0\]: "a b" is not a name: leave out blanks'):
        load_config("async", {"streams": ["a b"]})
