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

from stepweave.graph.declare import op
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Value
from stepweave.graph.parameters import Resource, given, pieces, read, settings, update
from stepweave.graph.pieces import Pieces
from stepweave.models.causal_lm import CausalLM
from stepweave.models.paged_cache import PagedCache
from stepweave.models.translated import TranslatedLM
from stepweave.nodes import draft_model
from stepweave.nodes.data import Inputs, Proposal, Sampled, SampleRows
from stepweave.nodes.draft_model import DRAFT_KV, FITTING_MODEL, DraftModelOptions
from stepweave.nodes.drafter import Drafter
from stepweave.nodes.kind import NodeKind
from stepweave.nodes.options import Options
from stepweave.nodes.registry import kind as known
from stepweave.nodes.sizes import Sizes
from stepweave.nodes.values import (
    ACCEPTANCE,
    DEVICE,
    INPUTS,
    LIMITS,
    LOGITS,
    SAMPLED,
    SIZES,
    VOCAB_SIZE,
)
from stepweave.policies.acceptance import Acceptance
from stepweave.requests.limits import Limits

BIAS = 1000.0  # far above what a random model says


class TraceOptions(Options):
    """What `steer_trace` is told."""

    traces: str = Field(description="The safetensors file with the traces.")
    bias: float = Field(default=BIAS, description="Added to the logit of the trace's token.")


class DraftTraceOptions(DraftModelOptions):
    """What `draft_trace` is told."""

    traces: str = Field(description="The safetensors file with the traces.")


@dataclass(frozen=True)
class Tables:
    """The file, where the model lies."""

    tokens: Tensor
    wrong: Tensor
    right: Tensor

    def at(self, table: Tensor, sample: SampleRows, first: Tensor, places: int) -> Tensor:
        """`table` at `places` output positions of each row, from the absolute `first[S]` on."""
        count, length = table.shape[:2]
        ahead = torch.arange(places, device=first.device)
        positions = (first - sample.prompt)[:, None] + ahead
        return table[(sample.seeds % count)[:, None], positions.clamp(0, length - 1)]


def load_tables(
    chosen: TraceOptions | DraftTraceOptions = settings(Options),  # type: ignore[assignment]
    device: torch.device = given(DEVICE),
) -> Tables:
    """Raises `GraphError` for a file that is missing or lacks a table."""
    path = chosen.traces
    try:
        held = load_file(path)
        return Tables(*(held[name].to(device) for name in ("tokens", "wrong", "right")))
    except (OSError, SafetensorError, KeyError) as error:
        raise GraphError(
            f"`traces` must be a safetensors file with `tokens`, `wrong` and `right`; {path!r} is "
            f"none: {error}",
            code="SW-OPTION",
        ) from error


TABLES: Resource[Tables] = Resource("traces", load_tables)


def _steered_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 4 * 131072 * sizes.max_rows * sizes.window


STEERED: Value[Tensor | None] = Value("steered", "device", "slots", size=_steered_bytes)


@op(writes=STEERED)
def steer(
    inputs: Inputs | None = read(INPUTS),
    logits: Tensor | None = read(LOGITS),
    tables: Tables = given(TABLES),
    chosen: TraceOptions = settings(TraceOptions),
) -> Tensor | None:
    """The logits with the trace's tokens raised; None where no row of this step samples."""
    if logits is None or inputs is None or inputs.sample is None:
        return None
    sample = inputs.sample
    with torch.inference_mode():
        wanted = tables.at(tables.tokens, sample, sample.window_start + 1, logits.shape[1])
        added = torch.full_like(wanted, chosen.bias, dtype=logits.dtype)[..., None]
        return logits.scatter_add(-1, wanted[..., None], added)


def propose(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    draft_kv: PagedCache = update(DRAFT_KV),
    model: CausalLM | TranslatedLM = given(FITTING_MODEL),
    rule: Acceptance = given(ACCEPTANCE),
    vocab_size: int = given(VOCAB_SIZE),
    limits: Limits = given(LIMITS),
    sizes: Sizes = given(SIZES),
    tables: Tables = given(TABLES),
    recorder: Pieces | None = pieces(),
) -> Proposal | None:
    """The drafts that the tables say, after the draft model has computed its own."""
    found = draft_model.propose(
        inputs, sampled, draft_kv, None, None, model, rule, vocab_size, limits, sizes, recorder
    )
    if found is None or inputs is None or inputs.sample is None or sampled is None:
        return None
    return _replaced(tables, inputs.sample, sampled, found)


def _replaced(tables: Tables, sample: SampleRows, sampled: Sampled, found: Proposal) -> Proposal:
    rows, places = found.tokens.shape
    first = sample.window_start + sampled.counts + 1
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
        points = [
            f"[{group}]\n{kind} = {KINDS_AT}:{name}\n" for group, (name, kind) in POINTS.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(points))
        sys.path.append(site)
        try:
            yield
        finally:
            sys.path.remove(site)
            known.cache_clear()


STEER = NodeKind(
    "steer_trace",
    "raise the logits of a stored text's tokens",
    device=(steer,),
    options=TraceOptions,
)

DRAFT = Drafter(
    "draft_trace",
    "run a draft model, then offer a stored text's tokens, or wrong ones",
    propose,
    options=DraftTraceOptions,
)

POINTS = {"stepweave.nodes": ("STEER", STEER.name), "stepweave.drafters": ("DRAFT", DRAFT.name)}
KINDS_AT = __name__
