"""Reads that name the node that writes: it must be there, and write that."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.errors import GraphError, did_you_mean
from .kind import NodeKind
from .node_config import NodeConfig, wired


def check_writers(nodes: Mapping[str, NodeConfig], kinds: Mapping[str, NodeKind]) -> None:
    """Raise `GraphError` where one of `nodes` reads from a node that is none, or writes no such
    value. A value has one writer, so which is read does not depend on the name.
    """
    for name, node in nodes.items():
        for text in node.reads.values():
            writer, read = wired(text)
            if writer is None or (writer in nodes and kinds[writer].writes(read.name)):
                continue
            if writer in nodes:
                why = f"node {writer!r} writes no {read.name!r}"
                writing = [other for other, each in kinds.items() if each.writes(read.name)]
                why += f", node {writing[0]!r} does" if writing else ""
            else:
                why = f"there is no node {writer!r}{did_you_mean(writer, nodes)}"
            raise GraphError(
                f"node {name!r} reads {text!r}, but {why}", code="SW-UNKNOWN-NAME", line=node.line
            )
