"""draft_model: offer each row tokens for its next window, with a smaller causal LM on its cache."""

from __future__ import annotations

from pydantic import Field

from ..drafter import drafter
from ..kind import Built, DrafterNeeds, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine
from ..options import DrafterOptions, ModelName


class DraftModelOptions(DrafterOptions):
    """Options of a drafter that is a smaller causal language model."""

    model: ModelName = Field(
        default="embedded-draft",
        description="The drafter: a directory, or a hub name. Default: that of the embedded model.",
    )


def build(spec: NodeSpec, machine: Machine) -> Built:
    return drafter(
        spec,
        later("stepweave.nodes.draft:propose", machine, spec.shape),
        states=("draft_kv",),
        spans=later("stepweave.nodes.draft:not_fed_yet"),
    )


KIND = NodeKind(
    "draft_model",
    "propose k tokens per row with a smaller causal LM",
    build,
    options=DraftModelOptions,
    drafter=DrafterNeeds(draws=True),
)
