"""draft_ngram: propose what followed the last few tokens when they stood in the text before.

Prompt look-up (Saxena 2023) needs every token of the row; engines that kept them on the host had to
give up either overlap or this drafter. Ours are on the device.
"""

from __future__ import annotations

from ..graph.errors import GraphError
from ..graph.node import OpContext, Read
from ..policies.lookup import propose as look_up
from .history import History
from .kind import Built, DrafterNeeds, NodeKind, NodeSpec
from .machine import Machine
from .prepare_inputs import Inputs
from .proposal import Proposal, drafter
from .sample import Sampled

LONGEST, SHORTEST = 3, 1  # a single token is ambiguous, but a wrong draft costs little


def build(spec: NodeSpec, machine: Machine) -> Built:
    """Options: `longest` and `shortest`, the lengths of the suffixes that are looked up."""
    longest, shortest = spec.options.get("longest", LONGEST), spec.options.get("shortest", SHORTEST)
    if not (isinstance(longest, int) and isinstance(shortest, int) and 1 <= shortest <= longest):
        raise GraphError(
            f"node {spec.name!r}: needs 1 <= shortest <= longest tokens, not shortest "
            f"{shortest!r} and longest {longest!r}",
            code="SW-OPTION",
            line=spec.line,
        )

    def propose(ctx: OpContext, inputs: Inputs, sampled: Sampled | None) -> Proposal | None:
        sample = inputs.sample
        history: History = ctx.state("history")
        if sample is None or sampled is None or sample.draft_width == 0:
            return None
        reach = sample.longest + sampled.tokens.shape[1]
        tokens, valid = look_up(
            history.tokens[sample.rows, :reach].long(),
            sample.base + sampled.counts + 1,
            sample.draft_width,
            longest,
            shortest,
        )
        return Proposal(tokens, valid)

    return drafter(spec, propose, reads=(Read("history"),))


KIND = NodeKind(
    "draft_ngram",
    "propose what followed the row's last tokens earlier in its text",
    build,
    options=("longest", "shortest"),
    drafter=DrafterNeeds(),
)
