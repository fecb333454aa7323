"""What every drafter declares: it reads `inputs` and `sampled`, and publishes `drafts`.

What its op does is in `proposal.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.node import Node, Op, Read, Value
from .kind import Built, NodeSpec
from .later import later

if TYPE_CHECKING:
    from .kept import Spans
    from .proposal import Propose


def drafter(
    spec: NodeSpec,
    propose: Propose,
    *,
    reads: tuple[Read, ...] = (),
    states: tuple[str, ...] = (),
    spans: Spans | None = None,
) -> Built:
    """The node around `propose`.

    `reads` and `states` are what this drafter touches besides. `spans` says which lines of its
    first pass are real; without padding it also reads `kept`, which is made of them.
    """
    shape = spec.shape
    rows, k = shape.table_rows, shape.draft_tokens
    host: tuple[Op, ...] = (Op(),)
    values: tuple[Value, ...] = ()
    if spans is not None and not shape.padded:
        host, values = _keeping(spec, spans)
        reads = (*reads, Read("kept"))
    touched = states + (("draft_probs",) if shape.draws else ())
    op = Op(
        reads=(Read("inputs"), Read("sampled"), Read("drafts", 1), *reads, *map(Read, touched)),
        writes=("drafts", *touched),
        run=later("stepweave.nodes.proposal:run", propose),
    )
    drafts = Value(
        "drafts",
        "device",
        "slots",
        nbytes=8 * rows * (k + 2),
        initial=later("stepweave.nodes.proposal:no_drafts", rows, k, spec.device),
    )
    return Built(
        Node(spec.name, host=host, device=(op,), stream="compute"),
        values=(drafts, *values),
        states=touched,
    )


def _keeping(spec: NodeSpec, spans: Spans) -> tuple[tuple[Op, ...], tuple[Value, ...]]:
    """The host op of an unpadded drafter, and the value that it fills."""
    most = max(spec.shape.token_budget, 2 * spec.shape.max_rows)
    op = Op(
        reads=(Read("batch"), Read("host_counts")),
        writes=("kept",),
        run=later("stepweave.nodes.kept:run", spans),
    )
    value = Value(
        "kept",
        "pinned",
        "slots",
        nbytes=8 * most,
        allocate=later("stepweave.nodes.kept:new_lines", most, spec.device),
    )
    return (op,), (value,)
