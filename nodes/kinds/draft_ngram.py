"""draft_ngram: propose what followed the last few tokens when they stood in the text before."""

from __future__ import annotations

from ...graph.errors import GraphError
from ...graph.node import Read
from ..drafter import drafter
from ..kind import Built, DrafterNeeds, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine

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
    return drafter(
        spec,
        later("stepweave.nodes.draft_ngram:propose", longest, shortest),
        reads=(Read("history"),),
    )


KIND = NodeKind(
    "draft_ngram",
    "propose what followed the row's last tokens earlier in its text",
    build,
    options=("longest", "shortest"),
    drafter=DrafterNeeds(),
)
