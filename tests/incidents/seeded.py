"""H: faults seeded in what requests ask, in rules and in memory, which checking mode must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stepweave.nodes.data import DraftTable, Proposal, SampleRows
from stepweave.nodes.ops import edits, likelihoods, proposal
from stepweave.policies.acceptance import Block, Typical
from stepweave.policies.chosen import Policies
from stepweave.requests.swap import SwapSpace
from stepweave.sampling import block_verification, verification
from stepweave.sampling.repeats import Matches
from stepweave.sampling.windows import Verified, Windows
from tests.incidents.engines import drawing, seeded, serve, strictly_served
from tests.incidents.incident import Incident, Refusal

SHORT = {"max_tokens": 5}
XTC = {**SHORT, "xtc_probability": 0.9, "xtc_threshold": 0.004}
NGRAM = {**SHORT, "repetition_penalty": 0.25, "no_repeat_ngram_size": 2}
DRY = {**SHORT, "dry_multiplier": 3.0, "dry_base": 2.0, "dry_allowed_length": 1}
TREES: Mapping[str, Any] = {
    "method": "eagle3",
    "draft_tokens": 3,
    "tree": ((0,), (1,), (0, 0)),
}
DRAFTS: Mapping[str, Any] = {"draft_tokens": 2, "method": "eagle"}
SWAP: Mapping[str, Any] = {**DRAFTS, "num_blocks": 10, "max_rows": 3, "swap": 16}


def as_in_the_plain_loop(asked: Mapping[str, Any], **config: Any) -> Callable[[], None]:
    """Checking mode finds nothing, and tokens are those without drafts."""

    def attempt() -> None:
        assert strictly_served(drawing(**asked), **config) == serve(drawing(**asked))

    return attempt


def at_each_depth(policies: Policies) -> None:
    """Checking mode finds nothing, and tokens are those of a pipelined run."""
    found = strictly_served(drawing(**SHORT), policies=policies, **DRAFTS)
    assert found == serve(drawing(**SHORT), policies=policies, depth=2, **DRAFTS)


# --- what the hand-written engine would have in place of a function of ours, given first


def only_if_somebody_excludes(real: Callable[..., Tensor], *given: Tensor) -> Tensor:
    _, _, probability, threshold = given
    return real(*given) if bool((probability > 0).any()) else torch.full_like(threshold, torch.inf)


def only_rows_that_ask(
    real: Callable[..., Tensor], logits: Tensor, matches: Matches, size: Tensor
) -> Tensor:
    return real(logits, matches, size) if len(size[size > 0]) else logits


def taken_off_in_place(real: Callable[..., Tensor], logits: Tensor, *given: Any) -> Tensor:
    return logits.copy_(real(logits, *given))


def cut_to_the_longest(real: Callable[..., Verified], windows: Windows) -> Verified:
    found = real(windows)
    return Verified(found.tokens[:, : int(found.counts.max())], found.counts)


def entropy_of_rows_that_draw(
    real: Callable[..., Verified], windows: Windows, *given: float
) -> Verified:
    chances = windows.target[~windows.greedy].exp()
    return real(windows, *given) if len(chances) else real(windows, 0.0, 0.0)


def grown_in_the_table(
    real: Callable[..., DraftTable],
    before: DraftTable,
    sample: SampleRows,
    offered: Proposal | None,
) -> DraftTable:
    if before.branches is not None and offered is not None and offered.branches is not None:
        before.branches.index_copy_(0, sample.request_slot, offered.branches)
    return real(before, sample, offered)


def free_at_once(
    real: Callable[..., None],
    space: SwapSpace,
    blocks: int,
    pool: Any,
    leases: Mapping[tuple[str, str], int],
    *more: Any,
) -> None:
    """As by a table that knows of one distance only."""
    real(space, blocks, pool, {**leases, ("owner", "swap"): 0}, *more)
    pool._next["owner"] = [("owner", 1)]


INCIDENTS = [
    Incident(
        "H1",
        "as F1, in XTC",
        "whether anybody excludes top choices was asked of the device, to save the work",
        "the host knows what requests ask for when it stages a step",
        safe=as_in_the_plain_loop(XTC, **DRAFTS),
        refusals=(
            Refusal(
                "asking whether some row excludes (checking mode)",
                lambda: seeded(likelihoods, "thresholds", only_if_somebody_excludes, XTC),
                "SW-HIDDEN-SYNC",
                ("op 'sample.device', in step 0", "makes the host wait for the device"),
            ),
        ),
        about=("sample",),
    ),
    Incident(
        "H2",
        "as F1, in no-repeat-n-gram",
        "rows that forbid repetitions were picked by a boolean mask",
        "all rows of a step are treated alike; for a row that does not ask, nothing is taken",
        safe=as_in_the_plain_loop(NGRAM, **DRAFTS),
        refusals=(
            Refusal(
                "picking the rows that ask (checking mode)",
                lambda: seeded(edits, "ban_ngrams", only_rows_that_ask, NGRAM),
                "SW-HIDDEN-SYNC",
                ("with a boolean mask makes the host wait for the device",),
            ),
        ),
        about=("sample",),
    ),
    Incident(
        "H3",
        "as A2, in DRY",
        "what DRY takes off was taken off in place, in logits that others still read",
        "`sample` reads the logits, so what it makes of them lies elsewhere",
        safe=as_in_the_plain_loop(DRY, **DRAFTS),
        refusals=(
            Refusal(
                "changing the logits in place (checking mode)",
                lambda: seeded(edits, "apply_dry", taken_off_in_place, DRY),
                "SW-INPUT-CHANGED",
                ("op 'sample.device', in step 0, changes logits in place",),
            ),
        ),
        about=("sample",),
    ),
    Incident(
        "H4",
        "as F1, in block verification",
        "windows were cut to the longest that was kept, whose length the host had to know",
        "shapes are those of the window, and what is kept of it is data",
        safe=lambda: at_each_depth(Policies(acceptance=Block())),
        refusals=(
            Refusal(
                "asking how many drafts were kept (checking mode)",
                lambda: seeded(
                    block_verification,
                    "block",
                    cut_to_the_longest,
                    policies=Policies(acceptance=Block()),
                    **DRAFTS,
                ),
                "SW-HIDDEN-SYNC",
                ("op 'sample.device', in step 0", "aten::item makes the host wait"),
            ),
        ),
        about=("sample",),
    ),
    Incident(
        "H5",
        "as F1, in typical acceptance",
        "the entropy was computed of those rows alone that draw at random",
        "it is computed of all rows, and a greedy one takes no notice",
        safe=lambda: at_each_depth(Policies(acceptance=Typical())),
        refusals=(
            Refusal(
                "picking the rows that draw (checking mode)",
                lambda: seeded(
                    verification,
                    "typical",
                    entropy_of_rows_that_draw,
                    policies=Policies(acceptance=Typical()),
                    **DRAFTS,
                ),
                "SW-HIDDEN-SYNC",
                ("with a boolean mask makes the host wait for the device",),
            ),
        ),
        about=("sample",),
    ),
    Incident(
        "H6",
        "as A2, in draft trees",
        "the drafter grew the next tree in the table of the last ones, which were being copied to "
        "the host",
        "the table is a value: each step has its own",
        safe=as_in_the_plain_loop(SHORT, **TREES),
        refusals=(
            Refusal(
                "growing it in place (checking mode)",
                lambda: seeded(proposal, "publish", grown_in_the_table, **TREES),
                "SW-INPUT-CHANGED",
                ("op 'draft.device', in step 0, changes drafts.branches in place",),
            ),
        ),
        about=("eagle3",),
    ),
    Incident(
        "H7",
        "as D3, in resumption",
        "blocks of a request that gave way were handed out while they were copied to host memory, "
        "and it resumed with what others had written",
        "keys pass from owner to copy and on after as many steps as the plan says",
        safe=as_in_the_plain_loop({}, **SWAP),
        refusals=(
            Refusal(
                "one distance for every change of hands (checking mode)",
                lambda: seeded(
                    SwapSpace, "__init__", free_at_once, depth=2, executor="threads", **SWAP
                ),
                "SW-KEY",
                ("of 'blocks' for", "too early", "Grant keys by the leases of the plan"),
            ),
        ),
        about=("swap",),
    ),
]
