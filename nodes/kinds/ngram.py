"""ngram: propose what followed the last few tokens when they stood in the text before."""

from __future__ import annotations

from pydantic import Field, model_validator

from ...graph.node import Read
from ..drafter import drafter
from ..kind import Built, DrafterNeeds, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine
from ..options import DrafterOptions


class NgramOptions(DrafterOptions):
    """Options of a drafter that looks the last tokens up in the text so far."""

    longest: int = Field(
        default=3, ge=1, le=64, description="Tokens of the longest suffix that is looked up."
    )
    shortest: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Tokens of the shortest. 1 is ambiguous, but a wrong draft costs little.",
    )

    @model_validator(mode="after")
    def _shortest_first(self) -> NgramOptions:
        if self.shortest > self.longest:
            raise ValueError(f"shortest {self.shortest} is more than longest {self.longest}")
        return self


def build(spec: NodeSpec, machine: Machine) -> Built:
    options = spec.options
    assert isinstance(options, NgramOptions)
    return drafter(
        spec,
        later("stepweave.nodes.draft_ngram:propose", options.longest, options.shortest),
        reads=(Read("history"),),
    )


KIND = NodeKind(
    "ngram",
    "propose what followed the row's last tokens earlier in its text",
    build,
    options=NgramOptions,
    drafter=DrafterNeeds(),
)
