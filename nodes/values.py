"""What the nodes of the decode step share: every value, state and resource, typed.

This is the map of the step. "Find references" of a value lists the node that writes it and those
that read it. What a datum holds is in `data.py`, field by field. Nothing here needs tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..graph.node import State, Value
from ..graph.parameters import Resource, given
from ..requests.limits import MAX_LOGPROBS, Limits
from .sizes import Sizes

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from ..distributed.agreement import Agreement
    from ..distributed.membership import Membership
    from ..models.causal_lm import CausalLM
    from ..models.loading import Loading
    from ..models.paged_cache import PagedCache
    from ..models.recurrent import RowStates
    from ..policies.acceptance import Acceptance
    from ..requests.attachments import Encode
    from ..requests.batch import StepBatch
    from ..requests.swap import Swaps
    from ..requests.table import RequestTable
    from .data import (
        DraftMask,
        DraftTable,
        EndedRequests,
        FilledMask,
        HostDrafts,
        HostSampled,
        HostTokens,
        Inputs,
        Kept,
        Mask,
        Progress,
        RequestFailures,
        Sampled,
        SettledRows,
        StagedStep,
    )
    from .links import Links
    from .ops.draft_masks import DraftMaskBuffer
    from .ops.history import History
    from .ops.masks import MaskBuffer, MatcherTable
    from .ops.staging import Staging
    from .request_settings import RequestSetting

# --- resources: fixed for a run

SIZES: Resource[Sizes] = Resource("sizes")
"""The sizes that a pipeline file gives: rows, tokens, drafts of a step."""
LIMITS: Resource[Limits] = Resource("limits")
"""The sizes that scheduler, buffers and caches agree on, with the model's context."""
TARGET: Resource[CausalLM] = Resource("target")
"""The model that decodes."""
ACCEPTANCE: Resource[Acceptance] = Resource("acceptance")
"""The rule that accepts drafts."""
LOADING: Resource[Loading] = Resource("loading")
"""How weights are loaded, as the target's were."""
TABLE: Resource[RequestTable] = Resource("table")
"""The request table of the run."""
LINKS: Resource[Links] = Resource("links")
"""What connects the stages of a model."""
BUCKETS: Resource[tuple[int, ...]] = Resource("buckets")
"""Numbers of rows to which decode steps are rounded up; none: they are not."""


REQUEST_SETTINGS: Resource[tuple[RequestSetting, ...]] = Resource("request_settings")
"""The numbers that nodes of the pipeline take from requests."""


def _alone() -> Membership | None:
    return None


GROUP: Resource[Membership | None] = Resource("group", _alone)
"""The ranks that run this step together; None: this process runs it alone."""


def _whole() -> bool:
    return False


DIVIDED: Resource[bool] = Resource("divided", _whole)
"""Whether several ranks have a part of each layer, and meet while they compute."""


def _no_states() -> bool:
    return False


KEEPS_STATES: Resource[bool] = Resource("keeps_states", _no_states)
"""Whether layers of the target keep states of the rows."""


def agreement(name: str) -> Resource[Agreement | None]:
    """A place at which the ranks of a group take integers of rank 0; None without a group, and
    where one rank alone computes them, the last stage of a model.

    Each has a communicator of its own. Raises nothing.
    """

    def make(
        group: Membership | None = given(GROUP), target: CausalLM = given(TARGET)
    ) -> Agreement | None:
        return None if group is None or target.in_stages else group.agreement()

    return Resource(f"agreement_{name}", make)


def _device(target: CausalLM = given(TARGET)) -> torch.device:
    return target.device


def _vocab_size(target: CausalLM = given(TARGET)) -> int:
    return target.vocab_size


DEVICE: Resource[torch.device] = Resource("device", _device)
"""Where device ops find their data."""
VOCAB_SIZE: Resource[int] = Resource("vocab_size", _vocab_size)
"""Tokens of the target's output layer."""
SOURCES: Resource[Mapping[tuple[str, str], str]] = Resource("sources")
"""By node kind and parameter: the value that is read there and its node, as errors name them."""


def _tokenizer(target: CausalLM = given(TARGET)) -> PreTrainedTokenizerBase:
    from ..models.tokenizer import load_tokenizer

    return load_tokenizer(target.checkpoint)


TOKENIZER: Resource[PreTrainedTokenizerBase] = Resource("tokenizer", _tokenizer)
"""The target's tokenizer."""

REQUEST_SLOTS = "request_slots"
"""The pool of request slots, as `keys` of a state that has a part for each."""
BLOCKS = "blocks"
"""The pool of blocks of the KV caches, as `keys` of a state that has a part for each.

Such a state may say `lookback`, how many tokens back its readers look (without it: to the start),
and `tail`, how many tokens after a block its contents depend on. See `PagedCache`.
"""

DRAFT_KV = "draft_kv"
"""The state that a drafter with a cache of its own keeps it in, in the target's blocks."""
HOST_BLOCKS = "host_blocks"
"""The pool of blocks in host memory, as `keys` of a state that has a part for each.

Such a state says `num_blocks`, how many it has.
"""

PAGES = "pages"
"""The pool of pages of encoded rows, as `keys` of a state that has a part for each.

Such a state says `room`, how much is in it.
"""

ENCODED = "encoded_rows"
"""The state in which an encoder leaves what the target takes in place of tokens."""

VOCAB_GUESS = 131_072
"""Vocabulary for sizes in bytes that are needed before a model is loaded."""


# --- states: changed in place from step to step


def _new_kv(target: CausalLM = given(TARGET), limits: Limits = given(LIMITS)) -> PagedCache:
    return target.new_cache(limits.cache_blocks, limits.block_size, limits.cache_dtype)


def _new_history(
    sizes: Sizes = given(SIZES),
    limits: Limits = given(LIMITS),
    device: torch.device = given(DEVICE),
) -> History:
    from .ops.history import new_history

    return new_history(sizes.request_slots, limits.context_length, device)


def _new_draft_probs(sizes: Sizes = given(SIZES), target: CausalLM = given(TARGET)) -> Tensor:
    from .ops.history import new_draft_probs

    return new_draft_probs(sizes.request_slots, sizes.draft_tokens, target)


def _requests(table: RequestTable = given(TABLE)) -> RequestTable:
    return table


def _group(group: Membership | None = given(GROUP)) -> Membership | None:
    return group


def divided(divided: bool = given(DIVIDED)) -> bool:
    """Whether ranks meet inside a node. Raises nothing."""
    return divided


def keeps_states(keeps: bool = given(KEEPS_STATES)) -> bool:
    """Whether the target has layers with states. Raises nothing."""
    return keeps


def _new_row_states(target: CausalLM = given(TARGET), limits: Limits = given(LIMITS)) -> RowStates:
    found = target.new_states(limits.max_rows + 1, limits.window)
    assert found is not None, "made only where the target keeps states"
    return found


def _new_matchers(table: RequestTable = given(TABLE)) -> MatcherTable:
    from .ops.masks import MatcherTable

    return MatcherTable(table.grammars)


REQUESTS: State[RequestTable] = State("requests", make=_requests, per_run=True)
"""Who waits, who runs, on which row and blocks."""
KV: State[PagedCache] = State("kv", make=_new_kv, keys=BLOCKS, across="own")
"""Keys and values of the target."""
HISTORY: State[History] = State("history", make=_new_history, keys=REQUEST_SLOTS)
"""The tokens of every live row, on the device."""
DRAFT_PROBS: State[Tensor] = State("draft_probs", make=_new_draft_probs, keys=REQUEST_SLOTS)
"""`[R, k, V]` by request slot: the log-probabilities that its pending drafts were drawn from."""
MEETINGS: State[Membership | None] = State("rank_meetings", make=_group)
"""The ranks of a divided model, as far as a device has met them: whoever meets them changes it.

No library promises that two meetings on a device make progress at the same time, each with a
communicator of its own or not. So a plan has them one after another, whatever streams they are on.
"""
ROW_STATES: State[RowStates] = State(
    "row_states", make=_new_row_states, keys=REQUEST_SLOTS, across="own"
)
"""What layers of the target keep of each row in place of keys: one version for each position of a
draft window, since what a refused draft did to a state cannot be undone."""
MATCHERS: State[MatcherTable] = State("matchers", make=_new_matchers, per_run=True)
"""One grammar matcher for each structured request."""


# --- values: written anew in each step; with `| None` in its type, a step may have none


def _staging_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 96 * sizes.token_budget + 2048 * sizes.max_rows


def _new_staging(
    limits: Limits = given(LIMITS),
    device: torch.device = given(DEVICE),
    settings: tuple[RequestSetting, ...] = given(REQUEST_SETTINGS),
) -> Staging:
    from .ops.staging import Staging

    return Staging(limits, device, settings)


def _inputs_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 48 * sizes.token_budget


def _logits_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 4 * VOCAB_GUESS * sizes.max_rows * sizes.window


def _prompt_logits_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 4 * VOCAB_GUESS * sizes.token_budget


def _hidden_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 2 * 12_288 * sizes.token_budget


def _mask_bytes(sizes: Sizes = given(SIZES)) -> int:
    return VOCAB_GUESS // 8 * sizes.max_rows * sizes.window


def _new_mask_buffer(
    sizes: Sizes = given(SIZES),
    vocab_size: int = given(VOCAB_SIZE),
    device: torch.device = given(DEVICE),
) -> MaskBuffer:
    from .ops.masks import MaskBuffer

    return MaskBuffer(sizes.max_rows, sizes.window, vocab_size, device)


def _forced_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 4 * sizes.max_rows * sizes.window * sizes.window


def _new_forced(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> Tensor:
    import torch

    from .ops.transfer import pinned

    shape = (sizes.max_rows, sizes.window, sizes.window)
    return pinned(*shape, dtype=torch.int32, fill=-1, device=device)


WAYS = 4
"""Ways in which a row's text may go on that are prepared, each of another next token."""


def way_length(sizes: Sizes) -> int:
    """Tokens of a way: those that a step may sample, and the drafts behind them. Raises nothing."""
    return sizes.window + sizes.draft_tokens


def _ways_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 4 * sizes.max_rows * WAYS * way_length(sizes)


def _new_ways(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> Tensor:
    import torch

    from .ops.transfer import pinned

    shape = (sizes.max_rows, WAYS, way_length(sizes))
    return pinned(*shape, dtype=torch.int32, fill=-1, device=device)


def _sampled_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 8 * sizes.max_rows * (sizes.draft_tokens + 3)


def _progress_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 16 * sizes.max_rows


def _first_progress(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> Progress:
    from .data import Progress

    return Progress.empty(sizes.request_slots, device)


def _of_branches(sizes: Sizes) -> int:
    return 3 * sizes.window if sizes.tree_depth else 0


def _drafts_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 8 * sizes.request_slots * (sizes.draft_tokens + 2 + _of_branches(sizes))


def _no_drafts(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> DraftTable:
    from .data import DraftTable

    tree = sizes.tree_depth > 0
    return DraftTable.empty(sizes.request_slots, sizes.draft_tokens, device, tree=tree)


def _host_sampled_bytes(sizes: Sizes = given(SIZES)) -> int:
    logprobs = 12 * (MAX_LOGPROBS + 1) * (sizes.max_rows * sizes.window + sizes.token_budget)
    return 8 * sizes.max_rows * (sizes.draft_tokens + 3) + logprobs


def _new_host_sampled(
    sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)
) -> HostSampled:
    from .ops.host_copies import new_sampled

    return new_sampled(sizes, device)


def _host_drafts_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 8 * sizes.max_rows * (sizes.draft_tokens + 2 + _of_branches(sizes))


def _new_host_drafts(
    sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)
) -> HostDrafts:
    from .ops.host_copies import new_drafts

    return new_drafts(sizes, device)


def _counts_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 8 * sizes.max_rows


def _new_counts(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> Tensor:
    from .ops.transfer import pinned

    return pinned(sizes.max_rows, device=device)


def _tokens_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 8 * sizes.max_rows * (sizes.window + 1)


def _new_tokens(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> HostTokens:
    from .ops.host_copies import new_tokens

    return new_tokens(sizes, device)


def _draft_mask_bytes(sizes: Sizes = given(SIZES)) -> int:
    return VOCAB_GUESS // 8 * sizes.max_rows


def _new_draft_mask(
    sizes: Sizes = given(SIZES),
    vocab_size: int = given(VOCAB_SIZE),
    device: torch.device = given(DEVICE),
) -> DraftMaskBuffer:
    from .ops.draft_masks import DraftMaskBuffer

    return DraftMaskBuffer(sizes.max_rows, vocab_size, device)


def _most_kept(sizes: Sizes) -> int:
    return max(sizes.token_budget, 2 * sizes.max_rows)


def _kept_bytes(sizes: Sizes = given(SIZES)) -> int:
    return 8 * _most_kept(sizes)


def _new_kept(sizes: Sizes = given(SIZES), device: torch.device = given(DEVICE)) -> Tensor:
    from .ops.transfer import pinned

    return pinned(_most_kept(sizes), device=device)


def _nothing() -> tuple[()]:
    return ()


BATCH: Value[StepBatch] = Value("batch", across="same")
"""The rows of the step, as scheduled."""
STAGING: Value[StagedStep | None, Staging] = Value(
    "staging", "pinned", "slots", size=_staging_bytes, allocate=_new_staging
)
"""The batch in a pinned buffer."""
INPUTS: Value[Inputs | None] = Value("inputs", "device", "slots", size=_inputs_bytes)
"""What the models compute on."""
# On several ranks, each computes the next three with its part of the model: bits may differ.
LOGITS: Value[Tensor | None] = Value("logits", "device", "slots", size=_logits_bytes, across="own")
"""`[S, W, V]` of the sampling rows, position by position of their windows; of the model's dtype."""
PROMPT_LOGITS: Value[Tensor | None] = Value(
    "prompt_logits", "device", "slots", size=_prompt_logits_bytes, across="own"
)
"""`[P, V]` of the prompt tokens whose log-probabilities are asked for; of the model's dtype."""
HIDDEN: Value[Tensor | None] = Value("hidden", "device", "slots", size=_hidden_bytes, across="own")
"""`[T, F]`: the target's hidden states, after its last norm, where F is its `hidden_size`.

A drafter can have those of other layers: see `CausalLM.record_features`. On a stage of a model that
is not the last they are what it hands on.
"""
ARRIVED: Value[Tensor | None] = Value("arrived", "device", "slots", size=_hidden_bytes)
"""`[T, F]`: what the stage before handed on: what enters the first layer, and watched features."""
MASK_HOST: Value[FilledMask | None, MaskBuffer] = Value(
    "mask_host", "pinned", "slots", size=_mask_bytes, allocate=_new_mask_buffer
)
"""Grammar masks, on the host: of the sampling rows that have a grammar."""
MASK: Value[Mask | None] = Value("mask", "device", "slots", size=_mask_bytes)
"""The same on the device."""
FORCED: Value[Tensor | None, Tensor] = Value(
    "forced_tokens", "pinned", "slots", size=_forced_bytes, allocate=_new_forced
)
"""`[S, W, L]` int32: the tokens that a grammar forces after each window position, −1 behind."""
WAYS_ON: Value[Tensor | None, Tensor] = Value(
    "ways_on", "pinned", "slots", size=_ways_bytes, allocate=_new_ways
)
"""`[S, C, M]` int32: how the text of each sampling row may go on after the step before."""
SAMPLED: Value[Sampled | None] = Value("sampled", "device", "slots", size=_sampled_bytes)
"""The tokens of the step, and how many of each row were accepted."""
PROGRESS: Value[Progress] = Value(
    "progress", "device", "slots", size=_progress_bytes, first=_first_progress
)
"""How far each live request is: its last token, its number of computed tokens."""
DRAFTS: Value[DraftTable] = Value("drafts", "device", "slots", size=_drafts_bytes, first=_no_drafts)
"""The pending drafts of every live row."""
HOST_SAMPLED: Value[HostSampled | None, HostSampled] = Value(
    "host_sampled", "pinned", "slots", size=_host_sampled_bytes, allocate=_new_host_sampled
)
"""`SAMPLED` on the host."""
HOST_DRAFTS: Value[HostDrafts | None, HostDrafts] = Value(
    "host_drafts",
    "pinned",
    "slots",
    size=_host_drafts_bytes,
    first=_new_host_drafts,
    allocate=_new_host_drafts,
)
"""`DRAFTS` on the host."""
HOST_COUNTS: Value[Tensor | None, Tensor] = Value(
    "host_counts", "pinned", "slots", size=_counts_bytes, allocate=_new_counts
)
"""`[S]`: how many tokens each sampling row got, on the host."""
HOST_TOKENS: Value[HostTokens | None, HostTokens] = Value(
    "host_tokens", "pinned", "slots", size=_tokens_bytes, allocate=_new_tokens
)
"""What each sampling row got, on the host before its drafter is launched."""
DRAFT_MASK_HOST: Value[DraftMask | None, DraftMaskBuffer] = Value(
    "draft_mask_host", "pinned", "slots", size=_draft_mask_bytes, allocate=_new_draft_mask
)
"""What a grammar allows after the newest token of each sampling row that has one."""
DRAFT_MASK: Value[DraftMask | None] = Value("draft_mask", "device", "slots", size=_draft_mask_bytes)
"""The same on the device; None where no row has a grammar."""
SWAPS: Value[Swaps | None] = Value("swaps", "pinned", "fresh")
"""Which KV blocks the step copies to the host, and back."""
ENCODES: Value[tuple[Encode, ...] | None] = Value("encodes", "pinned", "fresh")
"""Which images the step encodes, and into which pages."""
FORK_COPIES: Value[tuple[tuple[int, int], ...] | None] = Value("fork_copies", "pinned", "fresh")
"""Which KV blocks the step copies, from and to, before its rows run."""
KEPT: Value[Kept | None, Tensor] = Value(
    "kept", "pinned", "slots", size=_kept_bytes, allocate=_new_kept
)
"""Which tokens of a drafter's first pass are real, where its batches are not padded."""
SETTLED: Value[SettledRows] = Value("settled", across="same", first=_nothing)
"""What each request got from the step."""
FAILURES: Value[RequestFailures] = Value("request_failures", "pinned", "fresh", first=_nothing)
"""Whom what ran beside the forward pass of the step could not work for.

They end with the next step, the first that may use what was made for them: nothing of it counts.
"""
ENDED: Value[EndedRequests] = Value("ended_requests", across="same", first=_nothing)
"""The outputs of requests that ended in the step."""
