"""How long each op of a plan takes in a step: by roofline, or by a costs file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..configs.costs import Costs
from ..graph.planner.period import op_costs
from .forward_cost import ForwardCost, Parts, Work
from .stages import Staged


@dataclass
class StepCosts:
    """Of one replica. What the costs file lacks takes what the graph declares, or the default.

    The file is asked with the rows of the step and the query tokens whose logits are wanted: a
    chunk of a prompt is copied and sampled for its last token only.
    """

    staged: Staged
    file: Costs
    forwards: Sequence[ForwardCost]  # by stage
    _known: dict[tuple[str, int, int], float] = field(default_factory=dict)
    _parts: dict[tuple[int, Work], Parts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._declared = op_costs(self.staged.graph)
        self._stage = {op: stage for stage, op in enumerate(self.staged.stages)}
        self._message = {op: stage for stage, op in enumerate(self.staged.messages)}
        for op in (*self.staged.stages[1:], *self.staged.messages):
            # Launched by hosts of other ranks, while this one launches the first stage.
            self._declared[f"{op.removesuffix('.device')}.host"] = 0.0

    def us(self, op: str, work: Work) -> float:
        """µs of an op; 0 in a step without rows."""
        if work.rows == 0:
            return 0.0
        if op in self._stage:
            return self.parts(op, work).us
        if op in self._message:
            return self._message_us(self._message[op], work)
        key = (op, work.rows, work.sampled)
        if key not in self._known:
            found = self.file.op_costs(op, self.staged.graph.vertices[op])
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
        return {op: self.us(op, work) for op in self.staged.graph.vertices}

    def _message_us(self, stage: int, work: Work) -> float:
        """Each rank of a stage sends the hidden states to its counterpart in the next."""
        forward = self.forwards[stage]
        layout, model = forward.layout, forward.model
        ends = (layout.stage_devices(forward.replica, stage + more) for more in (0, 1))
        return max(
            forward.fabric.message_us(source, target, work.tokens * model.hidden_bytes)
            for source, target in zip(*ends, strict=True)
        )
