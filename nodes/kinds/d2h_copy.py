"""d2h_copy: bring sampled tokens and drafts to pinned host memory, beside the next forward."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ...requests.limits import MAX_LOGPROBS
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    # Drafts are wanted on the host only to be checked against grammars.
    with_drafts = shape.draft_tokens > 0 and shape.structured
    reads = [Read("sampled")] + ([Read("drafts")] if with_drafts else [])
    writes = ["host_sampled"] + (["host_drafts"] if with_drafts else [])
    logprob_bytes = 12 * (MAX_LOGPROBS + 1)
    lines = shape.max_rows * (shape.draft_tokens + 1) + shape.token_budget
    values = [
        Value(
            "host_sampled",
            "pinned",
            "slots",
            nbytes=8 * shape.max_rows * (shape.draft_tokens + 3) + logprob_bytes * lines,
            allocate=later("stepweave.nodes.d2h_copy:new_sampled", machine, shape),
        )
    ]
    if with_drafts:
        new_drafts = later("stepweave.nodes.d2h_copy:new_drafts", machine, shape)
        values.append(
            Value(
                "host_drafts",
                "pinned",
                "slots",
                nbytes=8 * shape.max_rows * (shape.draft_tokens + 2),
                initial=new_drafts,
                allocate=new_drafts,
            )
        )
    op = Op(
        reads=tuple(reads),
        writes=tuple(writes),
        run=later("stepweave.nodes.d2h_copy:run", with_drafts),
    )
    return Built(Node(spec.name, host=(Op(),), device=(op,), stream="copy"), values=tuple(values))


KIND = NodeKind("d2h_copy", "copy sampled tokens and drafts to pinned host memory", build)
