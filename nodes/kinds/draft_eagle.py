"""draft_eagle: propose tokens with an EAGLE head, from the target's own hidden states."""

from __future__ import annotations

from ...graph.node import Read
from ..drafter import drafter
from ..kind import Built, DrafterNeeds, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    return drafter(
        spec,
        later("stepweave.nodes.draft_eagle:propose", machine, spec.shape),
        reads=(Read("hidden"),),
        states=("draft_kv",),
        spans=later("stepweave.nodes.draft_eagle:settled_lines"),
    )


KIND = NodeKind(
    "draft_eagle",
    "propose k tokens per row with an EAGLE or EAGLE-3 head on the target's features",
    build,
    drafter=DrafterNeeds(features=True, draws=True),
)
