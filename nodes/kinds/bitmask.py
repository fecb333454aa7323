"""bitmask: fill the grammar masks of a step while its forward runs, and cut invalid drafts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine
from ..options import Options


class GrammarOptions(Options):
    """Grammars that output must follow, asked for per request."""

    backend: Literal["auto", "xgrammar", "llguidance"] = Field(
        default="auto",
        description="The grammar library. auto: each grammar is served by the library that "
        "serves it exactly; the output's `notes` name it.",
    )
    any_whitespace: bool = Field(
        default=False,
        description="Allow any whitespace between the parts of JSON output, as the model chooses.",
    )
    strict: bool = Field(
        default=True,
        description="true: a grammar is refused if a part of it would not be enforced. false: "
        "it is used, and the output's `warnings` name that part.",
    )
    reasoning_end: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description="The text that ends a reasoning section, such as </think>. The grammar "
        "applies after it. A request can turn this off with `reasoning: false`.",
    )
    compile_limit_s: float | None = Field(
        default=20.0,
        gt=0,
        le=3600,
        description="Seconds of processor time that compiling one grammar may take. The "
        "grammar is first compiled in a separate process as a trial. null: no trial "
        "and no limit.",
    )
    compile_workers: int = Field(
        default=1, ge=1, le=64, description="Number of grammars compiled at the same time."
    )
    cache_bytes: int = Field(
        default=64 << 20, ge=0, le=1 << 40, description="Bytes of compiled grammars kept for reuse."
    )


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    speculates = shape.draft_tokens > 0
    reads = [Read("batch"), Read("matchers")] + ([Read("host_drafts", 1)] if speculates else [])
    mask_bytes = 131072 // 8 * shape.max_rows * (shape.draft_tokens + 1)
    fill = Op(
        reads=tuple(reads),
        writes=("matchers", "mask_host"),
        run=later("stepweave.nodes.bitmask:fill", shape),
    )
    copy = Op(
        reads=(Read("mask_host"),),
        writes=("mask",),
        run=later("stepweave.nodes.bitmask:copy", machine),
    )
    return Built(
        Node(spec.name, host=(fill,), device=(copy,), stream="compute"),
        values=(
            Value(
                "mask_host",
                "pinned",
                "slots",
                nbytes=mask_bytes,
                allocate=later("stepweave.nodes.bitmask:new_buffer", machine, shape),
            ),
            Value("mask", "device", "slots", nbytes=mask_bytes),
        ),
        states=("matchers",),
    )


KIND = NodeKind(
    "bitmask",
    "fill grammar masks per draft position; cut drafts that break them",
    build,
    options=GrammarOptions,
)
