"""ngram: propose what followed the last few tokens when they stood in the text before.

Prompt look-up (Saxena 2023) needs every token of the row; engines that kept them on the host had to
give up either overlap or this drafter. Ours are on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from ..graph.parameters import optional, read, settings, state
from .drafter import Drafter
from .options import DrafterOptions
from .values import DRAFT_MASK, HISTORY, INPUTS, SAMPLED

if TYPE_CHECKING:
    from .data import DraftMask, Inputs, Proposal, Sampled
    from .ops.history import History


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


def propose(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    history: History = state(HISTORY),
    allowed: DraftMask | None = optional(DRAFT_MASK),
    chosen: NgramOptions = settings(NgramOptions),
) -> Proposal | None:
    """Drafts that follow the row's last `longest` … `shortest` tokens earlier in its text.

    The first of them is one of those `allowed`.
    """
    from ..sampling.lookup import propose as look_up
    from .data import Proposal

    sample = None if inputs is None else inputs.sample
    if sample is None or sampled is None or sample.draft_width == 0:
        return None
    reach = sample.longest + sampled.tokens.shape[1]
    tokens, valid = look_up(
        history.tokens[sample.request_slot, :reach].long(),
        sample.window_start + sampled.counts + 1,
        sample.draft_width,
        chosen.longest,
        chosen.shortest,
        None if allowed is None else allowed.bits,
        None if allowed is None else allowed.lines,
    )
    return Proposal(tokens, valid)


KIND = Drafter(
    "ngram",
    "propose what followed the row's last tokens earlier in its text",
    propose,
    options=NgramOptions,
)
