"""eagle: propose tokens with an EAGLE head, from the target's own hidden states."""

from __future__ import annotations

from pydantic import Field

from ...graph.node import Read
from ..drafter import drafter
from ..kind import Built, DrafterNeeds, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine
from ..options import DrafterOptions, ModelName


class EagleOptions(DrafterOptions):
    """Options of a drafter that is a head on the target's hidden states."""

    model: ModelName = Field(
        default="embedded-eagle",
        description="The head: a directory, or a hub name. Default: that of the embedded model.",
    )


def build(spec: NodeSpec, machine: Machine) -> Built:
    return drafter(
        spec,
        later("stepweave.nodes.draft_eagle:propose", machine, spec.shape),
        reads=(Read("hidden"),),
        states=("draft_kv",),
        spans=later("stepweave.nodes.draft_eagle:settled_lines"),
    )


KIND = NodeKind(
    "eagle",
    "propose k tokens per row with an EAGLE head on the target's last hidden state",
    build,
    options=EagleOptions,
    drafter=DrafterNeeds(features=True, draws=True),
)
