"""What `eagle` and `eagle3` compute: passes of a head over the tokens of a step, shifted by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ...graph.pieces import Pieces
from ...models.attention import AttentionBatch
from ...models.eagle import EagleHead
from ...models.paged_cache import SCRATCH_SLOT, PagedCache
from ...policies.acceptance import Acceptance
from ..data import DraftMask, Inputs, Kept, Proposal, Sampled
from ..tree import GrownTree, ListedTree
from .draft_masks import permitted
from .draft_modules import ModulesInTurn
from .expand import expand
from .grow import Begun, Following, Nodes, grow
from .places import cache_slots_of
from .proposal import FirstPass, chain


def shifted(inputs: Inputs, sampled: Sampled | None) -> Tensor:
    """The token after each token of the step, `[T]`.

    −1 where it is not known, or of no use: after a masked token, a refused draft, and tokens of a
    row that is not drafted for.
    """
    known = inputs.following
    if sampled is not None:
        known = torch.cat([sampled.tokens.flatten(), known])
    return known.index_select(0, inputs.next_index)


def along_path(
    inputs: Inputs, sampled: Sampled | None, features: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the first pass reads where windows were trees: some of `features[T, F]`, `[T, F]`, its
    positions `[T]` and cache slots `[T]`.

    Of a window these are of the path that was kept, token by token; what is behind it stays as it
    was, and is masked, since no token is known after it. Raises nothing of its own.
    """
    tree, sample = inputs.tree, inputs.sample
    assert tree is not None, "the step has trees"
    if sample is None or sampled is None or sampled.paths is None:
        return features, tree.places, inputs.cache_slots
    count, paths = len(inputs.ids), sampled.paths
    behind = torch.arange(paths.shape[1], device=paths.device)
    kept = behind < sampled.counts[:, None]
    places = torch.where(kept, sample.window_start[:, None] + behind, -1)
    slots = cache_slots_of(inputs.blocks_of_samples, places, block_size)
    to = sample.logit_index.masked_fill(~kept, count).flatten()  # the last is nobody's

    def put(what: Tensor, values: Tensor) -> Tensor:
        return F.pad(what, (0, 1)).scatter(0, to, values.flatten())[:count]

    index = put(torch.arange(count, device=paths.device), sample.logit_index.gather(1, paths))
    return features.index_select(0, index), put(tree.places, places), put(inputs.cache_slots, slots)


def one_head(forward: Callable[..., tuple[Tensor, Tensor]]) -> Following:
    """How a head whose `forward` is given goes over the nodes of a tree."""

    def following(begun: Begun, nodes: Nodes) -> tuple[Tensor, Tensor]:
        states = nodes.states.flatten(0, 1)
        found = forward(nodes.ids.flatten(), states, begun.batch(nodes))
        logits, leaving = (each.view(*nodes.ids.shape, -1) for each in found)
        return logits, leaving

    return following


def propose(
    head: EagleHead,
    inputs: Inputs,
    sampled: Sampled | None,
    features: Tensor,
    cache: PagedCache,
    kept: Kept | None,
    allowed: DraftMask | None,
    rule: Acceptance,
    vocab_size: int,
    context_length: int,
    tree: ListedTree | GrownTree | None,
    pieces: Pieces | None,
) -> Proposal | None:
    """Drafts that continue the sampled tokens. `features[T, F]` as the head wants them.

    The first of them are of those `allowed`. Passes of a step with prompts may be recorded in
    `pieces`.
    """
    if inputs.only_decodes:
        pieces = None
    forward = partial(head.forward, pieces=pieces)
    sample = inputs.sample
    ids, positions, slots = shifted(inputs, sampled), inputs.positions, inputs.cache_slots
    if inputs.tree is not None:
        features, positions, slots = along_path(inputs, sampled, features, cache.block_size)
    unknown = ids < 0
    if head.context_length < context_length:
        unknown.logical_or_(positions >= head.context_length)
    last = ends = inputs.ids.new_empty(0)
    if sample is not None and sampled is not None:
        ends = sampled.counts - 1
        last = sample.logit_index.gather(1, ends[:, None])[:, 0]
    first = FirstPass(
        ids,
        positions.masked_fill(unknown, -1),
        slots.masked_fill(unknown, SCRATCH_SLOT),
        inputs.query_lens,
        last,
        row_blocks=inputs.row_blocks,
    )
    if kept is not None:
        first, token_index = first.without_padding(kept)
        features = features[token_index]
    hidden, in_turn = head.fuse(features), None
    if head.further:
        in_turn = ModulesInTurn(head, cache)
        logits, state = in_turn.settle(first, hidden, inputs.blocks)
    else:
        batch = first.batch(inputs.blocks, cache)
        logits, state = forward(first.ids, hidden, batch, first.last)
    if sample is None or sampled is None or sample.draft_width == 0:
        return None

    logits = permitted(logits, allowed, vocab_size)
    at, reach = sample.window_start + ends, min(context_length, head.context_length)
    ahead: dict[str, int] = {"input_is_ahead": 1, "context_length": context_length}
    if tree is not None:
        following = one_head(forward) if in_turn is None else in_turn.following_nodes
        begun = Begun(rule, vocab_size, inputs, logits, state, at, reach, cache, following, **ahead)
        return grow(begun, tree) if isinstance(tree, ListedTree) else expand(begun, tree)

    def follow(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        nonlocal state
        logits, state = forward(tokens, state, batch)
        return logits

    return chain(
        rule,
        vocab_size,
        inputs,
        logits,
        at,
        reach,
        cache,
        follow if in_turn is None else in_turn.following,
        **ahead,
    )
