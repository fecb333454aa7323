"""suffix: propose what followed the row's last tokens earlier, in its text and in earlier outputs.

Suffix decoding (arXiv:2411.04975) looks texts up that only the host has room for. So while the
target runs, a host op prepares how each row's settled text may go on, in several ways; when tokens
are sampled, a device op follows the way that begins with them. Nothing waits for the host to know
what was sampled, and the plan shows what hides the look-up: it comes after the commit of the step
before, and before the drafter of its own step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..graph.declare import op
from ..graph.node import State
from ..graph.parameters import buffer, given, optional_update, read, settings, update
from .drafter import Drafter
from .options import DrafterOptions
from .sizes import Sizes
from .values import (
    BATCH,
    ENDED,
    INPUTS,
    MATCHERS,
    SAMPLED,
    SETTLED,
    SIZES,
    WAYS,
    WAYS_ON,
    way_length,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..requests.batch import StepBatch
    from ..sampling.suffixes import Outputs, Search
    from .data import EndedRequest, Inputs, Proposal, Sampled, SettledRows
    from .ops.look_up import RowTexts
    from .ops.masks import MatcherTable


class SuffixOptions(DrafterOptions):
    """Options of a drafter that looks the end of the text up, in it and in earlier outputs."""

    shortest: int = Field(
        default=1,
        ge=1,
        le=16,
        description="Tokens of the shortest suffix that is looked up. 1 is ambiguous, but a wrong "
        "draft costs little.",
    )
    longest: int = Field(
        default=32,
        ge=1,
        le=256,
        description="Tokens of a suffix that are compared: longer ones count as equally long.",
    )
    places: int = Field(
        default=16,
        ge=1,
        le=256,
        description="Newest places at which a suffix has stood that are looked at, of the text "
        "and of earlier outputs each.",
    )
    remembered: int = Field(
        default=200_000,
        ge=0,
        le=1 << 28,
        description="Tokens of earlier outputs that are kept, the newest. 0: none.",
    )
    propose: Literal["any", "allowed"] = Field(
        default="any",
        description="allowed: only what a request's grammar allows. Its matcher walks each way on, "
        "and the next likely way is taken where it refuses one.",
    )


def _search(sizes: Sizes, chosen: SuffixOptions) -> Search:
    from ..sampling.suffixes import Search

    return Search(chosen.longest, chosen.places, WAYS, way_length(sizes))


def _new_texts(chosen: SuffixOptions = settings(SuffixOptions)) -> RowTexts:
    from .ops.look_up import RowTexts

    return RowTexts(chosen.shortest)


def _new_outputs(chosen: SuffixOptions = settings(SuffixOptions)) -> Outputs:
    from ..sampling.suffixes import Outputs

    return Outputs(chosen.remembered, chosen.shortest)


TEXTS: State[RowTexts] = State("row_texts", make=_new_texts, per_run=True)
"""The settled text of every live row, on the host."""
OUTPUTS: State[Outputs] = State("earlier_outputs", make=_new_outputs)
"""Outputs of requests that have ended, as many as there is room for."""


def by_grammar(chosen: SuffixOptions = settings(SuffixOptions)) -> bool:
    """Whether what is proposed follows the grammars of the requests."""
    return chosen.propose == "allowed"


@op(writes=WAYS_ON)
def look_up(
    batch: StepBatch = read(BATCH),
    settled: SettledRows = read(SETTLED, 1),
    ended: tuple[EndedRequest, ...] = read(ENDED, 1),
    texts: RowTexts = update(TEXTS),
    outputs: Outputs = update(OUTPUTS),
    matchers: MatcherTable | None = optional_update(MATCHERS, when=by_grammar),
    ways_on: Tensor = buffer(WAYS_ON),
    sizes: Sizes = given(SIZES),
    chosen: SuffixOptions = settings(SuffixOptions),
) -> Tensor | None:
    """Prepare the ways in `ways_on[max_rows, C, M]`; it returns `[S, C, M]`."""
    from .ops.look_up import prepare_ways, remember

    texts.settle(settled)
    remember(outputs, ended)
    return prepare_ways(batch, texts, outputs, ways_on, _search(sizes, chosen), matchers)


def propose(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    ways_on: Tensor | None = read(WAYS_ON),
) -> Proposal | None:
    """Drafts that follow the sampled tokens on one of the ways `ways_on[S, C, M]`."""
    from ..sampling.following import follow
    from .data import Proposal
    from .ops.transfer import upload

    sample = None if inputs is None else inputs.sample
    if sample is None or sampled is None or ways_on is None or sample.draft_width == 0:
        return None
    ways = upload(ways_on, sampled.tokens.device)
    tokens, valid = follow(ways, sampled.tokens, sampled.counts, sample.draft_width)
    return Proposal(tokens, valid)


KIND = Drafter(
    "suffix",
    "propose what followed the row's last tokens earlier, in its text and in earlier outputs",
    propose,
    options=SuffixOptions,
    host=(look_up,),
)
