"""steer_trace and draft_trace: real compute whose outcome is chosen beforehand. For benchmarks.

A model with random weights never closes a JSON string, and no drafter guesses it. `steer_trace`
raises the logit of the next token of a stored text, the *trace*, and `draft_trace` runs the draft
model and then offers the trace's tokens in place of its own, or, where a table says so, another
token that the grammar allows there. Every pass of both models is computed, grammars and windows
are real, and how many drafts are accepted is known to the last one. What comes out is the trace,
so it can be checked. **It is not the model's.**

The tables are a safetensors file: `tokens[N, L]` and `wrong[N, L]`, int64, and `right[N, L, k]`,
bool: whether the draft of place j for output position p is right. A request follows the trace of
its `seed`, modulo N; past the end it gets the last token, which should be the stop token.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.nodes.draft import follow_prompts, propose_with_model
from stepweave.nodes.drafter import drafter
from stepweave.nodes.kind import Built, DrafterNeeds, NodeKind, NodeSpec
from stepweave.nodes.machine import Machine
from stepweave.nodes.options import DrafterOptions, Options
from stepweave.nodes.prepare_inputs import Inputs, SampleRows
from stepweave.nodes.proposal import Proposal
from stepweave.nodes.registry import kind as known
from stepweave.nodes.sample import Sampled

BIAS = 1000.0  # far above what a random model says


class TraceOptions(Options):
    """What `steer_trace` is told."""

    traces: str = Field(description="The safetensors file with the traces.")
    bias: float = Field(default=BIAS, description="Added to the logit of the trace's token.")


class DraftTraceOptions(DrafterOptions):
    """What `draft_trace` is told."""

    traces: str = Field(description="The safetensors file with the traces.")


@dataclass(frozen=True)
class Tables:
    """The file, where the model lies."""

    tokens: Tensor
    wrong: Tensor
    right: Tensor

    @staticmethod
    def of(spec: NodeSpec) -> Tables:
        """Raises `GraphError` for a file that is missing or lacks a table."""
        assert isinstance(spec.options, TraceOptions | DraftTraceOptions)
        path = spec.options.traces
        try:
            held = load_file(str(path))
            tables = Tables(*(held[name].to(spec.device) for name in ("tokens", "wrong", "right")))
        except (OSError, SafetensorError, KeyError) as error:
            raise GraphError(
                f"node {spec.name!r}: `traces` must be a safetensors file with `tokens`, `wrong` "
                f"and `right`; {path!r} is none: {error}",
                code="SW-CONFIG",
                line=spec.line,
            ) from error
        return tables

    def at(self, table: Tensor, sample: SampleRows, first: Tensor, places: int) -> Tensor:
        """`table` at `places` output positions of each row, from the absolute `first[S]` on."""
        count, length = table.shape[:2]
        ahead = torch.arange(places, device=first.device)
        positions = (first - sample.prompt)[:, None] + ahead
        return table[(sample.seeds % count)[:, None], positions.clamp(0, length - 1)]


def build_steer(spec: NodeSpec, machine: Machine) -> Built:
    assert isinstance(spec.options, TraceOptions)
    tables, bias = Tables.of(spec), spec.options.bias

    def run(ctx: OpContext) -> None:
        inputs: Inputs | None = ctx.read("inputs")
        logits: Tensor | None = ctx.read("logits")
        if logits is None or inputs is None or inputs.sample is None:
            return  # no row of this step samples: write nothing, which is an explicit none
        sample = inputs.sample
        with torch.inference_mode():
            wanted = tables.at(tables.tokens, sample, sample.base + 1, logits.shape[1])
            added = torch.full_like(wanted, bias, dtype=logits.dtype)[..., None]
            ctx.write("steered", logits.scatter_add(-1, wanted[..., None], added))

    return Built(
        Node(
            spec.name,
            host=(Op(),),
            device=(Op(reads=(Read("inputs"), Read("logits")), writes=("steered",), run=run),),
            stream="compute",
        ),
        values=(
            Value(
                "steered",
                "device",
                "slots",
                nbytes=4 * 131072 * spec.shape.max_rows * (spec.shape.draft_tokens + 1),
            ),
        ),
    )


def build_draft(spec: NodeSpec, machine: Machine) -> Built:
    tables = Tables.of(spec)

    def propose(ctx: OpContext, inputs: Inputs, sampled: Sampled | None) -> Proposal | None:
        cache = ctx.state("draft_kv")
        follow_prompts(machine, inputs, cache)
        if inputs.sample is None or sampled is None:
            return None
        found = propose_with_model(machine, inputs, sampled, cache, draws=False)
        return None if found is None else _replaced(tables, inputs.sample, sampled, found)

    return drafter(spec, propose, states=("draft_kv",))


def _replaced(tables: Tables, sample: SampleRows, sampled: Sampled, found: Proposal) -> Proposal:
    rows, places = found.tokens.shape
    first = sample.base + sampled.counts + 1
    tokens, wrong, right = (
        tables.at(table, sample, first, places)
        for table in (tables.tokens, tables.wrong, tables.right)
    )
    place = torch.arange(places, device=tokens.device).expand(rows, -1)[..., None]
    is_right = right.gather(-1, place)[..., 0]
    return Proposal(torch.where(is_right, tokens, wrong), found.valid)


@contextmanager
def installed() -> Iterator[None]:
    """Make the kinds known as those of an installed package are: by metadata on `sys.path`."""
    with tempfile.TemporaryDirectory() as site:
        info = Path(site) / "stepweave_steering-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: stepweave-steering\nVersion: 0\n"
        )
        points = [f"{kind.name} = {KINDS_AT}:{name}" for name, kind in KINDS.items()]
        (info / "entry_points.txt").write_text("\n".join(["[stepweave.nodes]", *points, ""]))
        sys.path.append(site)
        try:
            yield
        finally:
            sys.path.remove(site)
            known.cache_clear()


STEER = NodeKind(
    "steer_trace",
    "raise the logits of a stored text's tokens",
    build_steer,
    options=TraceOptions,
)

DRAFT = NodeKind(
    "draft_trace",
    "run a draft model, then offer a stored text's tokens, or wrong ones",
    build_draft,
    options=DraftTraceOptions,
    drafter=DrafterNeeds(),
)

KINDS = {"STEER": STEER, "DRAFT": DRAFT}
KINDS_AT = __name__
