"""What a decode step with draft trees needs of its other nodes, and of its acceptance rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..graph.errors import GraphError
from ..graph.step_graph import StepGraph
from ..policies.acceptance import Acceptance
from ..policies.registry import called
from .cache_changes import changing_kv
from .node_config import NodeConfig
from .options import Options
from .tree import TreeOptions
from .values import SAMPLED


def deepest_path(options: Iterable[Options], *, forced: bool) -> int:
    """Drafts on the longest path of any draft tree; 0: nobody offers trees.

    `forced`: some drafts may be those that a grammar forces. They come one behind the other, as
    many as a tree has nodes.
    """
    trees = [each for each in options if isinstance(each, TreeOptions) and each.tree_depth]
    return max((each.tokens if forced else each.tree_depth for each in trees), default=0)


def check_trees(graph: StepGraph, rule: Acceptance, nodes: Mapping[str, NodeConfig]) -> None:
    """Raise `GraphError`, with the line of the drafter of trees among `nodes`, for what would take
    a draft tree for a chain.
    """
    name, line = next(
        (name, each.line)
        for name, each in nodes.items()
        if isinstance(each, TreeOptions) and each.tree_depth
    )
    if not getattr(rule, "trees", False):
        raise GraphError(
            f"node {name!r} offers draft trees, but {called('acceptance', rule)} judges no draft "
            "trees: use 'coupled', 'rejection' or 'typical', or leave out `tree` of the drafter",
            code="SW-NODE",
            line=line,
        )
    if not changing_kv(graph, SAMPLED):
        raise GraphError(
            f"node {name!r} offers draft trees, but no node moves what is kept of them in the KV "
            "cache: list one of kind 'keep_path' after the one that samples",
            code="SW-NODE",
            line=line,
        )
