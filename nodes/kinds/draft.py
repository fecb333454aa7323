"""draft: offer each row tokens for its next window, with a smaller causal LM on its own cache."""

from __future__ import annotations

from ..drafter import drafter
from ..kind import Built, DrafterNeeds, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    return drafter(
        spec,
        later("stepweave.nodes.draft:propose", machine, spec.shape),
        states=("draft_kv",),
        spans=later("stepweave.nodes.draft:not_fed_yet"),
    )


KIND = NodeKind(
    "draft",
    "propose k tokens per row with a smaller causal LM",
    build,
    drafter=DrafterNeeds(draws=True),
)
