"""How long each op of a plan takes in a step: by roofline, or by a costs file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..configs.costs import Costs
from ..graph.planner.period import op_costs
from ..graph.ranks import declared_name
from ..graph.step_graph import StepGraph
from ..nodes.stage_ranks import model_ops
from .forward_cost import ForwardCost, Parts, Work

TOLD_BYTES = 8
"""Of a sampled token, on its way from the last stage to the others."""


@dataclass
class StepCosts:
    """Of one replica. What the costs file lacks takes what the graph declares, or the default.

    The graph is that of all stages, each a rank with a host and a device of its own; a tensor group
    is one. Hidden states go from each stage to the next, and what is sampled from the last to all.
    The file is asked with the rows of the step and the query tokens whose logits are wanted: a
    chunk of a prompt is copied and sampled for its last token only.
    """

    graph: StepGraph
    file: Costs
    forwards: Sequence[ForwardCost]  # by stage
    _known: dict[tuple[str, int, int], float] = field(default_factory=dict)
    _parts: dict[tuple[int, Work], Parts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._declared = op_costs(self.graph)
        self.stages = model_ops(self.graph)
        self._stage = {op: stage for stage, op in enumerate(self.stages)}
        self._meets = {
            op: vertex.node.comm
            for op, vertex in self.graph.vertices.items()
            if vertex.node.comm is not None
        }

    def us(self, op: str, work: Work) -> float:
        """µs of an op; 0 in a step without rows."""
        if work.rows == 0:
            return 0.0
        if op in self._stage:
            return self.parts(op, work).us
        if op in self._meets:
            return self._meeting_us(op, work)
        key = (op, work.rows, work.sampled)
        if key not in self._known:
            found = self.file.op_costs(declared_name(self.graph, op), self.graph.vertices[op])
            us = self._declared[op] if found is None else found.at(work.rows, work.sampled)
            self._known[key] = us
        return self._known[key]

    def parts(self, op: str, work: Work) -> Parts:
        """Of the forward pass of a stage."""
        key = (self._stage[op], work)
        if key not in self._parts:
            if len(self._parts) > 64:  # asked for twice, soon after each other
                self._parts.clear()
            self._parts[key] = self.forwards[key[0]].of(work)
        return self._parts[key]

    def all(self, work: Work) -> dict[str, float]:
        """µs of every op in a step."""
        return {op: self.us(op, work) for op in self.graph.vertices}

    def _meeting_us(self, op: str, work: Work) -> float:
        """Of a message, or of what the last stage tells: a message to each of the others at once.

        Its launch and what it waits for take nothing by themselves, nor does the log of the hosts.
        """
        vertex, comm = self.graph.vertices[op], self._meets[op]
        if vertex.side == "host" or vertex.op.phase == "enter":
            return 0.0
        if comm.kind == "message":
            size = work.tokens * self.forwards[0].model.hidden_bytes
            sender, receiver = comm.members
            return self._message_us(sender, receiver, size)
        last = len(self.stages) - 1
        others = [stage for stage in range(last) if vertex.node.rank in (stage, last)]
        return max(self._message_us(last, other, work.sampled * TOLD_BYTES) for other in others)

    def _message_us(self, sender: int, receiver: int, size: float) -> float:
        """Each rank of a stage sends to its counterpart in the other."""
        forward = self.forwards[sender]
        ends = (forward.layout.stage_devices(forward.replica, each) for each in (sender, receiver))
        return max(
            forward.fabric.message_us(source, target, size)
            for source, target in zip(*ends, strict=True)
        )
