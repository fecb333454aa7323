"""bitmask: fill the grammar masks of a step while its forward runs, and cut invalid drafts.

The matcher stands after the tokens of step i−1 (commit's `advance` phase), the drafts are those
that step i−1 copied back. Masks fail closed: a row whose matcher failed, or whose drafts are not
provably its own, allows nothing but a stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ..graph.declare import op
from ..graph.parameters import buffer, given, optional, read, update
from .kind import NodeKind
from .options import Options
from .values import BATCH, DEVICE, HOST_DRAFTS, MASK, MASK_HOST, MATCHERS

if TYPE_CHECKING:
    import torch

    from ..requests.batch import StepBatch
    from .data import FilledMask, HostDrafts, Mask
    from .ops.masks import MaskBuffer, MatcherTable


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
    fill_threads: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Threads that fill the masks of a step. More than one pays where cores are "
        "idle meanwhile and masks take hundreds of microseconds each.",
    )
    cache_bytes: int = Field(
        default=64 << 20, ge=0, le=1 << 40, description="Bytes of compiled grammars kept for reuse."
    )


@op(writes=MASK_HOST)
def fill(
    batch: StepBatch = read(BATCH),
    matchers: MatcherTable = update(MATCHERS),
    host_drafts: HostDrafts | None = optional(HOST_DRAFTS, 1),
    mask_host: MaskBuffer = buffer(MASK_HOST),
) -> FilledMask | None:
    """Masks of every sampling row; None where nothing in this step is masked."""
    return mask_host.fill(batch, matchers, host_drafts) if batch.structured else None


@op(writes=MASK)
def upload(
    mask_host: FilledMask | None = read(MASK_HOST), device: torch.device = given(DEVICE)
) -> Mask | None:
    """The masks on the device."""
    from .ops.masks import uploaded

    return None if mask_host is None else uploaded(mask_host, device)


KIND = NodeKind(
    "bitmask",
    "fill grammar masks per draft position; cut drafts that break them",
    host=(fill,),
    device=(upload,),
    options=GrammarOptions,
)
