"""One pass of the target model over a step's tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.pieces import Pieces
from ...models.attention import AttentionBatch
from ...models.causal_lm import CausalLM
from ...models.paged_cache import PagedCache
from ...models.placed import Placed
from ...models.recurrent import RowStates, StatePass
from ..data import Inputs
from .encoding import EncodedRows


@torch.inference_mode()
def target_pass(
    target: CausalLM,
    inputs: Inputs,
    cache: PagedCache,
    arrived: Tensor | None = None,
    states: RowStates | None = None,
    pieces: Pieces | None = None,
    encoded: EncodedRows | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Logits `[S, W, V]` of the sampling rows, `[P, V]` of prompt tokens, hidden states `[T, F]`.

    None where no row samples, or no prompt token is asked for. A stage goes on from
    `arrived[T, F]`; unless it is the last it has no logits, and its hidden states are what it hands
    on. A step with prompts may be recorded in `pieces`. `encoded` has what some tokens stand for.
    """
    batch = AttentionBatch(
        query_lens=inputs.query_lens,
        block_tables=inputs.blocks,
        positions=inputs.positions,
        slots=inputs.cache_slots,
        cache=cache,
        long=inputs.long,
        tree=inputs.tree_rows,
        blocks=inputs.row_blocks,
    )
    of_rows = None
    if states is not None:
        of_rows = StatePass(states, inputs.request_slots, inputs.query_lens, inputs.decodes)
    sample, prompt = inputs.sample, inputs.prompt
    asked = [] if sample is None else [sample.logit_index.flatten()]
    if prompt is not None:
        asked.append(prompt.token_index)
    logit_index = torch.cat(asked) if asked else inputs.ids.new_empty(0)
    if not target.makes_logits:
        departing, _ = target.forward(inputs.ids, batch, None, arrived)
        return None, None, departing
    if prompt is not None or inputs.only_decodes:
        pieces = None  # numbers of logits that seldom come again; or the step is one graph
    placed = None
    if inputs.encoded is not None:
        assert encoded is not None, "what is encoded is encoded by a node"
        tokens, rows = inputs.encoded.unbind()
        placed = Placed(tokens, encoded.rows.index_select(0, rows))
    logits, hidden = target.forward(
        inputs.ids,
        batch,
        logit_index,
        arrived,
        adapters=inputs.adapters,
        states=of_rows,
        pieces=pieces,
        axes=inputs.axes,
        placed=placed,
    )
    windows = of_prompt = None
    if sample is not None:
        index = sample.logit_index
        windows = logits[: index.numel()].view(*index.shape, -1)
    if prompt is not None:
        of_prompt = logits[len(logits) - len(prompt.token_index) :]
    return windows, of_prompt, hidden
