"""Draft trees in a file: what they ask of the other nodes, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import GraphError
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.verifier.verify import verify
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError
from stepweave.models.fitting import fit_tree
from stepweave.nodes.tree import Growth, TreeOptions
from stepweave.nodes.trees import deepest_path
from stepweave.serving.pipeline import step_graph
from stepweave.testing.models import tiny_model

TREE = [[0], [1], [0, 0]]
DRAFT = {"kind": "eagle3", "after": "sample", "tree": TREE}
IN_STAGES = {
    "model__parallel__pipeline": 2,
    "depth": 3,
    "policies__scheduling": {"kind": "groups", "groups": 3},
}


def pipeline(draft: dict[str, Any], **more: Any) -> PipelineConfig:
    nodes = {"nodes.draft": draft, "nodes.keep_path": {"after": "sample"}}
    changed = {**nodes, **{key.replace("__", "."): value for key, value in more.items()}}
    kept = {key: value for key, value in changed.items() if value is not None}
    found = load_config("async", kept)
    assert isinstance(found, PipelineConfig)
    return found


def test_a_tree_says_how_many_drafts_there_are() -> None:
    listed = pipeline(DRAFT).drafter
    grown = pipeline({**DRAFT, "tree": {"width": 2, "depth": 4}}).drafter
    both = pipeline({**DRAFT, "tree": {"width": 2, "depth": 4}, "tokens": 11}).drafter
    for options, tokens, depth in ((listed, 3, 2), (grown, 7, 4), (both, 11, 4)):
        assert isinstance(options, TreeOptions)
        assert (options.tokens, options.tree_depth) == (tokens, depth)
    assert pipeline({**DRAFT, "tree": None}).drafter.tokens == 3  # type: ignore[union-attr]
    assert Growth(width=2, depth=4, children=3).most == 21


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ({"tokens": 4}, "tokens: 3 of this tree, not 4"),
        ({"tree": None, "tokens": 17}, "tokens: 1 to 16 without a tree, not 17"),
        ({"tree": {"width": 2, "depth": 4}, "tokens": 6}, "tokens: 7 to 14 of this tree, not 6"),
        ({"tree": {"width": 2, "depth": 4}, "tokens": 15}, "tokens: 7 to 14 of this tree, not 15"),
        ({"tree": {"width": 16, "depth": 16}}, "it has 241 nodes at least, and a tree has 62"),
        ({"tree": {"width": 3, "depth": 2, "children": 2}}, "fewer than the 3 of a pass"),
        ({"tree": {"width": 2}}, "lacks the key 'depth'"),
        ({"tree": [[0], [1, 0]]}, r"\[1, 0\] is in the tree, but not \[1\]"),
        ({"tree": 7}, "must be a list"),
        ({"kind": "medusa", "tree": {"width": 2, "depth": 2}}, "tree"),
        ({"kind": "ngram"}, "tree"),
        ({"kind": "suffix"}, "tree"),
    ],
)
def test_trees_that_make_no_sense_are_refused_with_what_is_wrong(
    draft: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        pipeline({**DRAFT, **draft})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"nodes__keep_path": None}, "no node moves what is kept.*kind 'keep_path'"),
        ({"policies__acceptance": "block"}, "'block' judges no draft trees: use 'coupled'"),
        ({"policies__acceptance": {"kind": "synthetic", "rates": [0.5]}}, "judges no draft trees"),
        ({**IN_STAGES, "nodes__keep_path": None}, "no node moves what is kept.*kind 'keep_path'"),
    ],
)
def test_what_would_take_a_tree_for_a_chain_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        step_graph(pipeline(DRAFT, **more))


def test_the_line_of_such_an_error_is_that_of_the_drafter(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "extends: async_tree\npolicies: {acceptance: block}\n"
        "nodes:\n  draft: {tree: [[0], [1]], tokens: 2}\n"
    )
    config = load_config(path)
    assert isinstance(config, PipelineConfig)
    with pytest.raises(GraphError, match="'block' judges no draft trees") as error:
        step_graph(config)
    assert error.value.line == 4


def test_where_a_grammar_forces_drafts_a_path_is_as_deep_as_a_tree_has_nodes() -> None:
    tree, chain = (pipeline({**DRAFT, "tree": each}).drafter for each in (TREE, None))
    assert tree is not None
    assert chain is not None
    assert [deepest_path([tree], forced=forced) for forced in (False, True)] == [2, 3]
    assert deepest_path([chain], forced=True) == 0
    jump = {"nodes__bitmask": {"after": "forward"}, "nodes__jump_forward": {"after": "bitmask"}}
    verify(compile_plan(step_graph(pipeline(DRAFT, **jump))))


@pytest.mark.parametrize("stream", ["compute", "draft"])
@pytest.mark.parametrize("rule", ["coupled", "rejection", "typical"])
def test_the_next_pass_of_the_model_comes_after_the_path_is_in_place(
    rule: str, stream: str
) -> None:
    more = {"nodes__keep_path__stream": stream, "policies__acceptance": rule}
    plan = compile_plan(step_graph(pipeline(DRAFT, **more)))
    verify(plan)
    edges = {(e.source, e.target, e.distance) for e in plan.edges if e.value == "kv"}
    assert ("keep_path.device", "forward.device", 1) in edges
    waits = {(wait.source, wait.target) for wait in plan.waits}
    assert (("keep_path.device", "prepare_inputs.device") in waits or stream == "compute") or (
        ("keep_path.device", "forward.device") in waits
    )


def test_a_path_that_is_longer_than_a_layer_looks_back_is_refused() -> None:
    model = tiny_model("mistral", 0, sliding_window=4)
    target = CausalLM.wrap(model)
    fit_tree(3, target)
    with pytest.raises(ModelError, match=r"looks back 4 tokens.*has 4 drafts"):
        fit_tree(4, target)
    fit_tree(16, CausalLM.wrap(tiny_model("llama", 0)))
