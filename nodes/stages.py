"""The decode step of one stage: a pipeline's nodes, those of other stages left out.

Where a model is divided into stages, each is run by a rank of its own, which schedules like every
other. What only the last stage can do (sample, draft, fill masks) is there alone, and its results
are told to the others. Nodes that carry data between ranks are the one thing that a file does not
list: which there are follows from the number of stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..graph.errors import GraphError
from .kind import NodeKind
from .node_config import NodeConfig
from .options import DrafterOptions
from .registry import BETWEEN_STAGES, kind
from .values import BATCH, DRAFTS, SAMPLED

if TYPE_CHECKING:
    from ..models.stage import Stage


def staged(nodes: Mapping[str, NodeConfig], stage: Stage, groups: int) -> dict[str, NodeConfig]:
    """The nodes of `stage`, in order, where `groups` steps are in flight.

    What a step hands to another is read `groups` steps later: no row is in a step between. So
    do nodes that change what the stage keeps by it, which are listed before the model (`late`).
    Raises `GraphError` for a node with a name that is needed here, and where nothing runs the
    model.
    """
    kinds = {name: kind(node.kind or name) for name, node in nodes.items()}
    refuse_messages(nodes)
    models = [name for name, each in kinds.items() if each.stages == "each"]
    if len(models) != 1:
        raise GraphError(
            f"a model in stages is run by one node of kind 'forward'; here are {len(models)}",
            code="SW-NODE",
        )
    options = [kinds[name].settings(name, node) for name, node in nodes.items()]
    drafts = any(isinstance(each, DrafterOptions) for each in options)
    waiting = {name: _later(nodes[name], kinds[name], groups) for name in late(nodes, stage)}
    found: dict[str, NodeConfig] = {}
    for name, node in nodes.items():
        if name in waiting or (kinds[name].stages == "last" and not stage.last):
            continue
        before, after = _around(stage, drafts) if name == models[0] else ({}, {})
        if name == models[0]:
            before |= waiting
        if _publishes_batches(kinds[name]):
            before, after = _logged(stage, node)
        found |= before
        found[name] = _later(node, kinds[name], groups)
        found |= after
        for told in _told(kinds[name]) if stage.last else ():
            found[told] = NodeConfig(kind=told)
    return found


def late(nodes: Mapping[str, NodeConfig], stage: Stage | None) -> tuple[str, ...]:
    """The nodes that `stage` runs when it has heard what was sampled, as many steps later as are in
    flight.

    At once would be too early: the stage's next step would have to wait until this one has been
    through all stages. Until then its rows are in no other step. None: a model in one piece. Raises
    `GraphError` for an unknown kind.
    """
    if stage is None or stage.last:
        return ()
    return tuple(name for name, node in nodes.items() if kind(node.kind or name).stages == "late")


def refuse_messages(nodes: Mapping[str, NodeConfig]) -> None:
    """Raises `GraphError` for a node that a file cannot list, or with the name of one."""
    for name, node in nodes.items():
        if name in BETWEEN_STAGES or node.kind in BETWEEN_STAGES or _NUMBERED.fullmatch(name):
            raise GraphError(
                f"node {name!r}: nodes between the stages of a model are not listed, since they "
                "follow from model.parallel.pipeline; leave it out, or call yours otherwise",
                code="SW-NODE",
                line=node.line,
            )


_NUMBERED = re.compile(r"(send|log)\d+")


def _around(stage: Stage, drafts: bool) -> tuple[dict[str, NodeConfig], dict[str, NodeConfig]]:
    """The nodes before and after that which runs the model.

    All ends of one meeting have one name: `send0` is what stage 0 sends and stage 1 receives, and
    `tell` what the last stage tells and the others hear.
    """
    here = stage.index
    before = {} if stage.first else {f"send{here - 1}": NodeConfig(kind="receive")}
    if stage.last:
        return before, {}
    after = {f"send{here}": NodeConfig(kind="send"), "tell": NodeConfig(kind="hear")}
    return before, after | ({"tell_drafts": NodeConfig(kind="hear_drafts")} if drafts else {})


def _publishes_batches(made: NodeKind) -> bool:
    return any(write.name == BATCH.name for op in made.host for write in op.writes)


def _logged(stage: Stage, node: NodeConfig) -> tuple[dict[str, NodeConfig], dict[str, NodeConfig]]:
    """The nodes before and after that which schedules: the others come after rank 0."""
    log = NodeConfig(kind="log", actor=node.actor)
    if stage.first:
        return {}, {f"log{other}": log for other in range(1, stage.count)}
    return {f"log{stage.index}": log}, {}


def _told(made: NodeKind) -> Iterator[str]:
    """Who tells the other stages what a node of the last one has made."""
    written = {write.name for op in (*made.host, *made.device) for write in op.writes}
    for what, told in ((SAMPLED.name, "tell"), (DRAFTS.name, "tell_drafts")):
        if what in written:
            yield told


def _later(node: NodeConfig, made: NodeKind, groups: int) -> NodeConfig:
    """The node reading `groups` steps back what others handed to the next step."""
    ops = (*made.host, *made.device)
    own = {write.name for op in ops for write in op.writes}
    reads = {
        parameter: f"{each.name}@-{groups}"
        for op in ops
        for parameter, each in op.parameters.items()
        if each.role == "read" and each.carry == 1 and each.name not in own
    }
    return node.model_copy(update={"reads": {**reads, **node.reads}}) if reads else node
