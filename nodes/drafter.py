"""What a drafter is: a function that proposes, and the node around it.

A drafter says by the parameters of its function what it reads, which states it owns and what it
loads; it returns a `Proposal`. The node reads its inputs, publishes the drafts with their identity
and carries on the rows that were not asked for: that is the same for every drafter. What a row is
offered must be a function of its own tokens alone, and no drafter asks the host anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.bind import OpFunction
from ..graph.declare import op
from ..graph.errors import GraphError
from ..graph.parameters import (
    Parameter,
    buffer,
    given,
    optional,
    optional_update,
    parameters,
    read,
    wanted,
)
from .kind import NodeKind
from .options import DrafterOptions
from .values import (
    BATCH,
    DRAFT_PROBS,
    DRAFTS,
    FORCED,
    HOST_COUNTS,
    INPUTS,
    KEPT,
    MEETINGS,
    SAMPLED,
    agreement,
    divided,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..distributed.agreement import Agreement
    from ..distributed.membership import Membership
    from ..requests.batch import StepBatch
    from .data import DraftTable, Inputs, Kept, Proposal, Sampled

AGREED = agreement("on_drafts")
"""Hidden states can differ in the last bit from rank to rank: what is drafted is that of rank 0."""

Propose = Callable[..., "Proposal | None"]
"""Offers drafts for a step's sampling rows. None if there are no such rows, or no drafts at all.

Its parameters are declared like those of any node function. It is not called in a step without
inputs.
"""

Spans = Callable[["StepBatch", Sequence[int]], list[tuple[int, int]]]
"""Which tokens of its padded first pass are real, (first, how many) of each row, given the tokens
that each sampling row got.
"""


def settled_spans(batch: StepBatch, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Of a first pass over the tokens of the step: those whose next token is known.

    Of a window these are its last token and the accepted drafts, of a chunk all. It serves drafters
    whose first pass runs over the very tokens of the target. Raises nothing of its own.
    """
    spans: list[tuple[int, int]] = []
    at = sampled = 0
    for row in batch.rows:
        kept = min(counts[sampled], row.queries) if row.decodes else row.queries
        spans.append((at, kept))
        at += row.queries
        sampled += row.samples
    return spans


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter by name. Packages bring one through the entry point `stepweave.drafters`.

    `options`: the model of its options, with `tokens`, the most drafts per row and step.
    `draws`: it can draw its drafts, where the acceptance rule compares distributions, and then says
    in the proposal what it drew from. `spans`: see `Spans`; with it `propose` may read `KEPT`.
    `host`: ops that prepare on the host what `propose` reads.
    Raises `TypeError` for options that do not derive from `DrafterOptions`.
    """

    name: str
    summary: str
    propose: Propose
    options: type[DrafterOptions] = DrafterOptions
    draws: bool = False
    spans: Spans | None = None
    host: tuple[OpFunction[..., Any], ...] = ()

    def __post_init__(self) -> None:
        if not issubclass(self.options, DrafterOptions):
            raise TypeError(
                f"drafter {self.name!r}: its options must derive from DrafterOptions, "
                f"{self.options.__name__} does not"
            )

    def kind(self) -> NodeKind:
        """The node kind around it. Raises `GraphError` for parameters that hide what they read."""
        return NodeKind(
            self.name,
            self.summary,
            host=self.host if self.spans is None else (*self.host, _keep(self.spans)),
            device=(_draft(self),),
            options=self.options,
            spared=True,  # where the acceptance rule is exact
        )


def _draft(drafter: Drafter) -> OpFunction[..., Any]:
    def draft(
        inputs: Inputs | None = read(INPUTS),
        sampled: Sampled | None = read(SAMPLED),
        drafts: DraftTable = read(DRAFTS, 1),
        draft_probs: Tensor | None = optional_update(DRAFT_PROBS),
        forced: Tensor | None = optional(FORCED),
        agree: Agreement | None = given(AGREED),
        meetings: Membership | None = optional_update(MEETINGS, when=divided),
        **theirs: Any,
    ) -> DraftTable:
        """The drafts of every row; those that the step did not sample keep theirs."""
        from .ops.proposal import published

        ours = dict(inputs=inputs, sampled=sampled)
        theirs |= {name: datum for name, datum in ours.items() if name in asked}

        def propose() -> Proposal | None:
            return drafter.propose(**theirs)

        if inputs is None:
            return drafts
        drawn_from = draft_probs if drafter.draws else None  # it is no parameter of the others
        return published(inputs, drafts, drawn_from, propose, agree, forced, sampled)

    asked = parameters(drafter.propose)
    mine = [
        each
        for each in inspect.signature(draft).parameters.values()
        if each.kind is not each.VAR_KEYWORD
        and (drafter.draws or each.default.of is not DRAFT_PROBS)
    ]
    own = {each.name: each.default for each in mine}
    for name, parameter in asked.items():
        if name in own and own[name] != parameter:
            raise GraphError(
                f"drafter {drafter.name!r}: its parameter {name!r} is the node's own; give it "
                "another name",
                code="SW-SIGNATURE",
            )
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=parameter)
        for name, parameter in asked.items()
        if name not in own and isinstance(parameter, Parameter)
    ]
    draft.__signature__ = inspect.Signature([*mine, *more])  # type: ignore[attr-defined]
    return op(writes=DRAFTS, agrees=True)(draft)


def _keep(spans: Spans) -> OpFunction[..., Any]:
    @op(writes=wanted(KEPT, of=HOST_COUNTS))
    def keep(
        batch: StepBatch = read(BATCH),
        host_counts: Tensor | None = optional(HOST_COUNTS),
        kept: Tensor = buffer(KEPT),
    ) -> Kept | None:
        """Which tokens are real, once the host knows how many each row got."""
        from .ops.kept import keep_tokens

        return keep_tokens(spans, batch, host_counts, kept) if batch else None

    return keep
