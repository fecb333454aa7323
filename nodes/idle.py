"""What a pipeline has chosen though nothing in it uses it.

It is told and not refused: files extend each other, and one may take a node away for which another
chose a policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..graph.node import State
from ..graph.parameters import Parameter
from ..policies.registry import default
from .kind import NodeKind
from .node_config import NodeConfig
from .registry import kind
from .tree import TreeOptions
from .values import DRAFTS, HOST_BLOCKS, KV, SAMPLED


def idle(nodes: Mapping[str, NodeConfig], policies: Mapping[str, str]) -> list[str]:
    """Sentences on policies, by decision, and nodes that have nothing to do.

    Policies that are chosen when none is named are not among them. Raises `GraphError`.
    """
    kinds = {name: kind(node.kind or name) for name, node in nodes.items()}
    drafts = any(each.writes(DRAFTS.name) for each in kinds.values())
    swaps = any(_keeps_on_host(each) for each in kinds.values())
    trees = any(isinstance(node, TreeOptions) and node.tree_depth for node in nodes.values())
    missing = {
        "drafting": None if drafts else "no node drafts",
        "acceptance": None if drafts else "no node drafts",
        "resumption": None if swaps else "no node, as one of kind 'swap', keeps blocks on the host",
    }
    said = [
        f"{decision} policy {policies[decision]!r} has nothing to decide: {why}"
        for decision, why in missing.items()
        if why is not None and policies[decision] != default(decision)
    ]
    moving = () if trees else (name for name, each in kinds.items() if _moves_paths(each))
    return [
        *said,
        *(f"node {name!r} has nothing to do: no drafter offers trees" for name in moving),
    ]


def _keeps_on_host(kind: NodeKind) -> bool:
    return any(isinstance(p.of, State) and p.of.keys == HOST_BLOCKS for p in _parameters(kind))


def _moves_paths(kind: NodeKind) -> bool:
    """Whether it changes the KV cache by what was sampled."""
    found = [(each.role, each.of) for each in _parameters(kind)]
    return ("update", KV) in found and ("read", SAMPLED) in found


def _parameters(kind: NodeKind) -> Iterator[Parameter]:
    for op in (*kind.host, *kind.device):
        yield from op.parameters.values()
